"""A journal, opened read-only and followed: what another process may know of a run while it goes on."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ._incident import Incident
from ._journal import EVERY, _check, fold, saved_summary
from ._summary import Summary

RECENT = 200
"""Closed incidents that are held for a file whose writer kept none."""


class Reader:
    """Follows the newest run of a journal, or one run of it.

    `refresh` adds up what is new. The file is open only while it is read, so that its writer can close it cleanly.
    Raises `BadInput` for a file that is not a journal.
    """

    def __init__(self, path: str | Path, run: int | None = None) -> None:
        self.path, self.run = Path(path), run
        self.summary = Summary()
        self._recent: list[Incident] = []
        self.refresh()

    def refresh(self) -> bool:
        """Read on; whether there was anything."""
        with self._open() as db:
            (newest,) = db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
            s = self.summary
            if newest < s.last:  # another file has taken the name
                s, self._recent = Summary(), []
            if not s.last or newest - s.last > 2 * EVERY:
                # Whoever has not looked for a while need not add up what the writer has added up already.
                saved = saved_summary(db, self.run)
                s = saved if saved is not None and saved.last > s.last else s
            before = s.last, self.summary.last
            for later, closed in fold(db, s):
                if self.run is not None and later.run > self.run:
                    break
                s = later
                self._recent = [*self._recent, *closed][-RECENT:] if closed else self._recent
            if self.run is not None and s.run != self.run:
                raise BadInput(f"{self.path} holds no run {self.run}; the newest is {s.run}.")
            self.summary = s
            return (s.last, s.last) != before

    def told(self) -> int:
        """The number of the newest event that is more than routine; cheap."""
        with self._open() as db:
            ask = "SELECT max(id) FROM events WHERE run >= ? AND kind <> 'Progress' AND kind <> 'SnapshotKept'"
            (newest,) = db.execute(ask, (self.summary.run,)).fetchone()
        return newest or 0

    def runs(self) -> list[dict[str, Any]]:
        """Every run of the file: its number and when it began, newest first."""
        with self._open() as db:
            rows = db.execute("SELECT id, started FROM runs ORDER BY id DESC LIMIT 100").fetchall()
        return [{"run": number, "started": at} for number, at in rows]

    def incidents(self, limit: int = 50, before: int | None = None) -> list[Incident]:
        """Incidents of the run, newest first, open ones included."""
        end = before if before is not None else 2**62
        found = {i.id: i for i in (*self._recent, *self.summary.open) if i.id < end}
        with self._open() as db, contextlib.suppress(sqlite3.OperationalError):  # an older file has no such table
            ask = "SELECT body FROM incidents WHERE run = ? AND id < ? ORDER BY id DESC LIMIT ?"
            for (body,) in db.execute(ask, (self.summary.run, end, limit)):
                incident = Incident.from_dict(json.loads(body))
                found.setdefault(incident.id, incident)
        return sorted(found.values(), key=lambda i: -i.id)[:limit]

    def incident(self, number: int) -> Incident | None:
        """The incident with this number."""
        return next((i for i in self.incidents(1, number + 1) if i.id == number), None)

    def events(self, limit: int = 50, *, before: int | None = None, after: int | None = None) -> list[dict[str, Any]]:
        """Events of the run as they were written, with their numbers: newest first, or oldest first behind `after`.
        Of every kind, also those that this version does not know, but for the routine ones (`Progress`,
        `SnapshotKept`), of which there are too many to be read."""
        low, high = after if after is not None else 0, before if before is not None else 2**62
        order = "ASC" if after is not None else "DESC"
        where = "run = ? AND id > ? AND id < ? AND kind <> 'Progress' AND kind <> 'SnapshotKept'"
        ask = f"SELECT id, at, kind, body FROM events WHERE {where} ORDER BY id {order} LIMIT ?"
        with self._open() as db:
            rows = db.execute(ask, (self.summary.run, low, high, limit)).fetchall()
        return [_told(*row) for row in rows]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise BadInput(f"There is no journal {self.path}.")
        db = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            _check(db, self.path, fresh_ok=False)
            db.execute("PRAGMA query_only = 1")
            yield db
        except sqlite3.DatabaseError as error:
            raise BadInput(f"{self.path} cannot be read as a journal: {error}.") from error
        finally:
            db.close()


def _told(number: int, at: float, kind: str, body: str) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError:
        fields = {}
    fields = fields if isinstance(fields, dict) else {}
    return {
        "id": number,
        "at": at,
        "kind": kind,
        "fields": {k: v for k, v in fields.items() if k not in ("event", "at")},
    }
