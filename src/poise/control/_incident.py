"""An incident: from the first sign of a fault to the step that is right again, and whose fault it was.

The verdict is read off what replaying showed, never guessed: a fault that vanishes when the same step is computed again
was `transient`; one that comes back on one device and not on the next belongs to the `device`; one that comes back
wherever the batch goes belongs to `data/model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..events import Action, Dropped, Mended, Noticed, Swapped

PHASES = ("notice", "decide", "rebuild", "swap", "first_step")
"""The parts of `Mended.phases`, in order."""


@dataclass
class Incident:
    """One fault and what became of it. `id` and `last` are the journal's numbers of its first and last event.

    `tries` holds, for each time the step showed the fault, the devices that reported it and what was done. `seconds`,
    `closed` and `outcome` stay None until the step is right, was dropped, or the run ended.
    """

    id: int
    last: int
    step: int
    kind: str
    where: str
    slots: list[int]
    devices: list[int]
    opened: float
    action: str
    reason: str
    tries: list[tuple[list[int], str]] = field(default_factory=list)
    blocks: dict[str, int] = field(default_factory=dict)
    swaps: list[dict[str, Any]] = field(default_factory=list)
    in_data: bool = False
    mended: bool = True
    closed: float | None = None
    outcome: str | None = None
    seconds: float | None = None
    compiles: int | None = None
    replayed: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
    verdict: str = "open"
    evidence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Incident:
        """The inverse of `to_dict`, through JSON too."""
        known = {f.name for f in fields(Incident)}
        incident = Incident(**{k: v for k, v in data.items() if k in known})
        incident.tries = [(list(devices), action) for devices, action in incident.tries]
        return incident

    def again(self, number: int, event: Noticed) -> None:
        """The same step showed a fault once more."""
        self.last = number
        self.action, self.reason = event.action.value, event.reason
        self.mended = self.mended and event.fault.mended
        self.in_data = self.in_data or event.fault.in_data
        self.tries.append((list(event.fault.device_ids), event.action.value))
        for name, count in event.blocks.items():
            self.blocks[name] = self.blocks.get(name, 0) + count

    def swapped(self, number: int, event: Swapped) -> None:
        """A slot moved on the way."""
        self.last = number
        names = ("slot", "old_id", "new_id", "cause", "source", "seconds", "waited", "compiles")
        self.swaps.append({n: getattr(event, n) for n in names})

    def close(self, number: int, event: Mended | Dropped) -> None:
        """The step is right again, or was left out."""
        self.last, self.closed = number, event.at
        if isinstance(event, Mended):
            self.outcome, self.action = "mended", event.action.value
            self.seconds, self.compiles, self.replayed = event.seconds, event.compiles, event.replayed
            self.phases = dict(event.phases)
            if event.action is Action.DROP:
                self.outcome = "dropped"
        self.verdict, self.evidence = attribute(self)

    def end(self, number: int, at: float, outcome: str) -> None:
        """The run ended before the step was right."""
        self.last, self.closed, self.outcome = number, at, outcome
        self.verdict, self.evidence = attribute(self)


def opened(number: int, event: Noticed) -> Incident:
    """A new incident."""
    fault = event.fault
    incident = Incident(
        number, number, fault.step, fault.kind, fault.where, list(fault.slots), list(fault.device_ids), event.at,
        event.action.value, event.reason,
    )  # fmt: skip
    incident.again(number, event)
    return incident


def _names(devices: list[int]) -> str:
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}" if devices else "no device"


def attribute(incident: Incident) -> tuple[str, str]:
    """Whose fault it was (`transient`, `device`, `data/model`, `asked`, `unknown`), and the evidence in a sentence."""
    told = ASKED_WORDS.get(incident.kind)
    if told is not None:
        return told(incident)
    if incident.kind == "replicas":
        return _replicas(incident)
    if incident.kind in ("memory", "tag"):
        return _memory(incident)
    if incident.kind in ("split", "raised"):
        return "unknown", f"{incident.reason}; it did not come back after the replay" if incident.closed else ""
    return _numbers(incident)


def _numbers(incident: Incident) -> tuple[str, str]:
    step, where = incident.step, incident.where
    if incident.in_data:
        return "data/model", f"the host's own copy of the batch of step {step} holds {incident.kind} in {where}"
    devices = [tuple(d) for d, _ in incident.tries]
    everyone = sorted({d for some in devices for d in some})
    dropped = incident.outcome in ("dropped", "stopped")
    if len(devices) == 1 and not dropped:
        return "transient", f"step {step} computed again on {_names(everyone)} with the same batch was clean"
    if dropped and len(everyone) > 1:
        return "data/model", f"step {step} showed it on {_names(everyone)} alike, whichever computed it"
    if dropped:
        return "unknown", f"it came back {len(devices)} times on {_names(everyone)}, and no spare was there to compare"
    last = incident.tries[-1][1]
    if last == Action.DRAIN.value and len(everyone) == 1 and incident.swaps:
        fresh = incident.swaps[-1]["new_id"]
        return "device", (
            f"it came back on {_names(everyone)} in {len(devices)} tries and not on device {fresh} with the same batch"
        )
    return "transient", f"it came back {len(devices) - 1} times on {_names(everyone)} and then vanished"


def _memory(incident: Incident) -> tuple[str, str]:
    devices = _names(incident.devices)
    if incident.swaps:
        return "device", f"{incident.reason}: {devices} left its slot"
    count = sum(incident.blocks.get(k, 0) for k in ("data", "marks", "parity"))
    what = f"{count} blocks" if count != 1 else "1 block"
    if not incident.mended:
        return "unknown", f"{what} on {devices} were damaged beyond parity; the snapshot's copy was whole"
    if incident.kind == "tag":
        return "transient", f"one of three copies of the step tag on {devices} was off; the other two agree"
    return "transient", f"{what} on {devices} did not match the marks and did again once they were mended"


def _replicas(incident: Incident) -> tuple[str, str]:
    if len(incident.devices) > 1:
        return "unknown", f"{_names(incident.devices)} proposed different bits and no majority says who is right"
    (device,) = incident.devices or [-1]
    if incident.swaps:
        return (
            "device",
            f"device {device} was outvoted by the other replicas' fingerprints in {len(incident.tries)} tries",
        )
    return "transient", f"device {device} was outvoted by the other replicas' fingerprints, and agreed when asked again"


def _drain(incident: Incident) -> tuple[str, str]:
    return "asked", f"{_names(incident.devices)} was to leave: {incident.where or 'no reason given'}"


def _lost(incident: Incident) -> tuple[str, str]:
    return "device", f"{_names(incident.devices)} was reported gone: {incident.where or 'no reason given'}"


ASKED_WORDS: dict[str, Callable[[Incident], tuple[str, str]]] = {"drain": _drain, "lost": _lost}
