"""A worker's line to its launcher: what it says, what it is told, and waiting that a death can interrupt."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ._verdict import Device, Report
from ._wire import Address, dial

LEFT = 75
"""Exit status of a worker that leaves because its own device or memory cannot be trusted."""


class PeerLost(Exception):
    """The launcher has stopped this epoch: report what you hold and wait for the verdict."""


class Member:
    """This worker among the others. One thread works, another hears the launcher.

    `cut(dead)` is called in the hearing thread with the devices that are gone, before the working thread is woken.
    `busy` is what the working thread is at: "host", "wait" (for others) or "device".
    """

    def __init__(self, address: Address, key: bytes, device: Device) -> None:
        self.device, self.busy, self.begun = device, "host", -1
        self.cut: Callable[[list[Device]], object] = lambda dead: None
        self.told: Callable[[dict[str, Any]], None] = lambda message: None
        self._wire = dial(address, key)
        self._state = threading.Condition()
        self._passed: set[str] = set()
        self._halted = False
        self._next: dict[str, Any] | None = None
        faulthandler.register(signal.SIGUSR1, all_threads=True)

    def start(self, data: Address) -> None:
        """Say hello, and hear from now on: `cut` and `told` must be set. `data` is where others reach this process."""
        self.say("hello", device=self.device, pid=os.getpid(), data=data)
        threading.Thread(target=self._listen, name="poise-member", daemon=True).start()

    def say(self, what: str, **more: Any) -> None:
        """Tell the launcher something."""
        self._wire.say({"say": what, **more})

    @property
    def fileno(self) -> int:
        """The line's descriptor."""
        return self._wire.fileno

    @property
    def halted(self) -> bool:
        """Whether the epoch has been stopped."""
        return self._halted

    def check(self) -> None:
        """Raise `PeerLost` if the epoch has been stopped."""
        if self._halted:
            raise PeerLost

    def begin(self, step: int) -> None:
        """A step begins here."""
        self.check()
        self.begun = step
        self.say("begin", step=step)

    def barrier(self, name: str, who: Sequence[Device]) -> None:
        """Wait until all of `who` are here. Raises `PeerLost` when one of them dies first."""
        self.say("at", name=name, who=list(who))
        self.wait(lambda: name in self._passed)

    def wait(self, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait for something that `poke` announces. Raises `PeerLost` when the epoch is stopped meanwhile."""
        before, self.busy = self.busy, "wait"
        try:
            with self._state:
                done = self._state.wait_for(lambda: self._halted or until(), timeout)
                if self._halted:
                    raise PeerLost
                return done
        finally:
            self.busy = before

    def poke(self) -> None:
        """Something that somebody may wait for has changed."""
        with self._state:
            self._state.notify_all()

    @property
    def called(self) -> bool:
        """Whether a new epoch is waiting to be entered."""
        return self._next is not None

    def halt_soon(self, seconds: float) -> bool:
        """Whether the launcher stops the epoch within `seconds`: a collective that failed is somebody's death, as a
        rule, and the launcher knows whose."""
        with self._state:
            return self._state.wait_for(lambda: self._halted, seconds)

    def report(self, report: Report) -> dict[str, Any]:
        """Say what is held and wait for how the run goes on."""
        self.say("report", report=asdict(report))
        return self.next_epoch()

    def next_epoch(self) -> dict[str, Any]:
        """Wait for the next epoch; a spare that is stopped meanwhile sees `PeerLost`, to report what it holds."""
        with self._state:
            self._state.wait_for(lambda: self._next is not None)
            message, self._next = self._next, None
            assert message is not None
            return message

    def leave(self, reason: str) -> None:
        """End this process: its own memory or device cannot be trusted, and the others rebuild its shard."""
        self.say("leaving", reason=reason)
        os._exit(LEFT)

    def _listen(self) -> None:
        while (message := self._wire.hear()) is not None:
            match message["do"]:
                case "pass":
                    with self._state:
                        self._passed.add(message["name"])
                        self._state.notify_all()
                case "halt":
                    # First the mark, then the cut: the working thread finds the reason for its exception.
                    with self._state:
                        self._halted = True
                        self._state.notify_all()
                    self.cut([tuple(d) for d in message["dead"]])
                case "epoch":
                    with self._state:
                        self._next, self._halted = message, False
                        self._passed.clear()
                        self._state.notify_all()
                case "ping":
                    self.say("pong", busy=self.busy, begun=self.begun, at=time.monotonic())
                case "end":
                    os._exit(int(message["status"]))
                case _:
                    self.told(message)
                    self.poke()
        os._exit(1)  # the launcher is gone, and nobody may outlive it
