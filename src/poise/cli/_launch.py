"""`poise launch`: a job over several processes, one device each, any of which may die."""

from __future__ import annotations

import json as jsonlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import jax

from ..control import Journal
from ..devices.process import Crew, Launcher
from ..errors import BadInput, PoiseError, Stopped
from ..events import Event, Protected, RunFinished, RunStarted, RunStopped
from ..faults import ProcessFault, load_process_script
from ..keeper._snapshot import fingerprint, read
from ._desk import Desk
from ._job import packaged
from ._launch_plan import Plan, make_plan
from ._launch_report import Ran, cost, report, table
from ._output import check_json, console, dump, out_directory, write_json
from ._progress import Live
from ._run import resume_directory
from ._seats import apart, seat_environments

Listener = Callable[[Event], None]


BLOCK = 20
"""Steps with and without protection in turns, where its cost is measured."""


def launch(
    job: str, active: int | None, spares: int | None, faults: str | None, out: Path | None, resume: Path | None,
    serve: str | None, overhead: bool, json: str | None,
) -> int:  # fmt: skip
    """Run a job over processes; the exit status is 3 if it stopped beyond the promise."""
    check_json(json)
    jax.config.update("jax_platforms", "cpu")  # this process only reads results; the devices belong to the workers
    plan = make_plan(job, active, spares)
    resume_from, _ = resume_directory(resume)
    if resume_from is not None:
        read(resume_from, plan.workload.name, plan.form)
    script = []
    if faults is not None:
        script = load_process_script(packaged(faults) or Path(faults), plan.active + plan.spares)
        late = [f for f in script if f.step >= plan.steps]
        if late:
            raise BadInput(f"A fault strikes at step {late[0].step}; the run has steps 0 to {plan.steps - 1}.")
    show = console(json)
    with ExitStack() as stack:
        where = out_directory(out) if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        live = stack.enter_context(Live())
        clean = None
        if script:
            aside = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            alone = Plan(**{**vars(plan), "spares": 0})
            clean = run_over(alone, aside, resume_from, [], [live.run("clean", plan.steps)])
            if clean.stopped is not None:
                raise PoiseError(f"The run without faults did not end: {clean.stopped}")
        listeners = [live.run(plan.workload.name, plan.steps)]
        try:
            ran = run_over(plan, where, resume_from, script, listeners, serve)
        except KeyboardInterrupt:
            if out is not None:
                print(f"poise: {again(plan, job, out)}", file=sys.stderr)
            raise
        said = report(plan, ran, clean, script)
        if overhead and ran.stopped is None:
            aside = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            said |= cost(run_over(plan, aside, None, [], [live.run("cost", plan.steps)], alternate=BLOCK))
        if out is not None:
            if ran.stopped is not None:
                said["resume"] = str(out)
            dump(said, where / "report.json")
    write_json(said, json)
    table(show, said)
    if ran.stopped is not None:
        print(f"poise: stopped: {ran.stopped}", file=sys.stderr)
        if out is not None:
            print(f"poise: {again(plan, job, out)}", file=sys.stderr)
        return ran.stopped.exit_status
    return 0


def run_over(
    plan: Plan, out: Path, resume: Path | None, script: list[ProcessFault], listen: list[Listener],
    serve: str | None = None, alternate: int = 0,
) -> Ran:  # fmt: skip
    """One run, with its journal and snapshots in `out`."""
    ran = Ran()
    snapshots = out / "snapshots"
    command = [
        sys.executable, "-m", "poise", "worker", plan.job, "--active", str(plan.active), "--spares", str(plan.spares),
        "--out", str(out),
        "--source", plan.source,
    ]  # fmt: skip
    command += [] if resume is None else ["--resume", str(resume)]
    seats = seat_environments(plan.active + plan.spares)
    with Journal(out / "run.db") as journal:

        def hear(event: Event) -> None:
            journal.append(event)
            for listener in listen:
                listener(event)

        desk = Desk(plan, snapshots, hear, script)
        crew = Crew(
            plan.active + plan.spares, command, out / "logs", env={**os.environ, "POISE_ALTERNATE": str(alternate)},
            seat_env=seats, adopt=serve, stand_in=bool(seats),
        )  # fmt: skip
        launcher = Launcher(
            crew, plan.active, emit=desk.hear, heard=desk.heard, source=plan.source,
            replicas={slot: plan.form.replicas(slot) for slot in range(plan.active)},
            possible=lambda slots: apart(slots, seats[0]["POISE_GPUS"] if seats else ""),
        )  # fmt: skip
        desk.launcher = launcher
        seats_of_all = tuple(range(plan.active + plan.spares))
        hear(RunStarted(plan.workload.name, 0, seats_of_all[: plan.active], seats_of_all[plan.active :]))
        hear(Protected(plan.form.state_bytes, plan.form.spare_bytes, plan.source))
        t0 = time.perf_counter()
        try:
            launcher.run(quiet if serve is None else say_where)
            step, ran.leaves = read(snapshots, plan.workload.name, plan.form)
            if step != plan.steps:
                raise PoiseError(f"The last state is not whole; the newest snapshot is that of step {step}.")
            ran.fingerprint = fingerprint(ran.leaves)
            hear(RunFinished(step, ran.fingerprint))
        except Stopped as stopped:
            ran.stopped = Stopped(str(stopped), resume=str(snapshots))
            hear(RunStopped(max(launcher.progress.step, 0), str(stopped), str(snapshots)))
        except KeyboardInterrupt:
            hear(RunStopped(max(launcher.progress.step, 0), "interrupted", str(snapshots)))
            raise
        ran.seconds = time.perf_counter() - t0
        ran.struck, ran.timing = desk.struck, desk.timing
        ran.swaps, ran.rewarm_compiles = launcher.swaps, launcher.rewarm_compiles
    return ran


def again(plan: Plan, job: str, out: Path) -> str:
    """How to go on with a run that ended early."""
    return f"resume with: poise launch -n {plan.active} --spares {plan.spares} {job} --resume {out}"


def say_where(address: str, key: str) -> None:
    """The one line that whoever started this waits for."""
    print(jsonlib.dumps({"launcher": address, "key": key}), flush=True)


def quiet(address: str, key: str) -> None:
    """Workers that are our own know from their environment."""
