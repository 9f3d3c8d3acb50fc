"""A problem: a region, equations, conditions. Wrong statements are refused here, with a sentence.

u = unknown("u", "x y")
plate = Box(x=(-0.5, 0.5), y=(-0.5, 0.5), name="square")
holes = union(*(Disc((a, b), 0.1) for a in (-0.3, 0.3) for b in (-0.3, 0.3)), name="circles")
problem = Problem(plate - holes, lap(u) == 0, [on("square", u == 1), on("circles", u == 0)])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poise.errors import BadInput

from ._calculus import atoms, coordinates, expand, has_normal, linearise, residual, walk
from ._expr import TEST, Call, Deriv, Equation, Expr, Given, Unknown
from ._shapes import Shape


@dataclass(frozen=True, eq=False)
class Condition:
    """An equation on a boundary (`where` its name), at the initial time ("t=0"), at given points ("points") or on an
    interface, the boundary of `shape` ("across")."""

    where: str
    residual: Expr
    points: np.ndarray | None = None
    values: np.ndarray | None = None
    sigma: float = 0.0
    shape: Shape | None = None


def across(shape: Shape, *statements: Equation | Expr) -> tuple[Condition, ...]:
    """Interface conditions on the boundary of a shape inside the region: `jump(u) == 0`, `jump(a * u.dn) == g`.

    A jump is the value outside the shape minus the one inside, with the normal pointing out of the shape.
    """
    made = tuple(Condition("across", residual(statement), shape=shape) for statement in statements)
    if not made or any(not any(isinstance(p, Call) and p.name == "jump" for p in walk(c.residual)) for c in made):
        raise BadInput("across(shape, ...) needs equations for jumps, such as jump(u) == 0, jump(a * u.dn) == 0.")
    return made


def on(boundary: str, *statements: Equation | Expr) -> tuple[Condition, ...]:
    """Conditions on the named boundary: Dirichlet `u == 1`, Neumann `u.dn == 0`, Robin `u.dn + u == 0`, …"""
    if not statements:
        raise BadInput(f"on({boundary!r}) needs at least one equation.")
    return tuple(Condition(boundary, residual(statement)) for statement in statements)


def initial(*statements: Equation | Expr) -> tuple[Condition, ...]:
    """Conditions at the start of time."""
    return on("t=0", *statements)


def measured(of: Expr, points: Any, values: Any, sigma: float = 0.0) -> tuple[Condition, ...]:
    """Point data: `of` equals `values` (n,) at `points` (n, d), with noise of standard deviation `sigma`.

    The columns of `points` are the region's axes, then t where the problem has time.
    """
    where, what = np.asarray(points, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if where.ndim != 2 or what.shape != where.shape[:1] or len(what) == 0:
        raise BadInput(f"measured needs points (n, d) and values (n,), n >= 1, not {where.shape} and {what.shape}.")
    if not (np.all(np.isfinite(where)) and np.all(np.isfinite(what)) and sigma >= 0.0):
        raise BadInput("measured needs finite points and values and a noise level that is not negative.")
    return (Condition("points", of, where, what, float(sigma)),)


@dataclass(frozen=True, init=False, eq=False)
class Problem:
    """What to solve. `time=(start, end)` makes it evolve; its unknowns then have the axis t.

    Raises `BadInput` for a statement that cannot be solved: a boundary without condition, a condition without boundary,
    a count of equations that differs from that of unknowns, a missing initial condition, an axis that does not exist.
    """

    domain: Shape
    equations: tuple[Expr, ...]
    conditions: tuple[Condition, ...]
    time: tuple[float, float] | None
    unknowns: tuple[Unknown, ...]

    def __init__(
        self,
        domain: Shape,
        equations: Equation | Expr | Sequence[Equation | Expr],
        conditions: Sequence[Any],
        time: tuple[float, float] | None = None,
    ) -> None:
        stated = [equations] if isinstance(equations, (Equation, Expr)) else list(equations)
        flat: list[Condition] = []
        for entry in conditions:
            flat.extend([entry] if isinstance(entry, Condition) else list(entry))
        if any(not isinstance(entry, Condition) for entry in flat):
            raise BadInput("Conditions are made with on(boundary, ...), initial(...) or measured(...).")
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "equations", tuple(residual(statement) for statement in stated))
        object.__setattr__(self, "conditions", tuple(flat))
        object.__setattr__(self, "time", None if time is None else (float(time[0]), float(time[1])))
        fields = _unknowns([*self.equations, *(c.residual for c in flat)])
        object.__setattr__(self, "unknowns", fields)
        # fields first, coefficients after them: by how often the equations differentiate them
        rank = {f.name: -max((self.order(f, axis) for axis in f.axes), default=0) for f in fields}
        object.__setattr__(self, "unknowns", tuple(sorted(fields, key=lambda f: rank[f.name])))
        _check(self)

    @property
    def axes(self) -> tuple[str, ...]:
        """The region's axes, then t where there is time: the order of the columns of points."""
        return (*self.domain.axes, "t") if self.time else self.domain.axes

    @property
    def inverse(self) -> bool:
        """Whether point data take part, so that coefficients may be unknown too."""
        return any(condition.where == "points" for condition in self.conditions)

    @property
    def interfaces(self) -> tuple[Condition, ...]:
        """The conditions across interfaces."""
        return tuple(condition for condition in self.conditions if condition.where == "across")

    @property
    def weak(self) -> bool:
        """Whether an equation is stated in weak form."""
        return any(atom.field.name.startswith(TEST) for e in self.equations for atom in atoms(e))

    def order(self, field: Unknown, axis: str) -> int:
        """The highest derivative of a field along an axis in the equations."""
        return max(
            (
                _order(atom, axis)
                for e in self.equations
                for atom in atoms(e)
                if atom.field is field and axis in field.axes
            ),
            default=0,
        )


def _order(atom: Deriv, axis: str) -> int:
    orders = [0]
    for part in walk(expand(atom)):
        if isinstance(part, Deriv) and not isinstance(part.order, str) and axis in part.field.axes:
            orders.append(part.order[part.field.axes.index(axis)])
    return max(orders)


def _unknowns(residuals: Sequence[Expr]) -> tuple[Unknown, ...]:
    found: dict[str, Unknown] = {}
    for node in residuals:
        for atom in atoms(node):
            if atom.field.name.startswith(TEST):
                continue
            if found.setdefault(atom.field.name, atom.field) is not atom.field:
                raise BadInput(f"Two different unknowns are both called {atom.field.name!r}; give each its own name.")
    return tuple(found.values())


def _check(problem: Problem) -> None:
    if not problem.equations:
        raise BadInput("A problem needs at least one equation.")
    if not problem.unknowns:
        raise BadInput("The equations contain no unknown; make one with unknown('u', 'x y').")
    if problem.time is not None and not problem.time[0] < problem.time[1]:
        raise BadInput(f"time needs a pair (start, end) with start < end, not {problem.time}.")
    _check_axes(problem)
    _check_counts(problem)
    _check_boundaries(problem)
    _check_interfaces(problem)
    _check_start(problem)


def _check_axes(problem: Problem) -> None:
    known = set(problem.axes)
    for field in problem.unknowns:
        extra = [axis for axis in field.axes if axis not in known]
        if extra == ["t"]:
            raise BadInput(f"{field.name} depends on t, but the problem has no time; pass time=(start, end).")
        if extra:
            raise BadInput(
                f"{field.name} has the axis {extra[0]!r}, but the region's axes are {' '.join(problem.axes)}."
            )
    for node in (*problem.equations, *(condition.residual for condition in problem.conditions)):
        stray = sorted(coordinates(node) - known)
        if stray:
            raise BadInput(
                f"An equation uses the coordinate {stray[0]!r}; the region's axes are {' '.join(problem.axes)}."
            )
    if any(has_normal(node) for node in problem.equations):
        raise BadInput("The normal derivative .dn only means something on a boundary; use it inside on(...).")
    for condition in problem.conditions:
        if condition.where in ("t=0", "points") and has_normal(condition.residual):
            raise BadInput(f"The normal derivative .dn has no meaning at {condition.where}; use it inside on(...).")
        if condition.points is not None and condition.points.shape[1] != len(problem.axes):
            raise BadInput(
                f"measured points need the columns {' '.join(problem.axes)}, not {condition.points.shape[1]}."
            )
        if not atoms(condition.residual):
            raise BadInput(f"The condition at {condition.where!r} contains no unknown.")


def _check_counts(problem: Problem) -> None:
    n, m = len(problem.equations), len(problem.unknowns)
    if n > m or (n < m and not problem.inverse):
        names = ", ".join(field.name for field in problem.unknowns)
        more = "" if n > m else ", or point data with measured(...)"
        raise BadInput(f"{n} equation{'s' * (n != 1)} for {m} unknown{'s' * (m != 1)} ({names}); state one each{more}.")


def _check_boundaries(problem: Problem) -> None:
    names = problem.domain.boundaries
    for condition in problem.conditions:
        if condition.where not in (*names, "t=0", "points", "across"):
            listed = ", ".join(repr(name) for name in names) or "none: every axis is periodic"
            raise BadInput(f"No boundary is called {condition.where!r}; this region has {listed}.")
    if problem.inverse or problem.weak:  # a weak form has natural conditions
        return
    for name in names:
        here = {a.field.name for c in problem.conditions if c.where == name for a in atoms(c.residual)}
        if not here and any(problem.order(f, axis) >= 2 for f in problem.unknowns for axis in problem.domain.axes):
            raise BadInput(f"The boundary {name!r} has no condition; state one with on({name!r}, ...).")


def _check_interfaces(problem: Problem) -> None:
    """A coefficient of second derivatives that jumps across a shape says nothing about the flux; conditions do."""
    stated = [c.shape for c in problem.interfaces]
    for equation in problem.equations:
        for key, coefficient in linearise(equation).items():
            second = key[1] == "lap" or (not isinstance(key[1], str) and sum(key[1]) >= 2)
            for part in walk(coefficient) if second else ():
                if isinstance(part, Given) and part.jumps is not None and not any(part.jumps is s for s in stated):
                    raise BadInput(
                        "A coefficient of second derivatives jumps, no interface condition says what is continuous: "
                        "make it with piecewise(shape, …) and state across(shape, jump(u) == 0, jump(a * u.dn) == 0)."
                    )


def _check_start(problem: Problem) -> None:
    starts = [condition for condition in problem.conditions if condition.where == "t=0"]
    if problem.time is None:
        if starts:
            raise BadInput("initial(...) needs a problem with time; pass time=(start, end).")
        return
    for field in problem.unknowns:
        need = problem.order(field, "t")
        have = sum(field.name in {atom.field.name for atom in atoms(c.residual)} for c in starts)
        if have < need:
            raise BadInput(
                f"{field.name} has {need} time derivative{'s' * (need != 1)} and {have} initial "
                f"condition{'s' * (have != 1)}; state {need} with initial(...)."
            )
        if have > max(need, 1):
            raise BadInput(f"{field.name} has {have} initial conditions, but its equation admits {need}.")
