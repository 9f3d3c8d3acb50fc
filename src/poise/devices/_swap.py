"""Moving a state from one placement to another without compiling and without touching what must not be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from ._placement import Placement


def shards_by_slot(x: Array, placement: Placement) -> list[Array]:
    """The single-device pieces of `x` in slot order (no copies; reads nothing)."""
    by_device = {s.device: s.data for s in x.addressable_shards}
    return [by_device[d] for d in placement.devices]


def assemble(pieces: Sequence[Array | np.ndarray], like: Array, placement: Placement) -> Array:
    """A global array of `like`'s shape and spec from its pieces in slot order, each already on its device or on the
    host.

    Host pieces are copied first: on the CPU JAX would otherwise alias them, and a later donation would write into them.
    """
    placed = [
        jax.device_put(np.array(p, copy=True), d) if isinstance(p, np.ndarray) else p
        for p, d in zip(pieces, placement.devices, strict=True)
    ]
    spec = like.sharding.spec  # type: ignore[attr-defined]
    return jax.make_array_from_single_device_arrays(like.shape, placement.sharding(spec), placed)


def move(
    tree: Any, old: Placement, new: Placement, rebuilt: Callable[[int, int], Array | np.ndarray] | None = None
) -> Any:
    """The arrays of `tree`, which lie on `old`, on `new`.

    Pieces whose device stays are used as they are. A piece whose device changes is copied from it, or, if `rebuilt` is
    given, made by `rebuilt(number of the leaf, slot)`; then the old device is not read at all. Compiles nothing.
    """
    leaves, treedef = jax.tree.flatten(tree)
    out = []
    for number, leaf in enumerate(leaves):
        pieces: list[Array | np.ndarray] = []
        for slot, (piece, a, b) in enumerate(zip(shards_by_slot(leaf, old), old.devices, new.devices, strict=True)):
            if a == b:
                pieces.append(piece)
            elif rebuilt is None:
                pieces.append(jax.device_put(piece, b))
            else:
                made = rebuilt(number, slot)
                pieces.append(made if isinstance(made, np.ndarray) else jax.device_put(made, b))
        out.append(assemble(pieces, leaf, new))
    return treedef.unflatten(out)
