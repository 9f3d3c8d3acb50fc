"""An evolution projected onto a drawn layer: a small dense system of ordinary differential equations."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._calculus import Key, atoms, evaluate, partial
from .._expr import Deriv, Expr
from ._layer import along, draw, units
from ._normal import DIRICHLET, NEUMANN, Normal

RANK = 1e-12
"""Directions of the layer that are smaller than this, relative to the largest, are left out."""
ROWS = 4
"""Collocation points per unit."""


def on_a_line(atom: Deriv) -> Key:
    """A derivative's key, a Laplacian as the second derivative that it is on a line."""
    return atom.field.name, (2, 0) if isinstance(atom.order, str) else atom.order


@dataclass(frozen=True, eq=False)
class Projected:
    """One drawn layer on its points `x`, with an orthonormal basis per field that obeys the boundary conditions.

    Coordinates y (n,) of all fields are joined. `basis[f]` (width + 2, rank) turns a field's into outer weights;
    `project[f]` (rank, points) takes values at the points to coordinates; `tables` has the derivatives of the basis
    that the equations use, (points, rank).
    """

    normal: Normal
    table: np.ndarray
    x: np.ndarray
    basis: tuple[np.ndarray, ...]
    project: tuple[np.ndarray, ...]
    tables: dict[Key, np.ndarray]

    @staticmethod
    def make(normal: Normal, value: Any, width: int, rng: np.random.Generator) -> Projected:
        """A layer drawn for the fields value(x) -> (fields, n)."""
        low, high = normal.problem.domain.low[0], normal.problem.domain.high[0]
        table = draw(value, low, high, width, rng)
        edges = along(value, low, high, ROWS * width)
        x, weight = (edges[1:] + edges[:-1]) / 2.0, np.sqrt(np.diff(edges))[:, None]
        needed = {on_a_line(atom) for node in normal.rhs for atom in atoms(node)}
        highest = max((order[0] for _, order in needed if not isinstance(order, str)), default=1)
        ends = [units(table, low, high, np.array([low, high]), k) for k in range(max(highest, 2))]
        periodic = np.stack([part[0] - part[1] for part in ends[:highest]]) if highest else ends[0][:0]
        phi = units(table, low, high, x, 0)
        basis, project = [], []
        for kinds in normal.kinds:
            rows = {DIRICHLET: ends[0], NEUMANN: ends[1]}.get(kinds[0], periodic)
            free = np.linalg.qr(rows.T, mode="complete")[0][:, len(rows) :]
            u, s, vt = np.linalg.svd(weight * (phi @ free), full_matrices=False)
            rank = int(np.sum(s > RANK * s[0]))
            basis.append(free @ (vt[:rank].T / s[:rank]))
            project.append(u[:, :rank].T * weight.T)
        names = [field.name for field in normal.fields]
        tables = {
            (name, order): units(table, low, high, x, int(order[0])) @ basis[names.index(name)]
            for name, order in needed
        }
        return Projected(normal, table, x, tuple(basis), tuple(project), tables)

    @functools.cached_property
    def slices(self) -> dict[str, slice]:
        """Where each field's coordinates are."""
        cuts = np.cumsum([0, *(basis.shape[1] for basis in self.basis)]).tolist()
        names = [field.name for field in self.normal.fields]
        return {name: slice(a, b) for name, a, b in zip(names, cuts[:-1], cuts[1:], strict=True)}

    def coordinates(self, values: np.ndarray) -> np.ndarray:
        """Values at the points (fields, points) as coordinates (n,)."""
        return np.concatenate([p @ v for p, v in zip(self.project, values, strict=True)])

    def outer(self, y: np.ndarray) -> np.ndarray:
        """Coordinates as outer weights (fields, width + 2)."""
        return np.stack([b @ y[part] for b, part in zip(self.basis, self.slices.values(), strict=True)])

    def _env(self, t: float, y: np.ndarray) -> dict[Any, Any]:
        made: dict[Any, Any] = {self.normal.problem.domain.axes[0]: self.x, "t": np.full_like(self.x, t)}
        for (name, order), table in self.tables.items():
            made[name, order] = table @ y[self.slices[name]]
            if order == (2, 0):
                made[name, "lap"] = made[name, order]
        return made

    def _at(self, node: Expr, env: dict[Any, Any]) -> np.ndarray:
        return np.broadcast_to(np.asarray(evaluate(node, env), dtype=np.float64), self.x.shape)

    def rates(self, times: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """dy/dt (m, n) for coordinates (m, n) at instants (m,)."""
        made = []
        for t, y in zip(times, rows, strict=True):
            env = self._env(float(t), y)
            made.append(self.coordinates(np.stack([self._at(node, env) for node in self.normal.rhs])))
        return np.stack(made)

    def jacobian(self, t: float, y: np.ndarray) -> np.ndarray:
        """d(rates)/dy (n, n), by the equation's own linearisation."""
        env = self._env(t, y)
        made = np.zeros((len(y), len(y)))
        for field, node, project in zip(self.normal.fields, self.normal.rhs, self.project, strict=True):
            for atom in atoms(node):
                key = on_a_line(atom)
                factor = self._at(partial(node, atom.key), env)
                made[self.slices[field.name], self.slices[key[0]]] += project @ (factor[:, None] * self.tables[key])
        return made
