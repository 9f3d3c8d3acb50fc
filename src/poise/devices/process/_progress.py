"""Progress age: whether steps have stopped for too long, and who of the members holds the others up."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from statistics import median

from ._verdict import Device

FLOOR, ANSWER = 3.6, 0.7
"""Seconds without a step before all are asked, and seconds to answer in: noticed within 5 s, or 3 median steps."""

PATIENT = 5.0
"""Seconds to answer in outside of steps, and where several are silent: two at once are beyond the promise, and it is
more likely that the whole machine is busy."""

QUIET = 10.0
"""Seconds without a word outside of steps (compiling, mending) before all are asked whether they live."""

LONGEST = 30.0
"""Seconds, or 10 median steps, after which a run is given up in which all live and none begins a step."""


class Progress:
    """When each member began which step. Only members that are in the run's steps count; `rest` and `pause` take out
    those that wait at a barrier or have been stopped."""

    def __init__(self) -> None:
        self.step, self.asking = -1, False
        self._begun: dict[Device, tuple[int, float]] = {}
        self._durations: deque[float] = deque(maxlen=33)
        self._pongs: dict[Device, tuple[str, int]] = {}
        self._reasons: dict[Device, str] = {}
        self._moved = self._heard = time.monotonic()
        self._deadline = self._asked = self._since = 0.0
        self._who: set[Device] = set()
        self._patient = False

    @property
    def stepping(self) -> bool:
        """Whether anybody is in the run's steps."""
        return bool(self._begun)

    @property
    def age(self) -> float:
        """Seconds since anybody began a step."""
        return time.monotonic() - self._moved

    @property
    def longest(self) -> float:
        """The age at which a run that lives but does not move is given up."""
        return max(LONGEST, 10.0 * median(self._durations)) if self._durations else 4 * LONGEST

    def begin(self, device: Device, step: int) -> None:
        """A member begins a step."""
        now = time.monotonic()
        before = self._begun.get(device)
        if before is not None and step == before[0] + 1:
            self._durations.append(now - before[1])
        self._begun[device] = (step, now)
        self.step, self.asking, self._moved = max(self.step, step), False, now

    def rest(self, device: Device) -> None:
        """A member is not in a step for a while."""
        self._begun.pop(device, None)

    def pause(self) -> None:
        """Nobody is in a step."""
        self._begun.clear()
        self.asking, self._moved, self._heard = False, time.monotonic(), time.monotonic()

    def forget(self, device: Device) -> None:
        """A member is dead."""
        self._begun.pop(device, None)
        self._reasons.pop(device, None)
        self._who.discard(device)

    def heard(self) -> None:
        """Somebody said something."""
        self._heard = time.monotonic()

    def patience(self) -> float:
        """Seconds to wait for the next event before somebody must be asked."""
        if self.asking:
            until = self._deadline if self._who - set(self._pongs) else 0.0
        elif self._begun:
            limit = max(FLOOR, 3.0 * median(self._durations)) if self._durations else FLOOR
            until = max(self._moved, self._asked) + limit
        else:
            until = self._heard + QUIET
        return max(0.0, until - time.monotonic())

    def ask(self, who: Iterable[Device]) -> None:
        """These are being asked; they have `ANSWER` seconds, or `PATIENT` ones outside of steps."""
        self.asking, self._pongs, self._who, self._patient = True, {}, set(who), not self._begun
        self._since = time.monotonic()
        self._deadline = self._since + (PATIENT if self._patient else ANSWER)

    def pong(self, device: Device, busy: str, begun: int) -> None:
        """A member answered."""
        self._pongs[device] = (busy, begun)

    def culprits(self) -> list[Device]:
        """Who holds the others up: those that did not answer; in steps also those that are behind, or on the host
        while the others wait for them. If nobody does, ask again later."""
        now, silent = time.monotonic(), self._who - set(self._pongs)
        if len(silent) > 1 and not self._patient:
            self._patient, self._deadline = True, now + PATIENT
            return []
        self.asking = False
        found = dict.fromkeys(silent, f"did not answer for {now - self._since:.1f} s")
        said = {d: p for d, p in self._pongs.items() if d in self._begun}
        if not found and said:
            newest = max(begun for _, begun in said.values())
            late = {d for d, (busy, begun) in said.items() if begun < newest or busy == "host"}
            if late != set(said):
                found = dict.fromkeys(late, f"made no step for {self.age:.1f} s")
        if not found:
            self._heard = self._asked = time.monotonic()
        self._reasons.update(found)
        return list(found)

    def reason(self, device: Device) -> str:
        """Why a member was ended by the launcher, or an empty string."""
        return self._reasons.get(device, "")
