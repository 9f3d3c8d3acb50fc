"""The rows of a least-squares problem, made chunk by chunk from the statement of the problem.

A block is one equation or condition with the cloud of points on which it is to hold. A chunk has a fixed number of
rows of every block, so that one compiled step serves any number of points: only the count of steps changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._calculus import Key, atoms, evaluate, linearise
from .._expr import Expr
from .._points import Cloud
from .._problem import Problem
from ..features import Family


@dataclass(frozen=True, eq=False)
class Trial:
    """The unknowns' features: per field its families; the coefficients of all fields lie in one vector, field by
    field."""

    families: Mapping[str, tuple[Family, ...]]

    @property
    def sizes(self) -> dict[str, int]:
        return {name: sum(family.count for family in group) for name, group in self.families.items()}

    @property
    def count(self) -> int:
        return sum(self.sizes.values())

    def span(self, name: str) -> slice:
        start = 0
        for other, size in self.sizes.items():
            if other == name:
                return slice(start, start + size)
            start += size
        raise KeyError(name)

    @property
    def level(self) -> np.ndarray:
        return np.concatenate([family.level for group in self.families.values() for family in group])

    def columns(self, key: Key, env: Mapping[Any, Any]) -> Any:
        """A derivative of every feature of one field at the points: (n, size of the field)."""
        name, order = key
        parts = [_pick(family, env, order) for family in self.families[name]]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def value(self, key: Key, env: Mapping[Any, Any], theta: Any) -> Any:
        """A derivative of a field at the points for coefficients theta (count,) or (count, k)."""
        return self.columns(key, env) @ theta[self.span(key[0])]


def _pick(family: Family, env: Mapping[Any, Any], order: Any) -> Any:
    if family.axes:
        return family.columns(env, order)
    first = next(value for key, value in env.items() if not isinstance(key, tuple))
    return jnp.ones((jnp.shape(first)[0], family.count))


@dataclass(frozen=True, eq=False)
class Block:
    """A residual, where it is to hold, and how many rows of it each chunk has."""

    name: str
    residual: Expr
    cloud: Cloud | None
    rows: int
    points: np.ndarray | None = None
    values: np.ndarray | None = None
    axes: tuple[str, ...] = ()
    sigma: float = 0.0

    @property
    def measure(self) -> float:
        return self.cloud.measure if self.cloud is not None else 1.0

    def at(self, start: Any, offset: float) -> tuple[dict[Any, Any], Any, Any]:
        """Points, the mask of those that count, and measured values (zero for an equation) for rows start, start+1,
        …"""
        index = start + jnp.arange(self.rows)
        if self.cloud is not None:
            env, keep = self.cloud.at(index, offset)
            return env, keep, jnp.zeros(self.rows)
        assert self.points is not None
        assert self.values is not None
        row = index % len(self.points)
        table = jnp.asarray(self.points)[row]
        return (
            {a: table[:, i] for i, a in enumerate(self.axes)},
            jnp.ones(self.rows, bool),
            jnp.asarray(self.values)[row],
        )

    def linear(self, trial: Trial, env: Mapping[Any, Any], theta: Any, values: Any) -> tuple[Any, Any]:
        """Rows A (n, count) and right side b (n,) of the linearisation about theta: A theta_new = b."""
        full = self.full(trial, env, theta)
        residual = evaluate(self.residual, full, jnp) - values
        residual = jnp.broadcast_to(residual, (self.rows,))
        parts = {name: jnp.zeros((self.rows, size)) for name, size in trial.sizes.items()}
        for key, coefficient in linearise(self.residual).items():
            c = jnp.broadcast_to(jnp.asarray(evaluate(coefficient, full, jnp)), (self.rows,))
            parts[key[0]] = parts[key[0]] + c[:, None] * trial.columns(key, env)
        rows = jnp.concatenate(list(parts.values()), axis=1)
        return rows, rows @ theta - residual

    def full(self, trial: Trial, env: Mapping[Any, Any], theta: Any) -> dict[Any, Any]:
        """The points with the values of every derivative that the residual contains."""
        values = {atom.key: trial.value(atom.key, env, theta) for atom in atoms(self.residual)}
        return {**env, **values}

    def value(self, trial: Trial, env: Mapping[Any, Any], theta: Any, values: Any) -> Any:
        return jnp.broadcast_to(evaluate(self.residual, self.full(trial, env, theta), jnp) - values, (self.rows,))


def blocks(problem: Problem, rows: int) -> tuple[Block, ...]:
    """The blocks of a problem; half of a chunk's rows are for the equations, half for the conditions by measure."""
    time = problem.time
    found = []
    inner = max(rows // 2 // len(problem.equations), 8)
    for i, equation in enumerate(problem.equations):
        found.append(Block(f"equation {i + 1}", equation, Cloud(problem.domain, (), time), inner))
    clouds = []
    for condition in problem.conditions:
        if condition.where == "points":
            clouds.append((condition, None))
            continue
        patches = tuple(patch for patch in problem.domain.patches if patch.name == condition.where)
        when = time[0] if time and condition.where == "t=0" else time
        clouds.append((condition, Cloud(problem.domain, patches, when)))
    total = sum(cloud.measure for _, cloud in clouds if cloud) or 1.0
    for condition, cloud in clouds:
        share = (0.1 + 0.9 * cloud.measure / total) if cloud else 1.0
        count = max(int(rows / 2 * share), 8)
        found.append(
            Block(
                condition.where,
                condition.residual,
                cloud,
                count,
                condition.points,
                condition.values,
                problem.axes,
                condition.sigma,
            )
        )
    return tuple(found)
