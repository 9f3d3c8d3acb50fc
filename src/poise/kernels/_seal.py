"""Seal, check and repair of one shard's words: the compiled kernel where there is one, else `ref`."""

from __future__ import annotations

from collections.abc import Sequence

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
    return seal_all([x])[0]


def seal_all(xs: Sequence[Array]) -> list[Seal]:
    """`seal` of each of several arrays, in one call: a call each costs a GPU's host more than a small array's bytes."""
    some = [x for x in xs if x.size]

    def twin(*some: Array) -> list[Array]:
        return [part for x in some for part in ref.seal(as_words(x))]

    specs = [spec for x in some for spec in _specs(_layout(x))]
    made = iter(call("poise_seal", twin, some, specs) if some else ())
    return [Seal(next(made), next(made), next(made)) if x.size else ref.seal(as_words(x)) for x in xs]


def limit_bits(limit: float) -> int:
    """The bits of a positive float32 limit, as `seal_counting` takes them."""
    return int(np.float32(limit).view(np.uint32))


def seal_counting(x: Array, bits: int) -> tuple[Seal, Int32[Array, ""]]:
    """`seal` of float32 values (or their words); in the same read, how many are NaN, infinite or at least the limit.

    `bits` are the limit's bits (`limit_bits(1e6)`).
    """
    (kept,), bad = seal_counting_all([x], [bits])
    return kept, bad[0]


def seal_counting_all(xs: Sequence[Array], bits: Sequence[int]) -> tuple[list[Seal], Int32[Array, " n"]]:
    """`seal_counting` of each of several arrays, in one call. What is not float32 has a count without meaning."""
    some = [(x, b) for x, b in zip(xs, bits, strict=True) if x.size]
    if not some:
        return seal_all(xs), jnp.zeros(len(xs), jnp.int32)

    def twin(*arrays: Array) -> list[Array]:
        parts, counts = [], []
        for x, (_, b) in zip(arrays, some, strict=True):
            blocks = ref.banks(as_words(x))
            marks, bad = ref.block_marks_counting(
                blocks, (blocks << jnp.uint32(1)) >= jnp.uint32((b << 1) & 0xFFFFFFFF)
            )
            parts += ref.finish(as_words(x), marks)
            counts.append(bad.astype(jnp.int32))
        return [*parts, jnp.stack(counts)]

    arrays, limits = [x for x, _ in some], np.array([b for _, b in some], np.int64)
    specs: list[Spec] = [*(spec for x in arrays for spec in _specs(_layout(x))), ((len(some),), jnp.int32)]
    *parts, found = call("poise_seal_counting", twin, arrays, specs, limits=limits)
    made, counts = iter(parts), iter(found)
    kept = [Seal(next(made), next(made), next(made)) if x.size else ref.seal(as_words(x)) for x in xs]
    return kept, jnp.stack([next(counts) if x.size else jnp.int32(0) for x in xs])


def check(x: Array, kept: Seal) -> Check:
    """How many blocks of data, parity and guard do not match their sums; reads each of them once."""
    return check_all([x], [kept])


def check_all(xs: Sequence[Array], seals: Sequence[Seal]) -> Check:
    """The sums of `check` over several arrays, in one call."""
    args = [part for x, kept in zip(xs, seals, strict=True) if x.size for part in (x, *kept)]
    if not args:
        zero = jnp.int32(0)
        return Check(zero, zero, zero)

    def twin(*args: Array) -> list[Array]:
        each = [ref.check(as_words(args[i]), Seal(*args[i + 1 : i + 4])) for i in range(0, len(args), 4)]
        return [sum((jnp.stack(c) for c in each[1:]), jnp.stack(each[0]))]

    (off,) = call("poise_check", twin, args, [((3,), jnp.int32)])
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


__all__ = [
    "as_words", "check", "check_all", "limit_bits", "repair", "seal", "seal_all", "seal_counting", "seal_counting_all",
]  # fmt: skip
