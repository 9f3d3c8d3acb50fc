"""The newest state of a journal for everybody who asks, read once for all of them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
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

LATE = 20.0
"""Seconds after which a follower looks without having been told: for file systems that tell nothing."""


@dataclass(frozen=True)
class View:
    """What a page is made from. `version` counts readings that found something."""

    version: int
    summary: Summary
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

    async def fresh(self) -> View:
        """The state as it is now (at most `GAP` old)."""
        now = time.monotonic()
        late = now - self._read_at > LATE
        if self._dirty or late:
            async with self._lock:
                if (self._dirty or late) and time.monotonic() - self._read_at >= GAP:
                    self._dirty = False
                    try:
                        self.view = await anyio.to_thread.run_sync(self._read, limiter=self._thread)
                    except BaseException:
                        self._dirty = True
                        raise
                    self._read_at = time.monotonic()
        return self.view

    async def follow(self, version: int) -> View:
        """Wait for a state later than `version`; returns without one when the run would have fallen silent, or after
        `LATE` seconds."""
        while True:
            news = self._news
            view = await self.fresh()
            if view.version != version:
                return view
            if self._dirty:
                await anyio.sleep(GAP)
                continue
            quiet = time.time() - max(view.summary.moved, view.summary.at)
            left = silent_after(view.summary) - quiet
            with anyio.move_on_after(min(LATE, left + 0.1 if left > 0 else LATE)) as scope:
                await news.wait()
            if scope.cancelled_caught:
                return await self.fresh()

    def _read(self) -> View:
        new = self.reader.refresh()
        governed = alive(self.journal)
        if not new and self.view.version and governed == self.view.governed:
            return self.view
        # A copy: the reader goes on adding to its own while pages are made from this one.
        copy = Summary.from_dict(json.loads(json.dumps(self.reader.summary.to_dict())))
        return View(self.view.version + 1, copy, self.reader.incidents(40), self.reader.events(40), governed)
