"""Named problems with references: `names()`, `get(name)`, `solve_task(name)`.

References are exact where an exact solution exists, else files in the data folder (`POISE_DATA`, or ../shared/data
beside the repository), else the project's own solution converged further; the report says which.
"""

from __future__ import annotations

from typing import Any

from poise.errors import BadInput

from . import _elliptic, _evolution, _evolution2d, _flow, _high, _inverse, _pieces
from ._task import Absent as Absent
from ._task import Task as Task
from ._task import data_folder as data_folder
from ._task import run as run

_ALL = {
    task.name: task
    for module in (_evolution, _elliptic, _pieces, _evolution2d, _flow, _high, _inverse)
    for task in module.TASKS
}


def names() -> tuple[str, ...]:
    """Every task's name, in the order of the documentation."""
    return tuple(_ALL)


def get(name: str) -> Task:
    """A task by name; raises `BadInput` for one that does not exist."""
    if name not in _ALL:
        raise BadInput(f"No task is called {name!r}; the tasks are {', '.join(_ALL)}.")
    return _ALL[name]


def solve_task(name: str, tol: float | None = None, points: int | None = None, *, warm: bool = True) -> dict[str, Any]:
    """Solve a task and measure it against its reference: the JSON of `poise solve`; once only if not `warm`."""
    return run(get(name), tol, points, warm=warm)[0]
