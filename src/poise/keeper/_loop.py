"""The loop: run ahead by a bounded depth, settle codes a few steps late, replay what was withheld."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..devices import Placement, Pool
from ..errors import BadInput
from ..events import Decision, Event, Fault, Progress, SnapshotKept, SnapshotRefused, Warmed
from ..seal._plan import named_leaves
from ._classify import CAUSES, Seen
from ._code import Code
from ._form import Form, Kept
from ._metrics import Metrics
from ._recover import Recovery
from ._snapshot import Snapshots, fingerprint, globals_of, pull, read
from ._stage import SOURCES, Stage
from ._step import Builder, Report
from ._workload import Workload


@dataclass(frozen=True)
class Options:
    """How a loop runs.

    - `depth`: steps in flight beyond the settled one. XLA's CPU backend aborts the process with about 80, so 16 at
      most.
    - `every`: steps between snapshots.
    - `source`: of a lost shard: "auto", "replica", "snapshot" or "parity".
    - `directory`: for snapshot files; None keeps them in memory only.
    - `fused`: both halves of a step in one executable, where no peer can die on its own.
    - `rewarm`: make the next loss survivable in the background after a swap.
    """

    depth: int = 2
    every: int = 50
    source: str = "auto"
    directory: Path | None = None
    fused: bool = True
    rewarm: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 16:
            raise BadInput(f"depth must be 0 to 16 steps in flight, not {self.depth}.")
        if self.every < 1:
            raise BadInput(f"A snapshot every {self.every} steps is impossible; accepted is 1 or more.")
        if self.source not in SOURCES:
            raise BadInput(f"The source of a lost shard is one of {', '.join(SOURCES)}, not {self.source!r}.")


@dataclass
class Flight:
    """A dispatched proposal whose code has not been read."""

    index: int
    report: Report
    metrics: dict[str, Any]
    sent: float


class Loop:
    """Keeps one workload on a pool. `decide` is the policy, `emit` hears every event before the loop acts on it.

    `contained` counts, by cause, values that a tolerant workload's gate filled and committed.

    Not thread-safe: one thread steps it. Two attributes are places to interfere from, for fault injection:
    `intake(index, attempt, placement, batch)` returns the batch to use, `between(index)` is called between the halves
    where they are apart.
    """

    def __init__(
        self,
        workload: Workload,
        pool: Pool,
        decide: Callable[[Fault], Decision],
        emit: Callable[[Event], None],
        options: Options | None = None,
        *,
        resume: Path | None = None,
    ) -> None:
        self.workload, self.emit = workload, emit
        self.traits = workload.traits  # may be made anew each time it is asked for
        self.options = options or Options()
        self.intake: Callable[[int, int, Placement, Any], Any] | None = None
        self.between: Callable[[int], None] | None = None
        self.rewarm_compiles = 0
        self.contained = dict.fromkeys(CAUSES, 0)
        self.queue: deque[Flight] = deque()
        self.batches: dict[int, Any] = {}
        self.drops: set[int] = set()
        self._metrics: weakref.WeakValueDictionary[int, Metrics] = weakref.WeakValueDictionary()
        self._said = (time.perf_counter(), 0)
        axes = workload.axes(len(pool.active))
        first = workload.batch(0)
        with jax.enable_x64(workload.traits.x64 or bool(jax.config.read("jax_enable_x64"))):
            state = workload.init()
            self.form = Form.of(state, workload.state_specs(), axes, workload.traits.heal)
            self.builder = Builder(workload, self.form, first, fused=self.options.fused)
        self.batch_names = tuple(name for name, _ in named_leaves(first))
        at, leaves = (0, self.form.flatten(state)) if resume is None else read(resume, workload.name, self.form)
        self.stage = Stage(workload, pool, self.form, self.builder, self.options.source)
        emit(Warmed(len(self.stage.warm), self.stage.executables, self.stage.seconds, rewarm=False))
        self.settled = self.cursor = self.wanted = at
        self.recovery = Recovery(self, decide)
        self.snapshots = Snapshots(self.form, workload.name, self.options.directory)
        with self.stage.precision():
            seal = self.builder.sealer(self.stage.placement)
            self.kept: Kept = seal(self.stage.put_leaves(leaves), np.int32(at))
            self.stage.protect(self.kept)
            self.snapshots.first(self.kept, self.stage.placement, at)

    # -- the face ---------------------------------------------------------------------------------------------------

    def step(self, batch: Any = None) -> Metrics:
        """Take the next batch (the workload's own if None) and run ahead; returns that step's metrics."""
        index = self.wanted
        # A loader may reuse its buffers, and a replay needs what was given here.
        batch = self.workload.batch(index) if batch is None else jax.tree.map(own, batch)
        self._check_batch(batch)
        self.batches[index] = batch
        self.wanted += 1
        metrics = self._metrics[index] = Metrics(index, self.flush)
        self.pump(self.options.depth)
        return metrics

    def flush(self) -> None:
        """Settle everything that was asked for: after this, nothing is in flight and `settled` steps are committed."""
        self.pump(0)

    def state(self) -> Any:
        """The settled state as the workload's pytree of global arrays (copies, safe from later donations)."""
        leaves = self.host_state()
        with self.stage.precision():
            return self.form.unflatten(self.stage.put_leaves(leaves))

    def host_state(self) -> tuple[np.ndarray, ...]:
        """The settled state's leaves in host memory."""
        self.flush()
        return self._pulled()

    def fingerprint(self) -> str:
        """128 bits of the settled state."""
        return fingerprint(self.host_state())

    def fingerprint_now(self) -> str:
        """128 bits of the live state, from inside a listener: nothing is settled first."""
        return fingerprint(self._pulled())

    def _pulled(self) -> tuple[np.ndarray, ...]:
        return globals_of(pull(self.kept, self.stage.placement, self.settled), self.form, self.stage.placement)

    def drain(self, slot: int, reason: str) -> None:
        """Move a readable device's shard to a spare, now."""
        self.recovery.leave(slot, "drain", reason)

    def lost(self, slot: int, reason: str) -> None:
        """A device is gone: its shard is not touched again."""
        self.recovery.leave(slot, "lost", reason)

    def wait_warm(self) -> None:
        """Wait until the next loss is as survivable as it can be."""
        compiled = self.stage.warm.settle()
        self.rewarm_compiles += compiled
        if compiled:
            warm = self.stage.warm
            self.emit(Warmed(len(warm), self.stage.executables, warm.seconds, rewarm=True))

    def drop_spares(self, ids: list[int]) -> None:
        """Spares that must not be used any more; the next one in the line is warmed in the background."""
        self.wait_warm()
        self.stage.pool = self.stage.pool.without(ids)
        self.stage.rewarm()

    def metrics(self, index: int) -> Metrics:
        """The metrics of a step that was asked for."""
        return self._metrics.setdefault(index, Metrics(index, self.flush))

    def adopt(self, old: Loop) -> None:
        """Take over the metrics that the callers of an earlier loop still hold: they wait for this one now."""
        for index, metrics in old._metrics.items():
            metrics.moved(self.flush)
            self._metrics[index] = metrics

    def take_last(self) -> None:
        """Make the settled state the good copy, so that the last file holds the end of the run."""
        self.flush()
        self.snapshots.discard()
        self.snapshots.first(self.kept, self.stage.placement, self.settled)

    def close(self) -> None:
        """Wait for the background, write the last good copy if there is a directory."""
        self.collect(wait=True)
        self.snapshots.save_now(self.stage.placement)
        self.snapshots.close()
        self.wait_warm()

    # -- dispatching and settling -----------------------------------------------------------------------------------

    def pump(self, depth: int) -> None:
        """Dispatch what is wanted and settle until at most `depth` proposals are in flight; mend on the way."""
        with self.stage.precision():
            while True:
                # The step that is being mended is settled before anything follows it.
                limit = 0 if self.recovery.awaits(self.cursor) else depth
                try:
                    if len(self.queue) > limit:
                        self._settle(self.queue.popleft())
                    elif self.cursor < self.wanted:
                        self._dispatch()
                    else:
                        return
                except jax.errors.JaxRuntimeError as error:
                    self.recovery.raised(error)

    def _dispatch(self) -> None:
        index, exe, sent = self.cursor, self.stage.exe, time.perf_counter()
        self._maybe_snapshot(index)
        batch = self.batches[index]
        if self.intake is not None:
            batch = self.intake(index, self.recovery.attempts.get(index, 0), self.stage.placement, batch)
        order = np.array([index, Code.DROP if index in self.drops else Code.GO], np.int32)
        ctl, placed = self.stage.ready.feed(order, batch)
        if exe.step is not None:
            self.kept, report, metrics = exe.step(self.kept, ctl, placed)
        else:
            proposal, table, metrics = exe.propose(self.kept, ctl, placed)
            if self.between is not None:
                self.between(index)
            self.kept, mended, late = exe.commit(self.kept, proposal, table)
            report = Report(table, mended, late)
        for x in report if self.traits.in_place else report[:1]:
            x.copy_to_host_async()  # it is there when `see` asks for it
        self.queue.append(Flight(index, report, metrics, sent))
        self.stage.protect(self.kept)
        self.cursor += 1

    def see(self, flight: Flight) -> Seen:
        """Read a flight's numbers, waiting for them. A clean step costs one small transfer."""
        table = np.asarray(flight.report.table)
        n, units = self.form.devices, len(self.form.plan.units)
        if table[0, 0] == Code.GO and not self.traits.in_place:
            none = np.zeros((n, units, 5), np.int32), np.full((n, 6), -1, np.int32)
            return Seen(flight.index, table, *none, flight.sent)
        mended = np.asarray(flight.report.mended).reshape(n, units, 5)
        return Seen(flight.index, table, mended, np.asarray(flight.report.late), flight.sent)

    def _settle(self, flight: Flight) -> None:
        seen = self.see(flight)
        if not seen.committed:
            self.recovery.withheld(seen)
            return
        index = flight.index
        self.settled = index + 1
        if seen.code == Code.GO:
            self.snapshots.confirm(index)
            if self.traits.tolerant:
                for cause in CAUSES:
                    self.contained[cause] += int(seen.column(cause).sum())
        metrics = self._metrics.get(index)
        if metrics is not None:
            metrics.fill(flight.metrics)
        self.recovery.committed(seen)
        self.collect()
        if not self.stage.warm.busy:
            self.wait_warm()
        now, (then, at) = time.perf_counter(), self._said
        if now - then > 0.2:
            self.emit(Progress(self.settled, max(0.0, (self.settled - at) / (now - then))))
            self._said = (now, self.settled)

    def _maybe_snapshot(self, index: int) -> None:
        good = self.snapshots.good
        due = good is not None and index >= good.step + self.options.every
        if due and not self.snapshots.pending and not self.recovery.open:
            assert self.stage.exe.copy is not None
            self.snapshots.start(self.stage.exe.copy(self.kept), self.stage.placement, index)

    def collect(self, *, wait: bool = False) -> None:
        """Promote or refuse the pending snapshot if it is decided; batches before a good one are not needed any
        more."""
        decided = self.snapshots.collect(self.stage.placement, wait=wait)
        if decided is None:
            return
        copy, why = decided
        if why:
            self.emit(SnapshotRefused(copy.step, why))
            return
        path = self.snapshots.path
        self.emit(SnapshotKept(copy.step, copy.nbytes, "" if path is None else str(path)))
        for index in [i for i in self.batches if i < copy.step]:
            del self.batches[index]
            self.drops.discard(index)

    def _check_batch(self, batch: Any) -> None:
        want = self.builder.batch_shapes
        leaves, treedef = jax.tree.flatten(batch)
        if treedef == self.builder.batch_treedef and all(
            getattr(x, "dtype", None) == w.dtype and np.shape(x) == w.shape
            for x, w in zip(leaves, self.builder.batch_leaves, strict=True)
        ):
            return
        if treedef != self.builder.batch_treedef:
            raise BadInput(
                f"The batch has the structure {jax.tree.structure(batch)}, accepted is {jax.tree.structure(want)}."
            )
        for (name, x), w in zip(named_leaves(batch), jax.tree.leaves(want), strict=True):
            if np.shape(x) != w.shape or getattr(x, "dtype", None) != w.dtype:
                got = f"{np.shape(x)} {getattr(x, 'dtype', type(x).__name__)}"
                raise BadInput(f"The batch's {name!r} is {got}; accepted is {w.shape} {w.dtype}.")


def own(x: Any) -> Any:
    """A copy of a host array; device arrays cannot change."""
    return np.array(x, copy=True) if isinstance(x, np.ndarray) else x
