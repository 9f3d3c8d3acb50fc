"""Who is what: the state of every device, derived from events alone.

`apply(registry, event)` is a pure function, so a journal replays to the same registry, in this process or in another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from ..events import (
    Action,
    DeviceChanged,
    Done,
    Dropped,
    Event,
    Mended,
    Noticed,
    Ordered,
    Progress,
    RunFinished,
    RunStarted,
    RunStopped,
    Survivable,
    Swapped,
)


class State(Enum):
    """What a device is. SPARE: warm and waiting. RESERVED: a spare that an order has put aside. HEALTHY: in a slot.
    DEGRADED: in a slot, with repeated faults. DRAINING: in a slot, about to be replaced. FAILED: gone without a copy.
    RETIRED: replaced, its shard was copied off."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DRAINING = "draining"
    FAILED = "failed"
    SPARE = "spare"
    RESERVED = "reserved"
    RETIRED = "retired"


IN_SLOT = (State.HEALTHY, State.DEGRADED, State.DRAINING)


@dataclass(frozen=True)
class Registry:
    """Devices by id; `slots[i]` is the device in logical slot i, `spares` wait in this order; `routes[old] = new`
    records who replaced whom. `faults` counts memory faults per device (bad numbers are more often the data's).
    `orders` are the governor's that nobody has answered yet, by name and in order of giving."""

    devices: MappingProxyType[int, State] = field(default_factory=lambda: MappingProxyType({}))
    slots: tuple[int, ...] = ()
    spares: tuple[int, ...] = ()
    routes: MappingProxyType[int, int] = field(default_factory=lambda: MappingProxyType({}))
    faults: MappingProxyType[int, int] = field(default_factory=lambda: MappingProxyType({}))
    orders: MappingProxyType[str, Ordered] = field(default_factory=lambda: MappingProxyType({}))
    step: int = 0
    noticed: int = 0
    mended: int = 0
    dropped: int = 0
    job: str = ""
    status: str = "idle"
    told: tuple[bool, str] | None = None

    @property
    def survivable(self) -> tuple[bool, str]:
        """Whether the next loss of a device can be survived by a swap, and why: as the launcher of a run over processes
        last said (`told`), else by the warm spares."""
        if self.told is not None:
            return self.told
        if self.spares:
            return True, f"{len(self.spares)} warm spare{'s' if len(self.spares) > 1 else ''}"
        return False, "no spare is left; the run would stop and could be resumed on fewer devices"

    @property
    def with_reserved(self) -> Registry:
        """As the loop may use it: what is put aside for orders that nobody has begun is free for a device that is
        gone."""
        aside = tuple(o.spare for o in self.orders.values() if self.devices.get(o.spare) is State.RESERVED)
        return replace(self, spares=(*aside, *self.spares))


def _with(mapping: MappingProxyType[int, object], changes: dict[int, object]) -> MappingProxyType:
    return MappingProxyType({**mapping, **changes})


def apply(registry: Registry, event: Event) -> Registry:
    """The registry after `event`. Events that make no sense for it (a swap onto a device that is no spare, a second
    swap of the same device) change nothing: replaying a journal twice is harmless."""
    match event:
        case RunStarted():
            # A run knows its devices anew; what earlier runs in the same journal did to theirs does not matter to it.
            spares = tuple(d for d in dict.fromkeys(event.spares) if d not in event.slots)
            devices = {**dict.fromkeys(event.slots, State.HEALTHY), **dict.fromkeys(spares, State.SPARE)}
            return Registry(
                devices=MappingProxyType(devices),
                slots=tuple(event.slots),
                spares=spares,
                step=event.step,
                job=event.job,
                status="running",
            )
        case Noticed():
            worn = event.fault.device_ids if event.fault.kind in ("memory", "tag") else ()
            counts = {d: registry.faults.get(d, 0) + 1 for d in worn}
            return replace(
                registry,
                faults=_with(registry.faults, dict(counts)),
                noticed=registry.noticed + 1,  # type: ignore[arg-type]
            )
        case Mended():
            return replace(registry, mended=registry.mended + 1)
        case DeviceChanged():
            here = registry.devices.get(event.device_id)
            known = event.state in [state.value for state in State if state is not State.RESERVED]
            if here is None or not known or here is (new := State(event.state)):
                return registry
            # A device in a slot stays in one until a swap; a spare that fails is no spare any more.
            if event.device_id in registry.slots and new in (State.SPARE, State.RETIRED):
                return registry
            if event.device_id not in registry.slots and new in IN_SLOT:
                return registry
            if here in (State.FAILED, State.RETIRED) and new != State.SPARE:
                return registry
            if new is State.SPARE and any(o.spare == event.device_id for o in registry.orders.values()):
                return registry  # it is put aside, or was when it failed: the order's answer says what becomes of it
            spares = tuple(d for d in registry.spares if d != event.device_id)
            if new == State.SPARE:
                spares = (*spares, event.device_id)
            return replace(registry, devices=_with(registry.devices, {event.device_id: new}), spares=spares)
        case Swapped():
            valid = (
                0 <= event.slot < len(registry.slots)
                and registry.slots[event.slot] == event.old_id
                and registry.devices.get(event.new_id) in (State.SPARE, State.RESERVED)
            )
            if not valid:
                return registry
            slots = list(registry.slots)
            slots[event.slot] = event.new_id
            left = State.FAILED if event.cause == "lost" else State.RETIRED
            return replace(
                registry,
                devices=_with(registry.devices, {event.old_id: left, event.new_id: State.HEALTHY}),
                slots=tuple(slots),
                spares=tuple(d for d in registry.spares if d != event.new_id),
                routes=_with(registry.routes, {event.old_id: event.new_id}),
                step=max(registry.step, event.step),
            )
        case Survivable():
            return replace(registry, told=(event.yes, event.why))
        case Ordered():
            return _ordered(registry, event)
        case Done():
            return _done(registry, event)
        case Progress():
            return replace(registry, step=event.step)
        case Dropped():
            return replace(registry, dropped=registry.dropped + 1)
        case RunStopped():
            return replace(registry, step=event.step, status=f"stopped: {event.reason}")
        case RunFinished():
            return replace(registry, step=event.step, status="finished")
        case _:
            return registry


def _ordered(registry: Registry, event: Ordered) -> Registry:
    moves = event.action in (Action.DRAIN, Action.SWAP)
    valid = event.order not in registry.orders and (
        not moves
        or (
            event.spare in registry.spares
            and 0 <= event.slot < len(registry.slots)
            and registry.slots[event.slot] == event.device_id
            and all(order.slot != event.slot for order in registry.orders.values())
        )
    )
    if not valid:
        return registry
    orders = MappingProxyType({**registry.orders, event.order: event})
    if not moves:
        return replace(registry, orders=orders)
    here = registry.devices[event.device_id]
    leaving = here if here is State.FAILED else State.DRAINING
    return replace(
        registry,
        orders=orders,
        devices=_with(registry.devices, {event.device_id: leaving, event.spare: State.RESERVED}),
        spares=tuple(d for d in registry.spares if d != event.spare),
    )


def _done(registry: Registry, event: Done) -> Registry:
    order = registry.orders.get(event.order)
    if order is None:
        return registry
    registry = replace(
        registry, orders=MappingProxyType({k: o for k, o in registry.orders.items() if k != event.order})
    )
    if event.ok and order.action in (Action.PAUSE, Action.RESUME) and registry.status in ("running", "paused"):
        return replace(registry, status="paused" if order.action is Action.PAUSE else "running")
    if order.action not in (Action.DRAIN, Action.SWAP):
        return registry
    changes: dict[int, object] = {}
    spares = registry.spares
    if registry.devices.get(order.spare) is State.RESERVED:
        # It was not needed after all, or could not be used: it is the first in the line again.
        changes[order.spare] = State.SPARE
        spares = (order.spare, *spares)
    here = registry.slots[order.slot] == order.device_id
    if here and registry.devices[order.device_id] is State.DRAINING:
        changes[order.device_id] = State.DEGRADED
    return replace(registry, devices=_with(registry.devices, changes), spares=spares)


def replay(events: Iterable[Event]) -> Registry:
    """The registry that a sequence of events leads to."""
    registry = Registry()
    for event in events:
        registry = apply(registry, event)
    return registry
