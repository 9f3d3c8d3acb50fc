"""The processes of a run and the lines to them: started, told, struck, ended. Who they are to it is not known here."""

from __future__ import annotations

import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._children import Child, start_coordinator
from ._verdict import Device
from ._wire import Wire, accept, listen

INCARNATIONS = 16
"""Processes that one seat can see on a CPU: each uses another of its virtual devices (`design/lost-processes.md`)."""


@dataclass
class Worker:
    """A process in a seat. `child` is None where a scheduler started it, `struck` is when a script struck it."""

    device: Device
    child: Child | None
    wire: Wire | None = None
    data: tuple[str, int] | None = None
    leaving: str = ""
    struck: float | None = None
    done: bool = False


class Crew:
    """`seats` processes, a coordinator, and perhaps a stand-in. What happens to them lies in `events`:

    ("hello", device, wire, message), ("said", device, message), ("gone", device) where a line has ended, ("died",
    device, status), ("coordinator", status).

    - `command` starts a worker; what else it needs is in its environment, `seat_env[seat]` included.
    - `adopt`: the coordinator's address, where a scheduler starts the workers and starts them again.
    - `stand_in`: keep a process ready that takes a dead worker's seat (GPUs).
    """

    def __init__(
        self,
        seats: int,
        command: Sequence[str],
        logs: Path,
        *,
        env: Mapping[str, str] | None = None,
        seat_env: Sequence[Mapping[str, str]] = (),
        adopt: str | None = None,
        stand_in: bool = False,
        patience: float = 100.0,
    ) -> None:
        self.seats, self.command, self.logs, self.adopt, self.patience = seats, list(command), logs, adopt, patience
        self.workers: dict[Device, Worker] = {}
        self.events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.key = secrets.token_bytes(32)
        self._listener = listen("127.0.0.1" if adopt is None else adopt.rsplit(":", 1)[0], self.key)
        self._env = dict(os.environ if env is None else env)
        self._seat_env = list(seat_env)
        self._used: dict[int, int] = {}
        self._coordinator: Child | None = None
        self._stand_in: Child | None = None
        self._wants_stand_in, self._seated = stand_in, False

    @property
    def address(self) -> str:
        """Where workers reach the launcher."""
        host, port = self._listener.address  # type: ignore[misc]
        return f"{host}:{port}"

    def open(self) -> None:
        """Start the coordinator, and all workers unless a scheduler does."""
        threading.Thread(target=self._accept, name="poise-accept", daemon=True).start()
        self._coordinator, coordinator = start_coordinator(
            self.seats, self.patience, self.logs / "coordinator.log",
            lambda status: self.events.put(("coordinator", status)), self.adopt,
        )  # fmt: skip
        self._env |= {
            "POISE_COORDINATOR": coordinator, "POISE_SEATS": str(self.seats), "POISE_PATIENCE": str(self.patience),
            "POISE_LAUNCHER": self.address, "POISE_KEY": self.key.hex(),
        }  # fmt: skip
        self.fill()

    @property
    def coordinated(self) -> bool:
        """Whether the coordinator lives."""
        return self._coordinator is not None and self._coordinator.alive

    def fill(self) -> None:
        """A process for every seat that is empty (a scheduler fills its own), and a stand-in without a seat: one that
        has taken one would be in its successor's way."""
        if self._wants_stand_in and (self._stand_in is None or self._seated):
            if self._stand_in is not None:
                self._stand_in.kill()
            command = [sys.executable, "-m", "poise.devices.process._standin", self._env["POISE_COORDINATOR"]]
            env = self._env | {"JAX_PLATFORMS": "cpu"}
            log = self.logs / "stand-in.log"
            self._stand_in = Child([*command, str(self.patience)], env, log, lambda status: None)
            self._seated = False
        taken = {seat for seat, _ in self.workers}
        for seat in range(self.seats if self.adopt is None else 0):
            incarnation = self._used.get(seat, -1) + 1
            if seat not in taken and incarnation < INCARNATIONS:
                self._start((seat, incarnation))

    def _start(self, device: Device) -> None:
        seat, incarnation = device
        self._used[seat] = incarnation
        own = self._seat_env[seat] if self._seat_env else {}
        env = self._env | {"POISE_SEAT": str(seat), "POISE_INCARNATION": str(incarnation), **own}
        log = self.logs / f"worker-{seat}.{incarnation}.log"
        child = Child(self.command, env, log, lambda status: self.events.put(("died", device, status)))
        self.workers[device] = Worker(device, child)

    def came(self, device: Device, wire: Wire, hello: dict[str, Any]) -> None:
        """A worker has said hello."""
        worker = self.workers.setdefault(device, Worker(device, None))
        worker.wire, worker.data = wire, tuple(hello["data"])

    @property
    def here(self) -> list[Device]:
        """Those that have said hello and live."""
        return [d for d, w in self.workers.items() if w.wire is not None]

    def sitting(self, seat: int) -> Device | None:
        """Who sits in a seat now."""
        return next((d for d in self.here if d[0] == seat), None)

    def tell(self, device: Device, message: dict[str, Any]) -> None:
        """Send a worker a message, if it is there."""
        worker = self.workers.get(device)
        if worker is not None and worker.wire is not None:
            worker.wire.say(message)

    def tell_all(self, message: dict[str, Any]) -> None:
        """Send everybody a message."""
        for device in list(self.workers):
            self.tell(device, message)

    def take_seat(self, seat: int) -> None:
        """Let the stand-in take a dead worker's seat."""
        if self._stand_in is not None:
            self._stand_in.line(str(seat))
            self._seated = True

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

    def end(self, device: Device) -> None:
        """End a worker that holds the others up; its stacks go to its log. Nobody's child is told to go in case it
        comes back, and counts as gone."""
        child = self.workers[device].child
        if child is not None:
            child.dump(0.5)
            child.signal(signal.SIGKILL)
        else:
            self.tell(device, {"do": "end", "status": 1})
            self.events.put(("gone", device))

    def part(self, status: int) -> None:
        """Tell all to end; those that are nobody's children have until they hang up, 10 s at most."""
        self.tell_all({"do": "end", "status": status})
        until = time.monotonic() + 10.0
        while self.adopt is not None and self.workers and time.monotonic() < until:
            try:
                event = self.events.get(timeout=until - time.monotonic())
            except queue.Empty:
                return
            if event[0] == "gone":
                self.workers.pop(event[1], None)

    def close(self) -> None:
        """Kill whatever still runs."""
        for child in [w.child for w in self.workers.values()] + [self._stand_in, self._coordinator]:
            if child is not None:
                child.kill()
        self._listener.close()

    def _accept(self) -> None:
        while (wire := accept(self._listener)) is not None:
            threading.Thread(target=self._hear, args=(wire,), name="poise-hear", daemon=True).start()

    def _hear(self, wire: Wire) -> None:
        hello = wire.hear()
        if hello is None:
            return
        device: Device = tuple(hello["device"])
        self.events.put(("hello", device, wire, hello))
        while (message := wire.hear()) is not None:
            self.events.put(("said", device, message))
        self.events.put(("gone", device))
