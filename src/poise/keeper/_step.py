"""The two halves of a step, compiled for one placement (`design/two-phase-step.md`).

`propose` reads the kept state, never donates it, and ends with one reduction in which all devices agree on a code.
`commit` is local to each device. Inside one process both are one executable.
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
from ..kernels.ref import Check, Seal
from ..seal._shard import check_total, heal_shard, seal_shard
from ._code import Code
from ._commit import replaced, updated
from ._feed import Feed
from ._form import TAGS, Form, Kept, broadcast_specs
from ._fused import triples
from ._judge import (
    Given,
    bound_bits,
    count_bad,
    count_rarely,
    given_next,
    majority,
    prints,
    seal_next,
    slot_number,
    takes_sealed,
)
from ._workload import Traits, Workload

COLUMNS = (
    "code", "tag", "tag_off", "nan", "inf", "overflow", "marker", "leaf", "index", "state", "data", "parity", "guard",
    "print_a", "print_b",
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
    copy: Callable[[Kept], Kept] | None
    heal: Callable[[Kept], tuple[Kept, Array]] | None
    count: int


class Builder:
    """Makes the executables of one workload for any placement with the same axes.

    `fused`: both halves in one executable. `hold`: peers can die, so the generation before must stay; the commit is
    made by `committer`, for one device alone and out of place.
    """

    def __init__(self, workload: Workload, form: Form, batch: Any, *, fused: bool = True, hold: bool = False) -> None:
        self.workload, self.form, self.fused, self.hold = workload, form, fused, hold
        self.traits: Traits = workload.traits
        self.batch_shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
        self.batch_leaves, self.batch_treedef = jax.tree.flatten(self.batch_shapes)
        self.batch_specs = jax.tree.structure(batch).unflatten(broadcast_specs(workload.batch_specs(), batch))

    def __call__(self, placement: Placement) -> Executables:
        """Lower and compile at full shape; allocates nothing."""
        form = self.form
        mesh = placement.mesh
        kept = form.kept_shapes(placement)
        ctl, batch = self._step_inputs(placement)

        same = jax.tree.map(lambda x: x.sharding, kept)

        def compiled(f: Callable[..., Any], *args: Any, outs: Any = None, donate: tuple[int, ...] = ()) -> Any:
            # Said outright, since XLA is free to return an empty or small array replicated.
            return jax.jit(f, donate_argnums=donate, out_shardings=outs).lower(*args).compile()

        propose, commit = self._propose(mesh), self._commit(mesh)

        def step(kept: Kept, ctl: Array, batch: Any) -> tuple[Kept, Report, dict[str, Any]]:
            proposal, table, metrics = propose(kept, ctl, batch)
            kept, mended, late = commit(kept, proposal, table)
            return kept, Report(table, mended, late), metrics

        made: dict[str, Any] = {"step": None, "propose": None, "commit": None, "copy": None}
        if self.fused:
            # A state that is replaced has nothing to gain from being given up: it is read until the next one is
            # computed, which would be copied into its memory, and the CPU client waits in the dispatch for it.
            donate = (0,) if self.traits.in_place else ()
            made["step"] = compiled(step, kept, ctl, batch, outs=(same, None, None), donate=donate)
        else:
            made["propose"] = compiled(propose, kept, ctl, batch)
        if not (self.fused or self.hold):
            sized = self._proposed(placement, made["propose"], kept, ctl, batch)
            # A proposal that is the next state gives its memory to it; gradients have nothing to give it to.
            donate = (0,) if self.traits.in_place else (1,)
            made["commit"] = compiled(commit, kept, *sized, outs=(same, None, None), donate=donate)
        if not self.hold:  # a state that is held needs no copy to be written from
            made["copy"] = compiled(lambda kept: jax.tree.map(jnp.copy, kept), kept, outs=same)
        replicated = any(not unit.parity for unit in form.plan.units)
        made["heal"] = compiled(self._heal(mesh), kept, outs=(same, None), donate=(0,)) if replicated else None
        return Executables(placement, **made, count=sum(x is not None for x in made.values()))

    def committer(self, placement: Placement, exe: Executables, device: jax.Device) -> Callable[..., Any]:
        """The commit for one device's pieces, whatever placement it is part of; `exe` is any placement's.

        Takes and returns arrays of that device: what a mesh of one device calls whole.
        """
        alone = Placement((device,), tuple((name, 1) for name, _ in self.form.axes))

        def piece(x: Any) -> Any:
            spec = x.sharding.spec
            return jax.ShapeDtypeStruct(x.sharding.shard_shape(x.shape), x.dtype, sharding=alone.sharding(spec))

        kept = self.form.kept_shapes(placement)
        proposal, table = self._proposed(placement, exe.propose, kept, *self._step_inputs(placement))
        args = jax.tree.map(piece, (kept, proposal, table))
        outs = (jax.tree.map(lambda x: x.sharding, args[0]), None, None)
        donate = () if self.traits.in_place else (1,)
        return jax.jit(self._commit(alone.mesh), donate_argnums=donate, out_shardings=outs).lower(*args).compile()

    def feed(self, placement: Placement) -> Feed:
        """What puts batches on the devices of a placement."""
        specs = self.batch_treedef.flatten_up_to(self.batch_specs)
        return Feed(placement, self.batch_leaves, specs, self.batch_treedef)

    def _step_inputs(self, placement: Placement) -> tuple[Any, Any]:
        ctl = jax.ShapeDtypeStruct((2,), jnp.int32, sharding=placement.sharding(P()))
        batch = jax.tree.map(
            lambda s, p: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=placement.sharding(p)),
            self.batch_shapes,
            self.batch_specs,
        )
        return ctl, batch

    def _proposed(self, placement: Placement, propose: Any, *args: Any) -> tuple[Any, Any]:
        """Shapes and shardings of a proposal and its table."""
        proposal, table, _ = jax.eval_shape(self._propose(placement.mesh), *args)
        shards = propose.output_shardings
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), (proposal, table), shards[:2]
        )

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
        # Moments that only the commit reads are verified there, by the pass that moves them.
        later = {unit for triple in triples(form, traits, mesh) for unit in triple.units[1:]}
        now = [i for i in range(len(form.plan.units)) if i not in later]
        watched = form.plan.part(now)
        sealed = takes_sealed(form, traits)
        counted = count_rarely if mesh.devices.flat[0].platform == "cpu" else lambda x: count_bad(x, None, None)

        def gate(batch: Any) -> tuple[Any, Array]:
            clean, health = traits.gate(batch)
            return clean, health.row()[None]

        def looked(kept: Kept, next_leaves: tuple[Array, ...], given: Given | None) -> tuple[Any, Array, Check]:
            """Seals of the next state, how many of its values are bad, and the check of the old one."""
            if given is not None:
                return given_next(form, traits, kept.leaves, next_leaves, given)
            seen = check_total(watched, kept.leaves, [kept.seals[i] for i in now])
            if not in_place:
                return *seal_next(form, traits, kept.leaves, next_leaves), seen
            return (), sum(map(counted, next_leaves), jnp.int32(0)), seen

        def judge(
            kept: Kept, next_leaves: tuple[Array, ...], row: Array, ctl: Array, given: Given | None
        ) -> tuple[tuple[Seal, ...], Array]:
            tag, tag_off = majority(kept.tag)
            seals, bad, seen = looked(kept, next_leaves, given)
            batch_bad = jnp.int32(0) if traits.tolerant else row[0, :4].sum(dtype=jnp.int32)
            trouble = seen.data + seen.parity + seen.guard + bad + batch_bad
            mine = jnp.where(trouble > 0, jnp.int32(Code.RETRY), jnp.int32(Code.GO))
            facts = (jnp.stack((mine, tag, tag_off)), row[0], jnp.stack((bad, *seen)), prints(form, seals))
            table = jnp.zeros((form.devices, len(COLUMNS)), jnp.int32)
            # Rows are at least -1 and nobody else writes mine: shifted by one, the maximum only joins them.
            table = table.at[slot_number(form)].set(jnp.concatenate(facts) + 1)
            table = lax.pmax(table, tuple(name for name, _ in form.axes)) - 1
            tags, marks = table[:, 1], table[:, -2:]
            # Replicas propose the same bits, or somebody computed wrongly.
            differ = (marks != marks[:1]).any()
            table = table.at[:, 0].max(jnp.where(differ, jnp.int32(Code.RETRY), jnp.int32(Code.GO)))
            # The host's order holds for its own step only: a no-op behind a withheld step must not drop the wrong
            # batch.
            code = jnp.where(tags[0] == ctl[0], jnp.maximum(table[:, 0].max(), ctl[1]), jnp.int32(Code.RETRY))
            code = jnp.where(tags.min() == tags.max(), code, jnp.int32(Code.ROLLBACK))
            return tuple(seals), table.at[:, 0].set(code)

        def propose(kept: Kept, ctl: Array, batch: Any) -> tuple[Any, Array, dict[str, Any]]:
            batch, rows = self._local(mesh, gate, (self.batch_specs,), (self.batch_specs, form.stacked))(batch)
            given: Given | None = None
            state = form.unflatten(kept.leaves)
            if sealed:
                asked: Any = workload
                proposal, metrics, made, bad, seen = asked.propose_sealed(
                    mesh, state, batch, form.treedef.unflatten(form.by_leaf(kept.seals)), bound_bits(traits.limit)
                )
                given = Given(form.by_unit(form.treedef.flatten_up_to(made)), bad, seen)
            else:
                proposal, metrics = workload.propose(mesh, state, batch)
            flat = tuple(jax.tree.leaves(proposal)) if in_place else form.flatten(proposal)
            specs = tuple(broadcast_specs(workload.proposal_specs(), proposal)) if in_place else form.specs
            # The marks are compared after the last read: without the barrier XLA may check first and read later.
            kept, flat = lax.optimization_barrier((kept, flat))
            seals = () if in_place else form.kept_specs.seals
            ins = (form.kept_specs, specs, form.stacked, P(), form.stacked)
            seals, table = self._local(mesh, judge, ins, (seals, P()))(kept, flat, rows, ctl, given)
            return (proposal if in_place else (flat, seals)), table, metrics

        return propose

    def _commit(self, mesh: jax.sharding.Mesh) -> Callable[..., Any]:
        form, workload = self.form, self.workload
        in_place = self.traits.in_place
        choose = updated(form, workload, mesh) if in_place else replaced(form, workload.traits, mesh)

        def local(kept: Kept, proposal: Any, table: Array) -> tuple[Kept, Array, Array]:
            code = table[0, 0]
            tag, _ = majority(kept.tag)
            leaves, seals, rows, late = choose(kept, proposal, code)
            # Where something was beyond repair the tag stays, and all devices go back to a snapshot.
            moves = ((code == Code.GO) | (code == Code.DROP)) & (rows[:, 4].sum() == 0)
            tags = jnp.full(TAGS, tag + moves.astype(jnp.int32), jnp.int32)
            return Kept(tuple(leaves), tuple(seals), tags), rows, late[None]

        def commit(kept: Kept, proposal: Any, table: Array) -> tuple[Kept, Array, Array]:
            specs = workload.proposal_specs() if in_place else (form.specs, form.kept_specs.seals)
            ins = (form.kept_specs, specs, P())
            return self._local(mesh, local, ins, (form.kept_specs, form.stacked, form.stacked))(kept, proposal, table)

        return commit
