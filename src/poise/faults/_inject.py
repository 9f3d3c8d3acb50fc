"""The injector: strikes a kept run as a script says, and keeps the books.

Strikes happen between two steps, after everything in flight has settled (the host's counter runs ahead of the device's
tag). The books are kept from the events that the loop emits, and from looking at the memory that was struck; nothing is
assumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..devices import Placement, compiles
from ..errors import BadJob
from ..events import Event, Mended, Noticed, Swapped
from ..keeper import Loop, Workload
from ..keeper._form import Form
from ..seal._plan import named_leaves
from ._script import BATCH, COMPUTE, LEAVE, MEMORY, ScriptedFault
from ._strike import batch_leaf, piece_now, strike_batch, strike_copy, strike_memory, struck_arrays


@dataclass
class Strike:
    """One fault that struck, and what became of it; None where it is not known (yet).

    `seconds` run from the strike to the mended state. `bit_exact`: memory faults: the repaired words equal the
    originals; everything else: the state equals the clean run's at that step (None without a clean run).
    """

    kind: str
    label: str
    step: int
    slot: int
    device_id: int
    noticed_step: int | None = None
    action: str | None = None
    reason: str = ""
    bit_exact: bool | None = None
    seconds: float | None = None
    compiles: int | None = None
    replayed: int | None = None
    waited: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass
class _Blow:
    fault: ScriptedFault
    strike: Strike
    at: float
    compiles: int
    before: dict[int, np.ndarray] = field(default_factory=dict)
    exact: bool | None = None


class Injector:
    """Strikes `loop` at the steps of `script`. `clean` says a clean run's fingerprint of the state of a step, or None.

    `hear` must be called with every event of the run. Call `batch(i)` for the batch of step i, `before(i)` before the
    loop takes it and `after(i)` behind it.
    """

    def __init__(
        self,
        loop: Loop,
        script: Sequence[ScriptedFault],
        clean: Callable[[int], str | None] = lambda step: None,
        seed: int = 0,
    ) -> None:
        self.loop, self.script, self.clean = loop, list(script), clean
        self.strikes: list[Strike] = []
        self._rng = np.random.default_rng(seed)
        self._open: list[_Blow] = []
        self._armed: list[ScriptedFault] = []
        self._standing: list[tuple[ScriptedFault, int]] = []
        check(self.script, loop.workload, loop.form, loop.builder.batch_shapes)
        loop.intake = self._intake

    def follow(self, loop: Loop) -> None:
        """Strike this loop from now on: the run goes on with another one, on fewer devices. Faults in slots that it
        does not have fall away."""
        if loop is not self.loop:
            self.loop = loop
            self.script = [f for f in self.script if f.slot < loop.form.devices]
            loop.intake = self._intake

    def batch(self, index: int) -> Any:
        """The batch of a step: the workload's own, unless the script makes the data themselves bad."""
        batch = self.loop.workload.batch(index)
        for fault in self._at(index, *BATCH):
            if fault.origin == "data":
                batch = strike_batch(self.loop, fault, batch)
        return batch

    def before(self, index: int) -> None:
        """Strike what strikes before step `index`."""
        due = self._at(index, *BATCH, *MEMORY, *COMPUTE, *LEAVE)
        if due:
            self.loop.flush()
        for fault in due:
            if fault.kind in LEAVE and not fault.during_rewarm:
                self.loop.wait_warm()
            blow = self._begin(fault)
            if fault.kind in MEMORY:
                with self.loop.stage.precision():
                    blow.before = strike_memory(self.loop, fault, self._rng)
            elif fault.kind == "drain":
                self.loop.drain(fault.slot, "scripted")
            elif fault.kind == "lost":
                self.loop.lost(fault.slot, "scripted")
            elif fault.origin == "device" and fault.persistent:
                self._standing.append((fault, blow.strike.device_id))
            elif fault.origin == "device":
                self._armed.append(fault)

    def after(self, index: int) -> None:
        """Settle a step that was struck, so that the books close at its own state."""
        if self._at(index, *BATCH, *MEMORY, *COMPUTE, *LEAVE):
            self.loop.flush()

    def _at(self, index: int, *kinds: str) -> list[ScriptedFault]:
        return [f for f in self.script if f.step == index and f.kind in kinds]

    def _begin(self, fault: ScriptedFault) -> _Blow:
        device = self.loop.stage.placement.ids[fault.slot]
        strike = Strike(fault.kind, fault.label, fault.step, fault.slot, device)
        self.strikes.append(strike)
        blow = _Blow(fault, strike, time.perf_counter(), compiles())
        self._open.append(blow)
        return blow

    def _intake(self, index: int, attempt: int, placement: Placement, batch: Any) -> Any:
        for fault in self._armed:
            if fault.step == index:
                # Disarmed as it fires: a replay from a snapshot passes here again and must find the pristine batch.
                self._armed.remove(fault)
                if fault.kind in COMPUTE:
                    devices = len(placement.devices)
                    return self.loop.workload.strike(batch, fault.kind, fault.slot, devices, self._rng)  # type: ignore[attr-defined]
                return strike_copy(self.loop, fault, placement, batch)
        for fault, device in self._standing:
            if placement.ids[fault.slot] == device:
                return strike_copy(self.loop, fault, placement, batch)
        return batch

    def hear(self, event: Event) -> None:
        match event:
            case Noticed():
                for blow in self._struck(event.fault.step):
                    if blow.strike.noticed_step is None:
                        blow.strike.noticed_step = event.fault.step
                    blow.strike.action = event.action.value
                    blow.strike.reason = event.reason
                    if blow.before and event.fault.mended and blow.fault.where != "tag":
                        blow.exact = all(
                            piece_now(self.loop, i, blow.fault.slot).tobytes() == old.tobytes()
                            for i, old in blow.before.items()
                        )
            case Swapped():
                for blow in self._open:
                    blow.strike.waited = event.waited
            case Mended():
                for blow in self._struck(event.fault.step):
                    self._close(blow, event)

    def _struck(self, step: int) -> list[_Blow]:
        return [b for b in self._open if b.fault.step <= step]

    def _close(self, blow: _Blow, event: Mended) -> None:
        strike = blow.strike
        if strike.noticed_step is None:
            return
        strike.seconds = time.perf_counter() - blow.at
        strike.compiles = compiles() - blow.compiles
        strike.replayed = event.replayed
        if blow.exact is None:
            known = self.clean(self.loop.settled)
            strike.bit_exact = None if known is None else self.loop.fingerprint_now() == known
        else:
            strike.bit_exact = blow.exact
        self._open.remove(blow)


def watched_steps(script: Sequence[ScriptedFault]) -> set[int]:
    """Steps whose clean fingerprint the books need: a swap leaves the state of its step, everything else the next
    one."""
    return {f.step if f.kind in LEAVE else f.step + 1 for f in script}


def check(script: Sequence[ScriptedFault], workload: Workload, form: Form, batch: Any) -> None:
    """Refuse faults that cannot strike this run, before it begins; `batch` is an example or its shapes. Raises
    `BadJob`."""
    named = named_leaves(batch)
    for fault in script:
        if fault.slot >= form.devices:
            raise BadJob(f"A fault strikes slot {fault.slot}; the slots are 0 to {form.devices - 1}.")
        if fault.kind in BATCH:
            name, leaf = named[batch_leaf(tuple(n for n, _ in named), fault)]
            if not jnp.issubdtype(leaf.dtype, jnp.inexact) or 0 in leaf.shape:
                raise BadJob(f"The batch's {name!r} holds no real numbers that could become {fault.kind}.")
            if fault.kind == "marker" and -99.0 not in workload.traits.gate.markers:
                raise BadJob(f"The workload {workload.name} does not treat -99 as a marker.")
        if fault.kind in COMPUTE and not getattr(workload, "strikes", False):
            raise BadJob(
                f"The program of {workload.name} has no place for a wrong {fault.kind}; llama has, with strikes = true."
            )
        if fault.kind in MEMORY:
            struck_arrays(form, fault)
