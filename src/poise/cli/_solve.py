"""`poise solve` and `poise tasks`, free of the command line's own machinery."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def solve(
    task: str, *, tol: float | None = None, points: int | None = None, plot: Path | None = None
) -> dict[str, Any]:
    """Solve a named task and measure it against its reference; `plot` names a picture file to write.

    The report has `task, rel_l2, reference, seconds, first_seconds, peak_mb, xla_temp_mb, points, features, status,
    error_estimate, method`, and `beside`, distances to published values, where there are any. Raises `BadInput` for an
    unknown task and where its reference data are absent.
    """
    from poise.physics.tasks import get, run

    report, solution = run(get(task), tol, points)
    if plot is not None:
        solution.plot(plot)
    return report


def tasks() -> list[dict[str, Any]]:
    """Every task: its name, its title, the tolerance it is solved to, and where its reference comes from."""
    from poise.physics.tasks import get, names

    rows = []
    for name in names():
        task = get(name)
        reference = "exact" if task.exact else "data" if task.data else "own solution, converged further"
        rows.append({"task": name, "title": task.title, "tol": task.tol, "reference": reference})
    return rows
