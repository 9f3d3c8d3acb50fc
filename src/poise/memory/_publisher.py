"""The producer's side of a live stream in Python; `poise/stream.hpp` is the same in C++."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from pathlib import Path
from time import monotonic_ns, time_ns
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import BadInput
from . import _protocol as p
from ._wait import fence, wake


class Publisher:
    """Publishes frames of records at a name. Use as a context manager, or call `close`.

        with Publisher("waves", Geometry(rows=32, columns=32, dt=1e-3)) as out:
            records = out.begin()            # (rows * columns,) structured, in shared memory; fill it
            out.publish(time=0.0)

    Raises `BadInput` if another producer lives at that name, for a geometry that cannot be, and if memory is short.
    """

    def __init__(self, name: str | Path, geometry: p.Geometry) -> None:
        self.path, self.geometry = p.path_of(name), geometry
        page = p.encode(geometry, time_ns(), os.getpid())
        if _running(self.path):
            raise BadInput(f"Another producer publishes at {self.path}; choose another name.")
        size = p.HEADER_BYTES + geometry.slots * geometry.slot_bytes
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.{monotonic_ns()}")
        try:
            self._fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(self._fd, 0, size)
                p.lock_byte(self._fd, 0, exclusive=True)
                self._map = mmap.mmap(self._fd, size)
                self._map[: p.HEADER_BYTES] = page
                os.rename(fresh, self.path)
            except BaseException:
                os.close(self._fd)
                fresh.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise BadInput(f"The stream {self.path} cannot be made: {error.strerror}.") from error
        self._words: Any = np.frombuffer(self._map, np.uint64, p.HEADER_BYTES // 8)
        self._address = self._words.ctypes.data
        self._head = 0

    @property
    def dropped(self) -> int:
        """Frames that were left out, since a reader that had agreed to answer in their slot had not yet."""
        return int(self._words[p.DROPPED // 8])

    def begin(self) -> np.ndarray | None:
        """Where the next frame lies; from now until `publish` no reader takes that slot for whole. None if a reader is
        still writing its answer there: then this frame must be left out."""
        g, k = self.geometry, self._head + 1
        waiting = g.write_back and k > g.slots and int(self._words[p.REPLIED // 8]) < k - g.slots
        if waiting and self._has_reader():
            self._words[p.DROPPED // 8] += np.uint64(1)
            return None
        self._words[self._slot(k)] = 2 * k - 1
        fence()
        at = p.HEADER_BYTES + (k - 1) % g.slots * g.slot_bytes
        return np.frombuffer(self._map, g.layout.dtype, g.count, at)

    def publish(self, time: float = 0.0) -> None:
        """The frame that `begin` gave is whole; `time` is the model's."""
        k = self._head + 1
        at = self._slot(k)
        self._words[at + 1] = monotonic_ns()
        self._words[at + 2 : at + 3].view(np.float64)[0] = time
        fence()
        self._words[at] = 2 * k
        self._words[p.HEAD // 8] = self._head = k
        self._signal()

    def close(self) -> None:
        """No more frames will come; readers end well, and keep what they have mapped."""
        if self._fd < 0:
            return
        self._map[p.STATE : p.STATE + 4] = struct.pack("<I", p.CLOSED)
        self._signal()
        with contextlib.suppress(OSError):  # a successor may have taken the name
            if os.stat(self.path).st_ino == os.fstat(self._fd).st_ino:
                os.unlink(self.path)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _slot(self, k: int) -> int:
        return (p.SLOTS + (k - 1) % self.geometry.slots * p.SLOT_BYTES) // 8

    def _signal(self) -> None:
        word = self._words[p.WAKE // 8 : p.WAKE // 8 + 1].view(np.uint32)
        with np.errstate(over="ignore"):
            word[0] += np.uint32(1)
        fence()
        wake(self._address + p.WAKE)

    def _has_reader(self) -> bool:
        found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, p._flock(fcntl.F_WRLCK, 1))
        return struct.unpack_from("h", found)[0] != fcntl.F_UNLCK


def _running(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return p.byte_held(fd, 0)
    finally:
        os.close(fd)
