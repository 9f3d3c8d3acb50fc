"""What spectral elements read off a statement: which field is of which kind, its conditions, jumps of fluxes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from .._calculus import atoms, expand, linearise, source, walk
from .._expr import Add, Call, Const, Deriv, Expr, Mul, Unknown, is_const
from .._problem import Condition, Problem
from ..evolve._fourier import terms


@dataclass(frozen=True, eq=False)
class Roles:
    """Continuous fields and discontinuous ones, and the equation that each field's test function multiplies."""

    fields: tuple[Unknown, ...]
    pressures: tuple[Unknown, ...]
    equation: dict[str, Expr]


@dataclass(frozen=True, eq=False)
class Natural:
    """On a boundary `u.dn = g - b u` for a field; both sides as expressions of the coordinates."""

    g: Expr
    b: Expr


def spatial(atom: Deriv) -> list[tuple[tuple[int, ...], int]]:
    """A derivative as plain ones: orders by space axis, and the order in time."""
    made = []
    for part in terms(expand(atom)):
        orders = dict(zip(part.field.axes, part.order, strict=True))
        made.append((tuple(int(orders[a]) for a in part.field.space), int(orders.get("t", 0))))
    return made


@functools.lru_cache(maxsize=64)
def roles(problem: Problem) -> Roles | None:
    """Which field is of which kind, or None where equations and fields do not pair up."""
    top: dict[str, int] = {}
    for field in problem.unknowns:
        orders = [sum(o) for e in problem.equations for a in atoms(e) if a.field is field for o, _ in spatial(a)]
        top[field.name] = max(orders, default=0)
    if any(order > 2 for order in top.values()) or not any(order == 2 for order in top.values()):
        return None
    fields = tuple(f for f in problem.unknowns if top[f.name] == 2)
    pressures = tuple(f for f in problem.unknowns if top[f.name] == 1)
    if len(fields) + len(pressures) != len(problem.unknowns) or len(pressures) > 1:
        return None
    equation: dict[str, Expr] = {}
    for node in problem.equations:
        second = {a.field.name for a in atoms(node) if any(sum(o) == 2 for o, _ in spatial(a))}
        if len(second) > 1 or (not second and not pressures):
            return None
        name = next(iter(second)) if second else next(p.name for p in pressures)
        if name in equation:
            return None
        equation[name] = node
    if set(equation) != {f.name for f in problem.unknowns}:
        return None
    for node in equation.values():
        for key, c in linearise(node).items():
            atom = next(a for a in atoms(node) if a.key == key)
            heavy = any(sum(o) == 2 for o, _ in spatial(atom))
            if (heavy and atoms(c)) or (key[0] in {p.name for p in pressures} and not isinstance(c, Const)):
                return None
    return Roles(fields, pressures, equation)


@dataclass(frozen=True, eq=False)
class Conditions:
    """Per boundary and field the fixed value or the natural condition; pressures given on a boundary; flux jumps."""

    fixed: dict[tuple[str, str], Expr]
    natural: dict[tuple[str, str], Natural]
    pressure: dict[str, Expr]


@functools.lru_cache(maxsize=64)
def conditions(problem: Problem) -> Conditions | None:
    """The conditions sorted, or None where one is of another kind."""
    part = roles(problem)
    if part is None:
        return None
    pressures = {p.name for p in part.pressures}
    fixed: dict[tuple[str, str], Expr] = {}
    natural: dict[tuple[str, str], Natural] = {}
    given: dict[str, Expr] = {}
    for condition in problem.conditions:
        if condition.where in ("t=0", "across"):
            continue
        keys = linearise(condition.residual)
        if len({name for name, _ in keys}) != 1 or any(atoms(c) for c in keys.values()):
            return None
        name = next(iter(keys))[0]
        slopes = keys.get((name, "dn"))
        values = {order: c for (_, order), c in keys.items() if order != "dn"}
        if any(isinstance(order, str) or sum(order) > 0 for order in values):
            return None
        value: Expr = next(iter(values.values()), Const(0.0))
        right = -1.0 * source(condition.residual)
        if name in pressures:
            given[condition.where] = right / value
        elif slopes is None:
            if (condition.where, name) in fixed:
                return None
            fixed[condition.where, name] = right / value
        elif (condition.where, name) in natural:
            return None
        else:
            natural[condition.where, name] = Natural(right / slopes, value / slopes)
    if set(fixed) & set(natural):
        return None  # two conditions for one field at one place: not for a Galerkin method
    return Conditions(fixed, natural, given)


def flux_jumps(problem: Problem) -> list[tuple[Condition, Expr, float]] | None:
    """The interface conditions on fluxes, k * u.dn and its jump; None where a condition is of another kind."""
    made = []
    for condition in problem.interfaces:
        calls = [p for p in walk(condition.residual) if isinstance(p, Call) and p.name == "jump"]
        rest = _without_jump(condition.residual)
        if len(calls) != 1 or not isinstance(rest, Const):
            return None
        keys = linearise(calls[0].a)
        if len(keys) != 1:
            return None
        ((_, order), k) = next(iter(keys.items()))
        if order == "dn":
            made.append((condition, k, -rest.value))
        elif isinstance(order, str) or sum(order) or rest.value != 0.0 or not is_const(k):
            return None  # fields are continuous here
    return made


def _without_jump(node: Expr) -> Expr:
    match node:
        case Call():
            return Const(0.0) if node.name == "jump" else node
        case Add():
            return _without_jump(node.a) + _without_jump(node.b)
        case Mul():
            return _without_jump(node.a) * _without_jump(node.b)
    return node
