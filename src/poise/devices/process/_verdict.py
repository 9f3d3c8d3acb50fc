"""What becomes of a run when processes die: a pure function from reports to a verdict.

The launcher is the one authority that names the members of an epoch. When a member dies it stops everybody, collects
one report each, and asks `judge`. The rule (`design/lost-processes.md`): if anyone passed the ready reduction of a
step, all hold its proposal, so all commit it. Then the run restarts from the newest generation that every survivor
holds and the source of the lost shard covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Device = tuple[int, int]
"""A seat and its incarnation: the `incarnation`-th process that sits in that seat."""


@dataclass(frozen=True)
class Report:
    """What one process holds when it was stopped. Generations are numbers of committed steps.

    `held` are generations of its own shard, `proposal` is the step whose proposal it has not committed (-1: none),
    `ready` the newest step whose ready reduction it passed, `settled` the newest generation that it committed. A spare
    reports in `vault` the generations whose parity it holds whole. `warm` are the placements that it can run at once.
    """

    held: tuple[int, ...] = ()
    proposal: int = -1
    ready: int = -1
    settled: int = -1
    vault: tuple[int, ...] = ()
    warm: tuple[tuple[Device, ...], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """How the run goes on: who sits in which slot, from which generation, and who rebuilds what.

    `commit` is the step that all who hold its proposal commit first (-1: none). `source` says what the shard of
    `rebuilt` (a slot; -1: none) is made of: "parity", or "replica" of slot `peer`. `lost` counts the steps that are
    replayed.
    """

    slots: tuple[Device, ...]
    restart: int
    commit: int = -1
    rebuilt: int = -1
    source: str = ""
    peer: int = -1
    lost: int = 0


@dataclass(frozen=True)
class Beyond:
    """The run cannot go on: one sentence."""

    reason: str


@dataclass(frozen=True)
class Situation:
    """Who was where. `slots` as before the deaths, `standby` the spare that was protecting the run, `replicas[i]` the
    slots that hold the same shard as slot i."""

    slots: tuple[Device, ...]
    dead: frozenset[Device]
    standby: Device | None
    source: str
    replicas: Mapping[int, Sequence[int]] = field(default_factory=dict)


def judge(at: Situation, reports: Mapping[Device, Report]) -> Verdict | Beyond:
    """The verdict over one stop; `reports` hold every live active member's and the live standby's."""
    gone = [slot for slot, device in enumerate(at.slots) if device in at.dead]
    alive = [device for device in at.slots if device not in at.dead]
    if not alive and len(gone) > 1:
        return Beyond("All active processes are gone.")
    step = max((reports[d].ready for d in alive), default=-1)
    commit = step if any(reports[d].proposal == step for d in alive) else -1

    def holds(device: Device) -> set[int]:
        report = reports[device]
        return set(report.held) | ({commit + 1} if commit >= 0 and report.proposal == commit else set())

    # Where the only member is gone, the vault's parity is its shard and the spare alone says which generation.
    spared = set() if at.standby is None or at.standby in at.dead else set(reports[at.standby].vault)
    common = set.intersection(*(holds(d) for d in alive)) if alive else spared
    newest = max((reports[d].settled for d in alive), default=max(common, default=-1))
    newest = max(newest, commit + 1)
    if not gone:
        if not common:
            return Beyond("The members hold no common generation.")
        return Verdict(at.slots, max(common), commit, lost=newest - max(common))
    names = ", ".join(str(slot) for slot in gone)
    if len(gone) > 1:
        return Beyond(f"The shards of slots {names} are gone at once; one at a time can be rebuilt.")
    slot = gone[0]
    if at.standby is None or at.standby in at.dead:
        return Beyond(f"The process in slot {slot} is gone and no spare is left to take its place.")
    slots = tuple(at.standby if i == slot else d for i, d in enumerate(at.slots))
    if any(slots not in reports[d].warm for d in slots):
        return Beyond(f"The process in slot {slot} is gone and no spare is warm for it.")
    peer = next((p for p in at.replicas.get(slot, ()) if at.slots[p] not in at.dead), -1)
    if at.source == "replica" and peer >= 0:
        source, covered = "replica", common
    else:
        source, covered, peer = "parity", common & spared, -1
    if not covered:
        return Beyond(f"The process in slot {slot} is gone and no generation of its shard is protected yet.")
    restart = max(covered)
    return Verdict(slots, restart, commit, slot, source, peer, newest - restart)
