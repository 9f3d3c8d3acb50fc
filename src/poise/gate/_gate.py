"""The gate: `clean, health = gate(x)` inside any JAX transformation.

A value is bad if it is NaN, infinite, larger than `limit` in magnitude, or equal to a marker. Bad values are replaced
by `fill`, counted and located. Only inexact real leaves are looked at; integers, booleans and keys pass untouched,
complex leaves are looked at part by part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..errors import BadInput
from ._health import Health

Insulate = Literal["bad", "all", "none"]
T = TypeVar("T")


@dataclass(frozen=True)
class Gate:
    """Detect, replace, count and locate bad values.

    - `limit`: largest magnitude that is not an overflow; clamped to the largest finite value of each leaf's dtype.
    - `markers`: values that sensors send for "broken" (-99, -999); off by default, since -99 is a legitimate weight. A
      value is a marker if it lies within `tolerance` of it, or within half a unit in the last place after the marker
      has been rounded to the leaf's dtype, whichever is wider.
    - `fill`: what a bad value becomes; must itself pass the gate (which makes the gate idempotent).
    - `insulate`: which gradients pass. `"bad"`: those of good entries; `"all"`: none; `"none"`: every one, as if the
      gate were the identity. No NaN leaks through an unselected branch in any of them, forward or reverse.

    Raises `BadInput` at construction for a limit that is not positive, a fill or a tolerance that cannot work, and when
    called for a fill that a leaf's dtype cannot hold or tell from a marker. A marker that a dtype cannot hold is not
    looked for.
    """

    limit: float = 1e6
    markers: tuple[float, ...] = ()
    tolerance: float = 1e-3
    fill: float = 0.0
    insulate: Insulate = "bad"

    def __post_init__(self) -> None:
        object.__setattr__(self, "markers", tuple(float(m) for m in self.markers))
        if not self.limit > 0:
            raise BadInput(f"The gate's limit must be a positive number, not {self.limit!r}.")
        if not (self.tolerance >= 0 and math.isfinite(self.tolerance)):
            raise BadInput(f"The gate's tolerance must be finite and not negative, not {self.tolerance!r}.")
        if not all(math.isfinite(m) for m in self.markers):
            raise BadInput("The gate's markers must be finite; NaN and Inf are caught anyway.")
        if not (math.isfinite(self.fill) and abs(self.fill) <= self.limit):
            raise BadInput(f"The gate's fill {self.fill!r} does not pass its own limit {self.limit!r}.")
        if any(abs(self.fill - m) <= self.tolerance for m in self.markers):
            raise BadInput(f"The gate's fill {self.fill!r} is one of its markers.")
        if self.insulate not in ("bad", "all", "none"):
            raise BadInput(f"insulate must be 'bad', 'all' or 'none', not {self.insulate!r}.")

    def __call__(self, tree: T) -> tuple[T, Health]:
        """`(clean, health)` for an array or a pytree of arrays; shapes and dtypes stay."""
        leaves, treedef = jax.tree.flatten(tree)
        health = Health.clean()
        out: list[Any] = []
        for number, leaf in enumerate(leaves):
            clean, seen = self._leaf(leaf, number)
            out.append(clean)
            health = health + seen
        return treedef.unflatten(out), health

    def _leaf(self, leaf: Any, number: int) -> tuple[Any, Health]:
        if not hasattr(leaf, "dtype"):
            if not isinstance(leaf, float | complex):
                return leaf, Health.clean()
            leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            re, seen_re = self._leaf(jnp.real(leaf), number)
            im, seen_im = self._leaf(jnp.imag(leaf), number)
            return lax.complex(re, im), seen_re + seen_im
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf, Health.clean()
        x = jnp.asarray(leaf)
        causes = self.causes(lax.stop_gradient(x))
        bad = causes[0] | causes[1] | causes[2] | causes[3]
        return _contain(x, bad, self._fill(x.dtype), self.insulate), _tally(causes, bad, number)

    def _fill(self, dtype: Any) -> Array:
        if abs(self.fill) > float(jnp.finfo(dtype).max):
            raise BadInput(f"The gate's fill {self.fill!r} does not fit in {dtype.name}.")
        here = float(np.asarray(self.fill, dtype))
        if any(abs(here - marker) <= width for marker, width in self._markers(dtype)):
            raise BadInput(f"The gate's fill {self.fill!r} is one of its markers in {dtype.name}.")
        return jnp.asarray(self.fill, dtype)

    def _markers(self, dtype: Any) -> list[tuple[float, float]]:
        """The markers that `dtype` can hold, rounded to it, with the distance within which a value counts as one."""
        info = jnp.finfo(dtype)
        eps, top = float(info.eps), float(info.max)
        out = []
        for m in self.markers:
            if abs(m) > top:
                continue
            # In a narrow dtype the distance between neighbours of -999 exceeds any sensible tolerance.
            half_ulp = 0.5 * eps * 2.0 ** math.floor(math.log2(abs(m))) if m else 0.0
            out.append((float(np.asarray(m, dtype)), min(top, max(self.tolerance, half_ulp))))
        return out

    def causes(self, x: Array) -> tuple[Array, Array, Array, Array]:
        """Masks of NaN, Inf, overflow and markers, of `x`'s shape; no value is in two of them."""
        info = jnp.finfo(x.dtype)
        limit = jnp.asarray(min(self.limit, float(info.max)), x.dtype)
        nan = jnp.isnan(x)
        inf = jnp.isinf(x)
        over = (jnp.abs(x) > limit) & ~inf
        marker = jnp.zeros(x.shape, bool)
        for m, width in self._markers(x.dtype):
            marker |= jnp.abs(x - jnp.asarray(m, x.dtype)) <= jnp.asarray(width, x.dtype)
        return nan, inf, over, marker & ~over


def _tally(causes: tuple[Array, ...], bad: Array, number: int) -> Health:
    """Counts and first index in one pass (XLA makes two reductions of `sum` and `argmax`)."""
    if bad.size == 0:
        return Health.clean()
    where = lax.iota(jnp.uint32, bad.size).reshape(bad.shape)
    none = jnp.uint32(0xFFFFFFFF)
    zero = jnp.uint32(0)

    def join(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
        return (*(x + y for x, y in zip(a[:4], b[:4], strict=True)), jnp.minimum(a[4], b[4]))

    *counts, first = lax.reduce(
        (*(c.astype(jnp.uint32) for c in causes), jnp.where(bad, where, none)),
        (zero, zero, zero, zero, none),
        join,
        tuple(range(bad.ndim)),
    )
    any_bad = first != none
    return Health(
        jnp.stack(counts),
        jnp.where(any_bad, jnp.int32(number), jnp.int32(-1)),
        jnp.where(any_bad, (first & jnp.uint32(0x7FFFFFFF)).astype(jnp.int32), jnp.int32(-1)),
    )


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _contain(x: Array, bad: Array, fill: Array, insulate: Insulate) -> Array:
    """Replace bad entries."""
    return jnp.where(bad, fill, x)


@_contain.defjvp
def _contain_jvp(insulate: Insulate, primals: Any, tangents: Any) -> Any:
    """A select on the tangent: linear, so it transposes, and a NaN beside it cannot pass."""
    x, bad, fill = primals
    dx = tangents[0]
    if insulate == "bad":
        dx = jnp.where(bad, jnp.zeros_like(dx), dx)
    elif insulate == "all":
        dx = jnp.zeros_like(dx)
    return jnp.where(bad, fill, x), dx
