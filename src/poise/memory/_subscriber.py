"""The reader's side of a live stream: frames where they lie, and notices of what the producer does wrong."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, monotonic_ns
from types import TracebackType
from typing import Any, Literal

import jax
import numpy as np

from ..errors import BadInput
from . import _protocol as p
from ._layout import Layout
from ._lease import Lease, lease_pointer
from ._wait import fence, wait

SLICE = 0.02
"""Seconds between two looks at whether the producer lives, while nothing is published."""

Kind = Literal["stalled", "resumed", "died", "restarted", "closed", "torn"]


@dataclass(frozen=True)
class Notice:
    """Something about the producer, once, with the newest frame that it had published."""

    kind: Kind
    sentence: str
    sequence: int


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame where it lies. What `lease` shows is this frame only while `intact()`: look after the work is done."""

    sequence: int
    time: float
    published_ns: int
    lease: Lease
    _words: Any = field(repr=False)
    _at: int = field(repr=False)

    def intact(self) -> bool:
        """Whether the producer has left the frame alone until now, so that what was computed from it holds."""
        fence()
        return int(self._words[self._at]) == 2 * self.sequence

    def age(self) -> float:
        """Seconds since it was published."""
        return (monotonic_ns() - self.published_ns) / 1e9

    def reply(self, name: str, values: Any) -> None:
        """Write one field of all records in place and tell the producer. Raises `BadInput` unless it agreed."""
        self.lease.put(name, values)
        fence()
        self._words[p.REPLIED // 8] = self.sequence


class Subscriber:
    """Follows the stream at `name`, from its newest frame on. Use as a context manager, or call `close`.

        with Subscriber("waves") as frames:
            for frame in frames:                     # ends when the producer closes the stream or dies
                result = step(frame.lease.array)     # (rows * columns, 8) uint32, no byte moved
                if frames.accept(frame): ...         # False: it was overwritten meanwhile; throw the result away

    `next` gives notices too. `lost`: frames that were published and dropped before they were read; `torn`: frames begun
    and never finished, or overwritten while they were worked on. `patience`: seconds without a frame that are called a
    stall; default: a second or five periods. `layout`: of records that are neither cell.

    Raises `BadInput` if there is no stream at `name` or its header is damaged.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        device: jax.Device | None = None,
        layout: Layout | None = None,
        patience: float | None = None,
    ) -> None:
        self.path, self._device, self._layout, self._patience = p.path_of(name), device, layout, patience
        self.lost = self.torn = self.restarts = 0
        self._fd, self._gone, self._stalled = -1, False, False
        self._attach()
        # What was published before anybody looked is not lost; the newest of it is the first frame.
        self._last = max(0, self._word(p.HEAD) - 1)

    @property
    def geometry(self) -> p.Geometry:
        """What a frame is."""
        return self.head.geometry

    @property
    def dropped(self) -> int:
        """Frames that the producer left out since our answer to the one in their slot was not there yet."""
        return self._word(p.DROPPED)

    def next(self, timeout: float | None = None) -> Frame | Notice | None:
        """The next frame or notice; None after `timeout` seconds, or when the stream has ended."""
        deadline = None if timeout is None else monotonic() + timeout
        while not self._gone:
            seen = int(self._words[p.WAKE // 8]) & 0xFFFFFFFF
            if self._word(p.HEAD) > self._last:
                if self._stalled:
                    self._stalled, quiet = False, monotonic() - self._since
                    return Notice("resumed", f"The producer publishes again after {quiet:.1f} s.", self._last)
                found = self._take()
                if found is not None:
                    return found
                continue
            ended = self._ended()
            if ended is not None:
                return ended
            quiet = monotonic() - self._since
            if quiet > self.patience and not self._stalled:
                self._stalled = True
                return Notice("stalled", f"The producer lives but has published nothing for {quiet:.1f} s.", self._last)
            if deadline is not None and monotonic() >= deadline:
                return None
            left = SLICE if deadline is None else min(SLICE, max(1e-4, deadline - monotonic()))
            wait(self._address + p.WAKE, seen, left)
        return None

    def from_newest(self, already: int | None = None) -> None:
        """Begin with the newest frame there is now; frames up to `already` are no part of this reading, others are lost
        if they are gone. Default: all but the newest."""
        self._last = max(0, self._word(p.HEAD) - 1) if already is None else already

    def accept(self, frame: Frame) -> bool:
        """Say that the work on a frame is done. False if the frame was overwritten meanwhile (counted as torn)."""
        whole = frame.intact()
        self.torn += not whole
        return whole

    def returned(self, timeout: float) -> Notice | None:
        """After a death: wait for a new producer at the same name, and follow it."""
        deadline = monotonic() + timeout
        while monotonic() < deadline:
            if self._successor():
                return Notice("restarted", f"A new producer (process {self.head.pid}) publishes at {self.path}.", 0)
            wait(self._address + p.WAKE, int(self._words[p.WAKE // 8]) & 0xFFFFFFFF, SLICE)
        return None

    @property
    def patience(self) -> float:
        """Seconds without a frame that are called a stall."""
        if self._patience is not None:
            return self._patience
        return max(1.0, 5 / self.geometry.rate) if self.geometry.rate > 0 else 1.0

    def close(self) -> None:
        """Stop following. Leases of frames keep what they show mapped."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._gone = -1, True
        self._leases.clear()

    def __iter__(self) -> Iterator[Frame]:
        while not self._gone:
            found = self.next()
            if isinstance(found, Frame):
                yield found
            elif found is None or found.kind in ("closed", "died"):
                return

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _word(self, at: int) -> int:
        return int(self._words[at // 8])

    def _attach(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BadInput(
                f"There is no stream {self.path}; accepted is the name that a producer publishes at."
            ) from None
        except PermissionError:
            fd = _readable(self.path)
        except OSError as error:
            raise BadInput(f"The stream {self.path} cannot be opened: {error.strerror}.") from error
        try:
            size = os.fstat(fd).st_size
            self.head = p.decode(os.pread(fd, p.HEADER_BYTES, 0), size, self._layout, str(self.path))
            may_write = self.geometry.write_back
            # A producer that did not agree cannot be written to, not even by mistake: its pages are read-only here.
            self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if may_write else 0))
            p.lock_byte(fd, 1, exclusive=False)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError | ValueError) and not isinstance(error, BadInput):
                raise BadInput(f"The stream {self.path} cannot be followed: {error}.") from error
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._inode = fd, os.fstat(fd).st_ino
        self._words: Any = np.frombuffer(self._map, np.uint64, p.HEADER_BYTES // 8)
        self._address = self._words.ctypes.data
        self._leases: dict[int, Lease] = {}
        self._since, self._stalled, self._last = monotonic(), False, 0

    def _take(self) -> Frame | Notice | None:
        head, g = self._word(p.HEAD), self.geometry
        # In order while the ring has room to spare; else to the newest, and what lies between is dropped.
        k = self._last + 1 if head - self._last <= max(1, g.slots - 2) else head
        self.lost += k - self._last - 1
        self._last, self._since = k, monotonic()
        at = (p.SLOTS + (k - 1) % g.slots * p.SLOT_BYTES) // 8
        found = int(self._words[at])
        if found > 2 * k:  # overwritten before it was looked at
            self.lost += 1
            return None
        if found < 2 * k:
            self.torn += 1
            return Notice("torn", f"Frame {k} was published but is not whole; it is not used.", k)
        time = float(self._words[at + 2 : at + 3].view(np.float64)[0])
        frame = Frame(k, time, int(self._words[at + 1]), self._lease((k - 1) % g.slots), self._words, at)
        if not frame.intact():
            self.lost += 1
            return None
        return frame

    def _lease(self, slot: int) -> Lease:
        """A slot's lease is made once: the memory is the same for every frame that lies there."""
        if slot not in self._leases:
            g = self.geometry
            at = self._address + p.HEADER_BYTES + slot * self.head.slot_bytes
            device = self._device if self._device is not None and self._device.platform == "cpu" else None
            self._leases[slot] = lease_pointer(
                at, g.count, g.layout, owner=self._map, device=device, readonly=not g.write_back, write=g.write_back
            )
        return self._leases[slot]

    def _ended(self) -> Notice | None:
        closed = self._word(p.STATE // 8 * 8) >> 32 == p.CLOSED
        if not closed and p.byte_held(self._fd, 0):
            return None
        if self._word(p.HEAD) > self._last:  # published between our looks: first that
            return None
        self._gone = True
        if closed or self._word(p.STATE // 8 * 8) >> 32 == p.CLOSED:
            return Notice("closed", f"The producer closed the stream after {self._last} frames.", self._last)
        k = self._last + 1
        writing = int(self._words[(p.SLOTS + (k - 1) % self.geometry.slots * p.SLOT_BYTES) // 8]) == 2 * k - 1
        self.torn += writing
        doing = f"while it wrote frame {k}, which is torn" if writing else f"after frame {self._last}"
        return Notice("died", f"The producer (process {self.head.pid}) died {doing}.", self._last)

    def _successor(self) -> bool:
        try:
            if os.stat(self.path).st_ino == self._inode:
                return False
            self._attach()
        except (OSError, BadInput):
            return False
        self._gone, self.restarts = False, self.restarts + 1
        return True


def _readable(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"The stream {path} cannot be opened: {error.strerror}.") from error
