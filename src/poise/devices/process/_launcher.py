"""The parent of a run over several processes: starts them, knows their deaths, names the members of each epoch.

One thread (`run`) owns everything; children, connections and timers only put what happened into its queue. What a death
leads to is decided by `judge` alone (`design/lost-processes.md`).
"""

from __future__ import annotations

import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
from ._children import Child, how, start_coordinator
from ._progress import Progress
from ._verdict import Beyond, Device, Report, Situation, Verdict, judge
from ._wire import Wire, accept, listen

INCARNATIONS = 16
"""Processes that one seat can see on a CPU: each uses another of its virtual devices (`design/lost-processes.md`)."""

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
class Worker:
    """A process in a seat."""

    device: Device
    child: Child | None
    wire: Wire | None = None
    data: tuple[str, int] | None = None
    leaving: str = ""
    struck: float | None = None
    done: bool = False


@dataclass
class Mending:
    """A stop of the run and what is known about it."""

    since: float
    cause: str
    dead: Worker | None
    step: int
    reports: dict[Device, Report] = field(default_factory=dict)
    verdict: Verdict | None = None
    fault: Fault | None = None
    compiles: dict[Device, int] = field(default_factory=dict)


class Launcher:
    """Runs `active` workers and `spares` more. `command(seat)` starts one; everything else it needs is in its
    environment. `emit` hears events, `heard(device, message)` what workers say that is not the launcher's business.

    `source` and `replicas` are the run's, as `judge` wants them.
    """

    def __init__(
        self,
        active: int,
        spares: int,
        command: Sequence[str],
        logs: Path,
        *,
        emit: Callable[[Event], None] = lambda event: None,
        heard: Heard = lambda device, message: None,
        env: Mapping[str, str] | None = None,
        source: str = "parity",
        replicas: Mapping[int, Sequence[int]] | None = None,
        patience: float = 100.0,
        replenish: bool = True,
        stand_in: bool = False,
        seat_env: Sequence[Mapping[str, str]] = (),
        possible: Callable[[Sequence[Device]], bool] = lambda slots: True,
        adopt: str | None = None,
        serving: Callable[[str, str], None] = lambda address, key: None,
    ) -> None:
        self.active, self.spares, self.command, self.logs = active, spares, list(command), logs
        self.emit, self.heard = emit, heard
        self.source, self.replicas, self.patience, self.replenish = source, dict(replicas or {}), patience, replenish
        self.swaps: list[Swap] = []
        self.rewarm_compiles = 0
        self.epoch, self.slots = 0, tuple((seat, 0) for seat in range(active))
        self.standby: Device | None = None
        self.protected = False
        self.workers: dict[Device, Worker] = {}
        self.progress = Progress()
        self._used: dict[int, int] = {}
        self._env = dict(os.environ if env is None else env)
        self._key = secrets.token_bytes(32)
        host = "127.0.0.1" if adopt is None else adopt.rsplit(":", 1)[0]
        self._listener = listen(host, self._key)
        self._seat_env, self._possible, self._adopt, self._serving = list(seat_env), possible, adopt, serving
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._at: dict[str, set[Device]] = {}
        self._mending: Mending | None = None
        self._order: dict[str, Any] | None = None
        self._touched: set[Device] = set()
        self._number = 0
        self._running = False
        self._coordinator: Child | None = None
        self._stand_in: Child | None = None
        self._wants_stand_in, self._seated, self._address = stand_in, False, ""

    # -- the face ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end. Raises `Stopped` beyond the promise; leaves no process behind, however it ends."""
        threading.Thread(target=self._accept, name="poise-accept", daemon=True).start()
        try:
            seats = self.active + self.spares
            self._coordinator, address = start_coordinator(
                seats, self.patience, self.logs / "coordinator.log", lambda status: self._put("coordinator", status),
                self._adopt,
            )  # fmt: skip
            host, port = self._listener.address  # type: ignore[misc]
            self._env |= {
                "POISE_COORDINATOR": address, "POISE_SEATS": str(seats), "POISE_PATIENCE": str(self.patience),
                "POISE_LAUNCHER": f"{host}:{port}", "POISE_KEY": self._key.hex(),
            }  # fmt: skip
            self._address = address
            self._fresh_stand_in()
            self._serving(f"{host}:{port}", self._key.hex())
            for seat in range(0 if self._adopt else seats):
                self._start((seat, 0))
            while not all(d in self.workers and self.workers[d].done for d in self.slots):
                self._next()
            self._part(0)
        except Stopped:
            self._part(3)
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Kill whatever still runs."""
        for child in [w.child for w in self.workers.values()] + [self._stand_in, self._coordinator]:
            if child is not None:
                child.kill()
        self._listener.close()

    def kill(self, seat: int | str, number: int = signal.SIGKILL) -> None:
        """Strike the process that sits in `seat` now, or the "coordinator" (fault injection)."""
        if seat == "coordinator":
            assert self._coordinator is not None
            self._coordinator.signal(number)
            return
        for worker in self.workers.values():
            if worker.device[0] == seat and worker.child is not None and worker.child.alive:
                worker.struck = time.monotonic()
                worker.child.signal(number)

    def tell(self, device: Device, message: dict[str, Any]) -> None:
        """Send a worker a message that is not one of the launcher's own."""
        self._tell(device, message)

    def sitting(self, seat: int) -> Device | None:
        """Who sits in a seat now."""
        return next((d for d, w in self.workers.items() if d[0] == seat and w.wire is not None), None)

    # -- events -----------------------------------------------------------------------------------------------------

    def _put(self, *event: Any) -> None:
        self._events.put(event)

    def _accept(self) -> None:
        while (wire := accept(self._listener)) is not None:
            threading.Thread(target=self._hear, args=(wire,), name="poise-hear", daemon=True).start()

    def _hear(self, wire: Wire) -> None:
        hello = wire.hear()
        if hello is None:
            return
        device: Device = tuple(hello["device"])
        self._put("hello", device, wire, hello)
        while (message := wire.hear()) is not None:
            self._put("said", device, message)
        self._put("gone", device)

    def _next(self) -> None:
        """Wait for the next thing that happens, and act on it."""
        try:
            event = self._events.get(timeout=self.progress.patience())
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
                if self._adopt is not None and device in self.workers:
                    self._died(device, None)
            case ("coordinator", status):
                raise Stopped(f"The coordinator's process {how(status)}; nobody can rejoin without it.")

    def _start(self, device: Device) -> None:
        seat, incarnation = device
        self._used[seat] = incarnation
        own = self._seat_env[seat] if self._seat_env else {}
        env = self._env | {"POISE_SEAT": str(seat), "POISE_INCARNATION": str(incarnation), **own}
        log = self.logs / f"worker-{seat}.{incarnation}.log"
        child = Child(self.command, env, log, lambda status: self._put("died", device, status))
        self.workers[device] = Worker(device, child)

    def _hello(self, device: Device, wire: Wire, hello: dict[str, Any]) -> None:
        worker = self.workers.setdefault(device, Worker(device, None))
        worker.wire, worker.data = wire, tuple(hello["data"])
        self.heard(device, hello)
        self.emit(ProcessStarted(device[0], device[1], int(hello["pid"])))
        if self._running:
            self._recruit()
        elif sum(w.wire is not None for w in self.workers.values()) == self.active + self.spares:
            self._running = True
            self.standby = (self.active, 0) if self.spares else None
            self._tell_all(self._epoch_message(Verdict(self.slots, -1)))

    def _said(self, device: Device, message: dict[str, Any]) -> None:
        worker = self.workers[device]
        what = message["say"]
        self.progress.heard()
        match what:
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
                        self._tell(member, {"do": "order", "number": message["number"], "kind": "go"})
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
        worker = self.workers.pop(device)
        now = time.monotonic()
        if self._coordinator is not None and not self._coordinator.alive:
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
            self._restart_seats()

    def _lose_standby(self, cause: str, worker: Worker, now: float) -> None:
        """Nobody waits for the standby while the run goes on; its protection ends."""
        self.standby, self.protected = None, False
        self.emit(DeviceChanged(worker.device[0], "failed", cause))
        self.emit(Survivable(self.progress.step, False, f"the spare {cause}; another is being made ready", 0))
        if self._order is not None or not self.progress.stepping:
            self._halt(cause, worker, now)
        else:
            self._restart_seats()
            self._recruit()

    def _halt(self, cause: str, worker: Worker, now: float) -> None:
        """Stop the epoch: everybody reports what they hold."""
        before = self._mending
        if before is None or before.verdict is not None:
            self._mending = Mending(now, cause, None, self.progress.step)
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
        for other in self.workers.values():
            other.done = False
        gone = [list(worker.device)]
        self.progress.pause()
        if self._stand_in is not None and worker.device in self.slots:
            self._stand_in.line(str(worker.device[0]))
            self._seated = True
        self._tell_all({"do": "halt", "dead": gone})
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
        dead = frozenset(d for d in self.slots if d not in self.workers)
        if self.standby is not None and self.standby not in self.workers:
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
            new = self.workers[verdict.slots[verdict.rebuilt]]
            address, self.standby = new.data, None
        self.slots, self.protected = verdict.slots, False
        self._tell_all(self._epoch_message(verdict, address))

    def _epoch_message(self, verdict: Verdict, address: tuple[str, int] | None = None) -> dict[str, Any]:
        standby = None if self.standby is None else self.workers[self.standby]
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
        verdict, dead = mending.verdict, mending.dead
        if verdict.rebuilt >= 0 and dead is not None:
            now = time.monotonic()
            detect = None if dead.struck is None else mending.since - dead.struck
            total = sum(mending.compiles.values())
            swap = Swap(mending.cause, verdict.rebuilt, dead.device[0], verdict.restart, verdict.source, detect,
                        now - mending.since, total, verdict.lost)  # fmt: skip
            self.swaps.append(swap)
            new = self.slots[verdict.rebuilt]
            self.emit(Swapped(verdict.restart, verdict.rebuilt, dead.device[0], new[0], "lost", verdict.source,
                              swap.swap_s, total))  # fmt: skip
            assert mending.fault is not None
            self.emit(Mended(mending.fault, Action.SWAP, swap.swap_s, total, verdict.lost))
            self.emit(Survivable(verdict.restart, False, "the spare was used; another is being made ready", 0))
        self._restart_seats()
        self._recruit()

    # -- spares -----------------------------------------------------------------------------------------------------

    def _restart_seats(self) -> None:
        """A new process for every seat that is empty: the next spare (a scheduler restarts its own)."""
        self._fresh_stand_in()
        if not self.replenish or self._adopt is not None:
            return
        taken = {seat for seat, _ in self.workers}
        for seat in range(self.active + self.spares):
            if seat not in taken and self._used[seat] + 1 < INCARNATIONS:
                self._start((seat, self._used[seat] + 1))

    def _recruit(self) -> None:
        """Have all warm the placements of the next spare, if there is one and nothing else is under way."""
        free = [d for d, w in self.workers.items() if d not in self.slots and w.wire is not None]
        if self.standby is not None or self._order is not None or self._mending is not None or not free:
            return
        if any(self.workers[d].done for d in self.slots if d in self.workers):
            return
        self._number += 1
        self._touched = set()
        self._order = {"do": "order", "number": self._number, "kind": "touch", "spare": min(free), "slots": self.slots,
                       "epoch": self.epoch}  # fmt: skip
        for device in (*self.slots, min(free)):
            self._tell(device, self._order)

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
            self._tell(spare, self._order)

    def _protect(self, number: int) -> None:
        """The standby's vault is open: the members begin to send at the next boundary that they agree on."""
        if self._order is None or self._order["number"] != number or self.standby is None:
            return
        vault = self.workers[self.standby].data
        for device in self.slots:
            self._tell(device, {"do": "order", "number": number, "kind": "protect", "vault": vault})
        self._order = None

    def _fresh_stand_in(self) -> None:
        """A stand-in that has not taken a seat yet; one that has would be in its successor's way."""
        if not self._wants_stand_in or (self._stand_in is not None and not self._seated):
            return
        if self._stand_in is not None:
            self._stand_in.kill()
        command = [sys.executable, "-m", "poise.devices.process._standin", self._address, str(self.patience)]
        env = self._env | {"JAX_PLATFORMS": "cpu"}
        self._stand_in, self._seated = Child(command, env, self.logs / "stand-in.log", lambda status: None), False

    def _part(self, status: int) -> None:
        """Tell all to end; those that are nobody's children have until they hang up, 10 s at most."""
        self._tell_all({"do": "end", "status": status})
        until = time.monotonic() + 10.0
        while self._adopt is not None and self.workers and time.monotonic() < until:
            try:
                event = self._events.get(timeout=until - time.monotonic())
            except queue.Empty:
                return
            if event[0] == "gone":
                self.workers.pop(event[1], None)

    @property
    def _under_way(self) -> bool:
        """Whether steps have begun and not all members are through (before that, compiling may take its time)."""
        done = all(d in self.workers and self.workers[d].done for d in self.slots)
        return self._running and self.progress.step >= 0 and not done

    # -- barriers, words ----------------------------------------------------------------------------------------------

    def _arrived(self, device: Device, name: str, who: list[Device]) -> None:
        here = self._at.setdefault(name, set())
        here.add(device)
        self.progress.rest(device)
        if here >= set(who):
            del self._at[name]
            for member in who:
                self._tell(member, {"do": "pass", "name": name})

    def _tell(self, device: Device, message: dict[str, Any]) -> None:
        worker = self.workers.get(device)
        if worker is not None and worker.wire is not None:
            worker.wire.say(message)

    def _tell_all(self, message: dict[str, Any]) -> None:
        for device in list(self.workers):
            self._tell(device, message)

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
            self.progress.ask()
            self._tell_all({"do": "ping"})
            return
        asked = {d for d, w in self.workers.items() if w.wire is not None}
        culprits = self.progress.culprits(asked)
        for device in culprits:
            worker = self.workers[device]
            if worker.child is not None:
                worker.child.dump(0.5)
                worker.child.signal(signal.SIGKILL)
            else:  # nobody's child: it is told to go in case it comes back, and counts as gone
                self._tell(device, {"do": "end", "status": 1})
                self._put("gone", device)
        if culprits:
            self.progress.pause()
        elif self._adopt is not None and not self._running and self.progress.age > COMING:
            came, all_of_them = len(self.workers), self.active + self.spares
            raise Stopped(f"Only {came} of {all_of_them} processes came within {COMING:.0f} s.")
        elif self._under_way and self.progress.age > self.progress.longest:
            what = "mended the loss" if self._mending else "begun a step"
            raise Stopped(f"All workers live and none has {what} for {self.progress.age:.0f} s.")
