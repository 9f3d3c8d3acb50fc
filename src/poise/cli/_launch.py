"""`poise launch`: a job over several processes, one device each, any of which may die."""

from __future__ import annotations

import json as jsonlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any

import jax

from ..control import Journal
from ..devices.process import Device, Launcher, Swap
from ..errors import BadInput, PoiseError, Stopped
from ..events import (
    Event,
    Mended,
    ProcessLost,
    RunFinished,
    RunStarted,
    RunStopped,
    SnapshotKept,
    SnapshotRefused,
    from_dict,
)
from ..faults import COORDINATOR, ProcessFault, load_process_script
from ..keeper._parts import write_manifest
from ..keeper._peer_life import replicas_of
from ..keeper._snapshot import fingerprint, read
from ._job import packaged
from ._launch_plan import Plan, make_plan
from ._output import check_json, console, dump, out_directory, write_json
from ._progress import Live
from ._run import resume_directory
from ._seats import apart, seat_environments

Listener = Callable[[Event], None]


BLOCK = 20
"""Steps with and without protection in turns, where its cost is measured."""


@dataclass
class Ran:
    """How it ended; `stopped` is set if that was before the last step."""

    swaps: list[Swap] = field(default_factory=list)
    fingerprint: str = ""
    leaves: tuple[Any, ...] = ()
    seconds: float = 0.0
    rewarm_compiles: int = 0
    struck: list[ProcessFault] = field(default_factory=list)
    timing: list[tuple[float, float]] = field(default_factory=list)
    stopped: Stopped | None = None


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
        ran = run_over(plan, where, resume_from, script, listeners, serve)
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
            print(f"poise: resume with: poise launch -n {plan.active} {job} --resume {out}", file=sys.stderr)
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
        launcher = Launcher(
            plan.active, plan.spares, command, out / "logs", emit=desk.hear, heard=desk.heard, source=plan.source,
            replicas={slot: replicas_of(plan.form, slot) for slot in range(plan.active)}, seat_env=seats,
            stand_in=bool(seats), possible=lambda slots: apart(slots, seats[0]["POISE_GPUS"] if seats else ""),
            env={**os.environ, "POISE_ALTERNATE": str(alternate)}, adopt=serve, serving=say_where if serve is not None else quiet,
        )  # fmt: skip
        desk.launcher = launcher
        hear(
            RunStarted(
                plan.workload.name, 0, tuple(range(plan.active)), tuple(range(plan.active, plan.active + plan.spares))
            )
        )
        t0 = time.perf_counter()
        try:
            launcher.run()
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


def say_where(address: str, key: str) -> None:
    """The one line that whoever started this waits for."""
    print(jsonlib.dumps({"launcher": address, "key": key}), flush=True)


def quiet(address: str, key: str) -> None:
    """Workers that are our own know from their environment."""


class Desk:
    """What workers say that is not the launcher's business: events, parts of snapshots, and the fault script's clock.

    Faults with a step are sent to their worker as it starts. Those that wait are sent one by one, in the script's
    order, each when the run is protected again after the one before.
    """

    def __init__(self, plan: Plan, snapshots: Path, hear: Listener, script: list[ProcessFault]) -> None:
        self.plan, self.snapshots, self._hear = plan, snapshots, hear
        self.launcher: Launcher | None = None
        self.struck: list[ProcessFault] = []
        self._script, self._waiting = [f for f in script if not f.wait], [f for f in script if f.wait]
        self.timing: list[tuple[float, float]] = []
        self._open = False
        self._parts: dict[int, dict[int, str]] = {}

    def hear(self, event: Event) -> None:
        """An event of the launcher's or of a worker's."""
        if isinstance(event, ProcessLost | Mended):
            self._open = False
        self._hear(event)

    def heard(self, device: Device, message: dict[str, Any]) -> None:
        """A worker said something."""
        assert self.launcher is not None
        match message["say"]:
            case "event" if device == self.launcher.slots[0]:
                self.hear(from_dict(message["event"]))
            case "written":
                self._written(int(message["step"]), int(message["slot"]), message["mark"])
            case "hello":
                for fault in [f for f in self._script if f.phase and (f.worker, f.incarnation) == device]:
                    self._send(fault, device)
            case "struck":
                self.struck.append(ProcessFault(**message["fault"]))
            case "timing":
                self.timing.append((float(message["on"]), float(message["off"])))
            case "stepped":
                self._clock(int(message["step"]))

    def _written(self, step: int, slot: int, mark: str) -> None:
        parts = self._parts.setdefault(step, {})
        parts[slot] = mark
        if mark.startswith("!"):
            self.hear(SnapshotRefused(step, f"slot {slot}: {mark[1:]}"))
        if len(parts) == self.plan.active:
            del self._parts[step]
            if not any(m.startswith("!") for m in parts.values()):
                marks = [parts[s] for s in range(self.plan.active)]
                path = write_manifest(self.snapshots, step, self.plan.workload.name, marks)
                self.hear(SnapshotKept(step, self.plan.form.state_bytes, str(path)))

    def _clock(self, step: int) -> None:
        launcher = self.launcher
        assert launcher is not None
        for fault in [f for f in self._script if not f.phase and step >= f.step]:
            self._script.remove(fault)
            self._strike(fault)
        if self._waiting and launcher.protected and not self._open and step >= self._waiting[0].step:
            fault = self._waiting.pop(0)
            self._open = True
            device = launcher.sitting(fault.worker)
            if fault.phase and device is not None:
                self._send(fault, device)
            else:
                self._strike(fault)

    def _send(self, fault: ProcessFault, device: Device) -> None:
        assert self.launcher is not None
        self.launcher.tell(device, {"do": "strike", "fault": asdict(fault)})

    def _strike(self, fault: ProcessFault) -> None:
        assert self.launcher is not None
        number = SIGKILL if fault.kind == "kill" else SIGSTOP
        self.launcher.kill("coordinator" if fault.worker == COORDINATOR else fault.worker, number)
        self.struck.append(fault)


def report(plan: Plan, ran: Ran, clean: Ran | None, script: list[ProcessFault]) -> dict[str, Any]:
    """The JSON of `launch`."""
    error = getattr(plan.workload, "error", None)
    exact = None
    if error is not None and ran.leaves and getattr(plan.workload, "initial", None) is None:
        exact = float(error(plan.form.unflatten(ran.leaves), plan.steps))
    said: dict[str, Any] = {
        "job": plan.workload.name,
        "active": plan.active,
        "spares": plan.spares,
        "source": plan.source,
        "steps": plan.steps,
        "rel_l2": exact,
        "bit_identical": None if clean is None or ran.stopped is not None else ran.fingerprint == clean.fingerprint,
        "faults": [asdict(f) | {"struck": f in ran.struck} for f in script],
        "swaps": [asdict(s) for s in ran.swaps],
        "compiles": sum(s.compiles for s in ran.swaps),
        "rewarm_compiles": ran.rewarm_compiles,
        "steps_lost": max((s.steps_lost for s in ran.swaps), default=0),
        "fingerprint": ran.fingerprint or None,
        "seconds": ran.seconds,
    }
    if ran.stopped is not None:
        said["stopped"] = str(ran.stopped)
    return said


def cost(ran: Ran) -> dict[str, Any]:
    """Median step with the protection against losses over the median without it, blocks of the same run in turns."""
    if not ran.timing:
        return {"overhead_ratio": None}
    on, off = (max(column) for column in zip(*ran.timing, strict=True))
    return {"overhead_ratio": on / off, "overhead_step_s": on, "overhead_unprotected_step_s": off}


def table(show: Any, said: dict[str, Any]) -> None:
    """The swaps, one line each, and the verdict."""
    for s in said["swaps"]:
        noticed = "" if s["detect_s"] is None else f"noticed in {s['detect_s'] * 1e3:.0f} ms, "
        show.print(
            f"slot {s['slot']}: worker {s['seat']} {s['cause']}; {noticed}went on after {s['swap_s'] * 1e3:.0f} ms "
            f"from step {s['step']} ({s['source']}), {s['steps_lost']} steps replayed, {s['compiles']} compiled",
            soft_wrap=True,
        )
    if said.get("overhead_ratio") is not None:
        show.print(
            f"protected / unprotected step: {said['overhead_ratio']:.3f} ({said['overhead_step_s'] * 1e3:.1f} ms)"
        )
    if said["bit_identical"] is not None:
        good = said["bit_identical"]
        show.print(
            "[green]final state equals the uninterrupted run's, bit for bit[/green]" if good
            else "[red]final state differs from the uninterrupted run's[/red]"
        )  # fmt: skip
