"""The self-adjoint part of a right side: r d^m u/dt^m = div(A grad u) - c u + rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._calculus import atoms, coordinates, differentiate, evaluate, expand, linearise
from .._expr import Const, Deriv, Expr, add, mul
from ._fourier import terms
from ._normal import Normal, tidy


@dataclass(frozen=True, eq=False)
class Elliptic:
    """A self-adjoint linear part: r u_t = sum d_i(a_i d_i u) - c u, and the rest of r times the right side over r."""

    weight: Expr
    diffusion: tuple[Expr, ...]
    reaction: Expr
    rest: Expr


def elliptic(normal: Normal, i: int) -> Elliptic | None:
    """The self-adjoint part of one right side, or None where second derivatives are mixed, unequal or missing."""
    node, field = normal.rhs[i], normal.fields[i]
    axes = normal.problem.domain.axes
    second: list[Expr] = [Const(0.0) for _ in axes]
    first: list[Expr] = [Const(0.0) for _ in axes]
    reaction: Expr = Const(0.0)
    used: list[tuple[Deriv, Expr]] = []
    for key, coefficient in linearise(node).items():
        if key[0] != field.name or atoms(coefficient):
            continue
        atom = next(a for a in atoms(node) if a.key == key)
        orders = [spatial(part) for part in terms(expand(atom))]
        for order in orders:
            if sum(order) == 2 and max(order) == 2:
                second[order.index(2)] = add(second[order.index(2)], coefficient)
            elif sum(order) == 1:
                first[order.index(1)] = add(first[order.index(1)], coefficient)
            elif sum(order) == 0:
                reaction = add(reaction, coefficient)
            else:
                return None
        used.append((atom, coefficient))
    if not _same(normal, second[0], second[0]) or any(_same(normal, a, Const(0.0)) for a in second):
        return None
    weight: Expr = Const(1.0)
    divergence = all(_same(normal, b, differentiate(a, axis)) for a, b, axis in zip(second, first, axes, strict=True))
    plain = all(_same(normal, b, Const(0.0)) for b in first)
    keep_first = not divergence
    if not divergence and plain and not all(isinstance(a, Const) for a in second):
        if any(not _same(normal, mul(a, Const(1.0)), second[0]) for a in second):
            return None
        weight, second = 1.0 / second[0], [Const(1.0) for _ in axes]
        keep_first = False
    elif not divergence and not all(isinstance(a, Const) for a in second):
        return None
    rest = node
    for atom, coefficient in used:
        orders = [spatial(part) for part in terms(expand(atom))]
        if keep_first and all(sum(order) == 1 for order in orders):
            continue
        rest = add(rest, mul(Const(-1.0), mul(coefficient, atom)))
    steady = isinstance(reaction, Const) or "t" not in coordinates(reaction)
    if not steady or any("t" in coordinates(a) for a in second):
        return None
    scaled = mul(weight, reaction) if not isinstance(weight, Const) else reaction
    return Elliptic(weight, tuple(second), mul(Const(-1.0), scaled), tidy(rest))


def spatial(atom: Deriv) -> tuple[int, ...]:
    """The derivative orders by space axis."""
    assert not isinstance(atom.order, str)
    return tuple(k for axis, k in zip(atom.field.axes, atom.order, strict=True) if axis != "t")


def _same(normal: Normal, a: Expr, b: Expr) -> bool:
    shape, rng = normal.problem.domain, np.random.default_rng(7)
    env: dict[Any, Any] = {
        n: rng.uniform(lo, hi, 16) for n, lo, hi in zip(shape.axes, shape.low, shape.high, strict=True)
    }
    if normal.problem.time:
        env["t"] = rng.uniform(*normal.problem.time, 16)
    return bool(np.allclose(evaluate(a, env), evaluate(b, env), rtol=1e-9, atol=1e-12))
