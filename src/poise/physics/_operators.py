"""The words an equation is written with: unknowns, coordinates, lap, grad, div, elementary functions, coefficients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

from poise.errors import BadInput

from ._calculus import differentiate
from ._expr import TEST, Call, Const, Coord, Deriv, Expr, Given, Normal, Operand, Unknown, add, mul, wrap
from ._shapes import Shape


def unknown(name: str, axes: str | Sequence[str] = "x y") -> Unknown:
    """An unknown field over the named axes, e.g. `unknown("u", "x y t")`."""
    parts = tuple(axes.split()) if isinstance(axes, str) else tuple(axes)
    if not name or len(set(parts)) != len(parts):
        raise BadInput(f"An unknown needs a name and distinct axes, not {name!r} over {parts}.")
    return Unknown(name, parts)


def parameter(name: str) -> Unknown:
    """An unknown number, found from data in an inverse problem."""
    return Unknown(name, ())


def test_function(of: Unknown) -> Unknown:
    """The test function of a field, for equations in weak form: `weak(nu*lap(psi)*lap(v) + …)` with v from here."""
    return Unknown(TEST + of.name, of.axes)


def weak(integrand: Expr) -> Expr:
    """An equation in weak form: the integral of this expression vanishes for every test function.

    The expression is linear in one test function and its derivatives; test functions vanish where the conditions fix
    the field (and their slopes where the conditions fix the normal derivative of a fourth-order equation).
    """
    from ._calculus import atoms

    tests = {atom.field.name for atom in atoms(integrand) if atom.field.name.startswith(TEST)}
    if len(tests) != 1:
        raise BadInput(f"A weak form contains exactly one test function, made with test_function(u), not {len(tests)}.")
    return integrand


def axes(names: str) -> tuple[Coord, ...]:
    """Coordinates by name: `x, y, t = axes("x y t")`."""
    return tuple(Coord(name) for name in names.split())


def _space_axes(expression: Expr) -> tuple[str, ...]:
    from ._calculus import atoms

    found: list[str] = []
    for atom in atoms(expression):
        found += [axis for axis in atom.field.space if axis not in found]
    if not found:
        raise BadInput("lap and grad act on an expression that contains an unknown field with space axes.")
    return tuple(found)


def lap(expression: Expr) -> Expr:
    """The Laplacian over the space axes (all axes but t)."""
    if isinstance(expression, Unknown):
        return Deriv(expression, "lap")
    total: Expr = Const(0.0)
    for axis in _space_axes(expression):
        total = add(total, differentiate(differentiate(expression, axis), axis))
    return total


def grad(expression: Expr) -> tuple[Expr, ...]:
    """The gradient over the space axes, a tuple of expressions."""
    return tuple(differentiate(expression, axis) for axis in _space_axes(expression))


def div(flux: Sequence[Expr], axes: str = "x y z") -> Expr:
    """The divergence of a tuple of expressions, by position along x, y, z (or along `axes`)."""
    names = axes.split()
    if len(flux) > len(names):
        raise BadInput(f"div was given {len(flux)} components for the axes {axes!r}; name one axis per component.")
    total: Expr = Const(0.0)
    for component, axis in zip(flux, names, strict=False):
        total = add(total, differentiate(component, axis))
    return total


def scale(flux: Sequence[Expr], factor: Operand) -> tuple[Expr, ...]:
    """Every component times a factor: `div(scale(grad(u), a))` is div(a grad u)."""
    return tuple(mul(wrap(factor), component) for component in flux)


def normal(axis: str) -> Normal:
    """A component of the outward normal, for conditions such as stress = n_x p."""
    return Normal(axis)


def _call(name: str) -> Callable[[Operand], Expr]:
    def function(a: Operand) -> Expr:
        node = wrap(a)
        if isinstance(node, Const):
            return Const(float(getattr(np, name)(node.value)))
        return Call(name, node)

    function.__name__ = name
    function.__doc__ = f"The elementary function {name} of an expression."
    return function


sin, cos, exp, log, sqrt, tanh, sinh, cosh = map(_call, ("sin", "cos", "exp", "log", "sqrt", "tanh", "sinh", "cosh"))


def given(function: Callable[..., Any], axes: str = "x y", jumps: Mapping[str, Sequence[float]] | None = None) -> Given:
    """A known coefficient: `function(x, y)` maps arrays to an array with jax.numpy operations.

    Its derivatives, where an equation needs them, are taken in forward mode. `jumps` names the lines across which it is
    discontinuous, such as `{"x": [0.5]}`, so that elements can end there.
    """
    names = tuple(axes.split())
    lines = None if jumps is None else {axis: tuple(map(float, values)) for axis, values in jumps.items()}
    stray = sorted(set(lines or ()) - set(names))
    if stray:
        raise BadInput(f"jumps names the axis {stray[0]!r}; the function's axes are {axes}.")
    return Given(function, names, (0,) * len(names), lines)


def piecewise(shape: Shape, inside: Operand, outside: Operand) -> Expr:
    """A coefficient with one value in a shape and another outside, such as a conductivity: state `across(shape, ...)`.

    Its derivatives are those of the pieces; what happens at the shape's boundary is the interface conditions' to say.
    """

    def indicator(*coordinates: Any) -> Any:
        xp = np if all(isinstance(c, (np.ndarray, float)) for c in coordinates) else jnp
        columns = xp.broadcast_arrays(*(xp.asarray(c) for c in coordinates))
        points = xp.stack([c.reshape(-1) for c in columns], axis=1)
        return xp.asarray(shape.inside(points)).reshape(columns[0].shape).astype(points.dtype)

    here = Given(indicator, shape.axes, (0,) * shape.dimension, shape)
    return wrap(outside) + (wrap(inside) - wrap(outside)) * here


def jump(expression: Expr) -> Expr:
    """Outside minus inside, in a condition `across(shape, jump(u) == 0, jump(a * u.dn) == 0)`."""
    return Call("jump", wrap(expression))


def sampled(values: Any, **ranges: tuple[float, float]) -> Given:
    """A coefficient given as an array on a uniform grid: `sampled(a, x=(0, 1), y=(0, 1))`, axis 0 along x.

    Values between the nodes are linear interpolants; outside the ranges the nearest node counts.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != len(ranges) or min(table.shape, default=0) < 2:
        raise BadInput(
            f"sampled needs one (low, high) range for each of the array's {table.ndim} axes, 2 nodes or more."
        )

    def function(*coordinates: Any) -> Any:
        index = [
            (coordinate - low) / (high - low) * (size - 1)
            for coordinate, (low, high), size in zip(coordinates, ranges.values(), table.shape, strict=True)
        ]
        shape = jnp.broadcast_shapes(*(jnp.shape(i) for i in index))
        return map_coordinates(jnp.asarray(table), [jnp.broadcast_to(i, shape) for i in index], order=1, mode="nearest")

    return Given(function, tuple(ranges), (0,) * len(ranges))
