"""The loop with its memory: registry, policy and journal around `keeper.Loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from ..devices import Pool
from ..errors import BadInput, Stopped
from ..events import Action, Decision, DeviceChanged, Event, Fault, RunFinished, RunStarted, RunStopped
from ..keeper import Loop, Metrics, Options, Workload
from ._journal import Journal
from ._policy import Limits, decide
from ._registry import Registry, State, apply


class Keeper:
    """Keeps a workload right and running on a pool of devices.

    - `journal`: path of the run's journal, or None. Every event is durable there before the keeper acts on it.
    - `options`: `keeper.Options`; keyword arguments override single ones (`every=20`, `depth=0`, `source="parity"`).
    - `resume`: a directory with snapshot files to go on from.
    - `listen`: called with every event, after the journal.

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
        self._closed = False
        try:
            self.loop = Loop(
                workload, pool, self._decide, self._hear, options, resume=None if resume is None else Path(resume)
            )
        except BaseException:
            self._close_journal()
            raise
        ids = tuple(d.id for d in pool.active), tuple(d.id for d in pool.spares)
        self._hear(RunStarted(workload.name, self.loop.settled, *ids))

    def step(self, batch: Any = None) -> Metrics:
        """One step with `batch`, or with the workload's own; its metrics wait for the commit only when looked at."""
        return self.loop.step(batch)

    def run(self, steps: int) -> None:
        """Step until `steps` steps of the workload are committed."""
        while self.loop.wanted < steps:
            self.loop.step()
        self.loop.flush()

    def flush(self) -> None:
        """Wait until every step asked for is committed."""
        self.loop.flush()

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
        self.loop.drain(slot, reason)

    def lost(self, slot: int, reason: str = "reported lost") -> None:
        """Tell the keeper that the device in `slot` is gone."""
        self.loop.lost(slot, reason)

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
        if self._journal is not None:
            self._journal.close()

    def _hear(self, event: Event) -> None:
        if self._journal is not None:
            self._journal.append(event)
        self.registry = apply(self.registry, event)
        for listener in self.listeners:
            listener(event)

    def _decide(self, fault: Fault) -> Decision:
        decision = decide(self.registry, fault, self.limits)
        for device in fault.device_ids:
            if decision.action in (Action.DRAIN, Action.SWAP) and fault.kind != "lost":
                self._hear(DeviceChanged(device, State.DRAINING.value, decision.reason))
            elif fault.kind in ("memory", "tag") and self.registry.devices.get(device) == State.HEALTHY:
                self._hear(DeviceChanged(device, State.DEGRADED.value, f"{fault.kind} fault: {fault.where}"))
        return decision
