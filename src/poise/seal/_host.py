"""Marks on the host, in numpy: for copies that must be verified away from any device."""

from __future__ import annotations

import numpy as np

from ..kernels.layout import BANKS, Layout
from ..kernels.ref import C1, C2

_CHUNK = 1 << 15
"""Words per pass: 128 KiB and its scratch stay in the second-level cache."""


def words_of(x: np.ndarray) -> np.ndarray:
    """The uint32 words of an array, as `seal._words.to_words` makes them."""
    raw = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    if raw.size % 4:
        raw = np.concatenate((raw, np.zeros(-raw.size % 4, np.uint8)))
    return raw.view(np.uint32)


def block_marks(words: np.ndarray) -> np.ndarray:
    """Marks `(20, G, 2)` of the data blocks of one shard's words."""
    lay = Layout(words.size)
    out = np.empty((BANKS * lay.G, 2), np.uint32)
    rows = max(1, _CHUNK // lay.B)
    salt = np.arange(rows * lay.B, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    for r0 in range(0, BANKS * lay.G, rows):
        r1 = min(BANKS * lay.G, r0 + rows)
        part = words[r0 * lay.B : r1 * lay.B]
        if part.size < (r1 - r0) * lay.B:
            part = np.concatenate((part, np.zeros((r1 - r0) * lay.B - part.size, np.uint32)))
        start = np.uint32((2 * r0 * lay.B) & 0xFFFFFFFF)
        q = part + (salt[: part.size] + start) * np.uint32(C1)
        q = (q ^ (q >> np.uint32(16))) * np.uint32(C2)
        q ^= q >> np.uint32(13)
        q *= q
        out[r0:r1, 0] = part.reshape(-1, lay.B).sum(1, dtype=np.uint32)
        out[r0:r1, 1] = q.reshape(-1, lay.B).sum(1, dtype=np.uint32)
    return out.reshape(BANKS, lay.G, 2)
