"""What a task is, and how it is solved and measured."""

from __future__ import annotations

import functools
import math
import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from poise.errors import BadInput

from .._problem import Problem
from .._solution import Solution
from .._solve import choose, solve

SEED = 20261130


@dataclass(frozen=True, eq=False)
class Reference:
    """Where the solution is compared, with what values (n, k), and where those come from."""

    points: np.ndarray
    values: np.ndarray
    source: str


class Absent(BadInput):
    """A task's reference data are not on this machine."""


@dataclass(frozen=True, eq=False)
class Task:
    """A named problem with its reference, default tolerance and what is measured.

    `measure(solution, points)` gives the compared components (n, k); `exact(points)` the exact ones, where they exist;
    `data` reads a reference file from the data folder; otherwise the reference is the project's own solution with the
    options `finer`. `solver` replaces `solve` for tasks that need more than one problem.
    """

    name: str
    title: str
    problem: Callable[[], Problem]
    tol: float
    exact: Callable[[np.ndarray], np.ndarray] | None = None
    data: Callable[[Path], tuple[np.ndarray, np.ndarray, str]] | None = None
    finer: Mapping[str, Any] = field(default_factory=dict)
    finer_tol: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    measure: Callable[[Any, np.ndarray], np.ndarray] = lambda solution, points: solution(points)[:, None]
    solver: Callable[..., Any] | None = None
    sample: Callable[[np.random.Generator, int], np.ndarray] | None = None
    notes: str = ""
    beside: Callable[[Any], dict[str, float]] | None = None
    """Further distances, by name: to published values that are not good enough to be the reference."""

    @property
    def needs_data(self) -> bool:
        """Whether the task can only be measured where the reference data folder is."""
        return self.exact is None and self.data is not None

    def solve(self, tol: float, points: int | None, **options: Any) -> Any:
        """One solve."""
        chosen = {**self.options, **options}
        if self.solver is not None:
            if points is not None:
                raise BadInput(f"{self.name} is solved by a Galerkin method, whose points follow from its degree.")
            return self.solver(self.built, tol, **chosen)
        if points is not None and choose(self.built) in ("galerkin", "direct", "inverse"):
            raise BadInput(
                f"{self.name} is solved by a {choose(self.built)} method, whose points follow from its degree."
            )
        return solve(self.built, tol, points=points, **chosen)

    @functools.cached_property
    def built(self) -> Problem:
        """The problem, made once, so that what is compiled for it is found again."""
        return self.problem()

    def scatter(self, count: int = 3000) -> np.ndarray:
        """Points spread over the region (and time), the same every time."""
        rng = np.random.default_rng(SEED)
        if self.sample is not None:
            return self.sample(rng, count)
        shape = self.built.domain
        found = np.zeros((0, shape.dimension))
        while len(found) < count:
            more = rng.uniform(shape.low, shape.high, (count, shape.dimension))
            found = np.concatenate([found, more[np.asarray(shape.inside(more))]])
        found = found[:count]
        if self.built.time:
            found = np.concatenate([found, rng.uniform(*self.built.time, (count, 1))], axis=1)
        return found

    def reference(self, tol: float) -> Reference:
        """By the policy: exact, then data, then the project's own finer solution."""
        if self.exact is not None:
            points = self.scatter()
            return Reference(points, _columns(self.exact(points)), "exact")
        if self.data is not None:
            points, values, name = self.data(data_folder(self.name))
            return Reference(points, _columns(values), name)
        points = self.scatter()
        finest = self.finer_tol if self.finer_tol is not None else tol / 30.0
        solution = self.solve(finest, None, **self.finer)
        return Reference(points, _columns(self.measure(solution, points)), "own solution, converged further")


def _columns(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values


def data_folder(task: str = "this task") -> Path:
    """The reference data: POISE_DATA, or ../shared/data beside the repository; raises `Absent` where there are none."""
    named = os.environ.get("POISE_DATA")
    places = [Path(named)] if named else [Path.cwd() / "../shared/data", Path(__file__).parents[5] / "shared/data"]
    for place in places:
        if place.is_dir():
            return place.resolve()
    raise Absent(f"The reference data of {task} are not here; set POISE_DATA to the folder that holds them.")


@functools.lru_cache(maxsize=8)
def _reference(task: Task, tol: float) -> Reference:
    return task.reference(tol)


def peak_mb() -> float:
    """The process's peak resident set in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def run(
    task: Task, tol: float | None = None, points: int | None = None, *, warm: bool = True
) -> tuple[dict[str, Any], Any]:
    """Solve a task twice, the second time warm, and measure it: the figures of `poise solve`, and the solution.

    `warm=False` solves it once, and both times are that one's. Raises `Absent` before solving where data are missing.
    """
    if task.needs_data:
        data_folder(task.name)
    wanted = task.tol if tol is None else tol
    start = time.perf_counter()
    solution = task.solve(wanted, points)
    first = time.perf_counter() - start
    seconds = first
    if warm and first < 40.0:
        start = time.perf_counter()
        solution = task.solve(wanted, points)
        seconds = min(first, time.perf_counter() - start)
    peak = peak_mb()
    reference = _reference(task, task.tol if task.exact is None else 1.0)
    values = _columns(task.measure(solution, reference.points))
    error = float(np.linalg.norm(values - reference.values) / np.linalg.norm(reference.values))
    report = {
        "task": task.name,
        "rel_l2": error,
        "reference": reference.source,
        "seconds": seconds,
        "first_seconds": first,
        "peak_mb": peak,
        "xla_temp_mb": solution.detail.get("xla_temp_bytes", 0) / 2**20,
        "points": solution.points,
        "features": solution.features,
        "status": solution.status.value,
        "error_estimate": solution.error_estimate,
        "method": solution.method,
    }
    if task.beside is not None:
        report["beside"] = task.beside(solution)
    if not math.isfinite(error):
        report["rel_l2"] = None
    return report, solution


def component(name: str) -> Callable[[Solution, np.ndarray], np.ndarray]:
    """A measure: one field by name."""
    return lambda solution, points: solution.field(name, points)[:, None]
