"""Differentiate, linearise and evaluate expressions.

The linearisation is exact and symbolic: the partial derivative of a residual by each derivative of each unknown, found
with the product and chain rules. Solvers multiply those coefficients with closed-form features; no automatic
differentiation of the solution is involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from poise.errors import BadInput

from ._expr import (
    Add,
    Call,
    Const,
    Coord,
    Deriv,
    Equation,
    Expr,
    Given,
    Mul,
    Normal,
    Order,
    Pow,
    Unknown,
    add,
    is_const,
    mul,
    power,
)

Key = tuple[str, Order]


def _outer(name: str, a: Expr) -> Expr:
    """The derivative of an elementary function at its argument."""
    table = {
        "sin": lambda: Call("cos", a),
        "cos": lambda: mul(Const(-1.0), Call("sin", a)),
        "exp": lambda: Call("exp", a),
        "log": lambda: power(a, -1.0),
        "sqrt": lambda: mul(Const(0.5), power(Call("sqrt", a), -1.0)),
        "tanh": lambda: add(Const(1.0), mul(Const(-1.0), power(Call("tanh", a), 2.0))),
        "sinh": lambda: Call("cosh", a),
        "cosh": lambda: Call("sinh", a),
    }
    return table[name]()


def expand(atom: Deriv) -> Expr:
    """A compound derivative as a sum over axes; any other one as it is."""
    if not isinstance(atom.order, str):
        return atom
    total: Expr = Const(0.0)
    for axis in atom.field.space:
        times = 2 if atom.order == "lap" else 1
        order = tuple(times if axis == other else 0 for other in atom.field.axes)
        part: Expr = Deriv(atom.field, order)
        total = add(total, mul(Normal(axis), part) if atom.order == "dn" else part)
    return total


def differentiate(node: Expr, axis: str) -> Expr:
    """d(node)/d(axis)."""
    match node:
        case Const() | Normal():
            return Const(0.0)
        case Coord():
            return Const(1.0 if node.axis == axis else 0.0)
        case Deriv():
            if axis not in node.field.axes:
                return Const(0.0)
            if isinstance(node.order, str):
                return differentiate(expand(node), axis)
            order = tuple(k + (name == axis) for k, name in zip(node.order, node.field.axes, strict=True))
            return Deriv(node.field, order)
        case Given():
            if axis not in node.axes:
                return Const(0.0)
            order = tuple(k + (name == axis) for k, name in zip(node.order, node.axes, strict=True))
            return Given(node.function, node.axes, order, node.jumps)
        case Add():
            return add(differentiate(node.a, axis), differentiate(node.b, axis))
        case Mul():
            return add(mul(differentiate(node.a, axis), node.b), mul(node.a, differentiate(node.b, axis)))
        case Pow():
            outer = mul(Const(node.exponent), power(node.a, node.exponent - 1.0))
            return mul(outer, differentiate(node.a, axis))
        case Call():
            return mul(_outer(node.name, node.a), differentiate(node.a, axis))
    raise BadInput(f"{type(node).__name__} is not an expression that can be differentiated.")


def normal_derivative(node: Expr) -> Expr:
    """The derivative along the outward normal, over space axes."""
    if isinstance(node, Unknown):
        return Deriv(node, "dn")
    total: Expr = Const(0.0)
    names: list[str] = []
    for atom in atoms(node):
        names += [axis for axis in atom.field.space if axis not in names]
    for axis in names:
        total = add(total, mul(Normal(axis), differentiate(node, axis)))
    return total


def children(node: Expr) -> tuple[Expr, ...]:
    match node:
        case Add() | Mul():
            return (node.a, node.b)
        case Pow() | Call():
            return (node.a,)
    return ()


def walk(node: Expr) -> list[Expr]:
    """Every distinct node of the tree, children after parents."""
    seen: dict[int, Expr] = {}
    stack = [node]
    while stack:
        top = stack.pop()
        if id(top) not in seen:
            seen[id(top)] = top
            stack.extend(children(top))
    return list(seen.values())


def atoms(node: Expr) -> list[Deriv]:
    """The derivatives of unknowns in a tree, each once by key, in a stable order."""
    found: dict[Key, Deriv] = {}
    for part in walk(node):
        if isinstance(part, Deriv):
            found.setdefault(part.key, part)
    return sorted(found.values(), key=lambda atom: (atom.field.name, str(atom.order)))


def coordinates(node: Expr) -> set[str]:
    """The coordinates on which a tree depends explicitly."""
    names: set[str] = set()
    for part in walk(node):
        if isinstance(part, Coord):
            names.add(part.axis)
        if isinstance(part, Given):
            names.update(part.axes)
    return names


def has_normal(node: Expr) -> bool:
    return any(isinstance(part, Normal) or (isinstance(part, Deriv) and part.order == "dn") for part in walk(node))


def partial(node: Expr, key: Key) -> Expr:
    """The partial derivative of a tree by one derivative of one unknown."""
    match node:
        case Deriv():
            return Const(1.0 if node.key == key else 0.0)
        case Add():
            return add(partial(node.a, key), partial(node.b, key))
        case Mul():
            return add(mul(partial(node.a, key), node.b), mul(node.a, partial(node.b, key)))
        case Pow():
            inner = partial(node.a, key)
            if is_const(inner, 0.0):
                return inner
            return mul(mul(Const(node.exponent), power(node.a, node.exponent - 1.0)), inner)
        case Call():
            inner = partial(node.a, key)
            return inner if is_const(inner, 0.0) else mul(_outer(node.name, node.a), inner)
    return Const(0.0)


def linearise(node: Expr) -> dict[Key, Expr]:
    """The coefficients of the exact linearisation, by derivative; zero coefficients are left out."""
    found = {atom.key: partial(node, atom.key) for atom in atoms(node)}
    return {key: value for key, value in found.items() if not is_const(value, 0.0)}


def is_linear(node: Expr) -> bool:
    """Whether a residual is affine in the unknowns: no coefficient of its linearisation contains one."""
    return all(not atoms(coefficient) for coefficient in linearise(node).values())


def source(node: Expr) -> Expr:
    """The residual with every unknown set to zero; for an affine residual, minus its right-hand side."""
    match node:
        case Deriv():
            return Const(0.0)
        case Add():
            return add(source(node.a), source(node.b))
        case Mul():
            return mul(source(node.a), source(node.b))
        case Pow():
            return power(source(node.a), node.exponent)
        case Call():
            return Call(node.name, source(node.a))
    return node


def _given(node: Given, env: Mapping[Any, Any]) -> Any:
    """A known function or its derivative at points; forward mode, one coordinate direction at a time."""
    function = node.function
    for position, times in enumerate(node.order):
        for _ in range(times):

            def derivative(*x: Any, f: Any = function, i: int = position) -> Any:
                tangents = [jax.numpy.ones_like(v) if j == i else jax.numpy.zeros_like(v) for j, v in enumerate(x)]
                return jax.jvp(f, tuple(x), tuple(tangents))[1]

            function = derivative
    values = [env[axis] for axis in node.axes]
    if sum(node.order):
        shape = jax.numpy.broadcast_shapes(*(jax.numpy.shape(v) for v in values))
        values = [jax.numpy.broadcast_to(jax.numpy.asarray(v), shape) for v in values]
    return function(*values)


def evaluate(node: Expr, env: Mapping[Any, Any], xp: Any = np) -> Any:
    """The value of a tree. `env` maps axis names, ("n", axis) and derivative keys to arrays; `xp` is numpy or jnp."""
    done: dict[int, Any] = {}

    def value(part: Expr) -> Any:
        if id(part) not in done:
            done[id(part)] = compute(part)
        return done[id(part)]

    def compute(part: Expr) -> Any:
        match part:
            case Const():
                return part.value
            case Coord():
                return env[part.axis]
            case Normal():
                return env["n", part.axis]
            case Deriv():
                return env[part.key]
            case Given():
                result = _given(part, env)
                return np.asarray(result) if xp is np else result
            case Add():
                return value(part.a) + value(part.b)
            case Mul():
                return value(part.a) * value(part.b)
            case Pow():
                base, k = value(part.a), part.exponent
                return base ** int(k) if k == int(k) and abs(k) < 64 else xp.power(base, k)
            case Call():
                return getattr(xp, part.name)(value(part.a))
        raise BadInput(f"{type(part).__name__} cannot be evaluated.")

    return value(node)


def residual(statement: Equation | Expr) -> Expr:
    """The residual of an equation, or an expression meant to vanish."""
    return statement.residual if isinstance(statement, Equation) else statement
