"""The jnp twin of every kernel: what a kernel must compute, in the plainest form that XLA makes fast.

All arrays here are the uint32 words of one shard; `kernels.layout.Layout` says how they are cut. Arithmetic is modulo
2^32.

A **mark** is two sums over the words `w_j` of a block whose first word has the position `p0`:

    s1 = sum_j w_j                        s2 = sum_j mix(w_j + (2 (p0 + j) + 1) c1)
    mix(q) = t t  with  t = r ^ (r >> 13),  r = (q ^ (q >> 16)) c2

The second sum is nonlinear in each word and depends on its position, so swapped words, two sign flips in one block and
a block in the wrong place change it. Positions: word `j` of block `g` in row `r` is `(r G + g) B + j`; row 20 is
parity. The **guard** of a group is the mark of its 42 mark words, with positions `42 g + 2 r + i`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Int32, UInt32

from .layout import BANKS, ROWS, Layout

C1 = 0x9E3779B1
"""Position stride of the second sum: 2^32 over the golden ratio, odd."""

C2 = 0x85EBCA6B
"""Multiplier of the mixing step (an odd constant with well spread bits)."""


class Seal(NamedTuple):
    """What is kept beside the words of one shard."""

    parity: UInt32[Array, " L"]
    marks: UInt32[Array, "21 G 2"]
    guard: UInt32[Array, "G 2"]


class Check(NamedTuple):
    """What a reader of the words learns without mending anything: numbers of blocks that do not match."""

    data: Int32[Array, ""]
    parity: Int32[Array, ""]
    guard: Int32[Array, ""]


class Mended(NamedTuple):
    """Blocks that were damaged, by where; `repaired` of them are right again, `unrepairable` were left as they were."""

    data: Int32[Array, ""]
    marks: Int32[Array, ""]
    parity: Int32[Array, ""]
    repaired: Int32[Array, ""]
    unrepairable: Int32[Array, ""]


def mix(q: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """The nonlinear step of the second sum. It ends in a square: a step that ends in a constant factor commutes with
    the sum, and then half of all pairs of sign flips cancel."""
    t = (q ^ (q >> jnp.uint32(16))) * jnp.uint32(C2)
    t = t ^ (t >> jnp.uint32(13))
    return t * t


def _add(x: tuple[Array, ...], y: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(a + b for a, b in zip(x, y, strict=True))


def _salted(words: UInt32[Array, "*r B"], first: int) -> UInt32[Array, "*r B"]:
    """`mix(w + (2 p + 1) c1)` for words whose C-order position starts at `first`."""
    rows, width = 1, words.shape[-1]
    for d in words.shape[:-1]:
        rows *= d
    row = lax.broadcasted_iota(jnp.uint32, (rows, width), 0)
    col = lax.broadcasted_iota(jnp.uint32, (rows, width), 1)
    p = (row * jnp.uint32(width) + col + jnp.uint32(first)).reshape(words.shape)
    return mix(words + (p * jnp.uint32(2) + jnp.uint32(1)) * jnp.uint32(C1))


def block_marks(words: UInt32[Array, "*r B"], first: int = 0) -> UInt32[Array, "*r 2"]:
    """Marks of blocks that lie one behind the other, the first word at position `first`.

    One variadic reduction: XLA turns two separate sums into two passes over memory (measured 23 against 5 GB/s).
    """
    zero = jnp.uint32(0)
    sums = lax.reduce((words, _salted(words, first)), (zero, zero), _add, (words.ndim - 1,))
    return jnp.stack(sums, axis=-1)


def block_marks_counting(
    words: UInt32[Array, "*r B"], bad: Bool[Array, "*r B"], first: int = 0
) -> tuple[UInt32[Array, "*r 2"], Int32[Array, ""]]:
    """`block_marks` and, in the same pass, how many entries of `bad` are true."""
    zero = jnp.uint32(0)
    s1, s2, count = lax.reduce(
        (words, _salted(words, first), bad.astype(jnp.uint32)), (zero, zero, zero), _add, (words.ndim - 1,)
    )
    return jnp.stack((s1, s2), axis=-1), count.sum().astype(jnp.int32)


def banks(words: UInt32[Array, " n"]) -> UInt32[Array, "20 G B"]:
    """The words as banks of blocks, zeros behind them."""
    lay = Layout(words.shape[0])
    return jnp.pad(words, (0, lay.padded - lay.n)).reshape(BANKS, lay.G, lay.B)


def _xor(blocks: UInt32[Array, "20 G B"]) -> UInt32[Array, "G B"]:
    return lax.reduce(blocks, jnp.uint32(0), lax.bitwise_xor, (0,))


def guard_of(marks: UInt32[Array, "rows G 2"]) -> UInt32[Array, "G 2"]:
    """The mark of each group's mark words."""
    return block_marks(marks.transpose(1, 0, 2).reshape(marks.shape[1], 2 * marks.shape[0]))


def parity_of(words: UInt32[Array, " n"]) -> UInt32[Array, " L"]:
    """The XOR of the banks, slice by slice: padding them first would write the words out once more."""
    lay = Layout(words.shape[0])
    parity = jnp.zeros(lay.L, jnp.uint32)
    for start in range(0, lay.n, max(1, lay.L)):
        bank = words[start : start + lay.L]
        parity = parity ^ jnp.pad(bank, (0, lay.L - bank.shape[0]))
    return parity


def finish(words: UInt32[Array, " n"], data_marks: UInt32[Array, "20 G 2"]) -> Seal:
    """Parity, its marks and the guard, for words whose marks are known."""
    lay = Layout(words.shape[0])
    parity = parity_of(words)
    marks = jnp.concatenate((data_marks, block_marks(parity.reshape(lay.G, lay.B), lay.padded)[None]))
    return Seal(parity, marks, guard_of(marks))


def seal(words: UInt32[Array, " n"]) -> Seal:
    """Marks, parity and guard of `words`."""
    return finish(words, block_marks(banks(words)))


def check(words: UInt32[Array, " n"], kept: Seal) -> Check:
    """Compare the words, the parity and the marks with their sums; reads each of them once."""
    blocks = banks(words)
    parity = kept.parity.reshape(blocks.shape[1:])

    def off(now: Array, then: Array) -> Array:
        return (now != then).any(-1).sum().astype(jnp.int32)

    return Check(
        off(block_marks(blocks), kept.marks[:BANKS]),
        off(block_marks(parity, blocks.size), kept.marks[BANKS]),
        off(guard_of(kept.marks), kept.guard),
    )


def repair(words: UInt32[Array, " n"], kept: Seal) -> tuple[UInt32[Array, " n"], Seal, Mended]:
    """Mend what can be mended, group by group; a group beyond repair is left exactly as it is.

    With `y` the XOR of a group's blocks and its parity, `data ^ y` is what a block would be if it alone were damaged.
    It is believed only if it matches the stored mark of that block (64 bits). The cases, per group:

    - no data block is off: the data are right; parity, marks and guard are made anew from them;
    - `y = 0`, data blocks off: either the marks are damaged (then the guard is off too) or equal damage cancelled in
      the XOR (then the guard is right): mend the marks, or leave the group;
    - `y != 0`, exactly one block is mended by `y`, and it is the only one that is off or the guard is off as well (the
      others are damaged marks): mend it;
    - else: leave the group.
    """
    blocks = banks(words)
    parity = kept.parity.reshape(blocks.shape[1:])
    stored = kept.marks[:BANKS]
    y = _xor(blocks) ^ parity
    off = (block_marks(blocks) != stored).any(-1)
    fits = (block_marks(blocks ^ y) == stored).all(-1) & off
    n_off, n_fits = off.sum(0), fits.sum(0)
    zero = (y == 0).all(-1)
    guard_off = (guard_of(kept.marks) != kept.guard).any(-1)
    parity_off = (block_marks(parity, blocks.size) != kept.marks[BANKS]).any(-1)

    right = n_off == 0
    marks_only = ~right & zero & guard_off
    one = ~right & ~zero & (n_fits == 1) & ((n_off == 1) | guard_off)
    good = right | marks_only | one

    data = jnp.where((fits & one)[..., None], blocks ^ y, blocks)
    fixed = data.reshape(-1)[: words.shape[0]]
    fresh = finish(fixed, block_marks(data))
    new = Seal(
        jnp.where(good[:, None], fresh.parity.reshape(parity.shape), parity).reshape(-1),
        jnp.where(good[None, :, None], fresh.marks, kept.marks),
        jnp.where(good[:, None], fresh.guard, kept.guard),
    )
    # After the data are right, what differs from the fresh seal was damaged: marks and guard count as marks.
    old = kept.marks.reshape(ROWS, -1, 2)
    off_marks = (old != fresh.marks).any(-1) & good[None]
    off_guard = (kept.guard != fresh.guard).any(-1) & good & ~off_marks.any(0)
    off_parity = (parity != fresh.parity.reshape(parity.shape)).any(-1) & good

    def count(x: Array) -> Array:
        return x.sum().astype(jnp.int32)

    # A damaged parity block and a damaged parity mark look alike until the syndrome tells: off_parity is the former.
    n_data = count(fits & one) + count(off & ~good)
    n_marks = count(off_marks) + count(off_guard)
    n_parity = count(off_parity) + count(parity_off & ~good)
    lost = count(off & ~good) + count(parity_off & ~good)
    mended = Mended(n_data, n_marks, n_parity, n_data + n_marks + n_parity - lost, lost)
    return fixed, new, mended
