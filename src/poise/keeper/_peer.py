"""One member's side of a run whose peers can die (`design/lost-processes.md`).

A step waits for its proposal, agrees with everybody that all have theirs, and only then commits, out of place. What was
committed is sent to the spare's vault off the step's path; a generation is held until the vault has its parity whole.
When the launcher stops the epoch, `report` says what is held and `enter` goes on as the verdict says.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ..devices import compiles
from ..devices.process import Courier, Device, Member, PeerLost, Report, Words
from ..errors import Stopped
from ..events import Action, Decision, Dropped, Event, Fault, Mended, Noticed, Progress
from ..seal._plan import named_leaves
from ._classify import CAUSES, Seen, batch_is_bad, blocks, classify
from ._code import Code
from ._form import Form
from ._peer_orders import Orders
from ._peer_stage import PeerReady, PeerStage, Slots
from ._shardwise import Shard, all_words, on_host, own_shard, place, place_tree
from ._step import Builder
from ._workload import Workload

AHEAD = 2
"""Generations that may be on their way to the vault before a step waits for it."""


class PeerLoop:
    """The active member of a run. With `alternate` > 0 its protection against losses is off in every other block of so
    many steps, and `durations` holds the steps' seconds without and with it.

    `decide` must decide alike on every member; it sees the same faults everywhere.

    `each` is called with (phase, step) between the parts of a step, for fault injection: "begin", "propose"
    (dispatched), "ready" (proposal here), "commit" (agreed), "share" (committed). `save(step, shard)` is called for
    steps that want a snapshot, and `saved(step)` once a proposal has verified that state.
    """

    def __init__(
        self,
        workload: Workload,
        form: Form,
        builder: Builder,
        stage: PeerStage,
        member: Member,
        orders: Orders,
        decide: Callable[[Fault], Decision],
        emit: Callable[[Event], None],
        every: int,
    ) -> None:
        self.workload, self.form, self.builder, self.stage = workload, form, builder, stage
        self.member, self.orders, self.decide, self.emit, self.every = member, orders, decide, emit, every
        self.each: Callable[[str, int], None] = lambda phase, step: None
        self.save: Callable[[int, Shard], None] = lambda step, shard: None
        self.saved: Callable[[int], None] = lambda step: None
        self.courier: Courier | None = None
        self.slots: Slots = ()
        self.slot = -1
        self.settled = 0
        self.held: dict[int, Shard] = {}
        self.batches: dict[int, Any] = {}
        self.batch_names = tuple(name for name, _ in named_leaves(builder.batch_shapes))
        self.proposal: tuple[int, Any, np.ndarray] | None = None
        self.through = -1
        self.resumed: int | None = None
        self._attempts: dict[int, int] = {}
        self._drops: set[int] = set()
        self._open: list[tuple[Fault, Action, float, int]] = []
        self._said = (time.perf_counter(), 0)
        self._saved = -1
        self.alternate = 0
        self.durations: tuple[list[float], list[float]] = ([], [])

    # -- epochs -----------------------------------------------------------------------------------------------------

    def enter(self, slots: Slots, step: int, shard: Shard) -> None:
        """Begin an epoch as one of `slots` with the state of `step`."""
        self.slots, self.slot = slots, slots.index(self.member.device)
        self.settled, self.held = step, {step: shard}
        self.proposal, self.through = None, -1
        self._open.clear()
        if self.courier is not None:
            self.courier.close()
            self.courier = None

    def protect(self, courier: Courier) -> None:
        """Send every generation to the vault from now on, this one first."""
        if self.courier is not None:
            self.courier.close()
        self.courier = courier
        courier.acked = self.settled - 1
        self._share()

    def report(self) -> Report:
        """What this member holds, for the verdict."""
        return Report(
            held=tuple(sorted(self.held)),
            proposal=-1 if self.proposal is None else self.proposal[0],
            ready=self.through,
            settled=self.settled,
            warm=tuple(self.stage.warm),
        )

    def finish_commit(self, step: int) -> None:
        """Commit the proposal of `step` that is in hand: somebody went through its ready reduction."""
        if self.proposal is not None and self.proposal[0] == step:
            self._commit(self.stage.warm[self.slots])

    def words_of(self, generation: int) -> Words:
        """The words of a held generation, when they are asked for."""
        shard = self.held[generation]
        return lambda: all_words(on_host(shard))

    # -- steps ------------------------------------------------------------------------------------------------------

    def run(self, last: int) -> None:
        """Step until `last` steps are committed. Raises `PeerLost` when the epoch is stopped, `Stopped` beyond."""
        ready = self.stage.warm[self.slots]
        while self.settled < last:
            try:
                self._step(ready)
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                if not runtime_failed(error):
                    raise
                # A collective failed: the launcher knows whose death it was, or nobody died.
                if not self.member.halt_soon(15.0):
                    said = (str(error).splitlines() or [""])[0][:200]
                    raise Stopped(f"Step {self.settled} failed though every peer lives: {said}") from error
                raise PeerLost from error

    def _step(self, ready: PeerReady) -> None:
        index = self.settled
        began = time.perf_counter()
        self.member.begin(index)
        self._wait_for_vault()
        if index % self.every == 0 and index != self._saved:
            self._saved = index
            self.save(index, self.held[index])
        self.each("begin", index)
        batch = self.batches.get(index)
        if batch is None:
            batch = self.batches[index] = self.workload.batch(index)
        ctl = np.array([index, Code.DROP if index in self._drops else Code.GO], np.int32)
        placement, exe = ready.placement, ready.exe
        placed = place_tree(batch, self.builder.batch_specs, placement)
        self.member.busy = "device"
        ctl = place(ctl, placement, jax.sharding.PartitionSpec())
        proposal, table, _ = exe.propose(ready.kept(self.held[index]), ctl, placed)
        self.each("propose", index)
        seen = np.asarray(table)
        self.proposal = (index, (proposal, table), seen)
        if seen[0, 0] not in (Code.GO, Code.DROP):
            self._withheld(ready, seen)
            return
        self.each("ready", index)
        agreed = ready.agreed(self.orders.prepared) if self._protecting(index) else 0
        self.through = index
        self.each("commit", index)
        self._commit(ready)
        self.member.busy = "host"
        if self._saved == index:
            self.saved(index)
        self.durations[self._protecting(index)].append(time.perf_counter() - began)
        self._said_so()
        if agreed > self.orders.done:
            self.orders.run(agreed, self)

    def _commit(self, ready: PeerReady) -> None:
        assert self.proposal is not None
        index, (proposal, table), seen = self.proposal
        shard, mended, late = self.stage.commit(ready, self.held[index], proposal, table)
        jax.block_until_ready(shard)
        self.proposal = None
        self.settled = index + 1
        self.held[index + 1] = shard
        self._close(index)
        self._attempts.pop(index, None)
        if self.workload.traits.in_place or seen[:, 2].any():
            self._look(ready, index, seen, mended, late)
        self._forget()
        self.each("share", index)
        self._share()

    def _protecting(self, index: int) -> bool:
        """Whether losses can be survived in this step; measuring what that costs turns it off in every other block."""
        return not self.alternate or index // self.alternate % 2 == 0

    def _share(self) -> None:
        if self.courier is None:
            return
        if not self._protecting(self.settled):
            self.courier.acked = self.settled
        else:
            self.courier.send(self.settled, self.words_of(self.settled))

    def _forget(self) -> None:
        """Drop generations that nobody can restart from any more: the vault has a newer one whole, or (without a
        vault) all members are past them."""
        alive = self.courier is not None and self.courier.alive
        oldest = min(self.settled - 1, self.courier.acked) if alive and self.courier else self.settled - 1
        for step in [s for s in self.held if s < oldest]:
            del self.held[step]
        for step in [s for s in self.batches if s < oldest]:
            del self.batches[step]
            self._drops.discard(step)

    def _wait_for_vault(self) -> None:
        courier = self.courier
        if courier is not None and courier.alive and self.settled - courier.acked > AHEAD:
            self.member.wait(lambda: not courier.alive or self.settled - courier.acked <= AHEAD)
        self._forget()

    # -- faults -----------------------------------------------------------------------------------------------------

    def _withheld(self, ready: PeerReady, table: np.ndarray) -> None:
        """Nothing was committed: repair what is damaged, learn from all what they found, decide alike."""
        since, c0 = time.perf_counter(), compiles()
        assert self.proposal is not None
        index, (proposal, arrays), _ = self.proposal
        shard, mended, late = self.stage.commit(ready, self.held[index], proposal, arrays)
        self.proposal = None
        self.held[index] = shard
        seen = self._seen(ready, index, table, mended, late)
        fault = classify(seen, seen.mended, self.form, self._ids, self.batch_names)
        if fault.kind == "memory" and not fault.mended and ready.exe.heal is not None:
            kept, rows = ready.exe.heal(ready.kept(shard))
            self.held[index] = own_shard(kept)
            own = np.array([unit.parity for unit in self.form.plan.units])[None, :, None]
            healed = self._seen(ready, index, table, own_shard(rows)[0], late).mended + seen.mended * own
            fault = replace(fault, mended=not healed[:, :, 4].any())
        fault = self._described(fault, index)
        self._attempts[index] = fault.attempt + 1
        decision = self.decide(fault)
        self.emit(Noticed(fault, decision.action, decision.reason, blocks(seen.mended)))
        self._open.append((fault, decision.action, since, c0))
        self._act(decision, fault)

    def _seen(self, ready: PeerReady, index: int, table: np.ndarray, mended: Any, late: Any) -> Seen:
        return Seen(index, table, *ready.gathered(mended, late), time.perf_counter())

    def _described(self, fault: Fault, index: int) -> Fault:
        row = 0
        while index - 1 - row in self._drops:
            row += 1
        batch = [np.asarray(x) for x in jax.tree.leaves(self.batches[index])] if fault.kind in CAUSES else []
        traits = self.workload.traits
        return replace(
            fault, attempt=self._attempts.get(index, 0), in_data=batch_is_bad(batch, traits.gate),
            droppable=traits.droppable, drops_in_a_row=row,
        )  # fmt: skip

    def _look(self, ready: PeerReady, index: int, table: np.ndarray, mended: Any, late: Any) -> None:
        """A commit may have mended what went bad since its proposal, or a tag's copy."""
        seen = self._seen(ready, index, table, mended, late)
        if seen.mended[:, :, 4].any():
            slots = np.flatnonzero(seen.mended[:, :, 4].any(1))
            if self.slot in slots:
                self.member.leave("its memory is damaged beyond repair")
            self.member.wait(lambda: False)
        if not seen.clean:
            fault = classify(seen, seen.mended, self.form, self._ids, self.batch_names)
            self.emit(Noticed(fault, Action.REPAIR, "mended inside the step", blocks(seen.mended)))
            self.emit(Mended(fault, Action.REPAIR, 0.0, 0, 0))

    def _act(self, decision: Decision, fault: Fault) -> None:
        match decision.action:
            case Action.RETRY | Action.REPAIR:
                return
            case Action.DROP:
                self._drops.add(fault.step)
                self.emit(Dropped(fault.step, decision.reason))
            case Action.STOP:
                raise Stopped(decision.reason)
            case _:
                # Its shard is rebuilt from the others: a process that cannot be trusted is as good as lost.
                going = (decision.slot,) if decision.slot is not None else fault.slots
                if len(going) != 1:
                    raise Stopped(f"Step {fault.step}: {decision.reason}, in slots {list(going)} at once.")
                if going[0] == self.slot:
                    self.member.leave(decision.reason)
                self.member.wait(lambda: False)  # until the launcher has noticed that it left

    def _close(self, index: int) -> None:
        for fault, action, since, c0 in [o for o in self._open if o[0].step == index]:
            self.emit(Mended(fault, action, time.perf_counter() - since, compiles() - c0, 0))
        self._open = [o for o in self._open if o[0].step != index]

    @property
    def _ids(self) -> tuple[int, ...]:
        return tuple(seat for seat, _ in self.slots)

    def say_resumed(self) -> None:
        """The run goes on behind a stop; `resumed` is the number of compilations at its beginning."""
        if self.resumed is not None:
            self.member.say("resumed", compiles=compiles() - self.resumed)
            self.resumed = None

    def _said_so(self) -> None:
        self.say_resumed()
        now, (then, at) = time.perf_counter(), self._said
        if now - then > 0.2:
            self.emit(Progress(self.settled, max(0.0, (self.settled - at) / (now - then))))
            self._said = (now, self.settled)


def runtime_failed(error: Exception) -> bool:
    """Whether an exception is the runtime's: a collective that fails while it is being dispatched raises a ValueError
    whose text begins with the status, one that fails later a JaxRuntimeError."""
    return isinstance(error, jax.errors.JaxRuntimeError) or re.match(r"[A-Z_]{5,}: ", str(error)) is not None


def device_tuple(device: Any) -> Device:
    """A seat and its incarnation, as JSON brings them."""
    return int(device[0]), int(device[1])
