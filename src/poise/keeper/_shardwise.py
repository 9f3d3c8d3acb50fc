"""One process's piece of a kept state that is spread over several processes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from ..devices import Placement
from ..seal._host import words_of
from ._form import Form, Kept

Shard = list[Array]
"""One process's arrays of a kept state, in the order of its leaves: the same whatever placement it is part of."""


def place(x: np.ndarray, placement: Placement, spec: P) -> Array:
    """A global array from a host array that every process has whole; copies only this process's part, talks to
    nobody."""
    sharding = placement.sharding(spec)
    where = sharding.addressable_devices_indices_map(x.shape)
    pieces = [jax.device_put(np.array(x[index], copy=True), device) for device, index in where.items()]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, pieces)


def place_tree(tree: Any, specs: Any, placement: Placement) -> Any:
    """`place` for every leaf; `specs` has the tree's structure."""
    return jax.tree.map(lambda x, spec: place(np.asarray(x), placement, spec), tree, specs)


def own_shard(tree: Any) -> Shard:
    """This process's arrays of a tree of global ones."""
    return [x.addressable_shards[0].data for x in jax.tree.leaves(tree)]


def on_host(shard: Shard) -> list[np.ndarray]:
    """A shard's arrays in host memory, as views where the backend allows: the shard must stay alive meanwhile."""
    return [np.asarray(x) for x in shard]


def all_words(pieces: list[np.ndarray]) -> list[np.ndarray]:
    """All words of a shard, leaves and seals and tags, where they lie: what travels, and what is XORed."""
    return [words_of(piece) for piece in pieces]


def parted(words: np.ndarray, form: Form, placement: Placement) -> list[np.ndarray]:
    """The pieces of which these are `all_words`, one behind the other."""
    out, at = [], 0
    for like in jax.tree.leaves(form.kept_shapes(placement)):
        shape = like.sharding.shard_shape(like.shape)
        count = int(np.prod(shape)) * like.dtype.itemsize
        size = -(-count // 4)
        out.append(words[at : at + size].view(np.uint8)[:count].view(like.dtype).reshape(shape).copy())
        at += size
    return out


def on_device(pieces: list[np.ndarray], device: jax.Device) -> Shard:
    """Pieces on a device, copied, so that no donation can reach the host's memory."""
    return [jax.device_put(np.array(piece, copy=True), device) for piece in pieces]


def whole(shard: Shard, form: Form, placement: Placement) -> Kept:
    """The kept state of `placement` of which this process holds `shard`; moves nothing."""
    like, treedef = jax.tree.flatten(form.kept_shapes(placement))
    return treedef.unflatten(
        jax.make_array_from_single_device_arrays(x.shape, x.sharding, [piece])
        for x, piece in zip(like, shard, strict=True)
    )
