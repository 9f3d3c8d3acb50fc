"""What a launch runs: the job over so many processes, and where a lost shard comes from."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax

from ..errors import BadInput
from ..keeper._form import Form
from ._engine import steps_of
from ._job import Job, load_job

SOURCES = ("auto", "replica", "parity")


@dataclass(frozen=True)
class Plan:
    """What a launch runs."""

    job: str
    spec: Job
    workload: Any
    form: Form
    active: int
    spares: int
    steps: int
    source: str


def make_plan(job: str, active: int | None, spares: int | None) -> Plan:
    """What is to be run. Raises `BadInput` for what cannot be."""
    spec = load_job(job).with_devices(active, spares)
    workload = spec.make()
    n = 2 if spec.active is None else spec.active
    s = 1 if spec.spares is None else spec.spares
    if spec.options.source not in SOURCES:
        raise BadInput(
            f"Over processes a lost shard comes from {', '.join(SOURCES)}, not from {spec.options.source!r}; a job's "
            "snapshots are files there, to resume from."
        )
    with jax.enable_x64(True) if workload.traits.x64 else nullcontext():
        state = workload.init()
    form = Form.of(state, workload.state_specs(), workload.axes(n), workload.traits.heal)
    source = spec.options.source
    if source == "auto":
        source = "replica" if form.replicated else "parity"
    if source == "replica" and not form.replicated:
        raise BadInput("The source 'replica' needs every leaf on two devices at least; accepted here: parity.")
    return Plan(job, spec, workload, form, n, s, steps_of(workload), source)
