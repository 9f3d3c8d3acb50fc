"""What happens in a run, as plain values: every layer may make them, nobody below `control` interprets them.

An event says what happened, where and when; `to_dict` and `from_dict` carry it to a journal and back. Steps are the
device's own step tags. Times are seconds since the epoch; `seconds` fields are durations.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, cast


class Action(Enum):
    """What is done about a fault."""

    RETRY = "retry"
    REPAIR = "repair"
    DROP = "drop"
    DRAIN = "drain"
    SWAP = "swap"
    ROLLBACK = "rollback"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    SHRINK = "shrink"


@dataclass(frozen=True)
class Decision:
    """An action with its reason; `slot` and `spare` say what moves where, for DRAIN and SWAP."""

    action: Action
    reason: str
    slot: int | None = None
    spare: int | None = None


@dataclass(frozen=True)
class Fault:
    """What the keeper noticed, as the policy sees it.

    `kind` is one of `nan inf overflow marker` (a step's batch), `state` (the next state is not finite), `memory`,
    `tag`, `replicas` (their proposals differ), `split` (devices disagree about the step), `raised` (the backend gave
    the step up), `drain`, `lost`. `device_ids` are those that reported it. `attempt` counts earlier tries of the same
    step. `mended` is true if sealed memory is already right again. `in_data` is true if the pristine batch on the host
    is itself bad.
    """

    step: int
    kind: str
    slots: tuple[int, ...]
    device_ids: tuple[int, ...]
    where: str = ""
    attempt: int = 0
    mended: bool = True
    in_data: bool = False
    droppable: bool = False
    drops_in_a_row: int = 0


@dataclass(frozen=True)
class Event:
    """The base of all events."""

    at: float = field(default_factory=time.time, kw_only=True)


@dataclass(frozen=True)
class RunStarted(Event):
    """A run begins at `step`; `slots[i]` is the id of the device in logical slot i."""

    job: str
    step: int
    slots: tuple[int, ...]
    spares: tuple[int, ...]


@dataclass(frozen=True)
class Progress(Event):
    """The newest settled step, at most a few times a second."""

    step: int
    steps_per_second: float


@dataclass(frozen=True)
class Noticed(Event):
    """A fault was seen; nothing was committed in the step that showed it."""

    fault: Fault
    action: Action
    reason: str
    blocks: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Mended(Event):
    """The run is right again: the state is that of `step` + 1.

    `phases` are seconds by part: `notice` (from the dispatch of the step that showed it), `decide`, `rebuild`, `swap`,
    `first_step` (until the step is committed). `seconds` counts from when it was noticed.
    """

    fault: Fault
    action: Action
    seconds: float
    compiles: int
    replayed: int
    phases: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class DeviceChanged(Event):
    """A device's health changed; `state` is one of `control.State`'s names in lower case."""

    device_id: int
    state: str
    reason: str


@dataclass(frozen=True)
class Swapped(Event):
    """Logical slot `slot` moved from one device to another; `waited` of the `seconds` went into waiting for
    re-warming."""

    step: int
    slot: int
    old_id: int
    new_id: int
    cause: str
    source: str
    seconds: float
    compiles: int
    waited: float = 0.0


@dataclass(frozen=True)
class Dropped(Event):
    """A batch was left out; the step tag moved on without an update."""

    step: int
    reason: str


@dataclass(frozen=True)
class Warmed(Event):
    """Executables for `placements` placements are ready."""

    placements: int
    executables: int
    seconds: float
    rewarm: bool


@dataclass(frozen=True)
class SnapshotKept(Event):
    """A verified copy of the state of `step` is in host memory, and in `path` if that is not empty."""

    step: int
    bytes: int
    path: str = ""


@dataclass(frozen=True)
class SnapshotRefused(Event):
    """A copy did not verify and was thrown away."""

    step: int
    reason: str


@dataclass(frozen=True)
class ProcessStarted(Event):
    """A process sits in `seat` now: the `incarnation`-th one there."""

    seat: int
    incarnation: int
    pid: int


@dataclass(frozen=True)
class ProcessLost(Event):
    """The process in `seat` is dead; `slot` is the logical slot that it held, or -1 for a spare. `detect_s` is the
    time from the blow, or -1 where nobody knows it."""

    seat: int
    incarnation: int
    slot: int
    cause: str
    detect_s: float = -1.0


@dataclass(frozen=True)
class Survivable(Event):
    """Whether the run would survive the loss of any one active process from now on, and why; `slots` is how many of
    them it would."""

    step: int
    yes: bool
    why: str
    slots: int


@dataclass(frozen=True)
class SensorsChanged(Event):
    """At frame `step` sensors of one axis became `kind`. `marker` is -99.0 while they are masked, 1.0 once they are
    healthy again; `sectors` are their records."""

    step: int
    axis: str
    kind: str
    sectors: tuple[int, ...]
    marker: float


@dataclass(frozen=True)
class ProducerNoticed(Event):
    """The producer of a stream `stalled`, `resumed`, `died`, `restarted`, `closed` or published a `torn` frame; `step`
    is the newest frame that it had published."""

    step: int
    kind: str
    sentence: str


@dataclass(frozen=True)
class RunStopped(Event):
    """The run ended before its last step; `resume` is a directory to resume from, or empty."""

    step: int
    reason: str
    resume: str = ""


@dataclass(frozen=True)
class RunFinished(Event):
    """The run reached its last step; `fingerprint` identifies the final state's bytes."""

    step: int
    fingerprint: str


@dataclass(frozen=True)
class Protected(Event):
    """What guards the run: bytes of the state, bytes of marks, parity and guards, the source of a lost shard."""

    state_bytes: int
    spare_bytes: int
    source: str


@dataclass(frozen=True)
class Reported(Event):
    """Something that a source outside the loop saw or asks for; (`source`, `seq`) names it once and for all.

    `what` is one of `xid ecc_single ecc_double remapped retired throttle recovery lost` (hardware), `drain pause
    resume acknowledge` (a person: `who` and `why`), or a word of the source's own, which is journaled and shown.
    `number` is an XID, a count, or -1; `device_id` is -1 where no device is meant.
    """

    source: str
    seq: int
    what: str
    device_id: int = -1
    number: int = -1
    detail: str = ""
    who: str = ""
    why: str = ""


@dataclass(frozen=True)
class Ordered(Event):
    """The governor wants something done, and has put `spare` aside for it (-1: none is needed).

    `order` is its name: whoever carries it out does so once, however often it is told. `cause` is `source/seq` of the
    report behind it.
    """

    order: str
    action: Action
    reason: str
    device_id: int = -1
    slot: int = -1
    spare: int = -1
    cause: str = ""


@dataclass(frozen=True)
class Done(Event):
    """An order was carried out, or could not be."""

    order: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Paged(Event):
    """A person is needed; `page` is its name, and an `acknowledge` report with it in `detail` takes it off the list."""

    page: str
    reason: str


KINDS: dict[str, type[Event]] = {
    c.__name__: c
    for c in (
        RunStarted, Progress, Noticed, Mended, DeviceChanged, Swapped, Dropped, Warmed, SnapshotKept, SnapshotRefused,
        SensorsChanged, ProducerNoticed, RunStopped, RunFinished, Protected, Reported, Ordered, Done, Paged,
        ProcessStarted, ProcessLost, Survivable,
    )
}  # fmt: skip


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def to_dict(event: Event) -> dict[str, Any]:
    """The event as JSON-ready values, `event` holding its kind."""

    def factory(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {k: _plain(v) for k, v in items}

    return {"event": type(event).__name__, **asdict(event, dict_factory=factory)}


def from_dict(data: dict[str, Any]) -> Event:
    """The inverse of `to_dict` (through JSON too, which turns tuples into lists). Raises KeyError for unknown kinds."""
    data = dict(data)
    kind = KINDS[data.pop("event")]
    if "fault" in data:
        data["fault"] = Fault(**_tuples(data["fault"]))
    if "action" in data:
        data["action"] = Action(data["action"])
    return kind(**_tuples(data))


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; frozen dataclasses want them back."""
    return {k: tuple(cast("list[Any]", v)) if isinstance(v, list) else v for k, v in data.items()}
