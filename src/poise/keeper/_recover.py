"""Mending: what happens between a step that was withheld and the same step committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from ..devices import compiles
from ..errors import BadInput, Exhausted, Stopped
from ..events import Action, Decision, Dropped, Fault, Mended, Noticed, RunStopped, Swapped
from ._classify import CAUSES, Seen, batch_is_bad, blocks, classify
from ._snapshot import verify

if TYPE_CHECKING:
    from ._loop import Loop


@dataclass
class Open:
    """A fault that is being mended; closed when its step is committed."""

    fault: Fault
    action: Action
    since: float
    compiles: int
    replayed: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    spent: float = 0.0

    def took(self, phase: str, seconds: float) -> None:
        """Part of the time since it was noticed went into a phase."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        self.spent += seconds


class Recovery:
    """The loop's other half: classifies, asks the policy, acts, and points the loop's cursor at what must be
    replayed."""

    def __init__(self, loop: Loop, decide: Callable[[Fault], Decision]) -> None:
        self.loop, self.decide = loop, decide
        self.open: list[Open] = []
        self.attempts: dict[int, int] = {}

    def awaits(self, cursor: int) -> bool:
        """Whether the step under repair has been dispatched again and must be settled first."""
        return any(cursor > opened.fault.step for opened in self.open)

    def committed(self, seen: Seen) -> None:
        """A step was committed; it may be the one under repair, or one that mended something by itself."""
        self.attempts.pop(seen.index, None)
        if not self.open and not seen.clean and (seen.mended.any() or seen.column("tag_off").any()):
            # A tag's copy, or damage that an update in place met: right again within the step.
            loop = self.loop
            fault = classify(seen, seen.mended, loop.form, loop.stage.placement.ids, loop.batch_names)
            why = "two of three copies agree" if fault.kind == "tag" else "mended inside the step that read it"
            opened = self._notice(fault, Decision(Action.REPAIR, why), blocks(seen.mended))
            opened.phases["notice"] = time.perf_counter() - seen.sent
        self._close(seen.index)

    def withheld(self, first: Seen) -> None:
        """A step was not committed. What is behind it in flight is a no-op, but its commits may have repaired:
        merge."""
        loop, since, c0 = self.loop, time.perf_counter(), compiles()
        mended = sum((loop.see(flight).mended for flight in loop.queue), first.mended)
        loop.queue.clear()
        loop.cursor = first.index
        fault = self._describe(first, mended)
        self.attempts[first.index] = fault.attempt + 1
        heal = loop.stage.exe.heal
        if fault.kind == "memory" and not fault.mended and heal is not None:
            loop.kept, rows = heal(loop.kept)
            own = np.array([unit.parity for unit in loop.form.plan.units])[None, :, None]
            mended = np.asarray(rows).reshape(mended.shape) + mended * own
            fault = replace(fault, mended=not mended[:, :, 4].any())
        loop.snapshots.discard()
        self._settle(fault, blocks(mended), since, c0, since - first.sent)

    def raised(self, error: Exception) -> None:
        """The backend gave up a step. Its commit was dispatched with the state donated, so the state is gone."""
        loop, since, c0 = self.loop, time.perf_counter(), compiles()
        loop.queue.clear()
        step = loop.settled
        attempt = self.attempts.get(step, 0)
        self.attempts[step] = attempt + 1
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        self._settle(Fault(step, "raised", (), (), said, attempt, mended=False), {}, since, c0, 0.0)

    def leave(self, slot: int, kind: str, reason: str) -> None:
        """The device in `slot` is to go ("drain") or is gone ("lost")."""
        loop = self.loop
        devices = loop.stage.placement.devices
        if not 0 <= slot < len(devices):
            raise BadInput(f"There is no slot {slot}; the slots are 0 to {len(devices) - 1}.")
        loop.flush()
        since, c0 = time.perf_counter(), compiles()
        fault = Fault(loop.settled, kind, (slot,), (loop.stage.placement.ids[slot],), reason, mended=kind == "drain")
        with loop.stage.precision():
            self._settle(fault, {}, since, c0, 0.0)
        loop.flush()  # replays up to where the run was
        self._close(fault.step)

    def stop(self, reason: str) -> None:
        """End the run beyond the promise: write the last good copy, say where, raise `Stopped`."""
        loop = self.loop
        loop.queue.clear()
        loop.collect(wait=True)
        path = loop.snapshots.save_now(loop.stage.placement)
        where = "" if path is None else str(path.parent)
        loop.emit(RunStopped(loop.settled, reason, where))
        raise Stopped(reason, resume=where or None)

    def _describe(self, first: Seen, mended: np.ndarray) -> Fault:
        loop = self.loop
        fault = classify(first, mended, loop.form, loop.stage.placement.ids, loop.batch_names)
        row = 0
        while first.index - 1 - row in loop.drops:
            row += 1
        batch = [np.asarray(x) for x in jax.tree.leaves(loop.batches[first.index])] if fault.kind in CAUSES else []
        return replace(
            fault,
            attempt=self.attempts.get(first.index, 0),
            in_data=batch_is_bad(batch, loop.workload.traits.gate),
            droppable=loop.workload.traits.droppable,
            drops_in_a_row=row,
        )

    def _settle(self, fault: Fault, seen: dict[str, int], since: float, c0: int, flight: float) -> None:
        """Decide, and act. `flight` are the seconds between the step's dispatch and `since`."""
        t0 = time.perf_counter()
        decision = self.decide(fault)
        t1 = time.perf_counter()
        opened = self._notice(fault, decision, seen, since, c0)
        opened.took("notice", t0 - since)
        opened.phases["notice"] += flight
        opened.took("decide", t1 - t0)
        self._act(decision, fault, opened)

    def _notice(
        self, fault: Fault, decision: Decision, seen: dict[str, int], since: float | None = None, c0: int | None = None
    ) -> Open:
        since = time.perf_counter() if since is None else since
        c0 = compiles() if c0 is None else c0
        self.loop.emit(Noticed(fault, decision.action, decision.reason, seen))
        # A second fault may strike while the run is replayed towards the first; each is closed at its own step.
        same = next((opened for opened in self.open if opened.fault.step == fault.step), None)
        if same is None:
            same = Open(fault, decision.action, since, c0)
            self.open.append(same)
        else:
            same.action = decision.action
        return same

    def _close(self, step: int) -> None:
        for opened in [o for o in self.open if o.fault.step == step]:
            self.open.remove(opened)
            seconds = time.perf_counter() - opened.since
            phases = {**opened.phases, "first_step": max(0.0, seconds - opened.spent)}
            made = compiles() - opened.compiles
            self.loop.emit(Mended(opened.fault, opened.action, seconds, made, opened.replayed, phases))

    def _act(self, decision: Decision, fault: Fault, opened: Open) -> None:
        loop = self.loop
        match decision.action:
            case Action.RETRY | Action.REPAIR:
                loop.stage.protect(loop.kept)
            case Action.DROP:
                loop.drops.add(fault.step)
                loop.emit(Dropped(fault.step, decision.reason))
            case Action.DRAIN | Action.SWAP:
                assert decision.slot is not None
                self._swap(decision.slot, fault.kind, opened)
            case Action.ROLLBACK:
                t0 = time.perf_counter()
                self._rollback()
                opened.took("rebuild", time.perf_counter() - t0)
            case _:
                self.stop(decision.reason)

    def _swap(self, slot: int, cause: str, opened: Open) -> None:
        loop, since, c0 = self.loop, time.perf_counter(), compiles()
        old = loop.stage.placement.ids[slot]
        loop.wait_warm()
        waited = time.perf_counter() - since
        try:
            kept, source = loop.stage.swap(slot, loop.kept, readable=cause != "lost")
        except Exhausted as error:
            self.stop(str(error))
            return
        if kept is None:
            self._rollback()
        rebuilt = time.perf_counter() - since - waited
        if kept is not None:
            loop.kept = kept
            loop.stage.protect(kept)
        seconds = time.perf_counter() - since
        opened.took("rebuild", rebuilt)
        opened.took("swap", seconds - rebuilt)
        new = loop.stage.placement.ids[slot]
        loop.emit(Swapped(loop.settled, slot, old, new, cause, source, seconds, compiles() - c0, waited))
        if loop.options.rewarm:
            loop.stage.rewarm()

    def _rollback(self) -> None:
        """Everything back to the good copy; what came after it is replayed from the batches that are held."""
        loop = self.loop
        loop.collect(wait=True)
        loop.snapshots.discard()
        good = loop.snapshots.good
        assert good is not None
        why = verify(good, loop.form)
        if why:
            self.stop(f"The snapshot of step {good.step} in host memory is damaged as well: {why}.")
        loop.kept = loop.stage.restore(good)
        loop.stage.protect(loop.kept)
        for opened in self.open:
            opened.replayed += loop.settled - good.step
        loop.cursor = loop.settled = good.step
