"""The file of a live stream: its header as `poise/stream.hpp` lays it out, and the check that both sides make."""

from __future__ import annotations

import fcntl
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import BadInput
from ._layout import PIM, PINN, Layout

MAGIC = b"POISEREC"
VERSION, HEADER_BYTES, MAX_SLOTS = 1, 4096, 60
RUNNING, CLOSED = 1, 2
WRITE_BACK = 1
HEAD, WAKE, STATE, DROPPED, REPLIED = 128, 136, 140, 144, 192
"""Where the words that change lie in the header, in bytes."""
SLOTS, SLOT_BYTES = 256, 64
_FIXED = struct.Struct("<8sIIQIIQQQdddQIIQ")
LAYOUTS = {1: PINN, 2: PIM}


@dataclass(frozen=True)
class Geometry:
    """What a frame is: `rows` x `columns` records of `layout`, `dx` between columns and `dy` between rows, `dt` of the
    model's time between frames, `rate` frames per second (0: irregular), in a ring of `slots` frames (2: plain double
    buffering). `write_back`: the producer agrees that the reader writes into its frames."""

    rows: int = 1
    columns: int = 1
    dx: float = 1.0
    dy: float = 1.0
    dt: float = 0.0
    rate: float = 0.0
    slots: int = 4
    write_back: bool = False
    layout: Layout = PINN

    @property
    def count(self) -> int:
        """Records in a frame."""
        return self.rows * self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of a frame's records."""
        return self.count * self.layout.dtype.itemsize

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next: whole pages."""
        return -(-self.nbytes // 4096) * 4096


@dataclass(frozen=True)
class Head:
    """The part of a header that does not change while a producer lives."""

    geometry: Geometry
    generation: int
    slot_bytes: int
    pid: int


def path_of(name: str | Path) -> Path:
    """Where a stream lies: a name is a file in /dev/shm, anything with a slash is a path."""
    text = str(name)
    if not text or "\0" in text:
        raise BadInput(f"A stream's name must be a word or a path, not {text!r}.")
    return Path(text) if "/" in text else Path("/dev/shm") / f"poise.{text}"


def encode(geometry: Geometry, generation: int, pid: int) -> bytes:
    """The first page of a new stream. Raises `BadInput` for a geometry that the check refuses."""
    g = geometry
    known = next((number for number, layout in LAYOUTS.items() if layout == g.layout), 0)
    period = int(1e9 / g.rate) if g.rate > 0 else 0
    try:
        fixed = _FIXED.pack(
            MAGIC, VERSION, HEADER_BYTES, generation, g.layout.dtype.itemsize, g.slots, g.rows, g.columns, g.slot_bytes,
            g.dx, g.dy, g.dt, period, WRITE_BACK if g.write_back else 0, known, pid,
        )  # fmt: skip
    except struct.error as error:
        raise BadInput(f"The stream cannot be made: {error}.") from None
    page = bytearray(HEADER_BYTES)
    page[: len(fixed)] = fixed
    struct.pack_into("<I", page, STATE, RUNNING)
    decode(bytes(page), HEADER_BYTES + g.slots * g.slot_bytes)
    return bytes(page)


def decode(page: bytes, size: int, layout: Layout | None = None, name: str = "This") -> Head:
    """What a file of `size` bytes that begins with `page` says. `layout`: of records that are neither cell.

    Raises `BadInput` in the words of the C++ side's `header_fault`.
    """
    fault = _fault(page, size)
    if fault:
        raise BadInput(f"{name} is no stream of records that can be read: {fault}.")
    _, _, _, generation, record, slots, rows, columns, step, dx, dy, dt, period, flags, known, pid = _FIXED.unpack_from(
        page
    )
    own = layout or Layout(
        "record", np.dtype({"names": [f"word{i}" for i in range(record // 4)], "formats": ["<u4"] * (record // 4)})
    )
    made = LAYOUTS.get(known, own)
    if layout is not None and (layout.dtype.itemsize != record or (known and made != layout)):
        raise BadInput(
            f"The stream holds {made.name}s of {record} bytes, not {layout.name}s of {layout.dtype.itemsize}."
        )
    rate = 1e9 / period if period else 0.0
    geometry = Geometry(rows, columns, dx, dy, dt, rate, slots, bool(flags & WRITE_BACK), made)
    return Head(geometry, generation, step, pid)


def _fault(page: bytes, size: int) -> str:
    if size < HEADER_BYTES or len(page) < HEADER_BYTES:
        return "the file is shorter than a header"
    magic, version, header, _, record, slots, rows, columns, step, dx, dy, dt, _, flags, known, _ = _FIXED.unpack_from(
        page
    )
    (state,) = struct.unpack_from("<I", page, STATE)
    faults = (
        (magic != MAGIC, "it is not a stream of records"),
        (version != VERSION, "it is of another version"),
        (header != HEADER_BYTES, "its header has another size"),
        (not 2 <= slots <= MAX_SLOTS, "it must have 2 to 60 slots"),
        (record == 0 or record % 4 or record > 4096, "records must have 4 to 4096 bytes, a multiple of 4"),
        (known > 2, "its layout is unknown"),
        (known and record != 32, "cells must have 32 bytes"),
        (not 1 <= rows * columns <= 1 << 40, "it must have at least one record and less than 2^40"),
        (step % 64 or step < rows * columns * record, "its slots do not hold a frame, 64-byte aligned"),
        (step * slots > size - HEADER_BYTES, "the file is shorter than its slots"),
        (
            not (all(map(math.isfinite, (dx, dy, dt))) and dx > 0 and dy > 0 and dt >= 0),
            "its spacings must be positive and finite",
        ),
        (flags > WRITE_BACK, "its flags are unknown"),
        (state not in (RUNNING, CLOSED), "its state is unknown"),
    )
    return next((said for wrong, said in faults if wrong), "")


def lock_byte(fd: int, byte: int, *, exclusive: bool) -> None:
    """Hold a lock on a byte until the file is closed or the process dies, whatever it dies of."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, byte))


def byte_held(fd: int, byte: int) -> bool:
    """Whether somebody else holds an exclusive lock on a byte; takes none itself."""
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_RDLCK, byte))
    return struct.unpack_from("h", found)[0] != fcntl.F_UNLCK


def _flock(kind: int, byte: int) -> bytes:
    # struct flock on 64-bit Linux: short type, short whence, 4 bytes pad, start, length, pid, 4 bytes pad.
    return struct.pack("hhqqi4x", kind, 0, byte, 1, 0)
