"""The loop with its memory: registry, policy and journal around `keeper.Loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from ..devices import Pool
from ..errors import BadInput, Stopped
from ..events import (
    Action,
    Decision,
    DeviceChanged,
    Done,
    Event,
    Fault,
    Ordered,
    Progress,
    Protected,
    RunFinished,
    RunStarted,
    RunStopped,
)
from ..keeper import Loop, Metrics, Options, Workload
from ._hardware import hardware_ids
from ._journal import Journal
from ._office import Office
from ._policy import Limits, decide
from ._registry import Registry, State, apply
from ._shrink import shrunk

ROUTINE = 1.0
"""Seconds between two `Progress` events in the journal."""


class Keeper:
    """Keeps a workload right and running on a pool of devices.

    - `journal`: path of the run's journal, or None. Every event is durable there before the keeper acts on it.
    - `options`: `keeper.Options`; keyword arguments override single ones (`every=20`, `depth=0`, `source="parity"`).
    - `resume`: a directory with snapshot files to go on from.
    - `listen`: called with every event, after the journal.
    - `governed`: run a governor beside the loop (extra `serve`; needs a journal): hardware events are heard, and orders
      from the status page and other processes are carried out between two steps.

    Survives what the promise table says; beyond it raises `Stopped` with one sentence. Use as a context manager, or
    call `close`.
    """

    def __init__(
        self,
        workload: Workload,
        pool: Pool | None = None,
        *,
        journal: str | Path | None = None,
        limits: Limits | None = None,
        options: Options | None = None,
        resume: str | Path | None = None,
        listen: Iterable[Callable[[Event], None]] = (),
        governed: bool = False,
        **changes: Any,
    ) -> None:
        self.registry = Registry()
        self.limits = limits or Limits()
        self.listeners = list(listen)
        try:
            options = replace(options or Options(), **changes)
        except TypeError:
            raise BadInput(f"Unknown options {sorted(changes)}; accepted are {sorted(vars(Options()))}.") from None
        pool = pool or Pool(jax.devices())
        self._journal = Journal(journal) if journal is not None else None
        self._office: Office | None = None
        self._order: Ordered | None = None
        self._gone = -1
        self._told = 0.0
        self._closed = False
        try:
            if governed:
                if self._journal is None:
                    raise BadInput("A governed run needs a journal; give a path.")
                self._office = Office(self._journal, self.limits, hardware_ids((*pool.active, *pool.spares)))
            self.loop = Loop(
                workload, pool, self._decide, self._hear, options, resume=None if resume is None else Path(resume)
            )
            self._begin()
        except BaseException:
            self._close_journal()
            raise

    def _begin(self) -> None:
        loop = self.loop
        ids = tuple(d.id for d in loop.stage.pool.active), tuple(d.id for d in loop.stage.pool.spares)
        self._hear(RunStarted(loop.workload.name, loop.settled, *ids))
        self._hear(Protected(loop.form.state_bytes, loop.form.spare_bytes, loop.stage.source))

    def step(self, batch: Any = None) -> Metrics:
        """One step with `batch`, or with the workload's own; its metrics wait for the commit only when looked at."""
        metrics = self._survive(lambda: self.loop.step(batch))
        if self._office is not None and self._office.attention:
            self._obey()
        return metrics

    def run(self, steps: int) -> None:
        """Step until `steps` steps of the workload are committed."""
        while self.loop.wanted < steps:
            self.step()
        self.flush()

    def flush(self) -> None:
        """Wait until every step asked for is committed."""
        self._survive(lambda: self.loop.flush())

    @property
    def state(self) -> Any:
        """The committed state, in the form in which it was given (waits for steps in flight)."""
        state = self.loop.state()
        rebuild = getattr(self.loop.workload, "rebuild", None)
        return state if rebuild is None else rebuild(state)

    @property
    def settled(self) -> int:
        """Number of committed steps that are known."""
        return self.loop.settled

    def fingerprint(self) -> str:
        """128 bits of the committed state."""
        return self.loop.fingerprint()

    def drain(self, slot: int, reason: str = "asked for") -> None:
        """Move the shard in `slot` to a spare, while its device can still be read."""
        self._survive(lambda: self.loop.drain(slot, reason))

    def lost(self, slot: int, reason: str = "reported lost") -> None:
        """Tell the keeper that the device in `slot` is gone."""
        self._survive(lambda: self.loop.lost(slot, reason))

    def finish(self) -> str:
        """Settle, write the last snapshot file, close the journal; returns the fingerprint."""
        self.loop.take_last()
        mark = self.loop.fingerprint()
        self._hear(RunFinished(self.loop.settled, mark))
        self.close()
        return mark

    def close(self) -> None:
        """Stop without saying that the run is finished."""
        if not self._closed:
            self._closed = True
            self.loop.close()
            self._close_journal()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None and not isinstance(error, Stopped) and not self._closed:
            # Somebody else's exception ends the run: the journal says so, and the last good copy is written below.
            reason = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
            directory = self.loop.options.directory
            self._hear(RunStopped(self.loop.settled, reason, "" if directory is None else str(directory)))
        self.close()

    def _close_journal(self) -> None:
        try:
            if self._office is not None:
                self._office.close()
        finally:
            if self._journal is not None:
                self._journal.close()

    def _hear(self, event: Event) -> None:
        # Progress is heard several times a second; the file, and whoever follows it, need it once.
        quiet = isinstance(event, Progress) and event.at - self._told < ROUTINE
        if isinstance(event, Progress) and not quiet:
            self._told = event.at
        if self._office is not None and not quiet:
            self.registry = self._office.tell(event)
        else:
            if self._journal is not None and not quiet:
                self._journal.append(event)
            self.registry = apply(self.registry, event)
        for listener in self.listeners:
            listener(event)

    # -- the governor's orders --------------------------------------------------------------------------------------

    def _obey(self) -> None:
        """Carry out what is ordered, between two steps. While the run is paused this waits for the next order."""
        assert self._office is not None
        self._drop_spares()
        while True:
            order = self._office.next_order(wait=self.registry.status == "paused")
            if order is None:
                return
            self._order = order
            try:
                ok, detail = self._carry_out(order)
                self._hear(Done(order.order, ok, detail))
            finally:
                self._order = None
            if ok and order.action in (Action.STOP, Action.SHRINK):
                self._survive(partial(self.loop.recovery.stop, order.reason), gone=order.device_id)
            self._drop_spares()

    def _carry_out(self, order: Ordered) -> tuple[bool, str]:
        loop = self.loop
        if order.action not in (Action.DRAIN, Action.SWAP):
            loop.flush()
            return True, f"at step {loop.settled}"
        here = loop.stage.placement.ids[order.slot]
        if here != order.device_id:
            return False, f"slot {order.slot} holds device {here} by now"
        if not loop.stage.pool.spares:
            return False, "the spare has been used in the meantime"
        leave = loop.drain if order.action is Action.DRAIN else loop.lost
        leave(order.slot, order.reason)
        return True, f"device {loop.stage.placement.ids[order.slot]} took over at step {loop.settled}"

    def _drop_spares(self) -> None:
        """Spares that failed while they waited must not be used."""
        assert self._office is not None
        devices = self._office.registry.devices
        bad = [d.id for d in self.loop.stage.pool.spares if devices.get(d.id) in (State.FAILED, State.RETIRED)]
        if bad:
            self.loop.drop_spares(bad)

    def _survive(self, act: Callable[[], Any], gone: int = -1) -> Any:
        """Do it; where the run would end for want of a spare and the limits say so, go on with fewer devices."""
        try:
            return act()
        except Stopped as stopped:
            gone = self._gone if gone < 0 else gone
            loop = shrunk(self, stopped, gone) if self.limits.exhausted == "shrink" else None
            if loop is None:
                raise
            self.loop, self._gone = loop, -1
            self._begin()
            # What `step` would have returned; the old loop made it before it stopped.
            last = loop.metrics(loop.wanted - 1)
            self._survive(loop.flush)
            return last

    def _decide(self, fault: Fault) -> Decision:
        if self._office is None:
            decision = decide(self.registry, fault, self.limits)
        elif self._order is not None and fault.slots == (self._order.slot,) and fault.kind in ("drain", "lost"):
            return Decision(self._order.action, self._order.reason, self._order.slot, self._order.spare)
        else:
            self._drop_spares()
            decision = self._office.decide(fault)
        if decision.action is Action.STOP and fault.kind in ("drain", "lost"):
            self._gone = fault.device_ids[0]
        for device in fault.device_ids:
            if decision.action in (Action.DRAIN, Action.SWAP) and fault.kind != "lost":
                self._hear(DeviceChanged(device, State.DRAINING.value, decision.reason))
            elif fault.kind in ("memory", "tag") and self.registry.devices.get(device) == State.HEALTHY:
                self._hear(DeviceChanged(device, State.DEGRADED.value, f"{fault.kind} fault: {fault.where}"))
        return decision
