"""Runs over processes for the tests: a small job, its clean result, and what a struck run left behind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poise.cli._launch import Ran, run_over
from poise.cli._launch_plan import make_plan
from poise.events import Event
from poise.faults import ProcessFault

HERE = Path(__file__).parent
STEPS = 360


def job_file(where: Path, workload: str = "slow_burgers:Slow", steps: int = STEPS) -> Path:
    """A job of three active processes and a spare."""
    path = where / "job.toml"
    path.write_text(
        f'workload = "{workload}"\n[params]\nn = 24\nsteps = {steps}\n'
        "[devices]\nactive = 3\nspares = 1\n[keeper]\nevery = 40\n"
    )
    return path


@contextmanager
def workers_find(tests: Path, slow_until: Path | None = None) -> Any:
    """Environment of the workers: they import the test's workload, and leave a core to each other."""
    before = dict(os.environ)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tests), before.get("PYTHONPATH", "")])
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    if slow_until is not None:
        os.environ["SLOW_UNTIL"] = str(slow_until)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(
    where: Path,
    script: Sequence[ProcessFault] = (),
    *,
    active: int = 3,
    spares: int = 1,
    resume: Path | None = None,
    swaps: int = 0,
) -> tuple[Ran, list[Event]]:
    """Run the job in `where`; its data come slowly until `swaps` losses have been mended (or a spare replaced)."""
    where.mkdir(parents=True, exist_ok=True)
    job, until = job_file(where), where / "fast"
    events: list[Event] = []
    plan = make_plan(str(job), active, spares)

    def listen(event: Event) -> None:
        events.append(event)
        if sum(type(e).__name__ == "Swapped" for e in events) >= swaps:
            until.touch()

    if swaps == 0:
        until.touch()
    with workers_find(HERE, until):
        ran = run_over(plan, where, resume, list(script), [listen])
    return ran, events
