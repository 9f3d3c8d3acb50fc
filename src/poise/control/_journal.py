"""The journal: every event in a SQLite file, written by one thread, readable by others while the run goes on.

WAL mode: readers never block the writer, and what `append` has acknowledged survives `kill -9` of the process (after a
power cut the last few events may be missing, never garbled: synchronous = NORMAL).
"""

from __future__ import annotations

import contextlib
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from ..errors import BadInput
from ..events import Event, Progress, from_dict, to_dict
from ._incident import Incident
from ._summary import Summary

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, started REAL NOT NULL);
CREATE TABLE IF NOT EXISTS summaries (run INTEGER PRIMARY KEY, last INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS incidents (id INTEGER PRIMARY KEY, run INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS told ON events (run, id) WHERE kind <> 'Progress' AND kind <> 'SnapshotKept';
"""
APPLICATION_ID = 0x706F6973  # "pois": tells our files from other people's

EVERY = 2000
"""Events between two summaries: what a reader has to add up itself when it opens the file."""

Row = tuple[float, str, str]
"""An event as it is written: when, which kind, and all of it as JSON."""


class Journal:
    """Append-only events of the runs written to one file. Use as a context manager, or call `close`.

    With every few thousand events, and at the end, the run's summary is written beside them, in the same transaction;
    closed incidents always are. `again` goes on with the file's last run instead of beginning a new one.
    """

    def __init__(self, path: str | Path, *, again: bool = False) -> None:
        self.path = Path(path)
        _make_folder(self.path)
        self._queue: queue.SimpleQueue[tuple[list[tuple[Event, Row]], Future[None]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._again = again
        started: Future[int] = Future()
        self._thread = threading.Thread(target=self._work, args=(started,), name="poise-journal", daemon=True)
        self._thread.start()
        self.run = started.result()

    def append(self, event: Event) -> None:
        """Write an event. Returns once it is durable, except for `Progress`, which may wait for the next other
        event."""
        done = self.append_all([event])
        if not isinstance(event, Progress):
            done.result()

    def append_all(self, events: list[Event]) -> Future[None]:
        """Write events together, all or none; the future is done once they are durable."""
        # Made here, so that an event that is no JSON fails where it was made and not in the writer.
        rows = [(e, (e.at, type(e).__name__, json.dumps(to_dict(e)))) for e in events]
        done: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise BadInput(f"The journal {self.path} is closed; it takes no more events.")
            self._queue.put((rows, done))
        return done

    def close(self) -> None:
        """Write what is queued and close the file. Closing twice is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _work(self, started: Future[int]) -> None:
        db = None
        try:
            db = sqlite3.connect(self.path)
            _claim(db, self.path)
            summary = _last_summary(db) if self._again else None
            with db:
                if summary is None:
                    made = db.execute("INSERT INTO runs (started) VALUES (?)", (time.time(),)).lastrowid
                    summary = Summary(run=int(made or 0))
        except (BadInput, sqlite3.Error) as error:
            if db is not None:
                db.close()
            ours = isinstance(error, BadInput)
            started.set_exception(error if ours else BadInput(f"The journal {self.path} cannot be used: {error}."))
            return
        db.isolation_level = None  # transactions are begun by hand from here
        started.set_result(summary.run)
        known: Summary | None = summary
        saved, closing = summary.last, False
        while not closing:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            closing = None in batch
            items = [item for item in batch if item is not None]
            try:
                db.execute("BEGIN IMMEDIATE")
                summary = known or _last_summary(db, summary.run) or summary
                known = None
                self._write(db, summary, [pair for rows, _ in items for pair in rows])
                if closing or summary.last - saved >= EVERY:
                    _save(db, summary)
                    saved = summary.last
                db.execute("COMMIT")
                known = summary
            except Exception as error:
                # What was added up is not what was written: the next batch adds up anew (`known` is None).
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                for _, done in items:
                    done.set_exception(error)
            else:
                for _, done in items:
                    done.set_result(None)
        # One plain file, readable in a folder that cannot be written, unless somebody reads it right now.
        with contextlib.suppress(sqlite3.Error):
            db.execute("PRAGMA busy_timeout = 100")
            db.execute("PRAGMA journal_mode = DELETE")
        db.close()

    def _write(self, db: sqlite3.Connection, summary: Summary, rows: list[tuple[Event, Row]]) -> None:
        (number,) = db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        closed: list[Incident] = []
        numbered = []
        for event, row in rows:
            number += 1
            numbered.append((number, summary.run, *row))
            closed += summary.take(number, event)
        db.executemany("INSERT INTO events (id, run, at, kind, body) VALUES (?, ?, ?, ?, ?)", numbered)
        if closed:
            made = [(i.id, summary.run, json.dumps(i.to_dict())) for i in closed]
            db.executemany("INSERT OR REPLACE INTO incidents (id, run, body) VALUES (?, ?, ?)", made)


def make_journal(path: Path) -> None:
    """Make an empty journal where there is none, so that it can be followed before its run begins. Raises `BadInput`
    for a file that is something else."""
    _make_folder(path)
    try:
        db = sqlite3.connect(path)
        try:
            _claim(db, path)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise BadInput(f"The journal {path} cannot be used: {error}.") from error


def _make_folder(path: Path) -> None:
    if path.is_dir():
        raise BadInput(f"The journal {path} is a directory; accepted is a file path.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"The journal {path} cannot be made: {error.strerror}.") from error


def _claim(db: sqlite3.Connection, path: Path) -> None:
    # Somebody else's database must not be changed before it is refused.
    _check(db, path, fresh_ok=True)
    # Our name goes in first: a process that dies here leaves a file that the next one can use.
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.executescript(_SCHEMA)


def _save(db: sqlite3.Connection, summary: Summary) -> None:
    body = json.dumps(summary.to_dict())
    db.execute("INSERT OR REPLACE INTO summaries (run, last, body) VALUES (?, ?, ?)", (summary.run, summary.last, body))


def fold(db: sqlite3.Connection, summary: Summary) -> Iterator[tuple[Summary, list[Incident]]]:
    """Go on from `summary` with the events behind it; a later run begins a summary of its own. Yields the summary
    after each event, with the incidents that it closed. Kinds that this version does not know are skipped."""
    for number, run, body in db.execute("SELECT id, run, body FROM events WHERE id > ? ORDER BY id", (summary.last,)):
        if run < summary.run:
            continue
        if run > summary.run:
            summary = Summary(run=run)
        try:
            event = from_dict(json.loads(body))
        except (AttributeError, KeyError, TypeError, ValueError):
            summary.last = number
            continue
        yield summary, summary.take(number, event)


def saved_summary(db: sqlite3.Connection, run: int | None = None) -> Summary | None:
    """The newest saved summary, of one run or of all; None if there is none that this version can read."""
    try:
        rows = db.execute(
            "SELECT body FROM summaries WHERE run = coalesce(?, run) ORDER BY run DESC LIMIT 1", (run,)
        ).fetchall()
        return Summary.from_dict(json.loads(rows[0][0])) if rows else None
    except (sqlite3.OperationalError, KeyError, TypeError, ValueError):
        return None  # a file from before there were summaries, or from another version


def _last_summary(db: sqlite3.Connection, run: int | None = None) -> Summary | None:
    """The last run as its events leave it, or None in an empty file."""
    (newest,) = db.execute("SELECT max(id) FROM runs").fetchone()
    if newest is None:
        return None
    summary = saved_summary(db) or Summary()
    for later, _ in fold(db, summary):
        summary = later
    wanted = newest if run is None else run
    return summary if summary.run == wanted else Summary(run=wanted)


def _check(db: sqlite3.Connection, path: Path, *, fresh_ok: bool) -> None:
    try:
        mine = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise BadInput(f"{path} is not a poise journal: {error}.") from error
    if not mine and not (fresh_ok and tables == 0):
        raise BadInput(f"{path} is not a poise journal; accepted is a file that a run wrote.")


def read_journal(path: str | Path, run: int | None = None) -> Iterator[tuple[int, Event]]:
    """`(run, event)` in order of writing, opened read-only: of one run, or of all. Kinds that this version does not
    know are skipped. Raises `BadInput` for a file that is not a journal."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"There is no journal {path}.")
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        _check(db, path, fresh_ok=False)
        for number, body in db.execute("SELECT run, body FROM events ORDER BY id"):
            if run is None or number == run:
                try:
                    event = from_dict(json.loads(body))
                except (AttributeError, KeyError, TypeError, ValueError):
                    continue
                yield number, event
    except sqlite3.DatabaseError as error:
        raise BadInput(f"{path} cannot be read as a journal: {error}.") from error
    finally:
        db.close()
