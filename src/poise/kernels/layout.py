"""How the words of one shard are cut into blocks, banks and groups (format 1; `design/seal-format.md`).

A shard is a row of `n` uint32 words. Twenty contiguous **banks** of `L` words cover it, each cut into `G` **blocks** of
`B` words; the g-th blocks of all banks are a **group**, a twentieth of the shard apart, so that contiguous damage of up
to one bank touches every group at most once. Words past `n` count as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

BANKS = 20
"""Data banks per shard: one XOR bank protects twenty, 5 % spare."""

BLOCK = 256
"""Words per block (at most): the unit of noticing and of repair, 1 KiB."""

ROWS = BANKS + 1
"""Rows of the marks: the data banks, then the parity bank."""


@dataclass(frozen=True)
class Layout:
    """The cut of `n` words. `B` words a block, `G` groups, `L = B * G` words a bank."""

    n: int

    @property
    def B(self) -> int:
        """Words per block: 256, or for small arrays the power of two that fills twenty banks."""
        per_bank = -(-self.n // BANKS)
        return min(BLOCK, 1 << max(0, per_bank - 1).bit_length())

    @property
    def G(self) -> int:
        """Groups, which is also the number of blocks per bank; none for an empty array."""
        return -(-self.n // (BANKS * self.B))

    @property
    def L(self) -> int:
        """Words per bank."""
        return self.B * self.G

    @property
    def padded(self) -> int:
        """Words of all data banks, the zeros past `n` included."""
        return BANKS * self.L

    @property
    def marks_shape(self) -> tuple[int, int, int]:
        """Two sums for each block of each row."""
        return (ROWS, self.G, 2)

    @property
    def spare_words(self) -> int:
        """Words of parity, marks and guard together."""
        return self.L + ROWS * self.G * 2 + self.G * 2
