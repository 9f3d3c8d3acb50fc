"""What is decided on the device without a conditional: whether a next state is taken, whether bad values are new.

XLA's GPU backend makes the host wait for the predicate of every conditional and loop, once a step and more. These
kernels read it themselves and return at once in the common case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Int32

from ._call import call
from ._seal import as_words, repair
from .layout import Layout
from .ref import Seal

DOUBLE = float(np.finfo(np.float64).max)


class Settled(NamedTuple):
    """What a step leaves of several arrays: the arrays, their seals, for each a row of `Mended` (of the old one) and of
    what was bad in the next one, if that was not taken: numbers of NaN, Inf and overflows, and the first flat index or
    -1."""

    arrays: list[Array]
    seals: list[Seal]
    mended: Int32[Array, "n 5"]
    found: Int32[Array, "n 4"]


def settle_all(
    stay: Bool[Array, ""],
    old: Sequence[Array],
    kept: Sequence[Seal],
    new: Sequence[Array],
    made: Sequence[Seal],
    *,
    limit: float | None,
    newly: bool,
) -> Settled:
    """For each of several arrays, `new` and its seal as they are, or where `stay`, `old` and its seal mended by the
    rules of `ref.repair`.

    `old` and `new` have one shape and a dtype of 4 or 8 bytes, and are not empty. In place of `new`, which is not
    copied. In float32 and float64 a value is bad that is no number, infinite, or above `limit` in magnitude (None:
    finite is good); with `newly`, only if it was good in `old`.
    """

    def one(stay: Array, old: Array, *rest: Array) -> list[Array]:
        kept, new, made = Seal(*rest[:3]), rest[3], Seal(*rest[4:])

        def put_back(carry: Any) -> Any:
            words, seal, mended = repair(as_words(old), kept)
            flat = words.reshape(-1, 2) if new.dtype.itemsize == 8 else words
            array = lax.bitcast_convert_type(flat, new.dtype).reshape(new.shape)
            return jnp.bool_(False), array, seal, jnp.stack(mended), _found(carry[1], old, limit, newly)

        nothing = jnp.array([-1, -1, -1, -1], jnp.int32)
        # A loop of no turns hands on what it began with; a conditional would copy it.
        start = (stay[0] != 0, new, made, jnp.zeros(5, jnp.int32), nothing)
        _, array, seal, mended, found = lax.while_loop(lambda carry: carry[0], put_back, start)
        return [array, *seal, mended, found]

    def twin(stay: Array, *args: Array) -> list[Array]:
        each = [one(stay, *args[i : i + 8]) for i in range(0, len(args), 8)]
        return [
            *(part for x in each for part in x[:4]),
            jnp.stack([x[4] for x in each]),
            jnp.stack([x[5] for x in each]),
        ]

    args, results = [stay.astype(jnp.int32).reshape(1)], []
    for before, seal, after, its in zip(old, kept, new, made, strict=True):
        lay = Layout(after.size * after.dtype.itemsize // 4)
        args += [before, *seal, after, *its]
        results += [
            (after.shape, after.dtype),
            ((lay.L,), jnp.uint32),
            (lay.marks_shape, jnp.uint32),
            ((lay.G, 2), jnp.uint32),
        ]
    n = len(results) // 4
    results += [((n, 5), jnp.int32), ((n, 4), jnp.int32)]
    aliases = {5 + 8 * k + i: 4 * k + i for k in range(n) for i in range(4)}
    most = DOUBLE if limit is None else limit
    *parts, mended, found = call("poise_settle", twin, args, results, aliases=aliases, limit=most, newly=newly)
    seals = [Seal(*parts[4 * k + 1 : 4 * k + 4]) for k in range(n)]
    return Settled(parts[::4], seals, mended, found + jnp.array([1, 1, 1, 0], jnp.int32))


def newly_bad_all(
    bad: Int32[Array, " n"], new: Sequence[Array], old: Sequence[Array], limit: float | None
) -> Int32[Array, " n"]:
    """How many values of each float32 or float64 array are bad in `new` and good in `old`; 0 without a look where `bad`
    is 0."""

    def twin(bad: Array, *args: Array) -> list[Array]:
        def look(pair: tuple[Array, Array]) -> Array:
            return (_found(*pair, limit, True)[:3] + 1).sum(dtype=jnp.int32)

        pairs = [(args[i], args[i + 1]) for i in range(0, len(args), 2)]
        return [jnp.stack([lax.cond(bad[k] > 0, look, lambda _: jnp.int32(0), p) for k, p in enumerate(pairs)])]

    args = [bad, *(x for pair in zip(new, old, strict=True) for x in pair)]
    most = DOUBLE if limit is None else limit
    return call("poise_newly", twin, args, [((len(new),), jnp.int32)], limit=most)[0]


def _found(new: Array, old: Array, limit: float | None, newly: bool) -> Int32[Array, " 4"]:
    """As the kernels write it: counts less one, and the first index."""
    if not jnp.issubdtype(new.dtype, jnp.floating):
        return jnp.array([-1, -1, -1, -1], jnp.int32)
    largest = float(jnp.finfo(new.dtype).max)
    most = largest if limit is None else min(limit, largest)
    nan, inf = jnp.isnan(new), jnp.isinf(new)
    each = [nan, inf, (jnp.abs(new) > jnp.asarray(most, new.dtype)) & ~inf]
    if newly:
        each = [x & (jnp.abs(old) <= jnp.asarray(most, old.dtype)) for x in each]
    bad = (each[0] | each[1] | each[2]).reshape(-1)
    first = jnp.where(bad.any(), jnp.argmax(bad), -1)
    return jnp.stack([*(x.sum() - 1 for x in each), first]).astype(jnp.int32)


__all__ = ["Settled", "newly_bad_all", "settle_all"]
