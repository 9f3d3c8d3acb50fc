"""What a commit leaves where a kernel decides on the device: no conditional for which a GPU's host would wait."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int32

from .. import kernels
from ..gate import Gate
from ..kernels.ref import Seal
from ..seal._plan import Plan, Unit
from ..seal._words import plain
from ._form import Form, Kept
from ._judge import SMALL
from ._workload import Traits


def settles(form: Form, mesh: jax.sharding.Mesh) -> bool:
    """Whether every unit is such that `kernels.settle_all` takes it: with parity, and either one leaf as it lies or
    small leaves that are joined."""
    platform = "cpu" if mesh.devices.flat[0].platform == "cpu" else "cuda"
    plan = form.plan
    fit = all(unit.parity and unit.words and (_alone(plan, unit) or _joins(plan, unit)) for unit in plan.units)
    return fit and platform in kernels.platforms()


def _alone(plan: Plan, unit: Unit) -> bool:
    return len(unit.leaves) == 1 and plain(plan.leaves[unit.leaves[0]].dtype)


def _joins(plan: Plan, unit: Unit) -> bool:
    real = [plan.leaves[i].dtype for i in unit.leaves if jnp.issubdtype(plan.leaves[i].dtype, jnp.inexact)]
    return unit.words <= SMALL and all(jnp.issubdtype(d, jnp.floating) and d.itemsize <= 4 for d in real)


def settle(
    form: Form, traits: Traits, kept: Kept, leaves: Sequence[Array], seals: Sequence[Seal], stay: Array
) -> tuple[list[Array], list[Seal], Int32[Array, "units 5"], Int32[Array, " 6"]]:
    """The next leaves and seals as they are, or where `stay` the kept ones mended; a row of `Mended` for each unit, and
    a gate row of what was bad in a next state that was not taken."""
    plan = form.plan
    done = kernels.settle_all(
        stay, plan.read(kept.leaves), kept.seals, plan.read(leaves), seals, limit=traits.limit, newly=traits.newly
    )
    out = list(leaves)
    for i, unit in enumerate(plan.units):
        if _alone(plan, unit):
            out[unit.leaves[0]] = done.arrays[i]
        else:
            out = plan.part([i]).arrays([done.arrays[i]], out)
    first = done.found[:, 3:]
    numbers = jnp.array([[unit.leaves[0]] for unit in plan.units], jnp.int32)
    rows = jnp.concatenate(
        (done.found[:, :3], jnp.zeros_like(first), jnp.where(first >= 0, numbers, -1), first), axis=1
    )
    for i, unit in enumerate(plan.units):
        if not _alone(plan, unit):
            joined = _joined_row(plan, unit, traits, kept.leaves, leaves)
            rows = rows.at[i].set(jnp.where(stay, joined, jnp.array([0, 0, 0, 0, -1, -1], jnp.int32)))
    return out, done.seals, done.mended, _first_of(rows)


def _joined_row(
    plan: Plan, unit: Unit, traits: Traits, old: Sequence[Array], new: Sequence[Array]
) -> Int32[Array, " 6"]:
    """The gate row of small leaves, looked at as one array: a reduction each costs more than their bytes."""

    def values(leaves: Sequence[Array]) -> Array:
        real = [jnp.issubdtype(leaves[i].dtype, jnp.floating) for i in unit.leaves]
        parts = [leaves[i].reshape(-1) for i in unit.leaves]
        return jnp.concatenate(
            [x.astype(jnp.float32) if r else jnp.zeros(x.size, jnp.float32) for x, r in zip(parts, real, strict=True)]
        )

    limit = float(np.finfo(np.float32).max) if traits.limit is None else traits.limit
    x = values(new)
    if traits.newly:
        x = jnp.where(jnp.abs(values(old)) <= limit, x, 0)
    row = Gate(limit=limit)(x)[1].row()
    starts = np.cumsum([0, *(int(np.prod(plan.leaves[i].shape)) for i in unit.leaves)])[:-1].astype(np.int32)
    which = (row[5] >= jnp.asarray(starts)).sum() - 1
    leaf, index = jnp.asarray(unit.leaves, jnp.int32)[which], row[5] - jnp.asarray(starts)[which]
    return jnp.concatenate((row[:4], jnp.where(row[5] >= 0, jnp.stack((leaf, index)), -1)))


def _first_of(rows: Int32[Array, "n 6"]) -> Int32[Array, " 6"]:
    """One gate row from those of disjoint leaves: the counts add up, the place is that in the first leaf."""
    order = jnp.where(rows[:, 4] >= 0, rows[:, 4], jnp.int32(2**31 - 1))
    place = rows[jnp.argmin(order), 4:]
    return jnp.concatenate((rows[:, :4].sum(0, dtype=jnp.int32), place))
