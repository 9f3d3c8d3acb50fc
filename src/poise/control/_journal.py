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

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, started REAL NOT NULL);
"""
APPLICATION_ID = 0x706F6973  # "pois": tells our files from other people's

Row = tuple[float, str, str]
"""An event as it is written: when, which kind, and all of it as JSON."""


class Journal:
    """Append-only events of the runs written to one file. Use as a context manager, or call `close`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise BadInput(f"The journal {self.path} is a directory; accepted is a file path.")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"The journal {self.path} cannot be made: {error.strerror}.") from error
        self._queue: queue.SimpleQueue[tuple[Row, Future[None]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        started: Future[int] = Future()
        self._thread = threading.Thread(target=self._work, args=(started,), name="poise-journal", daemon=True)
        self._thread.start()
        self.run = started.result()

    def append(self, event: Event) -> None:
        """Write an event. Returns once it is durable, except for `Progress`, which may wait for the next other
        event."""
        # Made here, so that an event that is no JSON fails where it was made and not in the writer.
        row = (event.at, type(event).__name__, json.dumps(to_dict(event)))
        done: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise BadInput(f"The journal {self.path} is closed; it takes no more events.")
            self._queue.put((row, done))
        if not isinstance(event, Progress):
            done.result()

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
            # Somebody else's database must not be changed before it is refused.
            _check(db, self.path, fresh_ok=True)
            # Our name goes in first: a process that dies here leaves a file that the next one can use.
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(_SCHEMA)
            with db:
                run = db.execute("INSERT INTO runs (started) VALUES (?)", (time.time(),)).lastrowid
        except (BadInput, sqlite3.Error) as error:
            if db is not None:
                db.close()
            known = isinstance(error, BadInput)
            started.set_exception(error if known else BadInput(f"The journal {self.path} cannot be used: {error}."))
            return
        started.set_result(int(run or 0))
        closing = False
        while not closing:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            closing = None in batch
            events = [item for item in batch if item is not None]
            try:
                with db:
                    db.executemany(
                        "INSERT INTO events (run, at, kind, body) VALUES (?, ?, ?, ?)",
                        [(run, *row) for row, _ in events],
                    )
            except sqlite3.Error as error:
                for _, done in events:
                    done.set_exception(error)
            else:
                for _, done in events:
                    done.set_result(None)
        # One plain file, readable in a folder that cannot be written, unless somebody reads it right now.
        with contextlib.suppress(sqlite3.Error):
            db.execute("PRAGMA busy_timeout = 100")
            db.execute("PRAGMA journal_mode = DELETE")
        db.close()


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
