"""The key/value cache, sealed row by row as it grows.

A row is what one token left behind in one layer: its keys and values. Beside each row lie two sums over its words (the
marks of `kernels.ref`), beside each `ROWS` rows their XOR. Appending a row changes one row of parity; a row that no
longer matches its marks is rebuilt from the others before attention reads it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, Int32, UInt32

from ..kernels.ref import C1, mix
from ._config import Config

ROWS = 16
"""Rows that share one row of parity: 1/16 of the cache."""


class Cache(NamedTuple):
    """Keys and values of `length` positions of each sequence, and their seals. Zeros behind."""

    k: Float[Array, "layers b s kv head"]
    v: Float[Array, "layers b s kv head"]
    marks: UInt32[Array, "layers b s 2"]
    parity: UInt32[Array, "layers b groups words"]
    length: Int32[Array, " b"]


class Found(NamedTuple):
    """Rows that did not match their marks: `mended` are right again, `lost` are not."""

    mended: Int32[Array, ""]
    lost: Int32[Array, ""]

    @staticmethod
    def nothing() -> Found:
        """None."""
        return Found(jnp.int32(0), jnp.int32(0))


def room(config: Config, batch: int, positions: int, dtype: Any) -> Cache:
    """An empty cache for `positions` positions at least."""
    s = -(-positions // ROWS) * ROWS
    shape = (config.layers, batch, s, config.kv_heads, config.head)
    words = 2 * config.kv_heads * config.head * jnp.dtype(dtype).itemsize // 4
    zeros = jnp.zeros(shape, dtype)
    return Cache(
        zeros, zeros, jnp.zeros((*shape[:3], 2), jnp.uint32),
        jnp.zeros((*shape[:2], s // ROWS, words), jnp.uint32), jnp.zeros(batch, jnp.int32),
    )  # fmt: skip


def row_words(k: Float[Array, "*r kv head"], v: Float[Array, "*r kv head"]) -> UInt32[Array, "*r w"]:
    """The words of rows, keys before values."""
    both = jnp.concatenate((k, v), axis=-2)
    both = both.reshape(*both.shape[:-2], -1)
    if both.dtype.itemsize == 4:
        return lax.bitcast_convert_type(both, jnp.uint32)
    pairs = lax.bitcast_convert_type(both, jnp.uint16).reshape(*both.shape[:-1], -1, 2)
    return lax.bitcast_convert_type(pairs, jnp.uint32)


def _rows(words: UInt32[Array, "*r w"], like: Array) -> tuple[Array, Array]:
    """The inverse of `row_words`; `like` is an array of keys."""
    kv, size = like.shape[-2:]
    if like.dtype.itemsize == 4:
        flat = lax.bitcast_convert_type(words, like.dtype)
    else:
        flat = lax.bitcast_convert_type(words, like.dtype).reshape(*words.shape[:-1], -1)
    k, v = jnp.split(flat.reshape(*words.shape[:-1], 2 * kv, size), 2, axis=-2)
    return k, v


def row_marks(words: UInt32[Array, "*r w"], row: UInt32[Array, "*r"]) -> UInt32[Array, "*r 2"]:
    """Two sums over each row's words; `row` is its number in the cache, so that a row in the wrong place is noticed."""
    at = row[..., None] * jnp.uint32(words.shape[-1]) + jnp.arange(words.shape[-1], dtype=jnp.uint32)
    salted = mix(words + (at * jnp.uint32(2) + jnp.uint32(1)) * jnp.uint32(C1))
    return jnp.stack((words.sum(-1, dtype=jnp.uint32), salted.sum(-1, dtype=jnp.uint32)), axis=-1)


def _numbers(cache: Cache) -> UInt32[Array, "layers b s"]:
    shape = cache.k.shape[:3]
    return jnp.arange(shape[0] * shape[1] * shape[2], dtype=jnp.uint32).reshape(shape)


def _filled(cache: Cache) -> Bool[Array, "b s"]:
    return jnp.arange(cache.k.shape[2]) < cache.length[:, None]


def _xor(words: UInt32[Array, "layers b s w"]) -> UInt32[Array, "layers b g w"]:
    groups = words.reshape(*words.shape[:2], -1, ROWS, words.shape[-1])
    return lax.reduce(groups, jnp.uint32(0), lax.bitwise_xor, (3,))


def filled(cache: Cache, k: Array, v: Array, length: Int[Array, " b"]) -> Cache:
    """The cache with the first rows written at once: `k`, `v` are (layers, b, s, kv, head), s at most what there is
    room for; rows from `length` on are left empty."""
    cache = cache._replace(length=length.astype(jnp.int32))
    keep = (jnp.arange(k.shape[2]) < length[:, None])[None, :, :, None, None]
    k = lax.dynamic_update_slice_in_dim(cache.k, jnp.where(keep, k, 0).astype(cache.k.dtype), 0, 2)
    v = lax.dynamic_update_slice_in_dim(cache.v, jnp.where(keep, v, 0).astype(cache.v.dtype), 0, 2)
    words = row_words(k, v)
    return cache._replace(k=k, v=v, marks=row_marks(words, _numbers(cache)), parity=_xor(words))


def append(
    cache: Cache, layer: Array, k: Float[Array, "b kv head"], v: Float[Array, "b kv head"], live: Bool[Array, " b"]
) -> Cache:
    """One more row for each sequence in `layer`, at its length (which the caller advances when all layers are done).

    What lies behind the length does not count; the row of a sequence that is not `live` stays out of the parity.
    """
    b = jnp.arange(k.shape[0])
    at = cache.length
    words = row_words(k, v)
    number = ((layer * k.shape[0] + b) * cache.k.shape[2] + at).astype(jnp.uint32)
    group = at // ROWS
    return cache._replace(
        k=cache.k.at[layer, b, at].set(k),
        v=cache.v.at[layer, b, at].set(v),
        marks=cache.marks.at[layer, b, at].set(row_marks(words, number)),
        parity=cache.parity.at[layer, b, group].set(cache.parity[layer, b, group] ^ jnp.where(live[:, None], words, 0)),
    )


def repaired(cache: Cache) -> tuple[Cache, Found]:
    """The cache with every row checked, and what could be mended mended. Reads each row once; writes only if some row
    is off."""
    numbers, there = _numbers(cache), _filled(cache)
    off = (row_marks(row_words(cache.k, cache.v), numbers) != cache.marks).any(-1) & there

    def mend(cache: Cache) -> tuple[Cache, Found]:
        words = jnp.where(there[None, ..., None], row_words(cache.k, cache.v), jnp.uint32(0))
        odd = jnp.repeat(
            _xor(words) ^ cache.parity, ROWS, axis=2
        )  # what the rows of a group and their parity disagree in
        fresh = row_marks(words ^ odd, numbers)
        right = off & (fresh == cache.marks).all(-1)
        # Rows that agree with their parity have a damaged mark.
        marked = off & ~right & (odd == 0).all(-1)
        k, v = _rows(words ^ odd, cache.k)
        pick = right[..., None, None]
        marks = jnp.where(marked[..., None], row_marks(words, numbers), cache.marks)
        new = cache._replace(k=jnp.where(pick, k, cache.k), v=jnp.where(pick, v, cache.v), marks=marks)
        good = (right | marked).sum(dtype=jnp.int32)
        return new, Found(good, off.sum(dtype=jnp.int32) - good)

    return lax.cond(off.any(), mend, lambda c: (c, Found.nothing()), cache)


@jax.jit
def truncated(cache: Cache, length: Int[Array, " b"]) -> Cache:
    """The cache with fewer rows: as if the later ones had never been written."""
    cache = cache._replace(length=jnp.minimum(cache.length, length).astype(jnp.int32))
    words = jnp.where(_filled(cache)[None, ..., None], row_words(cache.k, cache.v), jnp.uint32(0))
    return cache._replace(parity=_xor(words))
