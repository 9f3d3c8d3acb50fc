"""Waiting for a journal to change, in the kernel: no polling, and no more than a few milliseconds late.

The folder is watched, since SQLite writes to the file's write-ahead log and a new run may make the file anew. A change
made by another host on a network file system is not seen this way; whoever follows a journal looks at it on its own
schedule as well.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from ..errors import BadInput, need


class Changes:
    """A watch on a journal's folder. Use as a context manager. Raises `Missing` without inotify_simple."""

    def __init__(self, journal: Path) -> None:
        try:
            from inotify_simple import INotify, flags
        except ImportError as error:
            raise need("inotify_simple", "serve") from error
        self._names = (journal.name, journal.name + "-wal")
        self._inotify = INotify()
        try:
            self._inotify.add_watch(
                str(journal.parent), flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.DELETE | flags.ONLYDIR
            )
        except OSError as error:
            self._inotify.close()
            raise BadInput(f"The folder of {journal} cannot be watched: {error.strerror}.") from error

    def fileno(self) -> int:
        """Readable when something has changed in the folder."""
        return self._inotify.fileno()

    def changed(self, timeout: float | None = 0.0) -> bool:
        """Wait up to `timeout` seconds (None: for ever) for something in the folder; whether it was the journal."""
        events = self._inotify.read(timeout=None if timeout is None else int(1000 * timeout), read_delay=None)
        return any(e.name in self._names for e in events)

    def close(self) -> None:
        """Give the watch back."""
        self._inotify.close()

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
