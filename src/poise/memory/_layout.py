"""Record layouts: a row of 4-byte words on a device, its fields named; the same in numpy, in JAX and in C."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import UInt32

from ..errors import BadInput

ALIGN = 64
"""Bytes to which a host buffer must be aligned so that JAX uses it where it lies."""


@dataclass(frozen=True)
class Layout:
    """A record's name and its structured dtype: scalar fields of 4 bytes, at offsets that are multiples of 4.

    Raises `BadInput` for a dtype that a row of 4-byte words cannot hold (JAX has no strided arrays: it sees records as
    rows of uint32, and takes a float32 field by its bits).
    """

    name: str
    dtype: np.dtype

    def __post_init__(self) -> None:
        dtype = self.dtype
        if not isinstance(dtype, np.dtype) or not dtype.fields:
            raise BadInput(f"A layout needs a structured numpy dtype with named fields, not {dtype!r}.")
        if dtype.itemsize % 4 or dtype.itemsize > 4096:
            raise BadInput(f"A record must have a multiple of 4 bytes, at most 4096, not {dtype.itemsize}.")
        for name, field in dtype.fields.items():
            kind, offset = field[0], field[1]
            if kind.shape or kind.itemsize != 4 or kind.kind not in "fiu" or not kind.isnative or offset % 4:
                raise BadInput(
                    f"The field {name!r} is {kind} at byte {offset}; accepted are float32, int32 and uint32 scalars of "
                    "this machine's byte order at multiples of 4."
                )

    @property
    def words(self) -> int:
        """4-byte words in a record; 8 for the two cells."""
        return self.dtype.itemsize // 4

    def word(self, field: str) -> int:
        """The number of a field's word in the row."""
        return self._field(field)[1] // 4

    def kind(self, field: str) -> np.dtype:
        """A field's dtype."""
        return self._field(field)[0]

    def channel(self, rows: UInt32[Array, "n words"], field: str) -> Array:
        """One field of all rows, `(n,)`, gathered (inside jit this fuses with what uses it)."""
        column = rows[:, self.word(field)]
        kind = self.kind(field)
        return column if kind == np.uint32 else lax.bitcast_convert_type(column, jnp.dtype(kind))

    def put(self, rows: UInt32[Array, "n words"], field: str, values: Array) -> UInt32[Array, "n words"]:
        """The rows with one field replaced; in place if the rows are donated."""
        words = lax.bitcast_convert_type(jnp.asarray(values, jnp.dtype(self.kind(field))), jnp.uint32)
        return rows.at[:, self.word(field)].set(words)

    def _field(self, field: str) -> Any:
        fields: Any = self.dtype.fields
        if field not in fields:
            raise BadInput(f"{self.name} has no field {field!r}; accepted are {', '.join(fields)}.")
        return fields[field]


def _cell(name: str, floats: str, integers: str, size: int = 32) -> Layout:
    names = (floats + " " + integers).split()
    formats = ["<f4"] * len(floats.split()) + ["<u4"] * len(integers.split())
    offsets = [4 * i for i in range(len(names))]
    return Layout(name, np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size}))


PINN = _cell("PINN cell", "w u v gain", "status id")
"""`w, u, v, gain` float32, `status, id` uint32, 8 bytes free: a cell of a field with two sensors."""

PIM = _cell("PIM cell", "w m v lr_mask wd_mask", "status id pad")
"""`w, m, v, lr_mask, wd_mask` float32, `status, id, pad` uint32: a parameter with its optimizer's state."""


@cache
def layout_of(dtype: np.dtype) -> Layout:
    """The layout of a structured dtype: one of the two cells, or the user's own."""
    return next((known for known in (PINN, PIM) if known.dtype == dtype), None) or Layout("record", dtype)


def empty(count: int, layout: Layout = PINN) -> np.ndarray:
    """Host memory for `count` records, zeroed and aligned so that JAX uses it where it lies."""
    if count < 0:
        raise BadInput(f"The number of records must not be negative, not {count}.")
    raw = np.zeros(count * layout.dtype.itemsize + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + count * layout.dtype.itemsize].view(layout.dtype)


def include_dir() -> str:
    """The directory to give to a C or C++ compiler with -I: it holds `poise/records.hpp` and `poise/stream.hpp`."""
    return str(Path(__file__).parents[1] / "include")
