"""`solve`: which method suits a problem.

evolution on a box        Fourier modes or eigenmodes, exponential steps       evolve
steady, linear, on a box  eigenmodes, direct                                   galerkin
steady, nonlinear, fourth order or weak form, on a box   Newton-Galerkin       galerkin
interfaces, sources that jump, several fields,
  holes in time or space   spectral elements                                   elements
point data, unknown coefficients   Gauss-Newton, noise-weighted                collocation
anything else             least-squares collocation with structured features   collocation

By name only: a network drawn from the data (collocation), relaxation on a grid (grid).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poise.errors import BadInput

from ._problem import Problem
from ._solution import Solution

METHODS = ("march", "direct", "galerkin", "elements", "inverse", "collocation", "network", "relaxation")


def choose(problem: Problem) -> str:
    """The method that `solve` takes for a problem."""
    from .elements import _solve as elements
    from .evolve import _solve as march
    from .galerkin import _direct as direct
    from .galerkin import _solve as galerkin

    if problem.inverse:
        return "inverse"
    if elements.special(problem):
        return "elements"
    if problem.interfaces:
        raise BadInput(
            "Interface conditions are solved on boxes and what they make of each other, or in one box around discs, "
            "with continuous fields and constant flux jumps; this problem is of another kind."
        )
    if problem.time is not None:
        return "march" if march.applies(problem) else "collocation"
    if direct.applies(problem):
        return "direct"
    if galerkin.applies(problem):
        return "galerkin"
    if problem.weak:
        raise BadInput(
            "A weak form is solved on a box of one or two axes with one field; state this one in strong form."
        )
    return "collocation"


def solve(
    problem: Problem, tol: float = 1e-6, *, points: int | None = None, method: str | None = None, **options: Any
) -> Solution:
    """Solve a problem to a relative L2 error of about `tol`.

    The method follows from the problem's class unless given (`METHODS`); `points` fixes the number of points where the
    method has a choice (rows of collocation; nodes times steps of a march); further options go to the method. The
    result says how it was solved, what error it estimates and, in `status`, whether that met the tolerance.

    Raises `BadInput` for a tolerance that is not positive, an unknown method or option.
    """
    if not tol > 0.0:
        raise BadInput(f"tol needs a positive number, not {tol}.")
    if points is not None and points < 1:
        raise BadInput(f"points needs a positive number, not {points}.")
    chosen = method or choose(problem)
    if points is not None and method is None and chosen == "elements" and not problem.interfaces:
        chosen = "collocation"  # the method whose number of points is a choice
    if chosen not in METHODS:
        raise BadInput(f"No method is called {chosen!r}; the methods are {', '.join(METHODS)}.")
    if problem.interfaces and chosen != "elements":
        raise BadInput(f"The method {chosen} knows no interface conditions; leave the method out, or take 'elements'.")
    run, defaults = _methods(chosen)
    known = set(type(defaults).__dataclass_fields__)
    stray = sorted(set(options) - known)
    if stray:
        raise BadInput(f"The method {chosen} has no option {stray[0]!r}; it has {', '.join(sorted(known))}.")
    return run(problem, tol, replace(defaults, points=points, **options))


def _methods(name: str) -> tuple[Any, Any]:
    from .collocation import _inverse as inverse
    from .collocation import _network as network
    from .collocation import _solve as collocation
    from .elements import _solve as elements
    from .evolve import _solve as march
    from .galerkin import _direct as direct
    from .galerkin import _solve as galerkin
    from .grid import _solve as grid

    return {
        "march": (march.solve_march, march.Options()),
        "direct": (direct.solve_direct, direct.Options()),
        "galerkin": (galerkin.solve_galerkin, galerkin.Options()),
        "elements": (elements.solve_elements, elements.Options()),
        "inverse": (inverse.solve_inverse, inverse.Options()),
        "collocation": (collocation.solve_collocation, collocation.Options()),
        "network": (network.solve_network, network.Options()),
        "relaxation": (grid.solve_relaxation, grid.Options()),
    }[name]
