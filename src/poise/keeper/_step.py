"""The two halves of a step, compiled for one placement (`design/two-phase-step.md`).

`propose` reads the kept state, never donates it, and ends with one reduction in which all devices agree on a code.
`commit` is local to each device and donates. Inside one process both are one executable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from ..devices import Placement
from ..gate import Gate
from ..kernels.ref import Check, Seal
from ..seal._shard import check_shard, heal_shard, repair_shard, seal_counting, seal_shard
from ..seal._words import to_words
from ._code import Code
from ._form import TAGS, Form, Kept, broadcast_specs
from ._workload import Traits, Workload

COLUMNS = (
    "code", "tag", "tag_off", "nan", "inf", "overflow", "marker", "leaf", "index", "state", "data", "parity", "guard",
)  # fmt: skip
"""Columns of the table over devices that every proposal carries."""


class Report(NamedTuple):
    """What a step says. `table` is the same on every device, one row per device (`COLUMNS`).

    `mended` has a row of `kernels.ref.Mended` per device and unit, and `late` one gate row per device: what was bad in
    a next state that was not committed. Both are zeros (and -1) unless the table shows a reason to look.
    """

    table: Array
    mended: Array
    late: Array


@dataclass(frozen=True)
class Executables:
    """Everything that may run on a placement, compiled; `step` is both halves, `propose` and `commit` each one
    alone."""

    placement: Placement
    step: Callable[..., tuple[Kept, Report, dict[str, Any]]] | None
    propose: Callable[..., Any]
    commit: Callable[..., Any]
    copy: Callable[[Kept], Kept]
    heal: Callable[[Kept], tuple[Kept, Array]] | None
    count: int


class Builder:
    """Makes the executables of one workload for any placement with the same axes."""

    def __init__(self, workload: Workload, form: Form, batch: Any, *, fused: bool = True) -> None:
        self.workload, self.form, self.fused = workload, form, fused
        self.traits: Traits = workload.traits
        self.batch_shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
        self.batch_specs = jax.tree.structure(batch).unflatten(broadcast_specs(workload.batch_specs(), batch))

    def __call__(self, placement: Placement) -> Executables:
        """Lower and compile at full shape; allocates nothing."""
        form = self.form
        mesh = placement.mesh
        kept = form.kept_shapes(placement)
        ctl = jax.ShapeDtypeStruct((2,), jnp.int32, sharding=placement.sharding(P()))
        batch = jax.tree.map(
            lambda s, p: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=placement.sharding(p)),
            self.batch_shapes,
            self.batch_specs,
        )

        same = jax.tree.map(lambda x: x.sharding, kept)

        def compiled(f: Callable[..., Any], *args: Any, outs: Any = None, donate: tuple[int, ...] = ()) -> Any:
            # Said outright, since XLA is free to return an empty or small array replicated.
            return jax.jit(f, donate_argnums=donate, out_shardings=outs).lower(*args).compile()

        propose, commit = self._propose(mesh), self._commit(mesh)

        def step(kept: Kept, ctl: Array, batch: Any) -> tuple[Kept, Report, dict[str, Any]]:
            proposal, table, metrics = propose(kept, ctl, batch)
            kept, mended, late = commit(kept, proposal, table)
            return kept, Report(table, mended, late), metrics

        made: dict[str, Any] = {"step": None, "propose": None, "commit": None}
        if self.fused:
            made["step"] = compiled(step, kept, ctl, batch, outs=(same, None, None), donate=(0,))
        else:
            made["propose"] = compiled(propose, kept, ctl, batch)
            proposal, table, _ = jax.eval_shape(propose, kept, ctl, batch)
            shards = made["propose"].output_shardings
            sized = jax.tree.map(
                lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), (proposal, table), shards[:2]
            )
            made["commit"] = compiled(commit, kept, *sized, outs=(same, None, None), donate=(0, 1))
        made["copy"] = compiled(lambda kept: jax.tree.map(jnp.copy, kept), kept, outs=same)
        replicated = any(not unit.parity for unit in form.plan.units)
        made["heal"] = compiled(self._heal(mesh), kept, outs=(same, None), donate=(0,)) if replicated else None
        return Executables(placement, **made, count=sum(x is not None for x in made.values()))

    def sealer(self, placement: Placement) -> Callable[[tuple[Array, ...], Any], Kept]:
        """Seal trusted leaves as the state of a step; needed once, at the start."""
        kept = self.form.kept_shapes(placement)
        tag = jax.ShapeDtypeStruct((), jnp.int32, sharding=placement.sharding(P()))
        outs = jax.tree.map(lambda x: x.sharding, kept)
        return jax.jit(self._seal(placement.mesh), out_shardings=outs).lower(kept.leaves, tag).compile()

    def _local(self, mesh: jax.sharding.Mesh, f: Callable[..., Any], ins: Any, outs: Any) -> Callable[..., Any]:
        # check_vma off: a cond whose branches come from different sources is rejected under it, and nothing here is
        # differentiated.
        return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)

    def _seal(self, mesh: jax.sharding.Mesh) -> Callable[..., Kept]:
        form = self.form

        def seal(leaves: tuple[Array, ...], tag: Array) -> Kept:
            return Kept(leaves, tuple(seal_shard(form.plan, leaves)), jnp.full(TAGS, tag, jnp.int32))

        return self._local(mesh, seal, (form.specs, P()), form.kept_specs)

    def _heal(self, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
        form = self.form

        def heal(kept: Kept) -> tuple[Kept, Array]:
            leaves, seals, rows = heal_shard(form.plan, kept.leaves, kept.seals, slot_number(form), form.devices)
            return Kept(tuple(leaves), tuple(seals), kept.tag), rows

        return self._local(mesh, heal, (form.kept_specs,), (form.kept_specs, form.stacked))

    def _propose(self, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
        form, traits, workload = self.form, self.traits, self.workload
        in_place = traits.in_place

        def gate(batch: Any) -> tuple[Any, Array]:
            clean, health = traits.gate(batch)
            return clean, health.row()[None]

        def judge(kept: Kept, next_leaves: tuple[Array, ...], row: Array, ctl: Array) -> tuple[tuple[Seal, ...], Array]:
            zero = jnp.int32(0)
            each = check_shard(form.plan, kept.leaves, kept.seals)
            seen = Check(*(jnp.stack((zero, *field)).sum(dtype=jnp.int32) for field in zip(*each, strict=True))) if each else None
            seen = seen or Check(zero, zero, zero)
            tag, tag_off = majority(kept.tag)
            if in_place:
                seals, bad = (), jnp.int32(0)
                for leaf in next_leaves:
                    bad = bad + count_bad(leaf, None, None)
            else:
                seals, bad = seal_next(form, traits, kept.leaves, next_leaves)
            batch_bad = jnp.int32(0) if traits.tolerant else row[0, :4].sum(dtype=jnp.int32)
            trouble = seen.data + seen.parity + seen.guard + bad + batch_bad
            mine = jnp.where(trouble > 0, jnp.int32(Code.RETRY), jnp.int32(Code.GO))
            facts = (jnp.stack((mine, tag, tag_off)), row[0], jnp.stack((bad, *seen)))
            table = jnp.zeros((form.devices, len(COLUMNS)), jnp.int32)
            # Rows are at least -1 and nobody else writes mine: shifted by one, the maximum only joins them.
            table = table.at[slot_number(form)].set(jnp.concatenate(facts) + 1)
            table = lax.pmax(table, tuple(name for name, _ in form.axes)) - 1
            tags = table[:, 1]
            # The host's order holds for its own step only: a no-op behind a withheld step must not drop the wrong
            # batch.
            code = jnp.where(tags[0] == ctl[0], jnp.maximum(table[:, 0].max(), ctl[1]), jnp.int32(Code.RETRY))
            code = jnp.where(tags.min() == tags.max(), code, jnp.int32(Code.ROLLBACK))
            return tuple(seals), table.at[:, 0].set(code)

        def propose(kept: Kept, ctl: Array, batch: Any) -> tuple[Any, Array, dict[str, Any]]:
            batch, rows = self._local(mesh, gate, (self.batch_specs,), (self.batch_specs, form.stacked))(batch)
            proposal, metrics = workload.propose(mesh, form.unflatten(kept.leaves), batch)
            flat = tuple(jax.tree.leaves(proposal)) if in_place else form.flatten(proposal)
            specs = tuple(broadcast_specs(workload.proposal_specs(), proposal)) if in_place else form.specs
            # The marks are compared after the last read: without the barrier XLA may check first and read later.
            kept, flat = lax.optimization_barrier((kept, flat))
            seals = () if in_place else form.kept_specs.seals
            seals, table = self._local(mesh, judge, (form.kept_specs, specs, form.stacked, P()), (seals, P()))(
                kept, flat, rows, ctl
            )
            return (proposal if in_place else (flat, seals)), table, metrics

        return propose

    def _commit(self, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
        form, traits, workload = self.form, self.traits, self.workload
        units, in_place = len(form.plan.units), traits.in_place
        nothing = Gate()(jnp.zeros(0, jnp.float32))[1].row()

        def local(kept: Kept, proposal: Any, table: Array) -> tuple[Kept, Array, Array]:
            code = table[0, 0]
            tag, _ = majority(kept.tag)

            def repair(_: Any) -> tuple[Any, Any, Array, Array]:
                leaves, seals, rows = repair_shard(form.plan, kept.leaves, kept.seals)
                late = nothing if in_place else state_health(traits, kept.leaves, proposal[0])
                return tuple(leaves), tuple(seals), rows, late

            def go(_: Any) -> tuple[Any, Any, Array, Array]:
                if not in_place:
                    return (*proposal, jnp.zeros((units, 5), jnp.int32), nothing)
                # An update in place reads the old state again: what went bad since the proposal is mended first, and a
                # device that cannot mend leaves everything unwritten, with its old tag.
                leaves, seals, rows = repair_shard(form.plan, kept.leaves, kept.seals)

                def update(_: Any) -> tuple[Any, Any]:
                    new = form.flatten(workload.commit(form.unflatten(leaves), proposal))
                    return new, tuple(seal_shard(form.plan, new))

                new, made = lax.cond(rows[:, 4].sum() == 0, update, lambda _: (tuple(leaves), tuple(seals)), None)
                return new, made, rows, nothing

            leaves, seals, rows, late = lax.cond(code == Code.GO, go, repair, None)
            moves = ((code == Code.GO) | (code == Code.DROP)) & (rows[:, 4].sum() == 0)
            tags = jnp.full(TAGS, tag + moves.astype(jnp.int32), jnp.int32)
            return Kept(leaves, seals, tags), rows, late[None]

        def commit(kept: Kept, proposal: Any, table: Array) -> tuple[Kept, Array, Array]:
            specs = workload.proposal_specs() if in_place else (form.specs, form.kept_specs.seals)
            ins = (form.kept_specs, specs, P())
            return self._local(mesh, local, ins, (form.kept_specs, form.stacked, form.stacked))(kept, proposal, table)

        return commit


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
    seals, total = [], jnp.int32(0)
    for unit, words in zip(form.plan.units, form.plan.words(new), strict=True):
        if len(unit.leaves) == 1 and form.plan.leaves[unit.leaves[0]].dtype == jnp.float32:
            before = to_words(old[unit.leaves[0]]) if traits.newly else None
            seal, bad = seal_counting(unit, words, bad_bits(words, before, traits.limit))
        else:
            seal, bad = seal_counting(unit, words, jnp.zeros(words.shape, bool))
            for i in unit.leaves:
                bad = bad + count_bad(new[i], old[i] if traits.newly else None, traits.limit)
        seals.append(seal)
        total = total + bad
    return tuple(seals), total


def bad_bits(words: Array, before: Array | None, limit: float | None) -> Array:
    """Which float32 bit patterns are NaN, infinite or beyond the limit: without the sign they order like integers."""
    largest = jnp.finfo(jnp.float32).max if limit is None else min(limit, float(jnp.finfo(jnp.float32).max))
    bound = lax.bitcast_convert_type(jnp.float32(largest), jnp.uint32) << 1
    bad = (words << 1) > bound
    return bad if before is None else bad & ~((before << 1) > bound)


def count_bad(leaf: Array, before: Array | None, limit: float | None) -> Array:
    """How many values of a leaf of any dtype are bad (and were not before)."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jnp.int32(0)
    real = leaf.real.dtype if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else leaf.dtype
    largest = float(jnp.finfo(real).max)
    bound = jnp.asarray(largest if limit is None else min(limit, largest), real)

    def bad(x: Array) -> Array:
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return ~((jnp.abs(x.real) <= bound) & (jnp.abs(x.imag) <= bound))
        return ~(jnp.abs(x) <= bound)

    mask = bad(leaf) if before is None else bad(leaf) & ~bad(before)
    return mask.sum().astype(jnp.int32)


def state_health(traits: Traits, old: tuple[Array, ...], new: tuple[Array, ...]) -> Array:
    """Cause and place of what was bad in a next state: a gate row, made only when it was not committed."""
    limit = float(jnp.finfo(jnp.float64).max) if traits.limit is None else traits.limit
    if traits.newly:
        new = tuple(
            jnp.where(jnp.isfinite(b), a, jnp.zeros_like(a)) if jnp.issubdtype(a.dtype, jnp.inexact) else a
            for a, b in zip(new, old, strict=True)
        )
    return Gate(limit=limit)(new)[1].row()
