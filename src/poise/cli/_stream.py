"""`poise stream`: follow live or recorded records, relax the field, name what fails."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from ..control import Journal
from ..devices import compiles
from ..errors import BadInput, Stopped
from ..events import Event, ProducerNoticed, Progress, RunFinished, RunStarted, RunStopped, SensorsChanged
from ..memory import Frame, Geometry, Notice, Recording, Subscriber
from ..physics.rules import AXES, KINDS, Follower
from ._job import load_job
from ._output import check_json, console, out_directory, write_json
from ._producer import build, started
from ._stream_job import StreamJob, stream_job
from ._stream_live import Line
from ._stream_report import report, summary, write

Listener = Callable[[Event], None]

MOST = 100_000
"""Frames whose latency is remembered."""

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
        follow = Following.of(made, stack, listen)
        follow.run(stack.enter_context(Line(follow)))
        said = report(follow)
        if where is not None:
            write(follow, where, said)
    write_json(said, json)
    summary(show, said)
    if where is not None:
        show.print(f"written: {where}/report.json, run.db, estimate.npz, stream.png", soft_wrap=True)
    if follow.stopped:
        raise Stopped(follow.stopped)
    return 0


class Following:
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
        # A stream may have no end: the newest frames stand for all, except where the example's are checked one by one.
        most = None if log else MOST
        self.latency: deque[float] = deque(maxlen=most)
        self.ages: deque[float] = deque(maxlen=most)
        self.used: deque[int] = deque(maxlen=most)
        self.count = 0
        shape = len(AXES), frames.geometry.count
        self.code, self.since = np.zeros(shape, np.uint8), np.zeros(shape, np.int64)
        self.first = np.zeros(shape, np.int64)  # the frame that named a sensor for the first time
        self.healed = 0
        self.notices: list[Notice] = []
        self.last: Frame | None = None
        self.stopped, self.began, self.compiled = "", perf_counter(), 0
        self.told = self.began, 0

    @staticmethod
    def of(job: StreamJob, stack: ExitStack, listen: Listener) -> Following:
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
            return Following(job, frames, warm, listen, log)
        if job.source.endswith(".npz"):
            recording = stack.enter_context(Recording(job.source))
            return Following(job, recording, follower(recording.geometry), listen)
        frames = stack.enter_context(Subscriber(job.source))
        warm = follower(frames.geometry)
        frames.from_newest()
        return Following(job, frames, warm, listen)

    def run(self, line: Line) -> None:
        """Follow to the end: of the stream, of the time, or of the patience."""
        name = Path(self.job.source).name
        self.emit(RunStarted(f"stream {name}", 0, (self.follower.device.id,), ()))
        # The example ends by itself; one that this machine is too small for gets some time more.
        more = self.job.wait if self.job.source == "example" else 0.0
        base, end = compiles(), None if self.job.seconds is None else perf_counter() + self.job.seconds + more
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
        self.count += 1
        self.last = frame
        if int(self.follower.report.changed):  # type: ignore[union-attr]
            self.changed(frame.sequence)

    def progress(self) -> None:
        """To the journal, once a second."""
        now = perf_counter()
        if now - self.told[0] >= 1 and self.used:
            rate = (self.count - self.told[1]) / (now - self.told[0])
            self.emit(Progress(self.used[-1], rate))
            self.told = now, self.count

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
            here, then = self.frames.geometry, self.follower.geometry
            if replace(here, rate=0.0, slots=2, write_back=False) != replace(then, rate=0.0, slots=2, write_back=False):
                self.stopped = "The new producer's frames are of another shape; start again to follow it."
                return False
            return self.notice(back)
        return notice.kind != "closed"

    def emit(self, event: Event) -> None:
        """To the journal, if there is one."""
        self.listen(event)
