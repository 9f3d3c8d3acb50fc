"""Any array as uint32 words and back, bit for bit, without leaving the device.

The words are the array's bytes in C order, little endian, with zero bytes appended to a multiple of four. PRNG keys go
through their key data, booleans and sub-byte integers through one byte each, complex numbers through pairs of real ones
(XLA cannot bitcast them).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import UInt32


def is_key(dtype: Any) -> bool:
    """Whether `dtype` is that of typed PRNG keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def plain(dtype: Any) -> bool:
    """Whether the items of an array are its words (4 or 8 bytes, nothing that XLA keeps apart)."""
    return not is_key(dtype) and not jnp.issubdtype(dtype, jnp.complexfloating) and dtype.itemsize in (4, 8)


def key_impl(dtype: Any) -> str:
    """The name of the generator behind a key dtype, as `jax.random.wrap_key_data` takes it. The one private name here:
    JAX says the implementation of a key array (`jax.random.key_impl`) but not of a dtype."""
    return dtype._impl.name


def _plain(x: Array) -> Array:
    """The same bits in a dtype that XLA can bitcast."""
    if is_key(x.dtype):
        return jax.random.key_data(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack((jnp.real(x), jnp.imag(x)), axis=-1)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 8:
        return x.astype(jnp.int8 if jnp.issubdtype(x.dtype, jnp.signedinteger) else jnp.uint8)
    return x


def _plain_form(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of `_plain`, also of 64-bit arrays in a 32-bit program."""
    with jax.enable_x64(True):
        return jax.eval_shape(_plain, jax.ShapeDtypeStruct(shape, dtype))


def count(shape: tuple[int, ...], dtype: Any) -> int:
    """How many words an array of this shape and dtype has."""
    plain = _plain_form(shape, dtype)
    return -(-plain.size * plain.dtype.itemsize // 4)


def to_words(x: Array) -> UInt32[Array, " n"]:
    """`x`'s words, `count(x.shape, x.dtype)` of them."""
    x = _plain(x).reshape(-1)
    size = x.dtype.itemsize
    if size >= 4:
        return lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    per = 4 // size
    x = jnp.pad(x, (0, -x.shape[0] % per))
    narrow = jnp.uint8 if size == 1 else jnp.uint16
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, narrow).reshape(-1, per), jnp.uint32)


def from_words(words: UInt32[Array, " n"], shape: tuple[int, ...], dtype: Any) -> Array:
    """The array of `shape` and `dtype` that `words` came from."""
    plain = _plain_form(shape, dtype)
    size = plain.dtype.itemsize
    if size == 8:
        flat = lax.bitcast_convert_type(words.reshape(-1, 2), plain.dtype)
    elif size == 4:
        flat = lax.bitcast_convert_type(words, plain.dtype)
    else:
        flat = lax.bitcast_convert_type(words, plain.dtype).reshape(-1)
    x = flat[: plain.size].reshape(plain.shape)
    if is_key(dtype):
        return jax.random.wrap_key_data(x, impl=key_impl(dtype))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.complex(x[..., 0], x[..., 1])
    return x.astype(dtype)
