"""What a kernel knows of a gate: any object with the gate's four numbers will do (`gate` lies above this layer)."""

from __future__ import annotations

import math
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool

from ..errors import BadInput

MARKERS = 4
"""Markers that the compiled kernels hold."""


class Rule(Protocol):
    """A value is bad if it is NaN, infinite, above `limit` in magnitude, or within `tolerance` of a marker."""

    @property
    def limit(self) -> float: ...
    @property
    def markers(self) -> tuple[float, ...]: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def fill(self) -> float: ...


def widths(gate: Rule, dtype: Any) -> list[tuple[float, float]]:
    """Each marker with the distance within which a value counts as one: at least half a unit in its last place."""
    eps = float(jnp.finfo(dtype).eps)
    half_ulp = [0.5 * eps * 2.0 ** math.floor(math.log2(abs(m))) if m else 0.0 for m in gate.markers]
    return [(m, max(gate.tolerance, h)) for m, h in zip(gate.markers, half_ulp, strict=True)]


def encode(gate: Rule, dtype: Any) -> np.ndarray:
    """The gate as the kernels' attribute: limit (clamped to the dtype), fill, then marker and width for each marker."""
    if len(gate.markers) > MARKERS:
        raise BadInput(f"The compiled gate holds {MARKERS} markers, not {len(gate.markers)}.")
    limit = min(gate.limit, float(jnp.finfo(dtype).max))
    return np.array([limit, gate.fill, *(v for pair in widths(gate, dtype) for v in pair)], np.float64)


def causes(gate: Rule, x: Array) -> tuple[Bool[Array, "*n"], Bool[Array, "*n"], Bool[Array, "*n"], Bool[Array, "*n"]]:
    """Masks of NaN, Inf, overflow and markers; no value is in two of them."""
    nan, inf = jnp.isnan(x), jnp.isinf(x)
    over = (jnp.abs(x) > jnp.asarray(min(gate.limit, float(jnp.finfo(x.dtype).max)), x.dtype)) & ~inf
    marker = jnp.zeros(x.shape, bool)
    for m, width in widths(gate, x.dtype):
        marker |= jnp.abs(x - jnp.asarray(m, x.dtype)) <= jnp.asarray(width, x.dtype)
    return nan, inf, over, marker & ~over


def bad(gate: Rule, x: Array) -> Bool[Array, "*n"]:
    """Where `x` is bad, for any cause."""
    nan, inf, over, marker = causes(gate, x)
    return nan | inf | over | marker
