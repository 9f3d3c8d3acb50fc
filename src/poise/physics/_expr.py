"""Symbols: the nodes of an equation.

An expression is a small immutable tree over coordinates, unknown fields and their derivatives. Operators build it;
`_calculus` differentiates, linearises and evaluates it. Attribute names that are a `d` followed by axis letters are
derivatives: `u.dx`, `u.dxt`, `u.dxxxx`; axes with longer names use `u.d("x1", "x1")`; `u.dn` is the derivative along
the outward normal, inside a boundary condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from poise.errors import BadInput

TEST = "test of "
"""Names of test functions begin so."""

Operand: TypeAlias = "Expr | float | int"
Order: TypeAlias = tuple[int, ...] | str
"""Derivative orders, one per axis of the unknown, or one of the two compounds "lap" (Laplacian over its space axes) and
"dn" (normal derivative); the compounds exist because in a hundred dimensions the sum over axes is the cost."""


@dataclass(frozen=True, eq=False)
class Expr:
    """The base of all nodes; `==` states an equation, so nodes compare by identity everywhere else."""

    def __add__(self, other: Operand) -> Expr:
        return add(self, wrap(other))

    def __radd__(self, other: Operand) -> Expr:
        return add(wrap(other), self)

    def __sub__(self, other: Operand) -> Expr:
        return add(self, mul(Const(-1.0), wrap(other)))

    def __rsub__(self, other: Operand) -> Expr:
        return add(wrap(other), mul(Const(-1.0), self))

    def __neg__(self) -> Expr:
        return mul(Const(-1.0), self)

    def __mul__(self, other: Operand) -> Expr:
        return mul(self, wrap(other))

    def __rmul__(self, other: Operand) -> Expr:
        return mul(wrap(other), self)

    def __truediv__(self, other: Operand) -> Expr:
        return mul(self, power(wrap(other), -1.0))

    def __rtruediv__(self, other: Operand) -> Expr:
        return mul(wrap(other), power(self, -1.0))

    def __pow__(self, exponent: float) -> Expr:
        if isinstance(exponent, Expr):
            raise BadInput("An exponent must be a number; write exp(b*log(a)) for a**b with an expression b.")
        return power(self, float(exponent))

    def __eq__(self, other: object) -> Equation:  # type: ignore[override]
        if not isinstance(other, (Expr, int, float)):
            raise BadInput(
                f"An equation needs an expression or a number on its right side, not {type(other).__name__}."
            )
        return Equation(self - other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise BadInput("An expression has no truth value; state equations with == inside Problem(...) or on(...).")

    def d(self, *axes: str) -> Expr:
        """The derivative along each of the named axes in turn."""
        from ._calculus import differentiate

        result: Expr = self
        for axis in axes:
            result = differentiate(result, axis)
        return result

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("_") or not name.startswith("d") or len(name) < 2:
            raise AttributeError(name)
        if name == "dn":
            from ._calculus import normal_derivative

            return normal_derivative(self)
        if any(letter not in "xyzt" for letter in name[1:]):
            raise AttributeError(f"{name}: derivatives are d followed by letters of x, y, z, t, or .d('x1', ...)")
        return self.d(*name[1:])


@dataclass(frozen=True, eq=False)
class Equation:
    """`residual == 0`."""

    residual: Expr

    def __bool__(self) -> bool:
        raise BadInput("An equation has no truth value; state equations with == inside Problem(...) or on(...).")


@dataclass(frozen=True, eq=False)
class Const(Expr):
    value: float


@dataclass(frozen=True, eq=False)
class Coord(Expr):
    """A coordinate, such as x or t."""

    axis: str


@dataclass(frozen=True, eq=False)
class Normal(Expr):
    """One component of the outward unit normal; only boundary points have one."""

    axis: str


@dataclass(frozen=True, eq=False)
class Given(Expr):
    """A known function of the coordinates: `function(*coordinates)` with arrays, differentiated in forward mode.

    `jumps` says where it is discontinuous: across the boundary of a shape, or across lines, values by axis.
    """

    function: Callable[..., Any]
    axes: tuple[str, ...]
    order: tuple[int, ...]
    jumps: Any = None


@dataclass(frozen=True, eq=False)
class Deriv(Expr):
    """A derivative of an unknown field; order all zero is the field itself."""

    field: Unknown
    order: Order

    @property
    def key(self) -> tuple[str, Order]:
        return (self.field.name, self.order)


@dataclass(frozen=True, eq=False)
class Add(Expr):
    a: Expr
    b: Expr


@dataclass(frozen=True, eq=False)
class Mul(Expr):
    a: Expr
    b: Expr


@dataclass(frozen=True, eq=False)
class Pow(Expr):
    a: Expr
    exponent: float


@dataclass(frozen=True, eq=False)
class Call(Expr):
    """An elementary function of one argument."""

    name: str
    a: Expr


@dataclass(frozen=True, eq=False)
class Unknown(Deriv):
    """An unknown field or coefficient over the named axes; no axes: an unknown number."""

    name: str
    axes: tuple[str, ...]

    def __init__(self, name: str, axes: tuple[str, ...]) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "field", self)
        object.__setattr__(self, "order", (0,) * len(axes))

    @property
    def space(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.axes if axis != "t")

    def __repr__(self) -> str:
        return f"Unknown({self.name!r}, {' '.join(self.axes)!r})"


def wrap(value: Operand) -> Expr:
    """A number as a node; a node as it is."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (int, float)) or (hasattr(value, "__float__") and getattr(value, "shape", None) == ()):
        return Const(float(value))
    raise BadInput(
        f"An expression is built from numbers, coordinates and unknowns, not from {type(value).__name__}; "
        "wrap arrays with sampled(...) and functions with given(...)."
    )


def is_const(node: Expr, value: float | None = None) -> bool:
    return isinstance(node, Const) and (value is None or node.value == value)


def add(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value + b.value)
    if is_const(a, 0.0):
        return b
    return a if is_const(b, 0.0) else Add(a, b)


def mul(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value * b.value)
    if is_const(a, 0.0) or is_const(b, 0.0):
        return Const(0.0)
    if is_const(a, 1.0):
        return b
    return a if is_const(b, 1.0) else Mul(a, b)


def power(a: Expr, exponent: float) -> Expr:
    if isinstance(a, Const):
        if a.value == 0.0 and exponent < 0.0:
            raise BadInput("An expression divides by zero.")
        return Const(a.value**exponent)
    if exponent == 0.0:
        return Const(1.0)
    return a if exponent == 1.0 else Pow(a, exponent)
