"""`poise launch`: a job over several processes, one device each, any of which may die."""

from __future__ import annotations

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
from ..keeper._form import Form
from ..keeper._parts import write_manifest
from ..keeper._peer_life import replicas_of, source_of
from ..keeper._snapshot import fingerprint, read
from ._engine import steps_of
from ._job import Job, load_job, packaged
from ._output import check_json, console, dump, out_directory, write_json
from ._progress import Live
from ._run import resume_directory

Listener = Callable[[Event], None]
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


@dataclass
class Ran:
    """How it ended; `stopped` is set if that was before the last step."""

    swaps: list[Swap] = field(default_factory=list)
    fingerprint: str = ""
    leaves: tuple[Any, ...] = ()
    seconds: float = 0.0
    rewarm_compiles: int = 0
    struck: list[ProcessFault] = field(default_factory=list)
    stopped: Stopped | None = None


def launch(
    job: str, active: int | None, spares: int | None, faults: str | None, out: Path | None, resume: Path | None,
    json: str | None,
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
        ran = run_over(plan, where, resume_from, script, listeners)
        said = report(plan, ran, clean, script)
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
    state = workload.init()
    form = Form.of(state, workload.state_specs(), workload.axes(n), workload.traits.heal)
    source = source_of(spec.options.source, form, n)
    if source == "replica" and not all(replicas_of(form, slot) for slot in range(n)):
        raise BadInput("The source 'replica' needs every leaf on two devices at least; accepted here: parity.")
    return Plan(job, spec, workload, form, n, s, steps_of(workload), source)


def run_over(
    plan: Plan, out: Path, resume: Path | None, script: list[ProcessFault], listen: list[Listener]
) -> Ran:  # fmt: skip
    """One run, with its journal and snapshots in `out`."""
    ran = Ran()
    snapshots = out / "snapshots"
    command = [
        sys.executable, "-m", "poise", "worker", plan.job, "--active", str(plan.active), "--out", str(snapshots),
        "--source", plan.source,
    ]  # fmt: skip
    command += [] if resume is None else ["--resume", str(resume)]
    with Journal(out / "run.db") as journal:

        def hear(event: Event) -> None:
            journal.append(event)
            for listener in listen:
                listener(event)

        desk = Desk(plan, snapshots, hear, script)
        launcher = Launcher(
            plan.active, plan.spares, command, out / "logs", emit=desk.hear, heard=desk.heard, source=plan.source,
            replicas={slot: replicas_of(plan.form, slot) for slot in range(plan.active)},
        )  # fmt: skip
        desk.launcher = launcher
        seats = tuple(range(plan.active))
        hear(RunStarted(plan.workload.name, 0, seats, tuple(range(plan.active, plan.active + plan.spares))))
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
        ran.struck = desk.struck
        ran.swaps, ran.rewarm_compiles = launcher.swaps, launcher.rewarm_compiles
    return ran


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


def table(show: Any, said: dict[str, Any]) -> None:
    """The swaps, one line each, and the verdict."""
    for s in said["swaps"]:
        noticed = "" if s["detect_s"] is None else f"noticed in {s['detect_s'] * 1e3:.0f} ms, "
        show.print(
            f"slot {s['slot']}: worker {s['seat']} {s['cause']}; {noticed}went on after {s['swap_s'] * 1e3:.0f} ms "
            f"from step {s['step']} ({s['source']}), {s['steps_lost']} steps replayed, {s['compiles']} compiled",
            soft_wrap=True,
        )
    if said["bit_identical"] is not None:
        good = said["bit_identical"]
        show.print(
            "[green]final state equals the uninterrupted run's, bit for bit[/green]" if good
            else "[red]final state differs from the uninterrupted run's[/red]"
        )  # fmt: skip
