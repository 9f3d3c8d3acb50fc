"""A solve as a workload for `poise.Keeper`: cut into steps, its state the little that a solver keeps."""

from __future__ import annotations

from typing import Any

from poise.errors import BadInput

from ._problem import Problem


def workload(problem: Problem, *, method: str | None = None, **options: Any) -> Any:
    """The workload of a problem; `workload.solution(state)` reads the solution off the state of a finished run.

    - "march" for evolutions on a box (`nodes`, `steps` kept instants, `substeps` between them),
    - "relaxation" for -div(a grad u) + k u = f on a rectangle (`n` nodes per side, `sweeps` iterations a step),
    - "collocation" for any linear problem (`degree`, `steps` of `shards` chunks of points).

    The methods that are done in one factorisation (direct, galerkin, elements) have no steps to keep. Raises `BadInput`
    for a problem that the method does not take, or an unknown option.
    """
    from .collocation._kept import Factorisation
    from .evolve._kept import March
    from .evolve._solve import applies
    from .grid._solve import workload as relaxation

    chosen = method or ("march" if problem.time is not None and applies(problem) else "collocation")
    makers: dict[str, Any] = {"march": March, "relaxation": relaxation, "collocation": Factorisation}
    if chosen not in makers:
        raise BadInput(f"The method {chosen!r} has no steps to keep; {', '.join(makers)} have.")
    if problem.interfaces:
        raise BadInput("A problem with interface conditions is solved in one go; there are no steps to keep.")
    try:
        return makers[chosen](problem, **options)
    except TypeError as error:
        raise BadInput(f"The workload {chosen} cannot be made with {', '.join(options)}: {error}.") from error
