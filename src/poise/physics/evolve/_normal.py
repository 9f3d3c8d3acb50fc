"""The normal form of an evolution: d^m u/dt^m = F, with zero boundary values.

The right side is read off the equation by its linearisation in the highest time derivative. Boundary values that are
not
zero are lifted: u = lift + w with the transfinite interpolant of the values (Gordon & Hall 1973), all symbolic, so the
solvers below only meet homogeneous conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from poise.errors import BadInput

from .._calculus import (
    atoms,
    coordinates,
    differentiate,
    evaluate,
    expand,
    has_normal,
    linearise,
    partial,
    source,
)
from .._expr import Add, Call, Const, Coord, Deriv, Expr, Given, Mul, Pow, Unknown, add, is_const, mul, power
from .._problem import Problem

DIRICHLET, NEUMANN, PERIODIC = "dirichlet", "neumann", "periodic"


@dataclass(frozen=True, eq=False)
class Normal:
    """Fields w = u - lift with time order `order` each, right sides, initial expressions, boundary kind per axis."""

    problem: Problem
    fields: tuple[Unknown, ...]
    order: int
    rhs: tuple[Expr, ...]
    start: tuple[tuple[Expr, ...], ...]  # per field: value, then velocity for second order
    lift: tuple[Expr, ...]
    kinds: tuple[tuple[str, ...], ...]  # per field, per space axis


def replace_atoms(node: Expr, lifts: dict[str, Expr]) -> Expr:
    """The tree with every derivative of u replaced by that of lift + u."""
    match node:
        case Deriv():
            if is_const(lifts[node.field.name], 0.0):
                return node
            return _sum(expand(node), lifts)
        case Add():
            return add(replace_atoms(node.a, lifts), replace_atoms(node.b, lifts))
        case Mul():
            return mul(replace_atoms(node.a, lifts), replace_atoms(node.b, lifts))
        case Pow():
            return power(replace_atoms(node.a, lifts), node.exponent)
        case Call():
            return Call(node.name, replace_atoms(node.a, lifts))
    return node


def _sum(node: Expr, lifts: dict[str, Expr]) -> Expr:
    if isinstance(node, Add):
        return add(_sum(node.a, lifts), _sum(node.b, lifts))
    assert isinstance(node, Deriv)
    assert not isinstance(node.order, str)
    value = lifts[node.field.name]
    for axis, times in zip(node.field.axes, node.order, strict=True):
        for _ in range(times):
            value = differentiate(value, axis)
    return add(value, node)


def at(node: Expr, axis: str, value: float) -> Expr:
    """A tree of coordinates with one of them fixed."""
    match node:
        case Coord():
            return Const(value) if node.axis == axis else node
        case Add():
            return add(at(node.a, axis, value), at(node.b, axis, value))
        case Mul():
            return mul(at(node.a, axis, value), at(node.b, axis, value))
        case Pow():
            return power(at(node.a, axis, value), node.exponent)
        case Call():
            inner = at(node.a, axis, value)
            return (
                Const(float(getattr(np, node.name)(inner.value)))
                if isinstance(inner, Const)
                else Call(node.name, inner)
            )
        case Given():
            if axis in node.axes:
                raise BadInput(
                    "A boundary value given as a function of all coordinates cannot be lifted; write it in symbols."
                )
    return node


def normal_form(problem: Problem) -> Normal | None:
    """The normal form, or None where the problem does not have one (no box, time derivative not explicit, …)."""
    shape = problem.domain
    if problem.time is None or shape.kind != "box" or len(problem.equations) != len(problem.unknowns):
        return None
    fields: list[Unknown] = []
    rhs: list[Expr] = []
    orders = set()
    for equation in problem.equations:
        leading = [(atom, atom.order[atom.field.axes.index("t")]) for atom in atoms(equation) if _timely(atom)]
        if not leading:
            return None
        top, order = max(leading, key=lambda pair: pair[1])
        coefficient = linearise(equation)[top.key]
        if sum(top.order) != order or not isinstance(coefficient, Const) or len(leading) > 1:  # type: ignore[arg-type]
            return None
        orders.add(order)
        fields.append(top.field)
        rhs.append(mul(Const(-1.0 / coefficient.value), _without(equation, top)))
    if len(orders) != 1 or len({field.name for field in fields}) != len(fields):
        return None
    order = orders.pop()
    kinds, lifts = [], {}
    for field in fields:
        found = boundary_form(problem, field)
        if found is None:
            return None
        kinds.append(found[0])
        lifts[field.name] = found[1]
    start = []
    for field in fields:
        begun = _initial(problem, field, order)
        if begun is None:
            return None
        lifted = lifts[field.name]
        values = [add(value, mul(Const(-1.0), at_start(lifted, problem, m))) for m, value in enumerate(begun)]
        start.append(tuple(values))
    for i, field in enumerate(fields):
        rate = lifts[field.name]
        for _ in range(order):
            rate = differentiate(rate, "t")
        rhs[i] = add(replace_atoms(rhs[i], lifts), mul(Const(-1.0), rate))
    return Normal(
        problem, tuple(fields), order, tuple(rhs), tuple(start), tuple(lifts[f.name] for f in fields), tuple(kinds)
    )


def at_start(node: Expr, problem: Problem, derivative: int) -> Expr:
    assert problem.time is not None
    for _ in range(derivative):
        node = differentiate(node, "t")
    return at(node, "t", problem.time[0])


def _timely(atom: Deriv) -> bool:
    return not isinstance(atom.order, str) and "t" in atom.field.axes and atom.order[atom.field.axes.index("t")] > 0


def _without(node: Expr, top: Deriv) -> Expr:
    """The tree with one derivative set to zero; the equation is affine in it."""
    match node:
        case Deriv():
            return Const(0.0) if node.key == top.key else node
        case Add():
            return add(_without(node.a, top), _without(node.b, top))
        case Mul():
            return mul(_without(node.a, top), _without(node.b, top))
        case Pow():
            return power(_without(node.a, top), node.exponent)
        case Call():
            return Call(node.name, _without(node.a, top))
    return node


def matters(node: Expr) -> bool:
    """Whether a tree is more than rounding: a term and its subtraction do not cancel symbolically."""
    rng = np.random.default_rng(5)
    env: dict[Any, Any] = {axis: rng.uniform(0.1, 0.9, 8) for axis in coordinates(node)}
    env |= {atom.key: rng.normal(size=8) for atom in atoms(node)}
    value = evaluate(node, env)
    return bool(np.max(np.abs(value)) > 1e-12 * (1.0 + max((np.max(np.abs(v)) for v in env.values()), default=0.0)))


def tidy(node: Expr) -> Expr:
    """The tree without the derivatives on which it does not depend, because their terms cancel."""
    for atom in atoms(node):
        if not matters(partial(node, atom.key)):
            node = _without(node, atom)
    return node if matters(node) else Const(0.0)


def boundary_form(problem: Problem, field: Unknown) -> tuple[tuple[str, ...], Expr] | None:
    """Per space axis the kind, and the lift: Coons' patch of the Dirichlet values; Neumann values must be zero."""
    shape = problem.domain
    names = {patch.name for patch in shape.patches}
    values: dict[str, tuple[str, Expr]] = {}
    for condition in problem.conditions:
        if condition.where not in names:
            continue
        keys = linearise(condition.residual)
        if {name for name, _ in keys} == {field.name}:
            if len(keys) != 1 or not all(isinstance(c, Const) for c in keys.values()):
                return None
            ((_, order), coefficient) = next(iter(keys.items()))
            assert isinstance(coefficient, Const)
            if isinstance(order, str) and order == "dn":
                kind = NEUMANN
            elif not isinstance(order, str) and sum(order) == 0:
                kind = DIRICHLET
            else:
                return None
            if condition.where in values:
                return None
            values[condition.where] = (kind, mul(Const(-1.0 / coefficient.value), source(condition.residual)))
        elif field.name in {name for name, _ in keys} or has_normal(condition.residual):
            return None
    kinds: list[str] = []
    sides: list[tuple[int, Expr, Expr]] = []
    patches = iter(shape.patches)
    for i, axis in enumerate(shape.axes):
        if axis in shape.periodic:
            kinds.append(PERIODIC)
            continue
        pair = (next(patches), next(patches))
        if any(patch.name not in values for patch in pair):
            return None
        (kind, low), (other, high) = values[pair[0].name], values[pair[1].name]
        zero = is_const(low, 0.0) and is_const(high, 0.0)
        if kind != other or (kind == NEUMANN and not zero):
            return None
        kinds.append(kind)
        if not zero:
            sides.append((i, at(low, axis, shape.low[i]), at(high, axis, shape.high[i])))
    return tuple(kinds), _coons(problem, sides, kinds)


def _coons(problem: Problem, sides: list[tuple[int, Expr, Expr]], kinds: list[str]) -> Expr:
    """Boolean sum of the linear interpolants along each axis: P1 + P2 - P1 P2, applied one axis after the other."""
    shape = problem.domain
    lift: Expr = Const(0.0)
    given = {i: (low, high) for i, low, high in sides}
    for i, axis in enumerate(shape.axes):
        if kinds[i] != DIRICHLET or not given:
            continue
        low, high = given.get(i, (Const(0.0), Const(0.0)))
        s = mul(add(Coord(axis), Const(-shape.low[i])), Const(1.0 / (shape.high[i] - shape.low[i])))
        below = add(low, mul(Const(-1.0), at(lift, axis, shape.low[i])))
        above = add(high, mul(Const(-1.0), at(lift, axis, shape.high[i])))
        lift = add(lift, add(mul(add(Const(1.0), mul(Const(-1.0), s)), below), mul(s, above)))
    return lift


def _initial(problem: Problem, field: Unknown, order: int) -> list[Expr] | None:
    assert problem.time is not None
    found: dict[int, Expr] = {}
    for condition in problem.conditions:
        if condition.where != "t=0":
            continue
        keys = linearise(condition.residual)
        if {name for name, _ in keys} != {field.name}:
            continue
        if len(keys) != 1:
            return None
        ((_, which), coefficient) = next(iter(keys.items()))
        t = field.axes.index("t")
        if isinstance(which, str) or sum(which) != which[t] or not isinstance(coefficient, Const):
            return None
        value = mul(Const(-1.0 / coefficient.value), source(condition.residual))
        found[which[t]] = at(value, "t", problem.time[0])
    return [found[m] for m in range(order)] if set(found) == set(range(order)) else None


def initial_values(problem: Problem, field: Unknown) -> Expr:
    """What the initial condition says a field is at the start; raises `BadInput` where it does not say so."""
    found = _initial(problem, field, 1)
    if found is None:
        raise BadInput(
            f"The initial condition must give the value of {field.name}, such as initial({field.name} == 0)."
        )
    return found[0]


def values_at(node: Expr, env: dict[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """A tree of coordinates at points, broadcast to a shape."""
    return np.broadcast_to(np.asarray(evaluate(node, env), dtype=np.float64), shape)
