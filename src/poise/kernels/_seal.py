"""Seal, check and repair of one shard's words: the compiled kernel where there is one, else `ref`."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Int32, UInt32

from . import ref
from ._call import Spec, call
from .layout import Layout
from .ref import Check, Mended, Seal


def as_words(x: Array) -> UInt32[Array, " n"]:
    """The words of an array whose items have 4 or 8 bytes. XLA copies it for that; the compiled kernels need not."""
    return lax.bitcast_convert_type(x.reshape(-1), jnp.uint32).reshape(-1)


def _layout(x: Array) -> Layout:
    return Layout(x.size * x.dtype.itemsize // 4)


def _specs(lay: Layout) -> list[Spec]:
    return [((lay.L,), jnp.uint32), (lay.marks_shape, jnp.uint32), ((lay.G, 2), jnp.uint32)]


def seal(x: Array) -> Seal:
    """Marks, parity and guard of the words of `x`, in one read; `x` may be any array with items of 4 or 8 bytes."""
    lay = _layout(x)
    if lay.n == 0:
        return ref.seal(as_words(x))
    return Seal(*call("poise_seal", lambda y: ref.seal(as_words(y)), [x], _specs(lay)))


def limit_bits(limit: float) -> int:
    """The bits of a positive float32 limit, as `seal_counting` takes them."""
    return int(np.float32(limit).view(np.uint32))


def _counting_twin(x: Array, bits: int) -> list[Array]:
    words = as_words(x)
    blocks = ref.banks(words)
    marks, bad = ref.block_marks_counting(blocks, (blocks << jnp.uint32(1)) >= jnp.uint32((bits << 1) & 0xFFFFFFFF))
    return [*ref.finish(words, marks), bad.reshape(1)]


def seal_counting(x: Array, bits: int) -> tuple[Seal, Int32[Array, ""]]:
    """`seal` of float32 values (or their words); in the same read, how many are NaN, infinite or at least the limit.

    `bits` are the limit's bits (`limit_bits(1e6)`).
    """
    lay = _layout(x)
    if lay.n == 0:
        return ref.seal(as_words(x)), jnp.int32(0)
    twin = partial(_counting_twin, bits=bits)
    *kept, bad = call("poise_seal_counting", twin, [x], [*_specs(lay), ((1,), jnp.int32)], limit_bits=np.uint32(bits))
    return Seal(*kept), bad[0]


def check(x: Array, kept: Seal) -> Check:
    """How many blocks of data, parity and guard do not match their sums; reads each of them once."""
    if x.size == 0:
        return ref.check(as_words(x), kept)

    def twin(w: Array, *s: Array) -> list[Array]:
        return [jnp.stack(ref.check(as_words(w), Seal(*s)))]

    (off,) = call("poise_check", twin, [x, *kept], [((3,), jnp.int32)])
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


__all__ = ["as_words", "check", "limit_bits", "repair", "seal", "seal_counting"]
