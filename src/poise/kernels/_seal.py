"""Seal, check and repair of one shard's words: the compiled kernel where there is one, else `ref`."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int32, UInt32

from . import ref
from ._call import Spec, call
from .layout import Layout
from .ref import Check, Mended, Seal


def _specs(lay: Layout) -> list[Spec]:
    return [((lay.L,), jnp.uint32), (lay.marks_shape, jnp.uint32), ((lay.G, 2), jnp.uint32)]


def seal(words: UInt32[Array, " n"]) -> Seal:
    """Marks, parity and guard of `words`, in one read."""
    lay = Layout(words.shape[0])
    if lay.n == 0:
        return ref.seal(words)
    return Seal(*call("poise_seal", ref.seal, [words], _specs(lay)))


def limit_bits(limit: float) -> int:
    """The bits of a positive float32 limit, as `seal_counting` takes them."""
    return int(np.float32(limit).view(np.uint32))


def _counting_twin(words: UInt32[Array, " n"], bits: int) -> list[Array]:
    blocks = ref.banks(words)
    marks, bad = ref.block_marks_counting(blocks, (blocks << jnp.uint32(1)) >= jnp.uint32((bits << 1) & 0xFFFFFFFF))
    return [*ref.finish(words, marks), bad.reshape(1)]


def seal_counting(words: UInt32[Array, " n"], bits: int) -> tuple[Seal, Int32[Array, ""]]:
    """`seal` of float32 words and, in the same read, how many are NaN, infinite or at least the limit in magnitude.

    `bits` are the limit's bits (`limit_bits(1e6)`).
    """
    lay = Layout(words.shape[0])
    if lay.n == 0:
        return ref.seal(words), jnp.int32(0)
    twin = partial(_counting_twin, bits=bits)
    *kept, bad = call(
        "poise_seal_counting", twin, [words], [*_specs(lay), ((1,), jnp.int32)], limit_bits=np.uint32(bits)
    )
    return Seal(*kept), bad[0]


def check(words: UInt32[Array, " n"], kept: Seal) -> Check:
    """How many blocks of data, parity and guard do not match their sums; reads each of them once."""
    lay = Layout(words.shape[0])
    if lay.n == 0:
        return ref.check(words, kept)

    def twin(w: Array, *s: Array) -> list[Array]:
        return [jnp.stack(ref.check(w, Seal(*s)))]

    (off,) = call("poise_check", twin, [words, *kept], [((3,), jnp.int32)])
    return Check(off[0], off[1], off[2])


def repair(words: UInt32[Array, " n"], kept: Seal) -> tuple[UInt32[Array, " n"], Seal, Mended]:
    """Mend what can be mended, in place if the caller gives the words up; rules and counts as `ref.repair`."""
    lay = Layout(words.shape[0])
    if lay.n == 0:
        return ref.repair(words, kept)

    def twin(w: Array, *s: Array) -> list[Array]:
        data, new, mended = ref.repair(w, Seal(*s))
        return [data, *new, jnp.stack(mended)]

    results: list[Spec] = [((lay.n,), jnp.uint32), *_specs(lay), ((5,), jnp.int32)]
    data, parity, marks, guard, mended = call(
        "poise_repair", twin, [words, *kept], results, aliases={0: 0, 1: 1, 2: 2, 3: 3}
    )
    return data, Seal(parity, marks, guard), Mended(*(mended[i] for i in range(5)))


__all__ = ["check", "limit_bits", "repair", "seal", "seal_counting"]
