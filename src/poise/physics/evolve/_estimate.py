"""What a march knows of its errors: the end of the spectrum, rounding, and how much of the solution is marched."""

from __future__ import annotations

import math

import numpy as np

from .._calculus import evaluate
from .._expr import Const
from .._problem import Problem
from ._fourier import Fourier
from ._modal import Modal


def relative(states: np.ndarray, size: float) -> float:
    return float(np.sqrt(np.sum(np.abs(states) ** 2)) / max(size, 1e-300))


def octaves(line: np.ndarray) -> float:
    """The norm of what follows the energies `line`, from its last two quarters: Fourier spectra are irregular."""
    n = len(line)
    before, last = (math.sqrt(float(np.sum(line[i * n // 4 : (i + 1) * n // 4]))) for i in (2, 3))
    ratio = min(max(last / max(before, 1e-300), 1e-3), 0.9)
    return last * ratio / (1.0 - ratio) if last > 1e-14 * math.sqrt(float(np.sum(line))) else 0.0


def envelope(line: np.ndarray) -> float:
    """The same for Legendre spectra, which are smooth but for parity: the decay per mode at the end, continued."""
    n = len(line)
    pairs = np.sqrt(line[1:] + line[:-1])
    step = max(2 * round(n / 32), 2)
    last, before, earlier = (max(float(pairs[-1 - k * step]), 1e-300) for k in range(3))
    if last <= 1e-14 * math.sqrt(float(np.sum(line))):
        return 0.0
    decay, past = (last / before) ** (1.0 / step), (before / earlier) ** (1.0 / step)
    decay = min(decay * min(decay / past, 1.0), 1.0 - 1.0 / n)  # entire functions decay ever faster
    return last * decay / math.sqrt(1.0 - decay**2)


def tails(spectra: np.ndarray, kind: str) -> tuple[float, ...]:
    """Per space axis the estimated norm of what lies beyond the last mode, relative to the whole.

    `spectra` (instants, fields, n1, n2, …): for Fourier in the order of fftfreq (the last axis a half spectrum).
    """
    energy = np.sum(np.abs(spectra) ** 2, axis=(0, 1))
    whole = math.sqrt(float(np.sum(energy))) or 1.0
    found = []
    for axis in range(energy.ndim):
        line = np.sum(energy, axis=tuple(j for j in range(energy.ndim) if j != axis))
        if kind == "fourier" and axis < energy.ndim - 1:
            n = len(line)
            half = line[: n // 2 + 1].copy()
            half[1 : (n + 1) // 2] += line[: n // 2 : -1]
            line = half
        found.append((octaves if kind == "fourier" else envelope)(line) / whole)
    return tuple(found)


def space_error(scheme: Fourier | Modal, states: np.ndarray) -> tuple[float, tuple[float, ...]]:
    if isinstance(scheme, Fourier):
        each = tails(states, "fourier")
    else:
        spectra = [scheme.legendre(i, scheme.values(i, states)) for i in range(len(scheme.parts))]
        each = tails(np.stack(spectra, axis=1), "legendre")
    return math.sqrt(sum(t * t for t in each)), each


def share(problem: Problem, scheme: Fourier | Modal, states: np.ndarray) -> float:
    """The size of what is marched relative to the solution, which has its lift besides; one without lifts."""
    normal = scheme.normal
    if isinstance(scheme, Fourier) or all(isinstance(lift, Const) and lift.value == 0.0 for lift in normal.lift):
        return 1.0
    assert problem.time is not None
    d, marched, whole = len(scheme.sizes), 0.0, 0.0
    if not np.all(np.isfinite(states)):
        return 1.0
    for k in np.linspace(0, len(states) - 1, 5).astype(int):
        t = problem.time[0] + (problem.time[1] - problem.time[0]) * k / (len(states) - 1)
        for i, lift in enumerate(normal.lift):
            w = scheme.to_nodes(i, (0,) * d)(scheme.values(i, states[k : k + 1])[0], np)
            marched += float(np.sum(w**2))
            whole += float(np.sum((w + np.asarray(evaluate(lift, {**scheme.grid, "t": np.asarray(t)}))) ** 2))
    return math.sqrt(marched / max(whole, 1e-300))


def rounding(problem: Problem, scheme: Fourier | Modal) -> float:
    """What rounding leaves: eigenvalues of a matrix are good to eps times the largest one, and act for a time."""
    assert problem.time is not None
    if isinstance(scheme, Fourier):
        return 2e-14
    length, worst = problem.time[1] - problem.time[0], 0.0
    for values, _ in scheme.spectra:
        top, low = float(np.max(np.abs(values))), max(float(np.min(np.abs(values))), 1e-3)
        reach = length / (2.0 * math.sqrt(low)) if scheme.normal.order == 2 else min(length, 1.0 / low)
        worst = max(worst, 0.04 * 2.2e-16 * top * reach)
    return worst + 1e-14


def exact_in_time(scheme: Fourier | Modal) -> bool:
    rest = scheme.split[1] if isinstance(scheme, Fourier) else [part.rest for part in scheme.parts]
    return all(isinstance(node, Const) and node.value == 0.0 for node in rest)
