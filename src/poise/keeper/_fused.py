"""Parameters that one compiled pass verifies, moves by AdamW and seals again.

In its general form a commit in place reads the state to mend it, reads and writes it to move it, and reads it to seal
it. Where that move is AdamW's, `kernels.adamw` does all three in one read and one write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from .. import kernels
from ..kernels.ref import Seal
from ._form import Form, Kept
from ._workload import Traits


class Moved(NamedTuple):
    """What moves one parameter: its gradient (any float dtype, the parameter's shape), and this step's scalars."""

    grad: Array
    hyper: kernels.Hyper


class Moves(Protocol):
    """The part of a workload that `Traits.adamw` promises.

    `moves` is a tree like the parameters with a `Moved` for each, so that `commit` is `kernels.adamw_step` for all of
    them. Traced on one device's shards, like `commit`. It is not given the state, which is mended in the same pass.
    """

    def moves(self, proposal: Any) -> Any:
        """A `Moved` for every parameter."""
        ...


@dataclass(frozen=True)
class Triple:
    """A parameter and its two moments: which of the parameters, which leaves of the state, and the units they fill."""

    order: int
    leaves: tuple[int, ...]
    units: tuple[int, ...]


def triples(form: Form, traits: Traits, mesh: jax.sharding.Mesh) -> tuple[Triple, ...]:
    """The parameters that the compiled pass takes on this mesh: float32 throughout, each leaf a unit with parity of its
    own. The small ones, which share a unit, go the general way."""
    platform = "cpu" if mesh.devices.flat[0].platform == "cpu" else "cuda"
    if traits.adamw is None or platform not in kernels.platforms():
        return ()
    alone = {unit.leaves[0]: i for i, unit in enumerate(form.plan.units) if form.plan.single(unit) and unit.parity}
    number = {name: i for i, name in enumerate(form.names)}
    first, *moments = traits.adamw
    found = []
    for order, name in enumerate(names_in(form.names, first)):
        leaves = tuple(number[n] for n in (name, *(part + name.removeprefix(first) for part in moments)))
        if all(i in alone for i in leaves) and len({form.plan.leaves[i].shape for i in leaves}) == 1:
            found.append(Triple(order, leaves, tuple(alone[i] for i in leaves)))
    return tuple(found)


def names_in(names: Iterable[str], part: str) -> list[str]:
    """The leaves that lie in one part of a state, by their paths."""
    return [name for name in names if name == part or name.startswith(f"{part}.")]


def move(
    form: Form, chosen: tuple[Triple, ...], workload: Any, kept: Kept, proposal: Any, ok: Array
) -> tuple[list[Array], list[Seal], dict[int, Array]]:
    """The leaves and seals with the chosen parameters moved (mended only, unless `ok`), and a row of `Mended` for each
    of their units."""
    leaves, seals, rows = list(kept.leaves), list(kept.seals), {}
    if not chosen:
        return leaves, seals, rows
    tree = workload.moves(proposal)
    moved = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Moved))
    for triple in chosen:
        old = kernels.State(
            *(kernels.Sealed(leaves[i], seals[u]) for i, u in zip(triple.leaves, triple.units, strict=True))
        )
        grad, hyper = moved[triple.order]
        new, reports, _ = kernels.adamw(old, grad.astype(jnp.float32), hyper, ok)
        for i, u, made, report in zip(triple.leaves, triple.units, new, reports, strict=True):
            leaves[i], seals[u], rows[u] = made.words, made.seal, jnp.stack(report)
    return leaves, seals, rows
