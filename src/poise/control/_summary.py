"""One run, added up from its events: all that the status page, the metrics and the governor know.

A summary is a fold: `take` one event after the other, in the journal's order. It is small whatever the run's length
(counters, open incidents, the devices), so the journal keeps a copy of it and a long run opens at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from ..events import (
    DeviceChanged,
    Done,
    Dropped,
    Event,
    Mended,
    Noticed,
    Ordered,
    Paged,
    Progress,
    Protected,
    Reported,
    RunFinished,
    RunStarted,
    RunStopped,
    SensorsChanged,
    SnapshotKept,
    SnapshotRefused,
    Swapped,
    Warmed,
    from_dict,
    to_dict,
)
from ._incident import Incident, opened
from ._registry import Registry, State, apply

NUMBERS = ("nan", "inf", "overflow", "marker", "state")
"""Kinds of fault that a gate sees."""

MOST_CHANNELS = 2000
"""Channels that are remembered by name; of more, those that recovered are forgotten first, then new ones are only
counted."""

RATES = 90
"""Points of the step rate that are kept for the picture."""


@dataclass
class Summary:
    """What is known of one run after the event numbered `last`. Times are seconds since the epoch."""

    run: int = 0
    last: int = 0
    begun: float = 0.0
    at: float = 0.0
    registry: Registry = field(default_factory=Registry)
    moved: float = 0.0
    rate: float = 0.0
    rates: list[float] = field(default_factory=list)
    lost: dict[str, float] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)
    gates: dict[str, dict[str, Any]] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    channels: dict[str, dict[str, Any]] = field(default_factory=dict)
    unlisted: int = 0
    hardware: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    protection: dict[str, Any] = field(default_factory=dict)
    warm: dict[str, Any] = field(default_factory=dict)
    snapshot: dict[str, Any] = field(default_factory=dict)
    refused: int = 0
    swaps: int = 0
    streak: int = 0
    dropped_at: int = -2
    seen: dict[str, int] = field(default_factory=dict)
    ordered: int = 0
    pages: dict[str, str] = field(default_factory=dict)
    paged: int = 0
    paused: float | None = None
    open: list[Incident] = field(default_factory=list)
    lead: int = 0
    report: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)

    def take(self, number: int, event: Event) -> list[Incident]:
        """Add the event numbered `number`; returns the incidents that it closes. Twice is once."""
        if number <= self.last:
            return []
        self.last, self.at = number, event.at
        self.begun = self.begun or event.at
        kind = type(event).__name__
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.registry = apply(self.registry, event)
        closed: list[Incident] = []
        hear = _HEAR.get(type(event))
        if hear is not None:
            closed = hear(self, number, event) or []
        for incident in closed:
            self.verdicts[incident.verdict] = self.verdicts.get(incident.verdict, 0) + 1
        if not isinstance(event, DeviceChanged):
            self.lead = 0
        return closed

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, whole."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("registry", "open")}
        r = self.registry
        out["registry"] = {
            "devices": {str(d): s.value for d, s in r.devices.items()},
            "slots": list(r.slots),
            "spares": list(r.spares),
            "routes": {str(a): b for a, b in r.routes.items()},
            "faults": {str(d): n for d, n in r.faults.items()},
            "orders": [to_dict(o) for o in r.orders.values()],
            "step": r.step, "noticed": r.noticed, "mended": r.mended, "dropped": r.dropped,
            "job": r.job, "status": r.status, "told": r.told,
        }  # fmt: skip
        out["open"] = [i.to_dict() for i in self.open]
        return out

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Summary:
        """The inverse of `to_dict`, through JSON too. Raises KeyError or TypeError for what another version wrote."""
        data = dict(data)
        r: dict[str, Any] = dict(data.pop("registry"))
        orders: list[Any] = [from_dict(o) for o in r.pop("orders")]
        told = r.pop("told")
        registry = Registry(
            devices=MappingProxyType({int(d): State(s) for d, s in r.pop("devices").items()}),
            slots=tuple(r.pop("slots")),
            spares=tuple(r.pop("spares")),
            routes=MappingProxyType({int(a): b for a, b in r.pop("routes").items()}),
            faults=MappingProxyType({int(d): n for d, n in r.pop("faults").items()}),
            orders=MappingProxyType({o.order: o for o in orders}),
            told=None if told is None else (bool(told[0]), str(told[1])),
            **r,
        )
        open_ = [Incident.from_dict(i) for i in data.pop("open")]
        return Summary(registry=registry, open=open_, **data)


def _add(counts: dict[str, Any], name: str, n: float = 1) -> None:
    counts[name] = counts.get(name, 0) + n


def _started(s: Summary, number: int, e: RunStarted) -> None:
    s.moved = e.at
    s.reasons = {}


def _progress(s: Summary, number: int, e: Progress) -> None:
    s.moved, s.rate = e.at, e.steps_per_second
    s.rates = [*s.rates[-RATES + 1 :], e.steps_per_second]


def _noticed(s: Summary, number: int, e: Noticed) -> None:
    fault = e.fault
    _add(s.faults, fault.kind)
    _add(s.actions, e.action.value)
    for name, count in e.blocks.items():
        _add(s.blocks, name, count)
    if fault.kind in NUMBERS:
        gate = s.gates.setdefault(fault.kind, {"count": 0, "first": fault.where, "step": fault.step})
        gate["count"] += 1
        gate["last"], gate["last_step"] = fault.where, fault.step
    same = next((i for i in s.open if i.step == fault.step), None)
    if same is None:
        same = opened(number, e)
        # What led to it belongs to it: the report behind an order, or a device that was found suspect a moment ago.
        orders = [o for o in s.registry.orders.values() if o.device_id in fault.device_ids]
        same.id = next((s.starts[o.order] for o in orders if o.order in s.starts), s.lead or number)
        s.open.append(same)
    else:
        same.again(number, e)


def _mended(s: Summary, number: int, e: Mended) -> list[Incident]:
    s.moved = e.at
    _add(s.lost, e.fault.kind, max(0.0, e.seconds))
    closed = [i for i in s.open if i.step == e.fault.step]
    for incident in closed:
        s.open.remove(incident)
        incident.close(number, e)
    return closed


def _device(s: Summary, number: int, e: DeviceChanged) -> None:
    s.lead = s.lead or number
    s.reasons[str(e.device_id)] = e.reason


def _swapped(s: Summary, number: int, e: Swapped) -> None:
    s.swaps += 1
    s.warm["cold"] = True
    s.reasons[str(e.old_id)] = s.reasons.get(str(e.old_id)) or e.cause
    if s.open:
        s.open[-1].swapped(number, e)


def _dropped(s: Summary, number: int, e: Dropped) -> None:
    s.streak = s.streak + 1 if e.step == s.dropped_at + 1 else 1
    s.dropped_at = e.step


def _warmed(s: Summary, number: int, e: Warmed) -> None:
    s.warm = {"placements": e.placements, "executables": e.executables, "seconds": e.seconds, "at": e.at}
    if not e.rewarm:
        # The run was there before its first event: it was compiling.
        s.begun = min(s.begun, e.at - e.seconds)
        _add(s.lost, "warm-up", e.seconds)


def _kept(s: Summary, number: int, e: SnapshotKept) -> None:
    s.snapshot = {"step": e.step, "bytes": e.bytes, "path": e.path, "at": e.at}


def _refused(s: Summary, number: int, e: SnapshotRefused) -> None:
    s.refused += 1


def _stopped(s: Summary, number: int, e: RunStopped) -> list[Incident]:
    s.moved = e.at
    closed, s.open = s.open, []
    for incident in closed:
        incident.end(number, e.at, "stopped")
    return closed


def _finished(s: Summary, number: int, e: RunFinished) -> None:
    s.moved = e.at


def _protected(s: Summary, number: int, e: Protected) -> None:
    s.protection = {"state_bytes": e.state_bytes, "spare_bytes": e.spare_bytes, "source": e.source}


def _sensors(s: Summary, number: int, e: SensorsChanged) -> None:
    failing = e.marker != 1.0
    for node in e.sectors:
        key = f"{node}/{e.axis}"
        known = s.channels.get(key)
        if known is None:
            if len(s.channels) >= MOST_CHANNELS:
                gone = next((k for k, c in s.channels.items() if c["state"] == "recovered"), None)
                if gone is None:
                    s.unlisted += failing
                    continue
                del s.channels[gone]
            known = s.channels[key] = {"node": node, "channel": e.axis, "failures": 0}
        known |= {"state": "failing" if failing else "recovered", "kind": e.kind, "step": e.step, "at": e.at}
        known["failures"] += failing


def _reported(s: Summary, number: int, e: Reported) -> None:
    s.report = number
    s.seen[e.source] = max(e.seq, s.seen.get(e.source, 0))
    if e.what == "acknowledge":
        s.pages.pop(e.detail, None)
    elif e.what == "unwatched":
        s.hardware["-"] = {"counts": {}, "last": e.detail, "at": e.at}
    elif e.device_id in s.registry.devices and e.what != "drain":
        here = s.hardware.setdefault(str(e.device_id), {"counts": {}})
        name = f"{e.what} {e.number}" if e.what == "xid" else e.what
        # Counters come as totals, single events as themselves.
        here["counts"][name] = e.number if e.what in TOTALS else here["counts"].get(name, 0) + 1
        here |= {"last": e.detail or name, "at": e.at}


TOTALS = ("ecc_single", "ecc_double", "remapped", "retired")
"""Reports whose number is the device's own running total."""


def _ordered(s: Summary, number: int, e: Ordered) -> None:
    s.ordered += 1
    if e.cause and e.order in s.registry.orders:
        s.starts[e.order] = s.report


def _done(s: Summary, number: int, e: Done) -> None:
    s.starts.pop(e.order, None)
    if s.registry.status == "paused" and s.paused is None:
        s.paused = e.at
    elif s.registry.status != "paused" and s.paused is not None:
        _add(s.lost, "pause", e.at - s.paused)
        s.paused, s.moved = None, e.at


def _page(s: Summary, number: int, e: Paged) -> None:
    s.paged += 1
    s.pages[e.page] = e.reason


_HEAR: dict[type[Event], Callable[[Summary, int, Any], list[Incident] | None]] = {
    RunStarted: _started, Progress: _progress, Noticed: _noticed, Mended: _mended, DeviceChanged: _device,
    Swapped: _swapped, Dropped: _dropped, Warmed: _warmed, SnapshotKept: _kept, SnapshotRefused: _refused,
    RunStopped: _stopped, RunFinished: _finished, Protected: _protected, SensorsChanged: _sensors,
    Reported: _reported, Ordered: _ordered, Done: _done, Paged: _page,
}  # fmt: skip
