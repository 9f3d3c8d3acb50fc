"""What a commit leaves on one device: the next state, or the old one mended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..gate import Gate
from ..seal._shard import repair_shard, seal_shard
from ._code import Code
from ._form import Form, Kept
from ._fused import move, triples
from ._judge import SMALL, state_health
from ._settle import settle, settles
from ._workload import Traits, Workload

Chosen = tuple[Any, Any, Array, Array]
"""Leaves, seals, a row of `kernels.ref.Mended` per unit, and a gate row of what was bad in a next state."""

Choose = Callable[[Kept, Any, Array], Chosen]
"""From the kept state, the proposal and the agreed code."""


def replaced(form: Form, traits: Traits, mesh: jax.sharding.Mesh) -> Choose:
    """Where the proposal is the next state: it, or the old one mended."""
    on_device = settles(form, mesh)

    def choose(kept: Kept, proposal: Any, code: Array) -> Chosen:
        if on_device:
            leaves, seals = proposal
            return settle(form, traits, kept, leaves, seals, code != Code.GO)

        def repair(carry: Any) -> Any:
            mended, made, rows = repair_shard(form.plan, kept.leaves, kept.seals)
            return jnp.bool_(False), tuple(mended), tuple(made), rows, state_health(traits, kept.leaves, carry[1])

        # A loop of no turns hands on what it began with; a conditional would copy the proposal.
        start = (code != Code.GO, *proposal, jnp.zeros((len(form.plan.units), 5), jnp.int32), _nothing())
        return lax.while_loop(lambda carry: carry[0], repair, start)[1:]

    return choose


def updated(form: Form, workload: Workload, mesh: jax.sharding.Mesh) -> Choose:
    """Where the old state is updated by the proposal: it is mended in any case.

    An update in place reads the old state again: what went bad since the proposal is mended first, and a device that
    cannot mend keeps its old tag. What `kernels.adamw` moves is left unwritten by the group, the rest as a whole.
    """
    chosen = triples(form, workload.traits, mesh)
    taken = {unit for triple in chosen for unit in triple.units}
    others = [i for i in range(len(form.plan.units)) if i not in taken]
    rest = form.plan.part(others)
    mine = [i for unit in rest.units for i in unit.leaves]
    # On a GPU the host waits for a conditional; what is small is computed both ways.
    small = mesh.devices.flat[0].platform != "cpu" and sum(unit.words for unit in rest.units) <= SMALL

    def choose(kept: Kept, proposal: Any, code: Array) -> Chosen:
        leaves, seals, moved = move(form, chosen, workload, kept, proposal, code == Code.GO)
        mended, made, rest_rows = repair_shard(rest, kept.leaves, [kept.seals[i] for i in others])

        def some(all_leaves: Sequence[Array]) -> tuple[Array, ...]:
            return tuple(all_leaves[i] for i in mine)

        def update(_: Any) -> tuple[Any, Any]:
            new = form.flatten(workload.commit(form.unflatten(mended), proposal))
            return some(new), tuple(seal_shard(rest, new))

        fine = (code == Code.GO) & (rest_rows[:, 4].sum() == 0)
        stays = (some(mended), tuple(made))
        if small:
            new, made = jax.tree.map(lambda a, b: jnp.where(fine, a, b), update(None), stays)
        else:
            new, made = lax.cond(fine, update, lambda _: stays, None)
        for i, x in zip(mine, new, strict=True):
            leaves[i] = x
        for i, seal in zip(others, made, strict=True):
            seals[i] = seal
        each = moved | {unit: rest_rows[i] for i, unit in enumerate(others)}
        rows = jnp.stack([each[i] for i in range(len(form.plan.units))]) if each else rest_rows
        return leaves, seals, rows, _nothing()

    return choose


def _nothing() -> Array:
    """A gate row without findings."""
    return Gate()(jnp.zeros(0, jnp.float32))[1].row()
