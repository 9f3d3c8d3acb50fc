"""Rotary position embedding (Su et al. 2021), with the scalings of Llama 3.1 and of linear interpolation."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from ._config import Config


def frequencies(config: Config) -> np.ndarray:
    """Radians per position of each pair of channels: float32 (head / 2).

    Llama 3.1: wavelengths longer than `original / low_freq_factor` are stretched by `factor`, those shorter than
    `original / high_freq_factor` stay, in between the frequency is interpolated."""
    rope = config.rope
    exponent = np.arange(0, config.head, 2, dtype=np.float32) / np.float32(config.head)
    freq = (1.0 / np.power(np.float32(rope.theta), exponent)).astype(np.float32)
    if rope.kind == "linear":
        return freq / np.float32(rope.factor)
    if rope.kind == "llama3":
        original = rope.original_max_position_embeddings
        turns = original * freq / np.float32(2 * math.pi)
        ramp = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        smooth = (1 - ramp) * freq / rope.factor + ramp * freq
        scaled = np.where(turns < rope.low_freq_factor, freq / rope.factor, smooth)
        return np.where(turns > rope.high_freq_factor, freq, scaled).astype(np.float32)
    return freq


def angles(config: Config, positions: Int[Array, "b s"]) -> tuple[Float[Array, "b s 1 h"], Float[Array, "b s 1 h"]]:
    """Cosines and sines for `positions`, float32."""
    turn = positions[..., None, None].astype(jnp.float32) * jnp.asarray(frequencies(config))
    return jnp.cos(turn), jnp.sin(turn)


def rotate(x: Float[Array, "b s n head"], turn: tuple[Array, Array]) -> Float[Array, "b s n head"]:
    """`x` turned by its positions; channel i pairs with channel i + head / 2, as in the published checkpoints."""
    cos, sin = turn
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1).astype(x.dtype)
