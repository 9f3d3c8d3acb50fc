"""Evolutions whose solution is periodic, or becomes so by reflection, in Fourier modes.

A box with zero Dirichlet values whose equation is odd under reflection (and with zero normal derivatives, even) extends
to a periodic problem of twice the length; oddness is checked on the equation and the initial state, not assumed.
Derivatives are exact on the modes, products are formed on the grid (Kreiss & Oliger 1972).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._calculus import Key, atoms, evaluate, expand, linearise
from .._expr import Add, Const, Deriv, Expr, add, mul
from ._etdrk4 import march
from ._normal import DIRICHLET, NEUMANN, PERIODIC, Normal, tidy


@dataclass(frozen=True, eq=False)
class Fourier:
    """A normal form on a periodic grid: lower corner, periods, and the number of nodes per axis."""

    normal: Normal
    low: tuple[float, ...]
    period: tuple[float, ...]
    nodes: tuple[int, ...]
    snapshots: int

    @functools.cached_property
    def grid(self) -> dict[str, np.ndarray]:
        axes = self.normal.problem.domain.axes
        lines = [lo + p * np.arange(n) / n for lo, p, n in zip(self.low, self.period, self.nodes, strict=True)]
        return dict(zip(axes, np.meshgrid(*lines, indexing="ij"), strict=True))

    @functools.cached_property
    def waves(self) -> tuple[np.ndarray, ...]:
        """Wave numbers per axis, shaped to broadcast over the half spectrum."""
        made = []
        d = len(self.nodes)
        for i, (n, period) in enumerate(zip(self.nodes, self.period, strict=True)):
            k = np.fft.rfftfreq(n, 1.0 / n) if i == d - 1 else np.fft.fftfreq(n, 1.0 / n)
            made.append((2.0 * np.pi / period * k).reshape([-1 if j == i else 1 for j in range(d)]))
        return tuple(made)

    def symbol(self, order: tuple[int, ...]) -> np.ndarray:
        """The multiplier of a derivative, orders by space axis; odd ones vanish at the Nyquist mode."""
        value = np.ones([1] * len(self.nodes), complex)
        for i, (k, times) in enumerate(zip(self.waves, order, strict=True)):
            factor = (1j * k) ** times
            if times % 2 and self.nodes[i] % 2 == 0:
                factor = np.where(np.abs(k) < np.abs(k).max() - 1e-9, factor, 0.0)
            value = value * factor
        return value

    @functools.cached_property
    def split(self) -> tuple[np.ndarray, tuple[Expr, ...]]:
        """The diagonal of the constant-coefficient part (fields, spectrum), and what is left of the right sides."""
        names = [field.name for field in self.normal.fields]
        shape = np.broadcast_shapes(*(k.shape for k in self.waves))
        diagonal = np.zeros((len(names), *shape), complex)
        rest = []
        for i, node in enumerate(self.normal.rhs):
            left = node
            for key, coefficient in linearise(node).items():
                if key[0] != names[i] or not isinstance(coefficient, Const):
                    continue
                atom = next(a for a in atoms(node) if a.key == key)
                for part in terms(expand(atom)):
                    diagonal[i] += coefficient.value * self.symbol(part.order[:-1])  # type: ignore[arg-type]
                left = add(left, mul(Const(-coefficient.value), atom))
            rest.append(tidy(left))
        return diagonal, tuple(rest)

    @functools.cached_property
    def run(self) -> Any:
        """The compiled march; its nonlinear part works on the half spectra of all fields."""
        _, rest = self.split
        if all(isinstance(node, Const) and node.value == 0.0 for node in rest):
            return march(None, self.snapshots)
        names = [field.name for field in self.normal.fields]
        keys = sorted({atom.key for node in rest for atom in atoms(node)}, key=str)
        symbols = {key: self._symbols(key) for key in keys}
        axes = tuple(range(-len(self.nodes), 0))

        def nonlinear(state: Any, t: Any, grid: Any) -> Any:
            env: dict[Any, Any] = {**grid, "t": t}
            for key in keys:
                field = names.index(key[0])
                env[key] = jnp.fft.irfftn(state[field] * symbols[key], self.nodes, axes)
            values = [jnp.broadcast_to(evaluate(node, env, jnp), self.nodes) for node in rest]
            return jnp.fft.rfftn(jnp.stack(values), axes=axes)

        return march(nonlinear, self.snapshots)

    def _symbols(self, key: Key) -> np.ndarray:
        if key[1] == "lap":
            d = len(self.nodes)
            return sum((self.symbol(tuple(2 * (i == j) for j in range(d))) for i in range(d)), np.zeros([1] * d))
        return self.symbol(key[1][:-1])  # type: ignore[arg-type]

    def start(self) -> np.ndarray:
        values = [np.broadcast_to(evaluate(begun[0], self.grid), self.nodes) for begun in self.normal.start]
        return np.fft.rfftn(np.stack(values), axes=tuple(range(-len(self.nodes), 0)))


def terms(node: Expr) -> list[Deriv]:
    return terms(node.a) + terms(node.b) if isinstance(node, Add) else [node] if isinstance(node, Deriv) else []


def periodic_frame(normal: Normal) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Lower corner and periods of the periodic problem that contains this one, or None."""
    shape = normal.problem.domain
    if normal.order != 1 or any(not isinstance(lift, Const) for lift in normal.lift):
        return None
    periods = []
    for i, axis in enumerate(shape.axes):
        length = shape.high[i] - shape.low[i]
        kinds = {kinds[i] for kinds in normal.kinds}
        if kinds == {PERIODIC}:
            periods.append(length)
            continue
        signs = [{DIRICHLET: -1.0, NEUMANN: 1.0}.get(k[i], 0.0) for k in normal.kinds]
        if 0.0 in signs or not _reflects(normal, i, axis, signs):
            return None
        periods.append(length if _repeats(normal, i, axis) else 2.0 * length)
    return shape.low, tuple(periods)


def _trial(normal: Normal, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[Any, np.ndarray]]:
    shape = normal.problem.domain
    env = {a: rng.uniform(lo, hi, 16) for a, lo, hi in zip(shape.axes, shape.low, shape.high, strict=True)}
    time = normal.problem.time
    assert time is not None
    env["t"] = rng.uniform(*time, 16)
    keys = {atom.key for node in normal.rhs for atom in atoms(node)}
    return env, {key: rng.normal(size=16) for key in keys}


def _reflects(normal: Normal, i: int, axis: str, signs: list[float]) -> bool:
    """Whether reflection about both ends maps right sides and initial states to plus or minus themselves."""
    shape = normal.problem.domain
    env, values = _trial(normal, np.random.default_rng(3))
    names = [field.name for field in normal.fields]
    for end in (shape.low[i], shape.high[i]):
        mirror = {**env, axis: 2.0 * end - env[axis]}
        flipped = {}
        for key, value in values.items():
            odd = 0 if isinstance(key[1], str) else key[1][i]
            flipped[key] = value * signs[names.index(key[0])] * (-1.0) ** odd
        for sign, node, begun in zip(signs, normal.rhs, normal.start, strict=True):
            pairs = [(evaluate(node, {**env, **values}), evaluate(node, {**mirror, **flipped}))]
            pairs.append((evaluate(begun[0], env), evaluate(begun[0], mirror)))
            if any(not np.allclose(sign * np.asarray(a), b, rtol=1e-9, atol=1e-11) for a, b in pairs):
                return False
    return True


def _repeats(normal: Normal, i: int, axis: str) -> bool:
    """Whether right sides and initial states already have the box's own length as a period."""
    shape = normal.problem.domain
    env, values = _trial(normal, np.random.default_rng(4))
    moved = {**env, axis: env[axis] + (shape.high[i] - shape.low[i])}
    for node, begun in zip(normal.rhs, normal.start, strict=True):
        pairs = [(evaluate(node, {**env, **values}), evaluate(node, {**moved, **values}))]
        pairs.append((evaluate(begun[0], env), evaluate(begun[0], moved)))
        if any(not np.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in pairs):
            return False
    return True
