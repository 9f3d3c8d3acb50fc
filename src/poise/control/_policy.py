"""What to do about a fault: a pure function of the registry and the fault."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadInput
from ..events import Action, Decision, Fault
from ._registry import Registry


@dataclass(frozen=True)
class Limits:
    """When patience ends: memory faults of one device before it is drained, tries of one step before it is given up,
    dropped batches in a row before the run stops.

    `exhausted`: what happens when a device is gone and no spare is left: "stop" (with a snapshot to resume from) or
    "shrink" (go on from that snapshot on as many of the remaining devices as the workload can use).
    """

    memory_faults: int = 3
    tries: int = 3
    drops_in_a_row: int = 3
    exhausted: str = "stop"

    def __post_init__(self) -> None:
        if min(self.memory_faults, self.tries, self.drops_in_a_row) < 1:
            raise BadInput("The policy's limits must be 1 or more.")
        if self.exhausted not in ("stop", "shrink"):
            raise BadInput(f"What happens without a spare is stop or shrink, not {self.exhausted!r}.")


def decide(registry: Registry, fault: Fault, limits: Limits | None = None) -> Decision:
    """The action for `fault` with the reason that a person reads later. Never names a spare that is not free."""
    limits = limits or Limits()
    match fault.kind:
        case "lost":
            return _replace(registry, fault, Action.SWAP, "its device is gone")
        case "drain":
            return _replace(registry, fault, Action.DRAIN, fault.where or "asked for")
        case "memory" | "split" | "raised" if not fault.mended:
            if fault.attempt >= limits.tries:
                return Decision(Action.STOP, f"step {fault.step} could not be replayed in {fault.attempt} tries")
            why = {
                "memory": "damage beyond parity",
                "split": "devices disagree about the step",
                "raised": "the backend gave the step up, and the donated state with it",
            }[fault.kind]
            return Decision(Action.ROLLBACK, f"{why}; back to the last good snapshot")
        case "replicas":
            return _replicas(registry, fault, limits)
        case "memory" | "tag":
            return _memory(registry, fault, limits)
        case _:
            return _numbers(registry, fault, limits)


def _memory(registry: Registry, fault: Fault, limits: Limits) -> Decision:
    worn = [s for s, d in zip(fault.slots, fault.device_ids, strict=True)
            if registry.faults.get(d, 0) + 1 > limits.memory_faults]  # fmt: skip
    if worn and registry.spares:
        count = limits.memory_faults
        return Decision(Action.DRAIN, f"more than {count} memory faults on it", worn[0], registry.spares[0])
    return Decision(Action.REPAIR, "mended in place; the step is replayed")


def _replicas(registry: Registry, fault: Fault, limits: Limits) -> Decision:
    """Replicas that propose different bits: wrong arithmetic somewhere; compute again, then drain the one outvoted."""
    if fault.attempt == 0:
        return Decision(Action.RETRY, f"replicas disagree: {fault.where}; computed again")
    if fault.attempt < limits.tries and len(fault.slots) == 1 and registry.spares:
        return Decision(Action.DRAIN, "outvoted by the other replicas again", fault.slots[0], registry.spares[0])
    return Decision(Action.STOP, f"Step {fault.step} cannot be trusted: replicas disagree after {fault.attempt} tries.")


def _numbers(registry: Registry, fault: Fault, limits: Limits) -> Decision:
    """A bad batch or a bad next state: first retry; what recurs belongs to the data if the host's own copy is bad, else
    to the device that alone reports it; what recurs on another device as well belongs to the data or the model."""
    where = fault.where
    if fault.attempt == 0 and not fault.in_data:
        return Decision(Action.RETRY, f"{fault.kind} in {where}: try again with a fresh copy of the batch")
    if fault.in_data:
        return _give_up(fault, limits, f"the batch itself has {fault.kind} in {where}")
    if fault.attempt == 1 and len(fault.slots) == 1 and registry.spares:
        # Once: what recurs on the spare as well is no device's fault.
        reason = f"{fault.kind} in {where} recurs, and the host's copy of the batch is good: the device is suspect"
        return Decision(Action.DRAIN, reason, fault.slots[0], registry.spares[0])
    return _give_up(fault, limits, f"{fault.kind} in {where} recurs after {fault.attempt} tries")


def _give_up(fault: Fault, limits: Limits, why: str) -> Decision:
    if not fault.droppable:
        return Decision(
            Action.STOP, f"Step {fault.step} cannot be completed: {why}; this workload may not drop a batch."
        )
    if fault.drops_in_a_row >= limits.drops_in_a_row:
        return Decision(
            Action.STOP, f"Step {fault.step} stopped the run: {fault.drops_in_a_row} batches dropped in a row."
        )
    return Decision(Action.DROP, f"{why}; the batch is left out")


def _replace(registry: Registry, fault: Fault, action: Action, why: str) -> Decision:
    slot = fault.slots[0]
    if registry.spares:
        return Decision(action, f"slot {slot}: {why}; spare {registry.spares[0]} takes over", slot, registry.spares[0])
    return Decision(Action.STOP, f"Slot {slot} needs a spare device ({why}) and none is left.")
