"""`poise stream`: follow live or recorded records, relax the field, name what fails."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..control import Journal
from ..devices import compiles
from ..errors import BadInput, Stopped
from ..events import Event, ProducerNoticed, Progress, RunFinished, RunStarted, RunStopped, SensorsChanged
from ..memory import Frame, Geometry, Notice, Recording, Subscriber
from ..physics.rules import AXES, KINDS, Follower
from ._job import load_job
from ._output import check_json, console, dump, out_directory, write_json
from ._producer import build, started
from ._stream_job import StreamJob, stream_job
from ._stream_live import Line

Listener = Callable[[Event], None]

SILENT = 30.0
"""Seconds of a living producer's silence after which a stream with an end is given up."""


def stream(
    job: str,
    source: str | None,
    records: int | None,
    rate: float | None,
    seconds: float | None,
    out: Path | None,
    json: str | None,
) -> int:
    """Follow; the exit status is 3 if the producer died and did not come back."""
    check_json(json)
    spec = load_job(job)
    if spec.workload != "stream":
        raise BadInput(f'{job} is a job of {spec.workload}, not of a stream; accepted is workload = "stream".')
    params = dict(spec.params)
    recorded = params.get("source")
    if isinstance(recorded, str) and recorded.endswith(".npz"):  # relative to the job's file
        params["source"] = str(Path(job).parent / recorded)
    asked = {"source": source, "records": records, "rate": rate, "seconds": seconds}
    made = stream_job({**params, **{k: v for k, v in asked.items() if v is not None}}, job)
    where = None if out is None else out_directory(out)
    show = console(json)
    with ExitStack() as stack:
        listen = (lambda event: None) if where is None else stack.enter_context(Journal(where / "run.db")).append
        follow = _Following.of(made, stack, listen)
        follow.run(stack.enter_context(Line(follow)))
        said = follow.report()
        if where is not None:
            follow.write(where, said)
    write_json(said, json)
    _summary(show, said)
    if where is not None:
        show.print(f"written: {where}/report.json, run.db, estimate.npz, stream.png", soft_wrap=True)
    if follow.stopped:
        raise Stopped(follow.stopped)
    return 0


class _Following:
    """One run over one source: what it saw, and what it makes of that."""

    def __init__(
        self,
        job: StreamJob,
        frames: Subscriber | Recording,
        follower: Follower,
        listen: Listener,
        log: Path | None = None,
    ) -> None:
        self.job, self.frames, self.follower, self.listen, self.log = job, frames, follower, listen, log
        self.latency: list[float] = []
        self.ages: list[float] = []
        self.used: list[int] = []
        shape = len(AXES), frames.geometry.count
        self.code, self.since = np.zeros(shape, np.uint8), np.zeros(shape, np.int64)
        self.first = np.zeros(shape, np.int64)  # the frame that named a sensor for the first time
        self.healed = 0
        self.notices: list[Notice] = []
        self.last: Frame | None = None
        self.stopped, self.began, self.compiled = "", perf_counter(), 0
        self.told = self.began, 0

    @staticmethod
    def of(job: StreamJob, stack: ExitStack, listen: Listener) -> _Following:
        """Everything warm before the first frame: the program built, the step compiled, the producer started last."""

        def follower(g: Geometry) -> Follower:
            return Follower(job.make_rule(g), g, sensors=job.sensors)

        if job.source == "example":
            program, warm = build(), follower(job.geometry)
            gc.collect()  # now, and not while frames come
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "failures"
            options = job.producer_options(f"example-{os.getpid()}", str(log))
            at = stack.enter_context(started(program, options))
            frames = stack.enter_context(Subscriber(at))
            frames.from_newest(0)
            return _Following(job, frames, warm, listen, log)
        if job.source.endswith(".npz"):
            recording = stack.enter_context(Recording(job.source))
            return _Following(job, recording, follower(recording.geometry), listen)
        frames = stack.enter_context(Subscriber(job.source))
        warm = follower(frames.geometry)
        frames.from_newest()
        return _Following(job, frames, warm, listen)

    def run(self, line: Line) -> None:
        """Follow to the end: of the stream, of the time, or of the patience."""
        name = Path(self.job.source).name
        self.emit(RunStarted(f"stream {name}", 0, (self.follower.device.id,), ()))
        base, end = compiles(), None if self.job.seconds is None else perf_counter() + self.job.seconds + self.job.wait
        gc.disable()  # a collection in the middle of a frame is a late frame
        quiet = perf_counter()
        try:
            while end is None or perf_counter() < end:
                found = self.frames.next(0.25)
                if isinstance(found, Frame):
                    quiet = perf_counter()
                    self.take(found)
                elif isinstance(found, Notice):
                    if not self.notice(found):
                        break
                elif isinstance(self.frames, Recording) or (end is not None and perf_counter() - quiet > SILENT):
                    break
                line.show()
                self.progress()
        except KeyboardInterrupt:
            pass  # how one leaves a stream without end; what was seen is reported
        finally:
            gc.enable()
        self.compiled = compiles() - base
        self.ended = perf_counter()
        last = self.used[-1] if self.used else 0
        self.emit(RunStopped(last, self.stopped) if self.stopped else RunFinished(last, ""))

    def take(self, frame: Frame) -> None:
        """One frame."""
        if not self.follower.take(frame, self.frames.accept):
            return
        self.latency.append(self.follower.seconds)
        self.ages.append(frame.age())
        self.used.append(frame.sequence)
        self.last = frame
        if int(self.follower.report.changed):  # type: ignore[union-attr]
            self.changed(frame.sequence)

    def progress(self) -> None:
        """To the journal, once a second."""
        now = perf_counter()
        if now - self.told[0] >= 1 and self.used:
            rate = (len(self.used) - self.told[1]) / (now - self.told[0])
            self.emit(Progress(self.used[-1], rate))
            self.told = now, len(self.used)

    def changed(self, k: int) -> None:
        """Say which sensors failed or recovered in frame `k`."""
        code = np.array(self.follower.state.watch.code).reshape(self.code.shape)
        for axis, number in np.ndindex(len(AXES), len(KINDS)):
            new = (code[axis] == number) & (self.code[axis] != number)
            if new.any():
                sectors = np.flatnonzero(new)
                healthy = number == 0
                self.healed += len(sectors) if healthy else 0
                marker = 1.0 if healthy else -99.0
                self.emit(SensorsChanged(k, AXES[axis], KINDS[number], tuple(sectors.tolist()), marker))
        fresh = (code != 0) & (self.code == 0)
        self.since[fresh] = k
        self.first[fresh & (self.first == 0)] = k
        self.code = code

    def notice(self, notice: Notice) -> bool:
        """Something about the producer; False if it is the end."""
        self.notices.append(notice)
        self.emit(ProducerNoticed(notice.sequence, notice.kind, notice.sentence))
        if notice.kind == "died" and isinstance(self.frames, Subscriber):
            back = self.frames.returned(self.job.wait)
            if back is None:
                self.stopped = f"{notice.sentence[:-1]} and did not come back within {self.job.wait:g} s."
                return False
            if replace(self.frames.geometry, rate=0.0) != replace(self.follower.geometry, rate=0.0):
                self.stopped = "The new producer's frames are of another shape; start again to follow it."
                return False
            return self.notice(back)
        return notice.kind != "closed"

    def emit(self, event: Event) -> None:
        """To the journal, if there is one."""
        self.listen(event)

    def report(self) -> dict[str, Any]:
        """What `--json` says."""
        g, micro = self.frames.geometry, 1e6
        p50, p99 = (float(np.percentile(self.latency or [np.nan], q)) * micro for q in (50, 99))
        a50, a99 = (float(np.percentile(self.ages or [np.nan], q)) * micro for q in (50, 99))
        failing = [
            {"sector": int(s), "axis": AXES[a], "kind": KINDS[self.code[a, s]], "frame": int(self.since[a, s])}
            for a, s in np.argwhere(self.code)
        ]
        live = isinstance(self.frames, Subscriber)
        return {
            "job": "stream", "source": self.job.source, "rule": self.job.rule, "rows": g.rows, "columns": g.columns,
            "records": g.count, "frames": len(self.used), "lost": self.frames.lost, "torn": self.frames.torn,
            "compiles": self.compiled, "bytes_copied": self.follower.bytes_copied, "latency_p50_us": p50,
            "latency_p99_us": p99, "age_p50_us": a50 if live else None, "age_p99_us": a99 if live else None,
            "frames_per_s": len(self.used) / max(1e-9, self.ended - self.began), "device": str(self.follower.device),
            "failing": failing, "failing_count": len(failing), "healed": self.healed, **self.errors(), **self.check(),
            "producer": [{"kind": n.kind, "frame": n.sequence, "sentence": n.sentence} for n in self.notices],
            "restarts": self.frames.restarts, "stopped": self.stopped or None,
        }  # fmt: skip

    def errors(self) -> dict[str, float | None]:
        """Relative L2 errors at the last frame: of the estimate, and of what the gate alone lets through."""
        truth, said = self.truth(), self.said()
        if truth is None or said is None or self.job.rule != "nudge":
            return {"rel_l2": None, "rel_l2_gated": None}
        gate = self.job.sensors.gate
        good = np.abs(said) <= gate.limit
        for marker in gate.markers:
            good &= ~(np.abs(said - marker) <= gate.tolerance)
        size = float(np.linalg.norm(truth))
        estimate = np.asarray(self.follower.state.estimate)
        gated = np.where(good, said, gate.fill)
        return {
            "rel_l2": float(np.linalg.norm(estimate - truth)) / size,
            "rel_l2_gated": float(np.linalg.norm(gated - truth)) / size,
        }

    def check(self) -> dict[str, Any]:
        """Against what the example did to its sensors: how soon all were named, which were missed or wrongly named."""
        if self.log is None:
            return {}
        used, named = np.array(self.used or [0]), self.first
        injected, late, missed = np.zeros(named.shape, bool), 0, 0
        for line in self.log.read_text().splitlines():
            frame, sector, axis, _ = line.split()
            at = AXES.index(axis), int(sector)
            injected[at] = True
            if named[at]:
                late = max(late, int(((used >= int(frame)) & (used <= named[at])).sum()))
            elif int(frame) + 3 <= used[-1]:
                missed += 1
        false = int(((named > 0) & ~injected).sum())
        return {
            "injected": int(injected.sum()), "named_within_frames": late, "missed": missed, "false_alarms": false
        }  # fmt: skip

    def truth(self) -> np.ndarray | None:
        """The exact field of the last frame, `(2, rows, columns)`."""
        if self.job.truth != "wave" or self.last is None:
            return None
        g, t = self.frames.geometry, self.last.time
        y, x = np.mgrid[0 : g.rows, 0 : g.columns] * np.reshape([g.dy, g.dx], (2, 1, 1))
        s = 0.25 / (1 + np.exp((4 * y - 4 * x - t) / (32 * float(self.job.nu or 1))))
        return np.stack((0.75 - s, 0.75 + s))

    def said(self) -> np.ndarray | None:
        """What the sensors said in the last frame, if it is still there."""
        if self.last is None:
            return None
        g = self.frames.geometry
        records = self.last.lease.numpy()
        said = np.stack([np.array(records[axis]) for axis in AXES]).reshape(2, g.rows, g.columns)
        return said if self.last.intact() else None

    def write(self, where: Path, said: dict[str, Any]) -> None:
        """The report, the estimate and the picture."""
        from ._stream_plot import stream_picture

        dump(said, where / "report.json")
        if self.used and self.job.rule == "nudge":
            estimate = np.asarray(self.follower.state.estimate)
            g = self.frames.geometry
            np.savez(where / "estimate.npz", u=estimate[0], v=estimate[1], dx=g.dx, dy=g.dy, frame=self.used[-1])
        if self.used:
            stream_picture(self, said, where / "stream.png")


def _summary(show: Any, said: dict[str, Any]) -> None:
    show.print(
        f"{said['frames']} frames of {said['records']} records, {said['lost']} lost, {said['torn']} torn; "
        f"{said['compiles']} compilations, {said['bytes_copied']} bytes copied",
        soft_wrap=True,
    )
    show.print(
        f"step latency p50 {said['latency_p50_us']:.0f} µs, p99 {said['latency_p99_us']:.0f} µs on {said['device']}; "
        f"{said['failing_count']} sensors failing, {said['healed']} recovered",
        soft_wrap=True,
    )
    if said["rel_l2"] is not None:
        show.print(
            f"relative L2 error {said['rel_l2']:.2e}; the gated readings alone {said['rel_l2_gated']:.2e}",
            soft_wrap=True,
        )
    if "injected" in said:
        show.print(
            f"{said['injected']} sensors were broken on command: named within {said['named_within_frames']} frames, "
            f"{said['missed']} missed, {said['false_alarms']} falsely named",
            soft_wrap=True,
        )
    for n in said["producer"]:
        show.print(f"producer: {n['sentence']}", soft_wrap=True)
