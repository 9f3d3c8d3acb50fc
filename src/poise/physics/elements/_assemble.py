"""Element matrices of a problem in weak form, read off its symbolic linearisation.

A field with second derivatives is continuous, of the space's degree p; one with first derivatives only, a pressure, is
discontinuous of degree p - 2 (Maday & Patera 1989), which keeps the pair stable. Second derivatives of fields and first
ones of pressures are integrated by parts; the boundary terms take the natural conditions, and across interfaces the
flux is continuous but for a stated jump.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._calculus import atoms, differentiate, evaluate, linearise
from .._expr import Const, Expr, is_const
from .._problem import Condition, Problem
from ._space import Face, Space
from ._statement import Conditions, Roles, conditions, flux_jumps, roles, spatial


@dataclass(frozen=True, eq=False)
class System:
    """A problem on a space: local unknowns field by field, then the pressure's modes."""

    problem: Problem
    space: Space

    @functools.cached_property
    def roles(self) -> Roles:
        found = roles(self.problem)
        assert found is not None
        return found

    @functools.cached_property
    def conditions(self) -> Conditions:
        found = conditions(self.problem)
        assert found is not None
        return found

    @functools.cached_property
    def faces(self) -> dict[str, list[Face]]:
        return self.space.boundary(self.problem.domain)

    @functools.cached_property
    def modes(self) -> np.ndarray:
        """The pressure's basis at the nodes: products of Legendre polynomials up to degree p - 2, (n, m)."""
        from ._line import lobatto

        x, _ = lobatto(self.space.degree)
        one = np.polynomial.legendre.legvander(x, max(self.space.degree - 2, 0))
        return np.kron(one, one) if self.space.dimension == 2 else np.kron(np.kron(one, one), one)

    @property
    def spans(self) -> dict[str, slice]:
        n, start, made = self.space.nodes.shape[1], 0, {}
        for field in self.roles.fields:
            made[field.name] = slice(start, start + n)
            start += n
        for field in self.roles.pressures:
            made[field.name] = slice(start, start + self.modes.shape[1])
            start += self.modes.shape[1]
        return made

    @property
    def local(self) -> int:
        return max(span.stop for span in self.spans.values())

    @functools.cached_property
    def env(self) -> dict[Any, np.ndarray]:
        """Coordinates at the nodes, a hair inside their elements: (E, n) each."""
        return {axis: self.space.shrunk[..., i] for i, axis in enumerate(self.problem.domain.axes)}

    def at(self, node: Expr, env: dict[Any, Any] | None = None) -> np.ndarray:
        """An expression at the nodes: (E, n)."""
        shape = self.space.nodes.shape[:2]
        flat = {k: np.asarray(v).reshape(-1) for k, v in (env or self.env).items()}
        return np.broadcast_to(np.asarray(evaluate(node, flat), float), (shape[0] * shape[1],)).reshape(shape)

    def field_values(self, theta: np.ndarray, name: str) -> np.ndarray:
        """Nodal values (E, n) of a field or a pressure from local unknowns (E, N)."""
        part = theta[:, self.spans[name]]
        return part @ self.modes.T if name in {p.name for p in self.roles.pressures} else part

    def state(self, theta: np.ndarray) -> dict[Any, np.ndarray]:
        """Coordinates and every derivative of first order or none at theta; second ones are zero (see `weak`)."""
        env = dict(self.env)
        for node in self.roles.equation.values():
            for atom in atoms(node):
                total = np.zeros(self.space.nodes.shape[:2])
                for order, times in spatial(atom):
                    if sum(order) <= 1 and not times:
                        values = self.field_values(theta, atom.field.name)
                        total = total + (self.space.slope(values, order.index(1)) if sum(order) else values)
                env[atom.key] = total
        return env

    def weak(self, theta: np.ndarray, keep: Callable[[int], bool] = lambda times: times == 0) -> Any:
        """Matrices A (E, N, N) and right sides b (E, N) of the linearisation about theta, A theta_new = b.

        Second derivatives enter linearly, so they cancel in b and may be zero in the state. `keep` picks the terms by
        their order in time.
        """
        space, env, spans = self.space, self.state(theta), self.spans
        weights = space.metric[1]
        count, n = len(space.mesh), space.nodes.shape[1]
        a = np.zeros((count, self.local, self.local))
        b = np.zeros((count, self.local))
        pressures = {p.name for p in self.roles.pressures}
        for test, node in self.roles.equation.items():
            flat = self.modes if test in pressures else np.eye(n)
            rows = spans[test]
            remainder = -self.at(node, env)
            for key, c in linearise(node).items():
                atom = next(part for part in atoms(node) if part.key == key)
                value = self.at(c, env)
                columns = spans[key[0]]
                base = self.modes if key[0] in pressures else np.eye(n)
                for order, times in spatial(atom):
                    lower = sum(order) < 2
                    if lower and not times:
                        here = self.field_values(theta, key[0])
                        here = space.slope(here, order.index(1)) if sum(order) else here
                        remainder = remainder + value * here
                    if not keep(times):
                        continue
                    if not lower:
                        self._second(a[:, rows, columns], weights, c, value, order)
                    elif sum(order) and key[0] in pressures and test not in pressures:
                        slope = space.gradients[order.index(1)]
                        a[:, rows, columns] -= np.swapaxes(slope, 1, 2) @ ((weights * value)[:, :, None] * base)
                    else:
                        trial = space.gradients[order.index(1)] @ base if sum(order) else base[None]
                        a[:, rows, columns] += flat.T @ ((weights * value)[:, :, None] * trial)
            b[:, rows] += (weights * remainder) @ flat
            if test not in pressures and keep(0):
                self._edges(a, b, test, node)
        return a, b

    def _second(self, a: np.ndarray, weights: np.ndarray, c: Expr, value: np.ndarray, order: tuple[int, ...]) -> None:
        i = order.index(max(order))
        j = i if max(order) == 2 else order.index(1, i + 1)
        axes = self.problem.domain.axes
        d = self.space.gradients
        a -= np.swapaxes(d[i], 1, 2) @ ((weights * value)[:, :, None] * d[j])
        slope = differentiate(c, axes[i])
        if not is_const(slope, 0.0):
            a -= (weights * self.at(slope))[:, :, None] * d[j]

    def diffusivity(self, test: str, node: Expr) -> Expr:
        """The coefficient of the Laplacian, the same along every axis, as boundary terms need it."""
        found: dict[tuple[int, ...], Expr] = {}
        for key, c in linearise(node).items():
            if key[0] == test:
                for order, _ in spatial(next(p for p in atoms(node) if p.key == key)):
                    if sum(order) == 2:
                        found[order] = found.get(order, Const(0.0)) + c
        return next(iter(found.values()))

    def _edges(self, a: np.ndarray, b: np.ndarray, test: str, node: Expr) -> None:
        """Natural conditions, given pressures and flux jumps."""
        rows = self.spans[test]
        c = self.diffusivity(test, node)
        for name, faces in self.faces.items():
            natural = self.conditions.natural.get((name, test))
            given = self.conditions.pressure.get(name)
            if (name, test) in self.conditions.fixed or (natural is None and given is None):
                continue
            for face in faces:
                env = self._on(face)
                at = lambda e, env=env, face=face: np.broadcast_to(  # noqa: E731
                    np.asarray(evaluate(e, {k: v.reshape(-1) for k, v in env.items()}), float), face.weight.size
                ).reshape(face.weight.shape)
                index = rows.start + face.local
                if natural is not None:
                    k = at(c) * face.weight
                    a[face.elements[:, None], index, index] -= k * at(natural.b)
                    b[face.elements[:, None], index] -= k * at(natural.g)
                if given is not None:
                    for key, p in linearise(node).items():
                        if key[0] in {q.name for q in self.roles.pressures} and sum(key[1]):  # type: ignore[arg-type]
                            axis = key[1].index(1)  # type: ignore[union-attr]
                            b[face.elements[:, None], index] -= (
                                face.weight * p.value * at(given) * face.normal[..., axis]  # type: ignore[attr-defined]
                            )
        for condition, k, value in flux_jumps(self.problem) or []:
            if value and next(iter(atoms(condition.residual))).field.name == test:
                self._jump(b, rows, condition, c, k, value)

    def _jump(self, b: np.ndarray, rows: slice, condition: Condition, c: Expr, k: Expr, value: float) -> None:
        """The sum of the two sides' boundary terms is minus the jump of c u.dn; it goes to the inner side."""
        assert condition.shape is not None
        middles = self.space.mesh.at(np.zeros((1, self.space.dimension)))[:, 0]
        inside = np.asarray(condition.shape.inside(middles))
        label = {}
        for (axis, end), (shared, outer) in self.space.sides.items():
            for element in np.flatnonzero(~outer):
                label.setdefault(int(shared[element]), []).append((int(element), axis, end))
        for pair in label.values():
            (e0, a0, s0), (e1, a1, s1) = pair
            if inside[e0] == inside[e1]:
                continue
            element, axis, end = (e0, a0, s0) if inside[e0] else (e1, a1, s1)
            face = self.space.face(np.array([element]), axis, end)
            env = {key: v.reshape(-1) for key, v in self._on(face).items()}
            ratio = np.asarray(evaluate(c, env), float) / np.asarray(evaluate(k, env), float)
            b[element, rows.start + face.local[0]] += ratio * value * face.weight[0]

    def _on(self, face: Face) -> dict[Any, np.ndarray]:
        where = self.space.shrunk[face.elements[:, None], face.local]
        env: dict[Any, np.ndarray] = {a: where[..., i] for i, a in enumerate(self.problem.domain.axes)}
        return env | {("n", a): face.normal[..., i] for i, a in enumerate(self.problem.domain.axes)}

    def fixed(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Per field the numbers of the nodes with given values, and the values; later conditions win at corners."""
        made = {}
        for field in self.roles.fields:
            numbers: list[np.ndarray] = []
            values: list[np.ndarray] = []
            for name, faces in self.faces.items():
                node = self.conditions.fixed.get((name, field.name))
                if node is None:
                    continue
                for face in faces:
                    where = self.space.nodes[face.elements[:, None], face.local]
                    env: dict[Any, Any] = {a: where[..., i].reshape(-1) for i, a in enumerate(self.problem.domain.axes)}
                    numbers.append(self.space.number[face.elements[:, None], face.local].reshape(-1))
                    values.append(np.broadcast_to(np.asarray(evaluate(node, env), float), numbers[-1].shape))
            if numbers:
                unique, first = np.unique(np.concatenate(numbers), return_index=True)
                made[field.name] = (unique, np.concatenate(values)[first])
        return made
