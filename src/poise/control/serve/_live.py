"""The newest state of a journal for everybody who asks, read once for all of them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from .._changes import Changes
from .._incident import Incident
from .._read import Reader
from .._socket import alive
from .._summary import Summary
from .._verdict import silent_after

GAP = 0.2
"""Seconds between two readings, however fast events come: a burst is read in a few pieces."""

SETTLE = 0.05
"""Seconds between the first word of a change and looking: one commit is several writes."""

ROUTINE = 1.0
"""Seconds between two readings for followers while there is only progress to tell: a healthy run should not feel that
somebody looks."""

LATE = 20.0
"""Seconds after which a follower looks without having been told: for file systems that tell nothing."""


@dataclass(frozen=True)
class View:
    """What a page is made from. `version` counts readings that found something; `told` is the newest event in it that
    is more than routine."""

    version: int
    summary: Summary
    told: int = 0
    incidents: list[Incident] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    governed: bool = False


class Live:
    """Follows a journal. Nobody looking: nothing is read, whatever happens. `fresh` reads if something has changed;
    `follow` waits for that."""

    def __init__(self, journal: Path, run: int | None = None) -> None:
        self.journal = journal
        self.reader = Reader(journal, run)
        self.view = View(0, Summary())
        self._dirty = True
        self._read_at = 0.0
        self._news = anyio.Event()
        self._lock = anyio.Lock()
        self._thread = anyio.CapacityLimiter(1)

    async def run(self) -> None:
        """Listen to the kernel until cancelled."""
        with Changes(self.journal) as changes:
            while True:
                await anyio.wait_readable(changes)
                if changes.changed():
                    self._dirty = True
                    self._wake()

    def stale(self) -> None:
        """Somebody says that there is something new."""
        self._dirty, self._read_at = True, 0.0
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def fresh(self, patience: float = GAP) -> View:
        """The state as it is now, at most `GAP` old; up to `patience` old if all that is new is routine."""
        late = time.monotonic() - self._read_at > LATE
        if self._dirty or late:
            async with self._lock:
                if (self._dirty or late) and await self._due(patience):
                    self._dirty = False
                    try:
                        self.view = await anyio.to_thread.run_sync(self._read, limiter=self._thread)
                    except BaseException:
                        self._dirty = True
                        raise
                    self._read_at = time.monotonic()
        return self.view

    async def _due(self, patience: float) -> bool:
        age = time.monotonic() - self._read_at
        if age < GAP:
            return False
        return age >= patience or await anyio.to_thread.run_sync(self._more_than_routine, limiter=self._thread)

    def _more_than_routine(self) -> bool:
        return self.reader.told() != self.view.told

    async def follow(self, version: int) -> View:
        """Wait for a state later than `version`; returns without one when the run would have fallen silent, or after
        `LATE` seconds."""
        while True:
            news = self._news
            view = await self.fresh(ROUTINE)
            if view.version != version:
                return view
            if self._dirty:
                # Not yet: it is too soon after the last reading. More news means that it may be more than routine.
                with anyio.move_on_after(max(GAP, ROUTINE - (time.monotonic() - self._read_at))):
                    await news.wait()
                await anyio.sleep(max(0.0, GAP - (time.monotonic() - self._read_at)))
                continue
            quiet = time.time() - max(view.summary.moved, view.summary.at)
            left = silent_after(view.summary) - quiet
            with anyio.move_on_after(min(LATE, left + 0.1 if left > 0 else LATE)) as scope:
                await news.wait()
                await anyio.sleep(SETTLE)
            if scope.cancelled_caught:
                return await self.fresh()

    def _read(self) -> View:
        old, new = self.view, self.reader.refresh()
        governed = alive(self.journal)
        if not new and old.version and governed == old.governed:
            return old
        # A copy: the reader goes on adding to its own while pages are made from this one.
        copy = Summary.from_dict(json.loads(json.dumps(self.reader.summary.to_dict())))
        # Whatever was written since the reading is not in it.
        told = min(self.reader.told(), copy.last)
        if told == old.told and old.version and copy.run == old.summary.run:
            return replace(old, version=old.version + 1, summary=copy, governed=governed)
        return View(old.version + 1, copy, told, self.reader.incidents(40), self.reader.events(40), governed)
