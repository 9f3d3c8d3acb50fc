"""A solution in time: coefficients at equally spaced instants, interpolated between them.

Along each space axis the coefficients belong to Fourier modes or to orthonormal Legendre polynomials; between
instants the interpolant is the polynomial through the eight nearest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from poise.errors import BadInput

from .._calculus import differentiate, evaluate
from .._expr import Add, Call, Const, Coord, Expr, Mul, Pow
from ..features._polynomial import legendre

WINDOW = 8


@dataclass(frozen=True, eq=False)
class Snapshots:
    """`states[name]` has shape (instants, n1, n2, …); `bases` says per axis ("fourier" | "legendre", low, length)."""

    axes: tuple[str, ...]
    bases: tuple[tuple[str, float, float], ...]
    times: np.ndarray
    states: dict[str, np.ndarray]
    lifts: dict[str, Expr]
    steady: bool = False

    def value(self, name: str, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        if self.steady:
            return self._space(self.states[name][0], points, order) + self._lift(name, points, order)
        if order[-1] > WINDOW - 2:
            raise BadInput(f"Time derivatives are available up to order {WINDOW - 2}, not {order[-1]}.")
        t = points[:, -1]
        if np.any(t < self.times[0] - 1e-9) or np.any(t > self.times[-1] + 1e-9):
            raise BadInput(f"The solution covers t from {self.times[0]:g} to {self.times[-1]:g}; a point lies outside.")
        distinct, where = np.unique(t, return_inverse=True)
        result = np.zeros(len(points))
        sort = np.argsort(where, kind="stable")
        edges = np.searchsorted(where[sort], np.arange(len(distinct) + 1))
        many = len(distinct) > 200
        groups = [sort] if many else [sort[edges[k] : edges[k + 1]] for k in range(len(distinct))]
        for k, index in enumerate(groups):
            part = points[index]
            result[index] = self._scattered(name, part, order) if many else self._at(name, part, distinct[k], order)
        return result + self._lift(name, points, order)

    def _window(self, t: float, times: int) -> tuple[np.ndarray, np.ndarray]:
        """The instants that matter at t and their weights."""
        h = self.times[1] - self.times[0] if len(self.times) > 1 else 1.0
        near = round((t - self.times[0]) / h)
        if times == 0 and abs(self.times[0] + near * h - t) < 1e-9 * max(h, 1e-300):
            return np.array([near]), np.ones(1)
        w = min(WINDOW, len(self.times))
        first = int(np.clip(np.floor((t - self.times[0]) / h) - w // 2 + 1, 0, len(self.times) - w))
        s = (t - self.times[first]) / h
        vander = np.vander(np.arange(w, dtype=float), w, increasing=True).T
        right = np.array([_power(s, k, times) for k in range(w)])
        return np.arange(first, first + w), np.linalg.solve(vander, right) / h**times

    def _at(self, name: str, points: np.ndarray, t: float, order: tuple[int, ...]) -> np.ndarray:
        index, weights = self._window(float(t), order[-1])
        c = np.tensordot(weights, self.states[name][index], axes=1)
        return self._space(c, points, order)

    def _scattered(self, name: str, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        """Many different times: evaluate every needed instant once for all points that use it."""
        result = np.zeros(len(points))
        plan: dict[int, list[tuple[int, float]]] = {}
        for row, t in enumerate(points[:, -1]):
            for i, w in zip(*self._window(float(t), order[-1]), strict=True):
                plan.setdefault(int(i), []).append((row, float(w)))
        for i, rows in plan.items():
            which = np.array([row for row, _ in rows])
            w = np.array([w for _, w in rows])
            np.add.at(result, which, w * self._space(self.states[name][i], points[which], order))
        return result

    def _space(self, c: np.ndarray, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        made = []
        for start in range(0, len(points), 2048):
            part = points[start : start + 2048]
            tables = [self._table(i, part[:, i], c.shape[i], order[i]) for i in range(c.ndim)]
            value = tables[0] @ c.reshape(c.shape[0], -1)
            value = value.reshape(len(part), *c.shape[1:])
            for table in tables[1:]:
                value = np.einsum("pk,pk...->p...", table, value)
            made.append(np.real(value))
        return np.concatenate(made) if made else np.zeros(0)

    def _table(self, i: int, x: np.ndarray, n: int, times: int) -> np.ndarray:
        kind, low, length = self.bases[i]
        if kind == "fourier":
            k = 2.0 * np.pi / length * np.fft.fftfreq(n, 1.0 / n)
            factor = (1j * k) ** times
            if n % 2 == 0:
                factor[n // 2] = factor[n // 2] if times % 2 == 0 else 0.0
            return np.exp(1j * np.outer(x - low, k)) * factor / n
        half = length / 2.0
        return legendre((x - low) / half - 1.0, n - 1, times, np)[times] / half**times

    def _lift(self, name: str, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        node = self.lifts[name]
        for axis, times in zip(self.axes, order, strict=True):
            for _ in range(times):
                node = differentiate(node, axis)
        return np.asarray(evaluate(node, {axis: points[:, i] for i, axis in enumerate(self.axes)}))

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = {"times": self.times} | {f"state.{name}": state for name, state in self.states.items()}
        lifts = {name: to_json(node) for name, node in self.lifts.items()}
        return {
            "kind": "snapshots",
            "axes": list(self.axes),
            "bases": list(self.bases),
            "lifts": lifts,
            "steady": self.steady,
        }, arrays


def unpack_snapshots(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Snapshots:
    states = {key[6:]: value for key, value in arrays.items() if key.startswith("state.")}
    bases = tuple((kind, low, length) for kind, low, length in meta["bases"])
    lifts = {name: from_json(node) for name, node in meta["lifts"].items()}
    return Snapshots(tuple(meta["axes"]), bases, arrays["times"], states, lifts, meta["steady"])


def _power(s: float, k: int, times: int) -> float:
    """The times-th derivative of s^k."""
    factor = 1.0
    for j in range(times):
        factor *= k - j
    return factor * s ** max(k - times, 0) if k >= times else 0.0


def to_json(node: Expr) -> Any:
    """A tree of coordinates as JSON; functions given as code cannot be written to a file."""
    match node:
        case Const():
            return node.value
        case Coord():
            return node.axis
        case Add():
            return ["+", to_json(node.a), to_json(node.b)]
        case Mul():
            return ["*", to_json(node.a), to_json(node.b)]
        case Pow():
            return ["^", to_json(node.a), node.exponent]
        case Call():
            return [node.name, to_json(node.a)]
    raise BadInput("A solution whose boundary values are given as code cannot be saved; write them in symbols.")


def from_json(stored: Any) -> Expr:
    json.dumps(stored)
    if isinstance(stored, (int, float)):
        return Const(float(stored))
    if isinstance(stored, str):
        return Coord(stored)
    head, *rest = stored
    if head == "^":
        return Pow(from_json(rest[0]), rest[1])
    if head in "+*":
        return (Add if head == "+" else Mul)(from_json(rest[0]), from_json(rest[1]))
    return Call(head, from_json(rest[0]))
