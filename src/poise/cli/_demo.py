"""`poise demo`: the main job, clean and struck, side by side."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ..faults import ScriptedFault
from ..faults._inject import watched_steps
from ..faults._script import LEAVE
from ..keeper import Workload
from ._engine import kept_run, measure_overhead
from ._job import Job, load_job
from ._output import check_json, console, dump, out_directory, write_json
from ._platform import cpu_devices, pool
from ._progress import Live
from ._report import fault_table, kept_promises, report, summary
from ._run import load_faults
from ._serve import served

LARGE = 1024
"""Nodes per side of the run that the overhead is measured on."""

LARGE_STEPS = 120


def fitted(script: list[ScriptedFault], active: int, spares: int) -> list[ScriptedFault]:
    """The script on this machine's devices: slots wrap around, and what needs a spare stays away where there is none.

    Two strikes that meet in one slot and step by the wrapping become one.
    """
    leaves = [f for f in script if f.kind in LEAVE][:spares]
    kept = [replace(f, slot=f.slot % active) for f in script if f.kind not in LEAVE or f in leaves]
    return [f for i, f in enumerate(kept) if f not in kept[:i]]


def demo(out: Path, serve: bool, port: int, json: str | None) -> int:
    """Run it; the exit status is 1 if a promise was broken. With a page, and on virtual devices, there is one more
    spare: for whoever tries out a drain."""
    check_json(json)
    where = out_directory(out)
    job = load_job("burgers2d")
    job = replace(job, spares=(job.spares or 2) + serve)
    cpu_devices((job.active or 4) + (job.spares or 2))
    import jax

    job = job if jax.default_backend() == "cpu" else _on_accelerators(job, len(jax.devices()))
    workload, devices = job.make(), pool(job.active, job.spares)
    script = fitted(load_faults("faults"), len(devices.active), len(devices.spares))
    # On few devices one of them takes most of the blows; it is not to be drained for that.
    job = replace(job, limits=replace(job.limits, memory_faults=len(script)))
    show = console(json)
    events: list = []
    with Live() as live, served(where / "run.db", port) if serve else nullcontext():
        known: dict[int, str] = {}
        steps = workload.steps  # type: ignore[attr-defined]
        clean = kept_run(
            job, workload, devices, clean=known, watch=watched_steps(script), listen=[live.run("clean", steps)]
        )
        struck = kept_run(
            job, workload, devices, journal=where / "run.db", snapshots=where / "snapshots", script=script, clean=known,
            listen=[events.append, live.run("with faults", steps)], governed=serve,
        )  # fmt: skip
        if struck.stopped is not None:
            raise struck.stopped
        large = replace(job, params={**job.params, "n": LARGE})
        cost = measure_overhead(large, large.make(), devices, LARGE_STEPS)
    said = report(workload, devices, struck, clean, cost)
    said["overhead_n"] = LARGE
    _picture(workload, said, struck.state, where / "demo.png")
    dump(said, where / "report.json")
    write_json(said, json)
    fault_table(show, said)
    summary(show, said)
    show.print(f"written: {where}/report.json, run.db, demo.png, snapshots/", soft_wrap=True)
    broken = kept_promises(said)
    for sentence in broken:
        show.print(f"[red]broken promise:[/red] {sentence}", soft_wrap=True)
    return 1 if broken or struck.stopped is not None else 0


def _on_accelerators(job: Job, n: int) -> Job:
    """All devices but up to two spares; with one device, no spare."""
    spares = min(2, n - 1)
    active = n - spares
    while active & (active - 1):  # a power of two shares the grid equally
        active -= 1
    return job.with_devices(active, spares)


def _picture(workload: Workload, said: dict, state: object, path: Path) -> None:
    from ._plot import demo_picture

    demo_picture(workload, said, state, path)
