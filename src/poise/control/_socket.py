"""The governor's door for other processes: a Unix socket beside the journal, one JSON object per line.

    {"report": {"source": "agent:7", "seq": 1, "what": "xid", "device_id": 3, "number": 79}}
    {"outcome": "accepted", "why": "", "expected": 2}

The answer comes once the report is durable. Only processes of the same user (or root) are heard.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..events import Reported

LINE = 64 * 1024
"""Longest line in bytes."""

_LIMITS = {"source": 200, "what": 64, "detail": 2000, "who": 200, "why": 2000}


def socket_path(journal: Path) -> Path:
    """Where the governor of a journal listens."""
    return journal.with_name(journal.name + ".sock")


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """An address for `path` that fits a Unix socket's 107 bytes however long the path is: by way of its folder's
    descriptor."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BadInput(f"The folder of {path} cannot be opened: {error.strerror}.") from error
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bind(journal: Path) -> socket.socket:
    """A listening socket beside the journal. Raises `BadInput` if somebody listens there already."""
    path = socket_path(journal)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with address(path) as where:
            try:
                made.bind(where)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if alive(journal):
                    raise BadInput(f"Another process governs {journal}; one at a time.") from None
                os.unlink(where)  # left by a process that was killed
                made.bind(where)
            os.chmod(where, 0o600)
        made.listen(512)
    except OSError as error:
        made.close()
        raise BadInput(f"The socket {path} cannot be made: {error.strerror}.") from error
    except BaseException:
        made.close()
        raise
    return made


def same_user(peer: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user or to root."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", raw)
    return uid in (0, os.getuid())


def alive(journal: Path) -> bool:
    """Whether somebody listens."""
    try:
        _connect(journal, 1.0).close()
    except OSError:
        return False
    return True


def _connect(journal: Path, timeout: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout)
    try:
        with address(socket_path(journal)) as where:
            made.connect(where)
    except OSError:
        made.close()
        raise
    return made


def parse(line: bytes) -> Reported | str:
    """The report in a line, or what is wrong with it."""
    try:
        message = json.loads(line)
    except ValueError:
        return "the line is no JSON"
    data = message.get("report") if isinstance(message, dict) else None
    if not isinstance(data, dict):
        return "accepted is an object with one key, report"
    known = {f.name: str(f.type) for f in fields(Reported)}
    for name, value in data.items():
        if name not in known:
            return f"a report has no field {name!r}; accepted are {', '.join(known)}"
        want = {"str": str, "int": int, "float": (int, float)}[known[name]]
        if not isinstance(value, want) or isinstance(value, bool):
            return f"{name} must be {known[name]}"
        if isinstance(value, str) and len(value) > _LIMITS[name]:
            return f"{name} is longer than {_LIMITS[name]} characters"
        if isinstance(value, int | float) and not -(2**53) < value < 2**53:
            return f"{name} is out of range"
    if not data.get("source") or not data.get("what") or not isinstance(data.get("seq"), int) or data["seq"] < 1:
        return "a report needs source, seq (1 or more) and what"
    return Reported(**data)


class Reporter:
    """A source in another process: reports to the governor of `journal`, each one once.

    A report that was not answered (the governor was restarted) is sent again when `report` is called with
    `again=True`, under the same number. Not thread-safe.
    """

    def __init__(self, journal: str | Path, source: str, timeout: float = 10.0) -> None:
        self.journal, self.source, self.timeout = Path(journal), source, timeout
        self.seq = 0
        self._file: Any = None

    def report(self, what: str, *, again: bool = False, **more: Any) -> dict[str, Any]:
        """The governor's answer: `outcome`, `why`, `expected`. Raises OSError if nobody answers."""
        if not again:
            self.seq += 1
        report = Reported(self.source, self.seq, what, **more)
        return self.send(json.dumps({"report": asdict(report)}).encode())

    def send(self, line: bytes) -> dict[str, Any]:
        """Send one line and wait for its answer."""
        try:
            if self._file is None:
                peer = _connect(self.journal, self.timeout)
                self._file = peer.makefile("rwb")
                peer.close()  # the file keeps it open
            self._file.write(line + b"\n")
            self._file.flush()
            said = self._file.readline(LINE)
        except OSError:
            self.close()
            raise
        if not said.endswith(b"\n"):
            self.close()
            raise ConnectionResetError("the governor hung up")
        return json.loads(said)

    def close(self) -> None:
        """Hang up."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
