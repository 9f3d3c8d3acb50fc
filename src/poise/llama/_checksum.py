"""Checksums of matrix products (algorithm-based fault tolerance, Huang and Abraham 1984) and how far rounding moves
them.

For `Y = A B^T` the rows of A are cut into groups g. Summed over a group,

    sum_i Y_ij  =  (sum_i A_i) . B_j,

and the right side costs one thin product with float32 sums of A. Both sides differ by rounding only. Three parts:

- Rounding Y to a narrow dtype moves each element by at most half a unit in its last place, h_ij, a power of two; errors
  that spread evenly over that and independently of each other exceed k sqrt(sum h_ij^2 / 3) with probability at most
  2 exp(-k^2 / 2) (Hoeffding 1963, with the variance of an even spread, which is the best possible for it).
- Float32 accumulation over K terms adds at most c 2^-24 |B_j| (|A_g| + |sum of A_g|), where c grows like the square
  root of K (random signs, the same k) plus K / 16 (tensor cores cut off what does not fit, sixteen terms at a time).
- Sums that are cut to sixteen bits, where Y is narrow anyway, add 2^-16 |B_j| |sum of A_g|.

An error above their sum is no rounding. `design/llama-abft.md` says what that sees and what it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

GROUP, LEAST, GROUPS = 256, 16, 16
"""A narrow row of n elements has `GROUPS` sums or more, of `GROUP` elements at most and `LEAST` at least: an error in
one element is seen once it is k / sqrt(GROUPS), twice, what rounding does to the whole row."""

SIGMAS = 8.0
"""k above: 2.5e-14 a sum."""

UNIT = 2.0**-24
"""Unit roundoff of float32."""

VANISHED = 2.0**-126
"""A square below this is lost."""


def width(n: int, dtype: Any) -> int:
    """Elements per sum, in rows of `n`. Float32 is so fine that wide groups do."""
    return GROUP if jnp.dtype(dtype).itemsize == 4 else min(GROUP, max(LEAST, n // GROUPS))


class Sums(NamedTuple):
    """Sums over groups, and of squares over the same groups."""

    sums: Array
    squares: Array


class Side(NamedTuple):
    """What a check needs of A: sums over each group of its rows, the norm of each group, and of each sum."""

    sums: Float[Array, "*g k"]
    inside: Float[Array, "*g"]
    across: Float[Array, "*g"]


def side(made: Sums, size: int) -> Side:
    """A side, from sums over groups of `size` rows."""
    k = made.sums.shape[-1]
    return Side(made.sums, norm(made.squares, -1, size * k), norm(jnp.square(made.sums), -1, k))


def settled(x: Array) -> Array:
    """`x` in float32, rounded to its own dtype for certain: XLA may leave the rounding out in one use of a value that
    it has just made, and not in another."""
    kind = jnp.finfo(x.dtype)
    return x if x.dtype.itemsize == 4 else lax.reduce_precision(x.astype(jnp.float32), kind.nexp, kind.nmant)


def turned(s: Sums) -> Sums:
    """Groups first: for sums along the columns of a matrix."""
    return Sums(s.sums.T, s.squares.T)


def grouped(x: Array, size: int, axis: int, *, powers: bool = False) -> Sums:
    """Sums of `x` over groups of `size` along `axis`, the last group as short as it comes, in one read. With `powers`
    the squares are those of the power of two at or below each magnitude (0 for float32, where they do not count)."""
    axis %= x.ndim
    n = x.shape[axis]
    whole = n - n % size

    def one(x: Array, groups: int) -> Sums:
        x = x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])
        wide = settled(x)
        if powers and x.dtype.itemsize == 4:
            return Sums(wide.sum(axis + 1), jnp.zeros((), jnp.float32))
        other = jnp.square(_power(x).astype(jnp.float32) if powers else wide)
        # One reduction of both: of two, XLA makes two reads, and a third where norms are summed over the groups.
        zero = jnp.float32(0)
        both: Any = lax.reduce((wide, other), (zero, zero), lambda p, q: (p[0] + q[0], p[1] + q[1]), (axis + 1,))
        return Sums(*both)

    parts = []
    if whole:
        parts.append(one(lax.slice_in_dim(x, 0, whole, axis=axis), whole // size))
    if n % size:
        parts.append(one(lax.slice_in_dim(x, whole, n, axis=axis), 1))
    if len(parts) == 1:
        return parts[0]
    sums, squares = zip(*parts, strict=True)
    return Sums(jnp.concatenate(sums, axis), squares[0] if squares[0].ndim == 0 else jnp.concatenate(squares, axis))


def _power(x: Array) -> Array:
    """The power of two at or below the magnitude of each element of a 16-bit `x`."""
    mask = 0xFF80 if x.dtype == jnp.bfloat16 else 0xFC00
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint16) & jnp.uint16(mask), x.dtype)


def norm(squares: Array, axis: int | tuple[int, ...], count: int) -> Array:
    """Euclidean norms from sums of squares, summed over `axis` besides; `count` squares in all may have vanished."""
    return jnp.sqrt(squares.sum(axis) + count * VANISHED)


def lengths(b: Float[Array, "n k"]) -> Float[Array, " n"]:
    """The norm of each row."""
    return norm(jnp.square(b.astype(jnp.float32)), 1, b.shape[1])


def wanted(sums: Sequence[Float[Array, "*g k"]], b: Float[Array, "n k"], dtype: Any) -> list[Float[Array, "*g n"]]:
    """`sums . b^T` for several sums in one product. Beside a narrow `b` the sums are cut into pieces of 8 bits: three,
    which is all of them, for a result in float32, else two."""
    n = 3 if jnp.dtype(dtype).itemsize == 4 else 2
    if b.dtype.itemsize == 4:
        return [jnp.einsum("...gk,nk->...gn", s, b, precision="highest") for s in sums]
    pieces = []
    for s in sums:
        rest = s
        for _ in range(n):
            # Not astype and back: XLA may leave such a pair out.
            piece = lax.reduce_precision(rest, 8, 7)
            pieces.append(piece.astype(jnp.bfloat16))
            rest = rest - piece
    made = jnp.einsum(
        "...gk,nk->...gn", jnp.concatenate(pieces, -2), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    )
    out, at = [], 0
    for s in sums:
        g = s.shape[-2]
        cut = lax.slice_in_dim(made, at, at + n * g, axis=made.ndim - 2)
        out.append(cut.reshape(*cut.shape[:-2], n, g, cut.shape[-1]).sum(-3))
        at += n * g
    return out


def wrong(
    a: Side, size: int, want: Float[Array, "*g n"], reach: Float[Array, "*#g n"], y: Sums, dtype: Any
) -> Bool[Array, "*g n"]:
    """Which sums `y` (with `powers`) of a result in `dtype` are not what they should be within rounding. `size`: of the
    groups; `reach`: norms of B's rows."""
    k, fine = a.sums.shape[-1], jnp.dtype(dtype).itemsize == 4
    spread = SIGMAS / 3**0.5
    # Adding up a group is rounded too; |Y_gj| is at most |A_g| |B_j|.
    length = UNIT * (SIGMAS * k**0.5 + k / 16 + 2 * size**0.5 + (spread if fine else 0.0))
    bound = (length * a.inside + (length + (0.0 if fine else 2.0**-16)) * a.across)[..., None] * reach
    if not fine:
        bound = bound + spread * float(jnp.finfo(dtype).eps) / 2 * jnp.sqrt(y.squares + size * VANISHED)
    # A bound that is not finite bounds nothing: an element above 1e19 has a square that is not.
    return ~((jnp.abs(want - y.sums) <= bound) & jnp.isfinite(bound))


def off_rows(
    a: Float[Array, "m k"], sides: Sequence[Side], sizes: Sequence[int], ys: Sequence[Float[Array, "m n"]]
) -> list[Bool[Array, " m"]]:
    """For each of several products with the same A, whose B come as sides with groups of `sizes` rows: the rows of the
    result that are not right within rounding."""
    dtype = ys[0].dtype
    wants, reach = wanted([b.sums for b in sides], a, dtype), lengths(a)
    out = []
    for b, size, want, y in zip(sides, sizes, wants, ys, strict=True):
        out.append(wrong(b, size, want, reach, turned(grouped(y, size, 1, powers=True)), dtype).any(0))
    return out


def side_of(b: Float[Array, "*l n k"], dtype: Any) -> Side:
    """What `off_rows` needs of B for results in `dtype`: one read of it."""
    size = width(b.shape[-2], dtype)
    return side(grouped(b, size, -2), size)


def wrong_rows(a: Float[Array, "m k"], b: Float[Array, "n k"], y: Float[Array, "m n"]) -> Bool[Array, " m"]:
    """Rows of `y` that are not those of `a b^T` within rounding."""
    return off_rows(a, [side_of(b, y.dtype)], [width(b.shape[0], y.dtype)], [y])[0]
