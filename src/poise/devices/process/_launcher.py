"""The parent of a run over several processes: starts them, knows their deaths, names the members of each epoch.

One thread (`run`) owns everything; children, connections and timers only put what happened into its queue. What a death
leads to is decided by `judge` alone (`design/lost-processes.md`).
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import PoiseError, Stopped
from ...events import (
    Action,
    DeviceChanged,
    Event,
    Fault,
    Mended,
    Noticed,
    ProcessLost,
    ProcessStarted,
    Survivable,
    Swapped,
)
from ._children import how
from ._crew import Crew, Worker
from ._progress import Progress
from ._verdict import Beyond, Device, Report, Situation, Verdict, judge
from ._wire import Wire

COMING = 300.0
"""Seconds that a scheduler has to start all processes."""

Heard = Callable[[Device, dict[str, Any]], None]


@dataclass(frozen=True)
class Swap:
    """One loss that was mended; `detect_s` is None where nobody knows when it struck."""

    cause: str
    slot: int
    seat: int
    step: int
    source: str
    detect_s: float | None
    swap_s: float
    compiles: int
    steps_lost: int


@dataclass
class Mending:
    """A stop of the run and what is known about it; `dead` and `fault` where it was a member that died."""

    since: float
    dead: Worker | None = None
    fault: Fault | None = None
    reports: dict[Device, Report] = field(default_factory=dict)
    verdict: Verdict | None = None
    compiles: dict[Device, int] = field(default_factory=dict)


class Launcher:
    """Runs the first `active` seats of `crew`, protected by the others. `emit` hears events, `heard(device, message)`
    what workers say that is not the launcher's business.

    `source` and `replicas` are the run's, as `judge` wants them; `possible(slots)` says whether a placement can exist.
    """

    def __init__(
        self,
        crew: Crew,
        active: int,
        *,
        emit: Callable[[Event], None] = lambda event: None,
        heard: Heard = lambda device, message: None,
        source: str = "parity",
        replicas: Mapping[int, Sequence[int]] | None = None,
        possible: Callable[[Sequence[Device]], bool] = lambda slots: True,
    ) -> None:
        self.crew, self.active = crew, active
        self.emit, self.heard, self.source, self.replicas = emit, heard, source, dict(replicas or {})
        self.swaps: list[Swap] = []
        self.rewarm_compiles = 0
        self.epoch, self.slots = 0, tuple((seat, 0) for seat in range(active))
        self.standby: Device | None = None
        self.protected = False
        self.progress = Progress()
        self._possible = possible
        self._at: dict[str, set[Device]] = {}
        self._mending: Mending | None = None
        self._order: dict[str, Any] | None = None
        self._touched: set[Device] = set()
        self._number = 0
        self._running = False

    def run(self, serving: Callable[[str, str], None] = lambda address, key: None) -> None:
        """Run to the end. Raises `Stopped` beyond the promise; leaves no process behind, however it ends.

        `serving(address, key)` is called once workers can come.
        """
        try:
            self.crew.open()
            serving(self.crew.address, self.crew.key.hex())
            while not self._through:
                self._next()
            self.crew.part(0)
        except Stopped:
            self.crew.part(3)
            raise
        finally:
            self.crew.close()

    @property
    def _through(self) -> bool:
        """Whether every member has said that it is done."""
        return all(d in self.crew.workers and self.crew.workers[d].done for d in self.slots)

    # -- events -----------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Wait for the next thing that happens, and act on it."""
        try:
            event = self.crew.events.get(timeout=self.progress.patience())
        except queue.Empty:
            self._stuck()
            return
        match event:
            case ("hello", device, wire, hello):
                self._hello(device, wire, hello)
            case ("said", device, message):
                self._said(device, message)
            case ("died", device, status):
                self._died(device, status)
            case ("gone", device):
                # A child's death is known from its parent's wait; of others only the line tells.
                if self.crew.adopt is not None and device in self.crew.workers:
                    self._died(device, None)
            case ("coordinator", status):
                raise Stopped(f"The coordinator's process {how(status)}; nobody can rejoin without it.")

    def _hello(self, device: Device, wire: Wire, hello: dict[str, Any]) -> None:
        self.crew.came(device, wire, hello)
        self.progress.heard()
        self.heard(device, hello)
        self.emit(ProcessStarted(device[0], device[1], int(hello["pid"])))
        if self._running:
            self._recruit()
        elif len(self.crew.here) == self.crew.seats:
            self._running = True
            self.standby = (self.active, 0) if self.crew.seats > self.active else None
            self.crew.tell_all(self._epoch_message(Verdict(self.slots, -1)))

    def _said(self, device: Device, message: dict[str, Any]) -> None:
        worker = self.crew.workers.get(device)
        self.progress.heard()
        if worker is None:  # its last words come behind the news of its death
            return
        match message["say"]:
            case "at":
                self._arrived(device, message["name"], [tuple(d) for d in message["who"]])
            case "begin":
                step = int(message["step"])
                if step > self.progress.step:
                    self.heard(device, {"say": "stepped", "step": step})
                self.progress.begin(device, step)
                quiet = self._order is None and self._mending is None
                if self.source == "replica" and self.standby is not None and not self.protected and quiet:
                    self.protected = True
                    self._say_protected(step)
            case "report":
                self._reported(device, message["report"])
            case "resumed":
                self._resumed(device, int(message["compiles"]))
            case "compiled":
                if self._order is not None and self._order["number"] == message["number"]:
                    for member in self.slots:
                        self.crew.tell(member, {"do": "order", "number": message["number"], "kind": "go"})
            case "touched":
                self._has_touched(device, int(message["number"]), int(message["compiles"]))
            case "opened":
                self._protect(int(message["number"]))
            case "protected":
                self.protected = True
                self._say_protected(int(message["generation"]))
            case "leaving":
                worker.leaving = message["reason"]
            case "struck":
                worker.struck = float(message["at"])  # this clock is the same for all processes of a host
                self.heard(device, message)
            case "done":
                worker.done = True
                self.progress.rest(device)
            case "failed":
                if int(message["status"]) == 3:
                    raise Stopped(message["sentence"])
                error = PoiseError(message["sentence"])
                error.exit_status = int(message["status"])
                raise error
            case "pong":
                self.progress.pong(device, message["busy"], int(message["begun"]))
            case _:
                self.heard(device, message)

    # -- deaths -----------------------------------------------------------------------------------------------------

    def _died(self, device: Device, status: int | None) -> None:
        worker = self.crew.workers.pop(device)
        now = time.monotonic()
        if not self.crew.coordinated:
            raise Stopped("The coordinator's process is gone; nobody can rejoin without it.")
        ended = "hung up" if status is None else how(status)
        cause = worker.leaving or self.progress.reason(device) or ended
        self.progress.forget(device)
        role = "active" if device in self.slots else "spare"
        slot = self.slots.index(device) if role == "active" else -1
        detect = None if worker.struck is None else now - worker.struck
        self.emit(ProcessLost(device[0], device[1], slot, cause, -1.0 if detect is None else detect))
        if worker.done:
            return
        if not self._running:
            words = "" if worker.child is None else f": {worker.child.last_words}"
            raise Stopped(f"Worker {device[0]} {ended} before the run began{words}")
        if role == "active":
            self._halt(cause, worker, now)
        elif self._mending is not None and self._mending.verdict is None:
            self._decide()
        elif device == self.standby:
            self._lose_standby(cause, worker, now)
        elif self._order is not None and tuple(self._order["spare"]) == device:
            self._halt(cause, worker, now)
        elif self._mending is None:
            self.crew.fill()

    def _lose_standby(self, cause: str, worker: Worker, now: float) -> None:
        """Nobody waits for the standby while the run goes on; its protection ends."""
        self.standby, self.protected = None, False
        self.emit(DeviceChanged(worker.device[0], "failed", cause))
        self.emit(Survivable(self.progress.step, False, f"the spare {cause}; another is being made ready", 0))
        if self._order is not None or not self.progress.stepping:
            self._halt(cause, worker, now)
        else:
            self.crew.fill()
            self._recruit()

    def _halt(self, cause: str, worker: Worker, now: float) -> None:
        """Stop the epoch: everybody reports what they hold."""
        before = self._mending
        if before is None or before.verdict is not None:
            self._mending = Mending(now)
        # Who has reported for this stop already does not do so again for a second death in it.
        assert self._mending is not None
        if worker.device in self.slots:
            self._mending.dead = worker
            self._mending.fault = fault = Fault(
                max(self.progress.step, 0), "lost", (self.slots.index(worker.device),), (worker.device[0],), cause,
                mended=False,
            )  # fmt: skip
            self.emit(Noticed(fault, Action.SWAP, "its process is gone"))
        self._order = None
        self._at.clear()
        for other in self.crew.workers.values():
            other.done = False
        self.progress.pause()
        if worker.device in self.slots:
            self.crew.take_seat(worker.device[0])
        self.crew.tell_all({"do": "halt", "dead": [worker.device]})
        self._decide()

    def _reported(self, device: Device, said: dict[str, Any]) -> None:
        if self._mending is None:
            return
        warm = tuple(tuple((int(s), int(i)) for s, i in p) for p in said["warm"])
        self._mending.reports[device] = Report(
            tuple(said["held"]), said["proposal"], said["ready"], said["settled"], tuple(said["vault"]), warm
        )
        self._decide()

    def _decide(self) -> None:
        """Once everybody alive has reported: how it goes on."""
        mending = self._mending
        assert mending is not None
        if mending.verdict is not None:
            return
        dead = frozenset(d for d in self.slots if d not in self.crew.workers)
        if self.standby is not None and self.standby not in self.crew.workers:
            self.standby = None
        wait_for = {d for d in self.slots if d not in dead} | ({self.standby} if self.standby else set())
        if not wait_for <= set(mending.reports):
            return
        at = Situation(self.slots, dead, self.standby if self.protected or self.source == "replica" else None,
                       self.source, self.replicas)  # fmt: skip
        if dead and self.standby is not None and at.standby is None:
            raise Stopped(f"Slot {self.slots.index(next(iter(dead)))} was lost before its parity was whole.")
        verdict = judge(at, mending.reports)
        if isinstance(verdict, Beyond):
            raise Stopped(verdict.reason)
        mending.verdict = verdict
        self.epoch += 1
        address = None
        if verdict.rebuilt >= 0:
            new = self.crew.workers[verdict.slots[verdict.rebuilt]]
            address, self.standby = new.data, None
        self.slots, self.protected = verdict.slots, False
        self.crew.tell_all(self._epoch_message(verdict, address))

    def _epoch_message(self, verdict: Verdict, address: tuple[str, int] | None = None) -> dict[str, Any]:
        standby = None if self.standby is None else self.crew.workers[self.standby]
        return {
            "do": "epoch", "epoch": self.epoch, "slots": self.slots, "restart": verdict.restart,
            "commit": verdict.commit, "rebuilt": verdict.rebuilt, "source": verdict.source, "peer": verdict.peer,
            "address": address, "number": self._number,
            "standby": None if standby is None else standby.device,
            "vault": None if standby is None else standby.data,
        }  # fmt: skip

    def _resumed(self, device: Device, compiles: int) -> None:
        """A member has committed a step in the new epoch; when all have, the loss is mended."""
        mending = self._mending
        if mending is None or mending.verdict is None:
            return
        mending.compiles[device] = compiles
        if set(mending.compiles) != set(self.slots):
            return
        self._mending = None
        verdict, dead, fault = mending.verdict, mending.dead, mending.fault
        if verdict.rebuilt >= 0 and dead is not None and fault is not None:
            now = time.monotonic()
            detect = None if dead.struck is None else mending.since - dead.struck
            total = sum(mending.compiles.values())
            # A member that began a step had committed all before it, which an only member cannot say any more.
            lost = max(verdict.lost, fault.step - verdict.restart)
            swap = Swap(fault.where, verdict.rebuilt, dead.device[0], verdict.restart, verdict.source, detect,
                        now - mending.since, total, lost)  # fmt: skip
            self.swaps.append(swap)
            new = self.slots[verdict.rebuilt]
            self.emit(Swapped(verdict.restart, verdict.rebuilt, dead.device[0], new[0], "lost", verdict.source,
                              swap.swap_s, total))  # fmt: skip
            self.emit(Mended(fault, Action.SWAP, swap.swap_s, total, lost))
            self.emit(Survivable(verdict.restart, False, "the spare was used; another is being made ready", 0))
        self.crew.fill()
        self._recruit()

    # -- spares -----------------------------------------------------------------------------------------------------

    def _recruit(self) -> None:
        """Have all warm the placements of the next spare, if there is one and nothing else is under way."""
        free = [d for d in self.crew.here if d not in self.slots]
        if self.standby is not None or self._order is not None or self._mending is not None or not free:
            return
        if any(self.crew.workers[d].done for d in self.slots if d in self.crew.workers):
            return
        self._number += 1
        self._touched = set()
        self._order = {"do": "order", "number": self._number, "kind": "touch", "spare": min(free), "slots": self.slots,
                       "epoch": self.epoch}  # fmt: skip
        for device in (*self.slots, min(free)):
            self.crew.tell(device, self._order)

    def _has_touched(self, device: Device, number: int, compiles: int) -> None:
        self.rewarm_compiles += compiles
        if self._order is None or self._order["number"] != number:
            return
        self._touched.add(device)
        spare: Device = tuple(self._order["spare"])
        if self._touched == {*self.slots, spare}:
            self.standby = spare
            if self.source == "replica":
                self._order = None
                return
            self._number += 1
            self._order = {"do": "order", "number": self._number, "kind": "open", "spare": spare, "slots": self.slots}
            self.crew.tell(spare, self._order)

    def _protect(self, number: int) -> None:
        """The standby's vault is open: the members begin to send at the next boundary that they agree on."""
        if self._order is None or self._order["number"] != number or self.standby is None:
            return
        vault = self.crew.workers[self.standby].data
        for device in self.slots:
            self.crew.tell(device, {"do": "order", "number": number, "kind": "protect", "vault": vault})
        self._order = None

    # -- barriers, words ----------------------------------------------------------------------------------------------

    def _arrived(self, device: Device, name: str, who: list[Device]) -> None:
        here = self._at.setdefault(name, set())
        here.add(device)
        self.progress.rest(device)
        if here >= set(who):
            del self._at[name]
            for member in who:
                self.crew.tell(member, {"do": "pass", "name": name})

    def _say_protected(self, step: int) -> None:
        assert self.standby is not None
        spare = self.standby
        slots = [s for s in range(len(self.slots)) if self._possible([*self.slots[:s], spare, *self.slots[s + 1 :]])]
        why = "the successors are warm and the parity is whole" if self.source == "parity" else "replicas live"
        if len(slots) < len(self.slots):
            why += f"; only for slots {slots}: the spare shares a device with the others"
        self.emit(DeviceChanged(spare[0], "spare", why))
        self.emit(Survivable(step, len(slots) == len(self.slots), why, len(slots)))

    # -- stuck workers ------------------------------------------------------------------------------------------------

    def _stuck(self) -> None:
        """Nothing has happened for too long: ask everybody, then end whoever holds the others up."""
        if not self.progress.asking:
            self.progress.ask(self.crew.here)
            self.crew.tell_all({"do": "ping"})
            return
        culprits = self.progress.culprits()
        for device in culprits:
            self.crew.end(device)
        if culprits:
            self.progress.pause()
        elif self.crew.adopt is not None and not self._running and self.progress.age > COMING:
            raise Stopped(f"Only {len(self.crew.here)} of {self.crew.seats} processes came within {COMING:.0f} s.")
        elif self.progress.step >= 0 and not self._through and self.progress.age > self.progress.longest:
            # Before the first step, compiling may take its time.
            what = "mended the loss" if self._mending else "begun a step"
            raise Stopped(f"All workers live and none has {what} for {self.progress.age:.0f} s.")
