"""A worker's life: member or spare, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..devices import compiles
from ..devices.process import Courier, Device, Member, PeerLost, Report, Vault
from ..errors import Stopped
from ..events import Decision, Event, Fault
from ._form import Form
from ._parts import write_part
from ._peer import PeerLoop, device_tuple, runtime_failed
from ._peer_orders import Orders
from ._peer_stage import PeerStage, Slots, device_of, successors
from ._shardwise import Shard, on_device, on_host, own_shard, parted, place
from ._snapshot import read, verify_shard
from ._step import Builder
from ._workload import Workload


class PeerLife:
    """One process of a run over several: takes its orders from the launcher until the run is over.

    - `listener`: where a vault of this process can be reached.
    - `every`: steps between snapshots in `directory` (parts; the launcher makes them count).
    - `source`: "parity" or "replica", where a lost shard comes from.
    - `each(phase, number)`: called between the parts of a step and of a recovery, for fault injection.
    - `possible(slots)`: whether a placement can exist (two processes on one GPU cannot talk through NCCL).
    - `entered(slots)`: called as an epoch begins, before anything is decided in it.
    """

    def __init__(
        self,
        workload: Workload,
        member: Member,
        listener: Any,
        key: bytes,
        actives: int,
        *,
        decide: Callable[[Fault], Decision],
        emit: Callable[[Event], None],
        every: int,
        source: str,
        directory: Path,
        resume: Path | None = None,
        each: Callable[[str, int], None] = lambda phase, number: None,
        entered: Callable[[Slots], None] = lambda slots: None,
        possible: Callable[[Slots], bool] = lambda slots: True,
    ) -> None:
        self.workload, self.member, self.key, self.source = workload, member, key, source
        self.directory, self.resume, self.each, self.entered = directory, resume, each, entered
        axes = workload.axes(actives)
        with self.precision():
            state = workload.init()
            self.form = Form.of(state, workload.state_specs(), axes, workload.traits.heal)
            self.builder = Builder(workload, self.form, workload.batch(0), fused=False, hold=True)
        self._start = self.form.flatten(state)
        self.stage = PeerStage(workload, self.form, self.builder, member, possible)
        self.orders = Orders(member, self.stage, key)
        self.loop = PeerLoop(workload, self.form, self.builder, self.stage, member, self.orders, decide, emit, every)
        self.vault = Vault(listener, self._whole)
        self.loop.each = self.orders.each = each
        self.loop.save, self.loop.saved = self._save, self._saved
        self.stage.ours = self._descriptors
        self.slots: Slots = ()
        self._first_whole = True
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="poise-snapshot")
        self._writing: dict[int, Future[str]] = {}
        self._epoch: dict[str, Any] | None = None

    def precision(self) -> AbstractContextManager[Any]:
        """64 bits where the workload wants them."""
        return jax.enable_x64(True) if self.workload.traits.x64 else nullcontext()

    def live(self, last: int) -> None:
        """Until `last` steps are committed and the launcher ends this process. Raises `Stopped` beyond the promise."""
        with self.precision():
            while True:
                try:
                    if self._epoch is None:
                        self._serve()
                        self._epoch = self.member.next_epoch()
                    message, self._epoch = self._epoch, None
                    self._enter(message)
                    if self.member.device in self.slots:
                        self.loop.run(last)
                        self._finish()
                except (PeerLost, jax.errors.JaxRuntimeError, ValueError) as error:
                    # A collective outside of a step failed: somebody died while communicators were made.
                    if not isinstance(error, PeerLost) and not (runtime_failed(error) and self.member.halt_soon(15.0)):
                        raise
                    self._epoch = self.member.report(self._report())

    # -- epochs -----------------------------------------------------------------------------------------------------

    def _enter(self, message: dict[str, Any]) -> None:
        epoch, number = int(message["epoch"]), int(message["number"])
        slots = tuple(device_tuple(d) for d in message["slots"])
        standby = None if message["standby"] is None else device_tuple(message["standby"])
        before, self.slots, me, c0 = self.slots, slots, self.member.device, compiles()
        together = slots if standby is None else (*slots, standby)
        self.orders.begin(epoch, number)
        self.entered(slots)
        if not before:
            self._warm(epoch, slots, standby)
        if me == standby:
            self._open_vault(number)
        if me not in slots:
            if me == standby:
                self.member.barrier(f"{epoch}/go", together)
            return
        if message["restart"] < 0:
            step, shard = self._begin(slots)
        else:
            self.each("rebuild", epoch)
            step, shard = self._restart(message, epoch, slots)
            self.loop.resumed = c0
        self.loop.enter(slots, step, shard)
        self.member.barrier(f"{epoch}/go", together)
        if message["vault"] is not None and self.source == "parity":
            host, port = message["vault"]
            self.loop.protect(Courier((host, int(port)), self.key, number, self.loop.slot, self.member.poke))

    def _open_vault(self, number: int) -> None:
        self._first_whole = True
        self.vault.open(number, len(self.slots))

    def _warm(self, epoch: int, slots: Slots, standby: Device | None) -> None:
        """Before the first step: the present placement and, with a spare, every successor of one loss."""
        wanted = [slots, *([] if standby is None else successors(slots, standby, self.stage.possible))]
        mine = [p for p in wanted if self.member.device in p]
        built = {p: self.stage.build(p) for p in mine}
        if mine:
            members = slots if standby is None else (*slots, standby)
            self.member.barrier(f"{epoch}/built", members)
            self.stage.learn(members)
        for p in mine:
            self.stage.touch(p, built[p], f"{epoch}/warm/{p}")

    def _begin(self, slots: Slots) -> tuple[int, Shard]:
        """The state of the run's first step, or of the snapshot that it goes on from, sealed."""
        ready = self.stage.warm[slots]
        at, leaves = (0, self._start) if self.resume is None else read(self.resume, self.workload.name, self.form)
        placement = ready.placement
        placed = tuple(place(np.asarray(x), placement, s) for x, s in zip(leaves, self.form.specs, strict=True))
        tag = place(np.asarray(at, np.int32), placement, jax.sharding.PartitionSpec())
        return at, own_shard(self.builder.sealer(placement)(placed, tag))

    def _restart(self, message: dict[str, Any], epoch: int, slots: Slots) -> tuple[int, Shard]:
        """The state of the generation that the verdict names: held here, or rebuilt from what the others send."""
        step, rebuilt = int(message["restart"]), int(message["rebuilt"])
        commit, me = int(message["commit"]), self.member.device
        sends = range(len(slots)) if message["source"] == "parity" else [int(message["peer"])]
        senders = [slot for slot in sends if slot != rebuilt] if rebuilt >= 0 else []
        if rebuilt >= 0 and slots[rebuilt] == me:
            generation = step if message["source"] == "parity" else -1
            self.member.wait(lambda: self.vault.rebuilt(-epoch, len(senders), generation) is not None)
            words = self.vault.rebuilt(-epoch, len(senders), generation)
            assert words is not None
            placement = self.stage.warm[slots].placement
            pieces = parted(words, self.form, placement)
            why = verify_shard(pieces, step, self.form)
            if why:
                raise Stopped(f"The rebuilt shard of slot {rebuilt} cannot be trusted: {why}.")
            return step, on_device(pieces, device_of(me))
        if commit >= 0:
            self.loop.finish_commit(commit)
        if self.loop.slot in senders:
            host, port = message["address"]
            courier = Courier((host, int(port)), self.key, -epoch, self.loop.slot, self.member.poke)
            courier.send_rebuild(-epoch, step, self.loop.words_of(step))
            courier.close()
        return step, self.loop.held[step]

    def _report(self) -> Report:
        if self.member.device in self.slots:
            return self.loop.report()
        return Report(vault=self.vault.whole, warm=tuple(self.stage.warm))

    # -- being a spare ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """A spare waits for orders: to warm with the others, to open its vault, and in the end to take a seat."""
        while True:
            number = -1

            def ordered() -> bool:
                nonlocal number
                number = max(self.orders.newest("touch"), self.orders.newest("open"))
                return number >= 0 or self.member.called

            self.member.wait(ordered)
            if number < 0:
                return
            message = self.orders.known(number)
            if message["kind"] == "touch":
                self.orders.wait_built(number)
                self.slots = tuple(device_tuple(d) for d in message["slots"])
                self.member.say("compiled", number=number)
                self.orders.touch(number)
            else:
                self._open_vault(number)
                self.member.say("opened", number=number)
            self.orders.done = number

    def _whole(self, generation: int) -> None:
        """A generation's parity is whole (or a survivor's words have come), in a vault's thread."""
        if generation >= 0 and self._first_whole:
            self._first_whole = False
            self.member.say("protected", generation=generation)
        self.member.poke()

    def _descriptors(self) -> list[int]:
        courier = self.loop.courier
        return [self.member.fileno, *self.vault.descriptors, *([] if courier is None else courier.descriptors)]

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _save(self, step: int, shard: Shard) -> None:
        slot, placement = self.loop.slot, self.stage.warm[self.loop.slots].placement

        def work() -> str:
            pieces = on_host(shard)
            why = verify_shard(pieces, step, self.form)
            if why:
                return f"!{why}"
            return write_part(self.directory, step, slot, pieces, self.form, placement)

        self._writing[step] = self._writer.submit(work)

    def _saved(self, step: int) -> None:
        """A proposal has verified the state that is being written: it may count once it is there."""
        future, slot = self._writing.pop(step, None), self.loop.slot
        if future is None:
            return

        def tell(done: Future[str]) -> None:
            self.member.say("written", step=step, slot=slot, mark=done.result())

        future.add_done_callback(tell)

    def _finish(self) -> None:
        """The last state counts without a proposal behind it: its parts are verified against their marks."""
        last = self.loop.settled
        self.loop.say_resumed()
        if last not in self._writing:
            self._save(last, self.loop.held[last])
        future = self._writing[last]
        self._saved(last)
        future.result()
        off, on = (sorted(d[len(d) // 8 :]) for d in self.loop.durations)
        if on and off:
            self.member.say("timing", on=on[len(on) // 2], off=off[len(off) // 2], steps=len(on) + len(off))
        self.member.say("done", step=last)
        self.member.wait(lambda: False)  # until the launcher ends this process, or another one's death calls it back
