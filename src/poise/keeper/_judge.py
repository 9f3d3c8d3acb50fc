"""What one device finds out about a step, inside the compiled program."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Int32

from .. import kernels
from ..gate import Gate
from ..kernels import limit_bits
from ..kernels.ref import Check, Seal
from ..seal._plan import Unit
from ..seal._shard import seal_counting_shard
from ._form import Form
from ._workload import Traits

SMALL = 1 << 18
"""Words of small leaves that may be looked at twice in every step: 1 MiB."""


def slot_number(form: Form) -> Array:
    """Inside `shard_map`: this device's logical slot."""
    me = jnp.int32(0)
    for name, size in form.axes:
        me = me * size + lax.axis_index(name)
    return me


def majority(tags: Array) -> tuple[Array, Array]:
    """The tag that at least two of three copies say, and how many copies are off."""
    a, b, c = tags[0], tags[1], tags[2]
    tag = jnp.where(b == c, b, a)
    return tag, (tags != tag).sum().astype(jnp.int32)


def seal_next(
    form: Form, traits: Traits, old: tuple[Array, ...], new: tuple[Array, ...]
) -> tuple[tuple[Seal, ...], Array]:
    """Seals of the next state, and how many of its values are bad, in one read where the dtype allows."""
    seals, counts = seal_counting_shard(form.plan, new, bound_bits(traits.limit))
    alone = [i for i, unit in enumerate(form.plan.units) if form.plan.single(unit)]
    rest = [unit for i, unit in enumerate(form.plan.units) if i not in alone]
    total = jnp.int32(0)
    if alone:
        bad = jnp.stack([counts[i] for i in alone])
        if traits.newly:
            leaves = [form.plan.units[i].leaves[0] for i in alone]
            bad = kernels.newly_bad_all(bad, [new[i] for i in leaves], [old[i] for i in leaves], traits.limit)
        total = total + bad.sum(dtype=jnp.int32)
    for unit in rest:
        total = total + _bad_of(traits, unit, old, new)
    return tuple(seals), total


def _bad_of(traits: Traits, unit: Unit, old: tuple[Array, ...], new: tuple[Array, ...]) -> Array:
    """How many values of a unit are bad, of any dtypes; the old values of a large one are read only where some are."""
    if traits.newly and unit.words <= SMALL:
        return sum((count_bad(new[i], old[i], traits.limit) for i in unit.leaves), jnp.int32(0))
    bad = sum((count_bad(new[i], None, traits.limit) for i in unit.leaves), jnp.int32(0))
    return newly_bad(bad, [(new[i], old[i]) for i in unit.leaves], traits.limit) if traits.newly else bad


class Given(NamedTuple):
    """What a workload with `propose_sealed` has found out itself: seals and bad values of the next state, by unit and
    by device, and the check of the old state."""

    seals: tuple[Seal, ...]
    bad: Int32[Array, " devices"]
    seen: Check


def takes_sealed(form: Form, traits: Traits) -> bool:
    """Whether the workload's own seals are taken: where each unit is one float32 leaf with parity."""
    alone = all(form.plan.single(unit) and unit.parity for unit in form.plan.units)
    return traits.sealed and not traits.in_place and alone


def given_next(
    form: Form, traits: Traits, old: tuple[Array, ...], new: tuple[Array, ...], given: Given
) -> tuple[tuple[Seal, ...], Array, Check]:
    """On one device: what `seal_next` and a check would return, from what is given."""
    bad = given.bad[0]
    if traits.newly:
        bad = newly_bad(bad, list(zip(new, old, strict=True)), traits.limit)
    return given.seals, bad, Check(*(x[0] for x in given.seen))


def newly_bad(bad: Array, pairs: list[tuple[Array, Array]], limit: float | None) -> Array:
    """How many values are bad now and were not before, over pairs of new and old leaves. The old values are read again
    only where something is bad at all."""
    new, old = ([pair[i] for pair in pairs] for i in (0, 1))
    if pairs and all(x.size and x.dtype in (jnp.float32, jnp.float64) for x in new):
        each = jnp.broadcast_to(bad, (len(pairs),))
        return kernels.newly_bad_all(each, new, old, limit).sum(dtype=jnp.int32)

    def look(pairs: list[tuple[Array, Array]]) -> Array:
        return sum((count_bad(new, old, limit) for new, old in pairs), jnp.int32(0))

    return lax.cond(bad > 0, look, lambda _: jnp.int32(0), pairs)


def prints(form: Form, seals: tuple[Seal, ...]) -> Array:
    """60 bits of what every device proposes alike: of the guards of units that are replicated over the whole mesh.

    Free: the guards are there anyway. Zero where nothing is replicated, and the same on all devices unless one of them
    has computed something else than the others.
    """
    every = {name for name, size in form.axes if size > 1}
    both = jnp.zeros(2, jnp.uint32)
    for unit, seal in zip(form.plan.units, seals, strict=False):
        if every and set(unit.replicas) == every:
            turn = lax.broadcasted_iota(jnp.uint32, seal.guard.shape, 0) * jnp.uint32(2) + jnp.uint32(1)
            both = both * jnp.uint32(3) + (seal.guard * turn).sum(0, dtype=jnp.uint32)
    # Two bits are given up, so that a row of the table stays a small positive number.
    return (both >> jnp.uint32(2)).astype(jnp.int32)


def bound_bits(limit: float | None) -> int:
    """Bits of the smallest float32 magnitude that is bad: without the sign they order like integers, NaN above Inf."""
    largest = float(np.finfo(np.float32).max)
    return limit_bits(largest if limit is None else min(limit, largest)) + 1


def count_bad(leaf: Array, before: Array | None, limit: float | None) -> Array:
    """How many values of a leaf of any dtype are bad (and were not before)."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.int32(0)
    mask = bad_mask(leaf, limit)
    if before is not None:
        mask &= ~bad_mask(before, limit)
    return mask.sum().astype(jnp.int32)


def bad_mask(x: Array, limit: float | None) -> Array:
    """Which values of an inexact array are not finite, or above the limit in magnitude."""
    largest = float(jnp.finfo(x.dtype).max)
    bound = jnp.asarray(largest if limit is None else min(limit, largest), x.real.dtype)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return ~((jnp.abs(x.real) <= bound) & (jnp.abs(x.imag) <= bound))
    return ~(jnp.abs(x) <= bound)


def count_rarely(leaf: Array) -> Array:
    """As `count_bad`, computing only the sum where that is finite, as it is not with a NaN or an infinity in it: XLA's
    CPU backend writes a mask out before it sums it. Not for GPUs, where the host waits for a conditional.

    Not the largest magnitude: on a CPU, JAX 0.10's `max` over 16,384 values or more loses a NaN.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return count_bad(leaf, None, None)
    total = leaf.sum(dtype=jnp.promote_types(leaf.dtype, jnp.float32))
    return lax.cond(jnp.isfinite(total), lambda _: jnp.int32(0), lambda x: count_bad(x, None, None), leaf)


def state_health(traits: Traits, old: tuple[Array, ...], new: tuple[Array, ...]) -> Array:
    """Cause and place of what was bad in a next state: a gate row, made only when it was not committed."""
    limit = float(jnp.finfo(jnp.float64).max) if traits.limit is None else traits.limit
    if traits.newly:
        new = tuple(
            jnp.where(bad_mask(b, traits.limit), jnp.zeros_like(a), a) if jnp.issubdtype(a.dtype, jnp.inexact) else a
            for a, b in zip(new, old, strict=True)
        )
    return Gate(limit=limit)(new)[1].row()
