"""Where a run runs: pool, placement, warm executables, and the source of a lost shard."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from ..devices import Placement, Pool, Warm, assemble, move, shards_by_slot
from ..errors import BadInput
from ._feed import Feed
from ._form import Form, Kept
from ._share import build_share, rebuild, send
from ._snapshot import HostCopy
from ._step import Builder, Executables
from ._workload import Workload

SOURCES = ("auto", "replica", "snapshot", "parity")
"""Where a lost shard comes from; `auto` is a replica where every leaf has one, else the snapshot."""


@dataclass(frozen=True)
class Ready:
    """What is warm for one placement; `share` makes the parity over devices where that is the source."""

    exe: Executables
    share: Callable[[Kept], Array] | None
    feed: Feed


class Stage:
    """The devices under a loop. `swap` moves on to the next pool; nothing in here decides."""

    def __init__(self, workload: Workload, pool: Pool, form: Form, builder: Builder, source: str) -> None:
        self.workload, self.pool, self.form, self.builder = workload, pool, form, builder
        self.placement = pool.placement(dict(form.axes))
        self.source = choose_source(source, form, pool)
        self.warm: Warm[Ready] = Warm(self._build)
        self.seconds = self.warm.warm([self.placement, *self.successors()])
        self.ready = self.warm.get(self.placement)
        self._parts: list[Array] = []

    @property
    def exe(self) -> Executables:
        """The executables of the present placement."""
        return self.ready.exe

    @property
    def executables(self) -> int:
        """How many executables are ready, all placements together, but for the small one of each that takes a packet
        apart."""
        return len(self.warm) * (self.exe.count + (self.ready.share is not None))

    def precision(self) -> AbstractContextManager[Any]:
        """64 bits where the workload wants them, for this thread and as long as the context lasts."""
        return jax.enable_x64(True) if self.workload.traits.x64 else nullcontext()

    def successors(self) -> list[Placement]:
        """The placements that one more loss can lead to."""
        return self.pool.successors(dict(self.form.axes))

    def put(self, batch: Any) -> Any:
        """The batch on the devices."""
        return self.ready.feed.put(batch)

    def put_leaves(self, leaves: tuple[Any, ...]) -> tuple[Array, ...]:
        """Global leaves on the devices, copied first so that no donation can reach the caller's memory."""
        return tuple(
            jax.device_put(np.array(x, copy=True), self.placement.sharding(spec))
            for x, spec in zip(leaves, self.form.specs, strict=True)
        )

    def restore(self, copy: HostCopy) -> Kept:
        """A kept state from its host copy."""
        like, treedef = jax.tree.flatten(self.form.kept_shapes(self.placement))
        arrays = [assemble(p, x, self.placement) for p, x in zip(copy.pieces, like, strict=True)]
        return treedef.unflatten(arrays)

    def protect(self, kept: Kept) -> None:
        """Send the parity over devices of this very state to the spare, where that is the source."""
        if self.ready.share is not None and self.pool.spares:
            self._parts = send(self.ready.share(kept), self.placement, self.pool.spares[0])

    def swap(self, slot: int, kept: Kept, *, readable: bool) -> tuple[Kept | None, str]:
        """Put the next spare into `slot`: the kept state there and its source; None if only a snapshot can bring it
        back.

        Raises `Exhausted` without a spare. Does not read the old device unless it is `readable`.
        """
        old = self.placement
        pool = self.pool.swap(slot)
        new = pool.placement(dict(self.form.axes))
        ready = self.warm.get(new)
        moved: Kept | None = None
        source = "copy" if readable else self.source
        if source == "copy":
            moved = move(kept, old, new)
        elif source == "parity":
            lost = rebuild(kept, self._parts, old, slot)
            moved = move(kept, old, new, lambda number, _: lost[number])
        elif source == "replica":
            peer = self.form.replicas(slot)[0]
            pieces = [shards_by_slot(x, old)[peer] for x in jax.tree.leaves(kept)]
            moved = move(kept, old, new, lambda number, _: pieces[number])
        self.pool, self.placement, self.ready = pool, new, ready
        return moved, source

    def rewarm(self) -> None:
        """Start to make the next loss survivable, in the background."""
        wanted = [self.placement, *self.successors()]
        self.warm.keep_only(wanted)
        self.warm.rewarm(wanted)

    def _build(self, placement: Placement) -> Ready:
        with self.precision():
            share = build_share(self.form, placement) if self.source == "parity" else None
            return Ready(self.builder(placement), share, self.builder.feed(placement))


def choose_source(source: str, form: Form, pool: Pool) -> str:
    """The source of a lost shard: what is asked for, or the sound default. Raises `BadInput` for one that cannot
    work."""
    if source == "auto":
        return "replica" if form.replicated else "snapshot"
    if source == "replica" and not form.replicated:
        raise BadInput(
            "The source 'replica' needs every leaf on two devices at least; accepted here: snapshot, parity."
        )
    if source == "parity" and not (pool.spares and form.devices > 1):
        raise BadInput("The source 'parity' needs a spare device and two active ones; accepted here: snapshot.")
    return source
