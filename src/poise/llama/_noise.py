"""Directions that are made again wherever they are needed instead of being kept: a sign for each weight.

The sign of element i of layer l of leaf j in step t is one bit of an integer hash of (seed, t, j, l, i), so any device
makes those of its own piece, in any order, and they fuse into what uses them: no direction ever lies in memory. Signs
are the classical choice for simultaneous perturbation (Spall 1992); like normal ones they have mean 0 and variance 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import UInt32


def scrambled(x: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """A bijection of 32-bit words in which every input bit moves about half of the output bits (C. Wellons,
    lowbias32)."""
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    return x ^ (x >> jnp.uint32(16))


def key_of(seed: Any, step: Any, leaf: int, layer: Any) -> UInt32[Array, "*l"]:
    """The key of a layer's (or layers') hashes."""
    key = scrambled(jnp.asarray(seed).astype(jnp.uint32) + jnp.uint32(0x9E3779B9))
    for part in (step, leaf, layer):
        key = scrambled(key ^ scrambled(jnp.asarray(part).astype(jnp.uint32) + jnp.uint32(0x85EBCA6B)))
    return key


def hashes(
    key: UInt32[Array, "*l"], shape: tuple[int, ...], whole: tuple[int, ...], offset: Sequence[Any]
) -> UInt32[Array, "*l *shape"]:
    """One word per element of a piece of `shape` that begins at `offset` in an array of shape `whole`."""
    at = jnp.zeros(shape, jnp.uint32)
    for d, begin in enumerate(offset):
        stride = np.uint32(np.prod(whole[d + 1 :], dtype=np.int64) % 2**32)
        at = at + (lax.broadcasted_iota(jnp.uint32, shape, d) + jnp.asarray(begin).astype(jnp.uint32)) * stride
    spread = key.reshape(*key.shape, *[1] * len(shape))
    return scrambled(scrambled(at + spread) ^ (spread * jnp.uint32(0x9E3779B1)))


def signs(words: UInt32[Array, "*n"], dtype: Any) -> Array:
    """+1 or -1 by the top bit."""
    return jnp.where(words >> jnp.uint32(31), jnp.asarray(-1, dtype), jnp.asarray(1, dtype))


def moved(w: Array, words: UInt32[Array, "*n"], scalar: Array) -> Array:
    """`w - scalar z`, rounded by chance where `w` is narrow: up or down with the probabilities that keep the mean. Else
    updates below half a unit in the last place would all be lost. The dice are the hash's lower half, so that it is the
    same whenever it is done again."""
    wide = w.astype(jnp.float32) - scalar * signs(words, jnp.float32)
    if w.dtype == jnp.float32:
        return wide
    bits = lax.bitcast_convert_type(wide, jnp.uint32)
    dice = words & jnp.uint32(0xFFFF)
    up = ((bits + dice) >> jnp.uint32(16)).astype(jnp.uint16)
    # A sum that is not finite stays what it is.
    plain = lax.bitcast_convert_type(wide.astype(jnp.bfloat16), jnp.uint16)
    finite = (bits & jnp.uint32(0x7F800000)) != jnp.uint32(0x7F800000)
    return lax.bitcast_convert_type(jnp.where(finite, up, plain), jnp.bfloat16)
