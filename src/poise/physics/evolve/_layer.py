"""A hidden layer of tanh units over one space axis, drawn where a solution is steep, and the field it makes in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from poise.errors import BadInput

from .._calculus import differentiate, evaluate
from .._expr import Expr
from ..features import activation, between
from ._snapshots import from_json, to_json

DISTANCES = (-0.8, -0.1)
"""Decimal logarithms of the distances of a unit's two points, along the solution's graph in units of half the axis."""


def units(table: np.ndarray, low: float, high: float, x: np.ndarray, order: int) -> np.ndarray:
    """A derivative of the units and of the two affine functions at x: (points, width + 2)."""
    s = x[:, None] * table[:, 0] + table[:, 1]
    made = activation("tanh", s, order, np) * table[:, 0] ** order
    scaled = (2.0 * x - low - high) / (high - low)
    affine = {0: (np.ones_like(x), scaled), 1: (np.zeros_like(x), np.full_like(x, 2.0 / (high - low)))}
    return np.column_stack([made, *affine.get(order, (np.zeros_like(x), np.zeros_like(x)))])


def steps_along(value: Any, low: float, high: float, x: np.ndarray) -> np.ndarray:
    """Lengths of the graph of value(x) -> (fields, n) between neighbouring x; each field is taken over its largest size
    and the axis over half its length."""
    values = value(x)
    size = np.maximum(np.max(np.abs(values), axis=1, keepdims=True), 1e-12)
    return np.hypot(np.diff(x) * 2.0 / (high - low), np.linalg.norm(np.diff(values / size, axis=1), axis=0))


def along(value: Any, low: float, high: float, count: int) -> np.ndarray:
    """Points (count + 1,) equally spaced along the graph of value(x)."""
    x = np.linspace(low, high, 4 * count + 1)
    for _ in range(4):  # the graph is measured on the points that the pass before found
        arc = np.concatenate([[0.0], np.cumsum(steps_along(value, low, high, x))])
        x = np.interp(np.linspace(0.0, arc[-1], len(x)), arc, x)
    return x[::4]


def draw(value: Any, low: float, high: float, width: int, rng: np.random.Generator) -> np.ndarray:
    """Weights and biases (width, 2): each unit turns between two points, close together where value(x) is steep."""
    count = 2000
    x = along(value, low, high, count)
    total = float(np.sum(steps_along(value, low, high, x)))
    where = (np.arange(width) + rng.uniform(size=width)) * (count / width)
    middle = np.interp(where, np.arange(count + 1), x)
    slope = np.interp(where, np.arange(count + 1), np.gradient(x)) * count / total
    gap = 10.0 ** rng.uniform(*DISTANCES, width) * slope
    return between((middle - gap / 2.0)[:, None], (middle + gap / 2.0)[:, None], 0.5)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Knots `times` (k,), each with the index of its layer; outer weights and their rates (k, fields, width + 2).

    Two knots share an instant where the layer changes. Between knots the outer weights are cubic Hermite polynomials.
    """

    axes: tuple[str, ...]
    names: tuple[str, ...]
    span: tuple[float, float]
    times: np.ndarray
    layer: np.ndarray  # (k,) integers
    tables: np.ndarray  # (layers, width, 2)
    outer: np.ndarray
    rates: np.ndarray
    lifts: dict[str, Expr]

    def value(self, name: str, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        """A derivative of a field at points (n, 2), columns x and t."""
        x, t = points.T
        if np.any(t < self.times[0] - 1e-9) or np.any(t > self.times[-1] + 1e-9):
            raise BadInput(f"The solution covers t from {self.times[0]:g} to {self.times[-1]:g}; a point lies outside.")
        if order[1] > 3:
            raise BadInput(f"A drawn layer has time derivatives up to order 3, not {order[1]}.")
        field = self.names.index(name)
        starts = np.flatnonzero(np.diff(self.layer, append=-1) == 0)  # knots followed by one of the same layer
        which = starts[np.clip(np.searchsorted(self.times[starts], t, side="right") - 1, 0, len(starts) - 1)]
        made = np.zeros(len(points))
        for knot in np.unique(which):
            mine = which == knot
            phi = units(self.tables[self.layer[knot]], *self.span, x[mine], order[0])
            h = float(self.times[knot + 1] - self.times[knot])
            weights = hermite((t[mine] - self.times[knot]) / h, h, order[1])
            ends = np.stack([part[knot + i, field] for part in (self.outer, self.rates) for i in (0, 1)])
            made[mine] = np.sum(weights * (phi @ ends.T), axis=1)
        node = self.lifts[name]
        for axis, times in zip(self.axes, order, strict=True):
            for _ in range(times):
                node = differentiate(node, axis)
        return made + np.asarray(evaluate(node, dict(zip(self.axes, points.T, strict=True))))

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What `load` needs."""
        arrays = {key: getattr(self, key) for key in ("times", "layer", "tables", "outer", "rates")}
        lifts = {name: to_json(node) for name, node in self.lifts.items()}
        head = {"kind": "drawn", "axes": list(self.axes), "names": list(self.names), "span": list(self.span)}
        return {**head, "lifts": lifts}, arrays


def unpack_drawn(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Drawn:
    lifts = {name: from_json(node) for name, node in meta["lifts"].items()}
    return Drawn(tuple(meta["axes"]), tuple(meta["names"]), tuple(meta["span"]), lifts=lifts, **arrays)


def hermite(s: np.ndarray, h: float, order: int) -> np.ndarray:
    """The weights of (value, value, rate, rate) at an interval's ends, s in [0, 1] of its length h: (n, 4)."""
    cubics = np.array([[1, 0, -3, 2], [0, 0, 3, -2], [0, h, -2 * h, h], [0, 0, -h, h]], dtype=np.float64)
    parts = [np.polynomial.polynomial.polyder(cubic, order) for cubic in cubics]
    return np.stack([np.polynomial.polynomial.polyval(s, part) for part in parts], axis=1) / h**order
