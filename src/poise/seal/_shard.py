"""Seal, check, repair and heal the units of one shard: the functions that run inside a compiled step."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int32, UInt32

from .. import kernels
from ..kernels import ref
from ..kernels.layout import BANKS
from ..kernels.ref import Check, Mended, Seal
from ._plan import Plan, Unit

Words = UInt32[Array, " n"]


def _marks_only(marks: UInt32[Array, "20 G 2"]) -> Seal:
    # One zero word stands for the parity: XLA (JAX 0.11) crashes on empty arrays that are cut over a mesh.
    return Seal(jnp.zeros(1, jnp.uint32), marks, ref.guard_of(marks))


def _data_marks(x: Array) -> UInt32[Array, "20 G 2"]:
    """Marks of the data blocks alone. The compiled kernel makes the parity along with them at no extra read."""
    if kernels.platforms():
        return kernels.seal(x).marks[:BANKS]
    return ref.block_marks(ref.banks(kernels.as_words(x)))


def check_unit(unit: Unit, x: Array, kept: Seal) -> Check:
    """How many blocks do not match."""
    if unit.parity:
        return kernels.check(x, kept)
    data = (_data_marks(x) != kept.marks).any(-1).sum().astype(jnp.int32)
    guard = (ref.guard_of(kept.marks) != kept.guard).any(-1).sum().astype(jnp.int32)
    return Check(data, jnp.int32(0), guard)


def repair_unit(unit: Unit, words: Words, kept: Seal) -> tuple[Words, Seal, Mended]:
    """Mend one unit from its own parity. Without parity only a guard can be mended here; blocks that are off wait for
    `heal_unit`, and count as unrepairable until then."""
    if unit.parity:
        return kernels.repair(words, kept)
    off = (_data_marks(words) != kept.marks).any(-1)
    right = ~off.any(0)
    fresh = ref.guard_of(kept.marks)
    guard_off = (fresh != kept.guard).any(-1) & right
    n_guard, n_off = guard_off.sum().astype(jnp.int32), off.sum().astype(jnp.int32)
    new = kept._replace(guard=jnp.where(guard_off[:, None], fresh, kept.guard))
    return words, new, Mended(n_off, n_guard, jnp.int32(0), n_guard, n_off)


def heal_unit(unit: Unit, words: Words, kept: Seal, me: Int32[Array, ""], n: int) -> tuple[Words, Seal, Mended]:
    """Inside `shard_map`: take damaged blocks and marks of a replicated unit from the first replica that has them
    right.

    `me` is this device's number among the `n` devices of the mesh. Communicates over `unit.replicas`.
    """
    blocks = ref.banks(words)
    nobody = jnp.int32(n)

    def from_peer(value: Array, right: Array, wide: Array) -> tuple[Array, Array]:
        owner = lax.pmin(jnp.where(right, me, nobody), unit.replicas)
        sent = lax.psum(jnp.where(jnp.reshape(owner == me, wide.shape), value, jnp.zeros_like(value)), unit.replicas)
        have = owner < nobody
        return jnp.where(jnp.reshape(right | ~have, wide.shape), value, sent), have

    # Marks first: a group whose guard matches is believed.
    marks_right = (ref.guard_of(kept.marks) == kept.guard).all(-1)
    marks, _ = from_peer(kept.marks, marks_right, jnp.zeros((1, marks_right.shape[0], 1)))
    now = ref.block_marks(blocks)
    right = (now == marks).all(-1)
    data, _ = from_peer(blocks, right, jnp.zeros((*right.shape, 1)))
    healed = (ref.block_marks(data) == marks).all(-1)
    off_marks = (marks != kept.marks).any(-1)
    guard = ref.guard_of(marks)
    off_guard = (guard != kept.guard).any(-1) & ~off_marks.any(0)

    def count(x: Array) -> Int32[Array, ""]:
        return x.sum().astype(jnp.int32)

    lost = count(~healed)
    n_data, n_marks = count(~right), count(off_marks) + count(off_guard)
    mended = Mended(n_data, n_marks, jnp.int32(0), n_data + n_marks - lost, lost)
    return data.reshape(-1)[: words.shape[0]], Seal(kept.parity, marks, guard), mended


def seal_shard(plan: Plan, arrays: Sequence[Array]) -> list[Seal]:
    """Seals of all units of a shard; by the compiled kernels in one call."""
    return [_own(u, seal) for u, seal in zip(plan.units, kernels.seal_all(plan.read(arrays)), strict=True)]


def seal_counting_shard(plan: Plan, arrays: Sequence[Array], bound: int) -> tuple[list[Seal], Int32[Array, " units"]]:
    """`seal_shard`, and in the same read of each unit that is one float32 leaf, how many of its values have magnitude
    bits of at least `bound` (elsewhere the count means nothing)."""
    seals, counts = kernels.seal_counting_all(plan.read(arrays), [bound] * len(plan.units))
    return [_own(u, seal) for u, seal in zip(plan.units, seals, strict=True)], counts


def _own(unit: Unit, seal: Seal) -> Seal:
    return seal if unit.parity else _marks_only(seal.marks[:BANKS])


def check_shard(plan: Plan, arrays: Sequence[Array], seals: Sequence[Seal]) -> list[Check]:
    """Blocks that do not match, unit by unit."""
    return [check_unit(u, x, s) for u, x, s in zip(plan.units, plan.read(arrays), seals, strict=True)]


def check_total(plan: Plan, arrays: Sequence[Array], seals: Sequence[Seal]) -> Check:
    """Blocks that do not match, all units together; by the compiled kernels in one call for those with parity."""
    each = list(zip(plan.units, plan.read(arrays), seals, strict=True))
    own = [(x, seal) for unit, x, seal in each if unit.parity]
    rest = [check_unit(unit, x, seal) for unit, x, seal in each if not unit.parity]
    return total([kernels.check_all([x for x, _ in own], [seal for _, seal in own]), *rest])


def total(each: Sequence[Check]) -> Check:
    """The sums over units."""
    zero = jnp.int32(0)
    fields = zip(*each, strict=True) if each else ((), (), ())
    return Check(*(jnp.stack((zero, *field)).sum(dtype=jnp.int32) for field in fields))


def repair_shard(
    plan: Plan, arrays: Sequence[Array], seals: Sequence[Seal]
) -> tuple[list[Array], list[Seal], Int32[Array, "units 5"]]:
    """Mend all units; one row of `Mended` per unit."""
    mended = [repair_unit(u, w, s) for u, w, s in zip(plan.units, plan.words(arrays), seals, strict=True)]
    return _gather(plan, arrays, mended)


def heal_shard(
    plan: Plan, arrays: Sequence[Array], seals: Sequence[Seal], me: Int32[Array, ""], n: int
) -> tuple[list[Array], list[Seal], Int32[Array, "units 5"]]:
    """Heal the replicated units from peers, leaving the others alone."""
    zero = jnp.int32(0)
    nothing = Mended(zero, zero, zero, zero, zero)
    healed = [
        (w, s, nothing) if u.parity else heal_unit(u, w, s, me, n)
        for u, w, s in zip(plan.units, plan.words(arrays), seals, strict=True)
    ]
    return _gather(plan, arrays, healed)


def _gather(
    plan: Plan, arrays: Sequence[Array], each: Sequence[tuple[Words, Seal, Mended]]
) -> tuple[list[Array], list[Seal], Int32[Array, "units 5"]]:
    rows = jnp.stack([jnp.stack(m) for _, _, m in each]) if each else jnp.zeros((0, 5), jnp.int32)
    return plan.arrays([w for w, _, _ in each], arrays), [s for _, s, _ in each], rows
