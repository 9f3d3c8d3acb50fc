"""From a report to what follows: a pure function of the summary and the report, like the policy for faults."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..events import Action, DeviceChanged, Done, Event, Ordered, Paged, Reported
from ._policy import Limits
from ._registry import IN_SLOT, State
from ._summary import Summary
from ._xid import RECOVERY, Grade, xid

ASKS = ("drain", "pause", "resume", "acknowledge")
"""What a person may ask for."""

MOST_SOURCES = 20_000
"""Sources whose last number is remembered in one run; a source is a process, so more of them is somebody's mistake."""


@dataclass(frozen=True)
class Answer:
    """What a report leads to. `outcome`: `accepted`, `duplicate` (journaled before), `gap` (an earlier one is missing:
    send again from `expected`) or `refused` (`why` says so; nothing is journaled). `events` follow the report in the
    journal, in the same transaction."""

    outcome: str
    why: str = ""
    events: list[Event] = field(default_factory=list)
    expected: int = 0


def respond(s: Summary, e: Reported, limits: Limits, held: frozenset[int] = frozenset()) -> Answer:
    """What follows from `e`, given everything before it. Changes nothing. `held` are spares that the loop is about to
    use."""
    known = s.seen.get(e.source)
    if known is None and len(s.seen) >= MOST_SOURCES:
        return Answer("refused", f"more than {MOST_SOURCES} sources reported in this run")
    if known is not None and e.seq <= known:
        return Answer("duplicate", "it is in the journal already", expected=known + 1)
    if known is not None and e.seq > known + 1:
        return Answer("gap", f"{e.source} sent {e.seq} and {known + 1} is missing", expected=known + 1)
    if e.what in ASKS:
        return _asked(s, e, held)
    return Answer("accepted", events=_seen(s, e, limits, held))


def _order(s: Summary, e: Reported, action: Action, reason: str, **more: int) -> Ordered:
    return Ordered(f"{s.run}-{s.ordered + 1}", action, reason, cause=f"{e.source}/{e.seq}", at=e.at, **more)


def _asked(s: Summary, e: Reported, held: frozenset[int]) -> Answer:
    r = s.registry
    free = [d for d in r.spares if d not in held]
    if not e.who or not e.why:
        return Answer("refused", "a person's request needs who asks and why")
    if e.what == "acknowledge":
        if e.detail not in s.pages:
            return Answer("refused", f"there is no open page {e.detail!r}")
        return Answer("accepted")
    if r.status not in ("running", "paused"):
        return Answer("refused", f"the run is {r.status}")
    if e.what in ("pause", "resume"):
        wanted = Action.PAUSE if e.what == "pause" else Action.RESUME
        waiting = [o.action for o in r.orders.values() if o.action in (Action.PAUSE, Action.RESUME)]
        paused = waiting[-1] is Action.PAUSE if waiting else r.status == "paused"
        if paused == (wanted is Action.PAUSE):
            return Answer("refused", f"the run is {'paused' if paused else 'running'} already")
        return Answer("accepted", events=[_order(s, e, wanted, f"{e.who}: {e.why}")])
    state = r.devices.get(e.device_id)
    if state is None:
        return Answer("refused", f"there is no device {e.device_id}")
    reason = f"{e.who}: {e.why}"
    if state is State.SPARE and e.device_id in free:
        return Answer("accepted", events=[DeviceChanged(e.device_id, State.RETIRED.value, reason, at=e.at)])
    if state not in IN_SLOT and not (state is State.FAILED and e.device_id in r.slots):
        return Answer("refused", f"device {e.device_id} is {state.value}")
    if any(o.device_id == e.device_id for o in r.orders.values()):
        return Answer("refused", f"device {e.device_id} is being replaced already")
    if not free:
        return Answer("refused", "no spare is free to take over")
    slot = r.slots.index(e.device_id)
    order = _order(s, e, Action.DRAIN, reason, device_id=e.device_id, slot=slot, spare=free[0])
    return Answer("accepted", events=[order])


def _seen(s: Summary, e: Reported, limits: Limits, held: frozenset[int]) -> list[Event]:
    grade, reason = graded(e)
    state = s.registry.devices.get(e.device_id)
    if state is None or grade is Grade.NOTE or state in (State.FAILED, State.RETIRED):
        return []
    if grade is Grade.WATCH:
        worse = state is State.HEALTHY
        return [DeviceChanged(e.device_id, State.DEGRADED.value, reason, at=e.at)] if worse else []
    out: list[Event] = []
    in_slot = e.device_id in s.registry.slots
    gone = grade is Grade.GONE
    if gone or not in_slot:
        out.append(DeviceChanged(e.device_id, State.FAILED.value, reason, at=e.at))
    elif state is State.HEALTHY:
        out.append(DeviceChanged(e.device_id, State.DEGRADED.value, reason, at=e.at))
    if in_slot:
        out += _replaced(s, e, Action.SWAP if gone else Action.DRAIN, reason, limits, held)
    return out


def _replaced(
    s: Summary, e: Reported, action: Action, reason: str, limits: Limits, held: frozenset[int]
) -> list[Event]:
    """Orders that take the device out of its slot; without a spare what `limits.exhausted` says, and a page."""
    r, device = s.registry, e.device_id
    slot = r.slots.index(device)
    if r.status not in ("running", "paused") or any(o.slot == slot for o in r.orders.values()):
        return []
    free = [d for d in r.spares if d not in held]
    if free:
        return [_order(s, e, action, reason, device_id=device, slot=slot, spare=free[0])]
    said = f"device {device} in slot {slot} is to leave ({reason}) and no spare is left"
    if said in s.pages.values():
        return []
    out: list[Event] = [Paged(f"{s.run}-{s.paged + 1}", said, at=e.at)]
    ending = (Action.STOP, Action.SHRINK)
    if action is Action.SWAP and not any(o.action in ending for o in r.orders.values()):
        # What can still be read stays in its slot and is watched; what is gone ends the run as it is.
        shrink = limits.exhausted == "shrink"
        out.append(_order(s, e, Action.SHRINK if shrink else Action.STOP, said, device_id=device, slot=slot))
    return out


def answered(s: Summary, e: Done) -> list[Event]:
    """What follows when an order has been answered: a person is told of one that failed. `s` is the summary before
    `e`."""
    order = s.registry.orders.get(e.order)
    if order is None or e.ok:
        return []
    what = f"{order.action.value} of device {order.device_id}" if order.device_id >= 0 else order.action.value
    return [Paged(f"{s.run}-{s.paged + 1}", f"{what} failed: {e.detail}", at=e.at)]


def graded(e: Reported) -> tuple[Grade, str]:
    """How serious a hardware report is, and the reason that a person reads."""
    match e.what:
        case "xid":
            known = xid(e.number)
            return known.grade, f"XID {e.number}, {known.meaning}; NVIDIA's advice: {known.advice}"
        case "ecc_double":
            return Grade.DRAIN, f"{e.number} uncorrectable ECC errors"
        case "ecc_single":
            return Grade.NOTE, f"{e.number} corrected ECC errors"
        case "remapped":
            return (Grade.DRAIN, e.detail) if "pending" in e.detail else (
                (Grade.GONE, e.detail) if "failed" in e.detail else (Grade.NOTE, e.detail)
            )  # fmt: skip
        case "retired":
            return (Grade.DRAIN, e.detail) if "pending" in e.detail else (Grade.NOTE, e.detail)
        case "throttle":
            return Grade.WATCH if e.number else Grade.NOTE, e.detail
        case "recovery":
            said, grade = RECOVERY.get(e.number, (f"recovery action {e.number}", Grade.WATCH))
            return grade, f"the driver says: {said}"
        case "lost":
            return Grade.GONE, e.detail or "reported lost"
        case _:
            return Grade.NOTE, e.detail
