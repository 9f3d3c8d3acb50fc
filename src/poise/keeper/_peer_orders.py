"""What the launcher orders while the run goes on: warm a spare's placements, protect the run with its vault.

Orders reach the members at different times, and what they ask for must be done by all at one boundary between steps. So
each step's ready reduction carries, by minimum, the newest order that a member is prepared for: what all are prepared
for is done by all behind that very step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..devices import compiles
from ..devices.process import Courier, Device, Member
from ._peer_stage import PeerReady, PeerStage, Slots, successors

if TYPE_CHECKING:
    from ._peer import PeerLoop


class Orders:
    """Orders of one member, numbered by the launcher; `prepared` is the newest it could carry out, `done` the newest
    that it has."""

    def __init__(self, member: Member, stage: PeerStage, key: bytes) -> None:
        self.member, self.stage, self._key = member, stage, key
        self.prepared = self.done = 0
        self.epoch = 0
        self.each: Callable[[str, int], None] = lambda phase, step: None
        self._lock = threading.Condition()
        self._built: dict[int, dict[Slots, PeerReady]] = {}
        self._known: dict[int, dict[str, Any]] = {}
        self._go: set[int] = set()
        self._compiled: dict[int, int] = {}
        self._failure: BaseException | None = None

    def begin(self, epoch: int, number: int) -> None:
        """A new epoch: what was ordered before is void."""
        with self._lock:
            self.epoch, self.prepared, self.done = epoch, number, number
            self._known.clear()
            self._built.clear()

    def hear(self, message: dict[str, Any]) -> None:
        """An order came in (in the hearing thread)."""
        number = int(message["number"])
        with self._lock:
            if number <= self.done:
                return
            match message["kind"]:
                case "touch":
                    self._known[number] = message
                    threading.Thread(target=self._build, args=(number,), name="poise-rewarm", daemon=True).start()
                case "go":
                    self._go.add(number)
                case _:
                    self._known[number] = message
            self._prepare()

    def _prepare(self) -> None:
        for number in sorted(self._known):
            kind = self._known[number]["kind"]
            if number > self.prepared and (kind != "touch" or (number in self._built and number in self._go)):
                self.prepared = number

    def _build(self, number: int) -> None:
        message = self._known.get(number)
        if message is None:
            return
        c0 = compiles()
        try:
            built = {slots: self.stage.build(slots) for slots in self._mine(message)}
        except BaseException as error:  # raised where the working thread sees it
            self._failure = error
            built = {}
        with self._lock:
            self._built[number] = built
            self._compiled[number] = compiles() - c0
            self._prepare()
            self._lock.notify_all()

    def _mine(self, message: dict[str, Any]) -> list[Slots]:
        slots, spare = parties(message)
        return [
            p
            for p in successors(slots, spare, self.stage.possible)
            if self.member.device in p and p not in self.stage.warm
        ]

    def run(self, upto: int, loop: PeerLoop) -> None:
        """Carry out what all are prepared for. Raises `PeerLost` if somebody dies meanwhile."""
        for number in sorted(n for n in self._known if self.done < n <= upto):
            message = self._known[number]
            if message["kind"] == "touch":
                self.touch(number)
                self.stage.keep_only([loop.slots, *self.all_of(message)])
            else:
                host, port = message["vault"]
                loop.protect(Courier((host, int(port)), self._key, number, loop.slot, self.member.poke))
            self.done = number

    def touch(self, number: int) -> None:
        """Make the communicators of an order's placements, with everybody who is in them."""
        message = self._known[number]
        self.each("rewarm", number)
        if self._failure is not None:
            raise self._failure
        slots, spare = parties(message)
        members = (*slots, spare)
        epoch = message["epoch"]  # a spare that has just come knows of no other
        self.member.barrier(f"{epoch}/{number}/all", members)
        self.stage.learn(members)
        for slots in self.all_of(message):
            if self.member.device in slots and slots not in self.stage.warm:
                self.stage.touch(slots, self._built[number][slots], f"{epoch}/{number}/{slots}")
        self.member.say("touched", number=number, compiles=self._compiled.get(number, 0))

    def all_of(self, message: dict[str, Any]) -> list[Slots]:
        """Every placement that an order is about."""
        return successors(*parties(message), self.stage.possible)

    def wait_built(self, number: int) -> None:
        """Wait for the background; a spare has nothing else to do."""
        with self._lock:
            self._lock.wait_for(lambda: number in self._built)

    def known(self, number: int) -> dict[str, Any]:
        """What an order says."""
        with self._lock:
            return self._known[number]

    def newest(self, kind: str) -> int:
        """The newest order of a kind that has not been carried out, or -1."""
        with self._lock:
            return max((n for n, m in self._known.items() if m["kind"] == kind and n > self.done), default=-1)


def parties(message: dict[str, Any]) -> tuple[Slots, Device]:
    """The slots and the spare that an order names, as JSON brings them."""
    seat, incarnation = message["spare"]
    return tuple((int(s), int(i)) for s, i in message["slots"]), (int(seat), int(incarnation))
