"""XOR parity over devices: one spare holds what rebuilds any one shard, generation by generation.

Each active device XORs a part of everybody's words (one all-to-all: each shard travels once), and sends its part to the
spare, 1/n of a shard each. The rebuild runs on the host: the words of the survivors, XORed with the parity, are the
lost shard's words. Everything is XORed, marks and tags included, so a rebuilt shard verifies itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..devices import Placement, shards_by_slot
from ..seal._host import words_of
from ..seal._words import to_words
from ._form import Form, Kept


def build_share(form: Form, placement: Placement) -> Callable[[Kept], Array]:
    """Compile the parity of a kept state over the placement's devices: one part per device, stacked."""
    names = tuple(name for name, _ in form.axes)

    def share(kept: Kept) -> Array:
        words = jnp.concatenate([to_words(x) for x in jax.tree.leaves(kept)])
        n = form.devices
        parts = jnp.pad(words, (0, -words.shape[0] % n)).reshape(n, -1)
        everyone = lax.all_to_all(parts, names, 0, 0, tiled=True).reshape(n, -1)
        return lax.reduce(everyone, jnp.uint32(0), lax.bitwise_xor, (0,))

    f = jax.shard_map(share, mesh=placement.mesh, in_specs=(form.kept_specs,), out_specs=form.stacked, check_vma=False)
    return jax.jit(f).lower(form.kept_shapes(placement)).compile()


def send(parts: Array, placement: Placement, spare: jax.Device) -> list[Array]:
    """Start moving the parts to the spare."""
    return [jax.device_put(part, spare) for part in shards_by_slot(parts, placement)]


def rebuild(kept: Kept, parts: list[Array], placement: Placement, lost: int) -> list[np.ndarray]:
    """The pieces of slot `lost`, for each array of the flattened kept state; its device is not read."""
    words = np.concatenate([np.asarray(p) for p in parts])
    arrays = jax.tree.leaves(kept)
    pieces = [shards_by_slot(x, placement) for x in arrays]
    for slot in range(len(placement.devices)):
        if slot != lost:
            mine = np.concatenate([words_of(np.asarray(p[slot])) for p in pieces])
            words[: mine.size] ^= mine
    out: list[np.ndarray] = []
    at = 0
    for p in pieces:
        like: Any = p[0 if lost else 1 % len(p)]
        size = -(-like.size * like.dtype.itemsize // 4)
        raw = words[at : at + size].view(np.uint8)[: like.size * like.dtype.itemsize]
        out.append(raw.view(like.dtype).reshape(like.shape).copy())
        at += size
    return out
