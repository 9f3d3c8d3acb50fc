"""`poise run`: any workload, kept, with faults or without."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..devices import Pool
from ..errors import BadInput
from ..faults import ScriptedFault, load_script
from ..faults._inject import check, watched_steps
from ..keeper._form import Form
from ..keeper._snapshot import devices_then, read, snapshot_files
from ..keeper._stage import choose_source
from ..seal._plan import named_leaves
from ._engine import kept_run, measure_overhead, steps_of
from ._job import Job, load_job, packaged
from ._observe import Observer
from ._output import check_json, console, dump, out_directory, write_json
from ._platform import cpu_devices, pool, wanted
from ._progress import Live
from ._report import fault_table, report, summary
from ._serve import served


def load_faults(faults: str | None) -> list[ScriptedFault]:
    """A fault script by file or packaged name."""
    return [] if faults is None else load_script(packaged(faults) or Path(faults))


def resume_directory(resume: Path | None) -> tuple[Path | None, int | None]:
    """The directory with the snapshot files, and the number of devices that wrote the newest."""
    if resume is None:
        return None, None
    directory = resume / "snapshots" if (resume / "snapshots").is_dir() else resume
    files = snapshot_files(directory) if directory.is_dir() else []
    if not files:
        raise BadInput(f"There is no snapshot to resume from in {resume}; accepted is the --out directory of a run.")
    try:
        return directory, devices_then(files[-1])
    except Exception:  # an unreadable newest file is not the end: `read` falls back to the one before it
        return directory, None


def preflight(spec: Job, workload: Any, devices: Pool, script: list[ScriptedFault], snapshots: Path | None) -> None:
    """Refuse what cannot run before anything is computed or written. Raises `BadInput`."""
    axes, traits = workload.axes(len(devices.active)), workload.traits
    with jax.enable_x64(True) if traits.x64 else nullcontext(), np.errstate(over="ignore"):
        state, batch = workload.init(), workload.batch(0)
    form = Form.of(state, workload.state_specs(), axes, traits.heal)
    choose_source(spec.options.source, form, devices)
    check(script, workload, form, batch)
    if snapshots is not None:
        read(snapshots, workload.name, form)
    elif traits.limit is not None:
        for name, leaf in named_leaves(state):
            if jnp.issubdtype(leaf.dtype, jnp.inexact):
                bad = int((~(np.abs(np.asarray(leaf)) <= traits.limit)).sum())
                if bad:
                    raise BadInput(
                        f"The initial state's {name!r} holds {bad} values that are NaN or above the limit of "
                        f"{workload.name}, {traits.limit:g}."
                    )


def run(
    job: str,
    faults: str | None,
    out: Path | None,
    resume: Path | None,
    active: int | None,
    spares: int | None,
    compare: bool | None,
    overhead: bool,
    serve: bool,
    port: int,
    govern: bool,
    json: str | None,
) -> int:
    """Run a job; the exit status is 3 if it stopped beyond the promise."""
    check_json(json)
    spec = load_job(job)
    if spec.workload == "stream":
        if faults or resume or active is not None or spares is not None or compare or overhead or serve or govern:
            raise BadInput("A stream has no fault script, resume, spares or page; accepted are --out and --json.")
        from ._stream import stream

        return stream(job, None, None, None, None, out, json)
    if (serve or govern) and out is None:
        raise BadInput("A page and a governor need the run's journal; say where with --out.")
    spec = spec.with_devices(active, spares)
    script = load_faults(faults)
    snapshots_from, then = resume_directory(resume)
    compare = bool(script or resume) if compare is None else compare
    cpu_devices(max(wanted(spec.active, spec.spares), then or 0))
    workload = spec.make()
    devices = pool(spec.active, spec.spares)
    steps = steps_of(workload)
    late = [f for f in script if f.step >= steps]
    if late:
        raise BadInput(f"A fault strikes at step {late[0].step}; the run has steps 0 to {steps - 1}.")
    preflight(spec, workload, devices, script, snapshots_from)
    # The uninterrupted run: on as many devices as the run that is resumed had, if they can be had here.
    before = pool(then, 0) if compare and then else devices
    workload.axes(len(before.active))
    where = None if out is None else out_directory(out)
    show = console(json)
    observer = Observer(workload, where, 0 if snapshots_from is None else 1)
    with ExitStack() as stack:
        live = stack.enter_context(Live())
        if serve and where is not None:
            stack.enter_context(served(where / "run.db", port))
        clean, known = None, {}
        if compare:
            listener = live.run("clean", steps)
            clean = kept_run(spec, workload, before, clean=known, watch=watched_steps(script), listen=[listener])
        try:
            outcome = kept_run(
                spec, workload, devices, journal=None if where is None else where / "run.db",
                snapshots=None if where is None else where / "snapshots", resume=snapshots_from,
                script=script, clean=known if compare else None, listen=[live.run(workload.name, steps)],
                governed=serve or govern,
                each=observer,
            )  # fmt: skip
        except KeyboardInterrupt:
            if where is not None:
                print(f"poise: interrupted; resume with: poise run {job} --resume {out}", file=sys.stderr)
            raise
    cost = measure_overhead(spec, workload, devices, steps) if overhead and outcome.stopped is None else None
    said = report(workload, devices, outcome, clean, cost)
    if then is not None:
        said["resumed"] = {"devices_then": then, "devices_now": len(devices.active)}
    said |= observer.said(outcome)
    if outcome.stopped is not None and outcome.stopped.resume is not None:
        said["resume"] = str(out)
    if where is not None:
        dump(said, where / "report.json")
    write_json(said, json)
    fault_table(show, said)
    summary(show, said)
    if outcome.stopped is not None:
        if outcome.stopped.resume is not None:
            show.print(f"resume with: poise run {job} --resume {out}", soft_wrap=True)
        return outcome.stopped.exit_status
    return 0
