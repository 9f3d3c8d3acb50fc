"""Placements over several processes: compiled ahead, their communicators made by all members together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from ..devices import Placement
from ..devices._warm import communicators
from ..devices.process import Cliques, Device, Member, learn_incarnations
from ..errors import BadMesh
from ._form import Form, Kept
from ._shardwise import Shard, own_shard, place, whole
from ._step import Builder, Executables
from ._workload import Workload

Slots = tuple[Device, ...]


@dataclass(frozen=True)
class PeerReady:
    """What is warm for one placement. `agree` is the one-word reduction by minimum before a commit; `gather` makes
    what each device says of its repairs known to all."""

    placement: Placement
    exe: Executables
    form: Form
    agree: Callable[[Array], Array]
    gather: Callable[[Array, Array], tuple[Array, Array]]
    touch: Callable[[], None]

    def agreed(self, word: int) -> int:
        """The smallest word that a member brings; when it is known here, every member has come this far."""
        spec = P(self.placement.names)
        n = len(self.placement.devices)
        return int(np.asarray(self.agree(place(np.full(n, word, np.int32), self.placement, spec))))

    def gathered(self, mended: Array, late: Array) -> tuple[np.ndarray, np.ndarray]:
        """What every device says of its repairs, from this one's."""
        n, units = self.form.devices, len(self.form.plan.units)
        sharding = self.placement.sharding(self.form.stacked)
        make = jax.make_array_from_single_device_arrays
        rows = self.gather(make((n * units, 5), sharding, [mended]), make((n, 6), sharding, [late]))
        return np.asarray(rows[0]).reshape(n, units, 5), np.asarray(rows[1])

    def kept(self, shard: Shard) -> Kept:
        """The kept state of this placement of which `shard` is this process's part."""
        return whole(shard, self.form, self.placement)


class PeerStage:
    """The placements that this process can run at once, by their slots; `possible` says which can exist at all."""

    def __init__(
        self, workload: Workload, form: Form, builder: Builder, member: Member, possible: Callable[[Slots], bool]
    ) -> None:
        self.workload, self.form, self.builder, self.member, self.possible = workload, form, builder, member, possible
        self.cliques: Cliques = Cliques()
        self.warm: dict[Slots, PeerReady] = {}
        self.ours: Callable[[], Iterable[int]] = lambda: ()
        self._commit: Callable[..., Any] | None = None
        member.cut = self.cliques.cut

    def placement(self, slots: Slots) -> Placement:
        """The placement of these seats and incarnations."""
        return Placement(tuple(device_of(d) for d in slots), self.form.axes)

    def build(self, slots: Slots) -> PeerReady:
        """Compile everything for `slots`; nothing is allocated and nobody is talked to."""
        with jax.enable_x64(self.workload.traits.x64 or bool(jax.config.read("jax_enable_x64"))):
            placement = self.placement(slots)
            names, form = placement.names, self.form

            def local(word: Array) -> Array:
                return lax.pmin(word[0], names)

            def everyone(mended: Array, late: Array) -> tuple[Array, Array]:
                both = (lax.all_gather(x, names, axis=0, tiled=True) for x in (mended, late))
                return tuple(both)  # type: ignore[return-value]

            def compiled(f: Callable[..., Any], ins: Any, outs: Any, *shapes: Any) -> Any:
                mapped = jax.shard_map(f, mesh=placement.mesh, in_specs=ins, out_specs=outs, check_vma=False)
                return jax.jit(mapped).lower(*shapes).compile()

            n, units = form.devices, len(form.plan.units)
            spec = form.stacked
            sharding = placement.sharding(spec)
            word = jax.ShapeDtypeStruct((n,), jnp.int32, sharding=sharding)
            mended = jax.ShapeDtypeStruct((n * units, 5), jnp.int32, sharding=sharding)
            late = jax.ShapeDtypeStruct((n, 6), jnp.int32, sharding=sharding)
            made = PeerReady(
                placement,
                self.builder(placement),
                form,
                compiled(local, spec, P(), word),
                compiled(everyone, (spec, spec), (P(), P()), mended, late),
                communicators(placement),
            )
            self.make_commit(made)
            return made

    def commit(self, ready: PeerReady, shard: Shard, proposal: Any, table: Array) -> tuple[Shard, Array, Array]:
        """Commit a proposal into this process's next shard; its repairs and late health. Local and out of place."""
        if self._commit is None:
            self.make_commit(ready)
        assert self._commit is not None
        treedef = jax.tree.structure(self.form.kept_specs, is_leaf=lambda x: isinstance(x, P))
        offered = jax.tree.structure((proposal, table)).unflatten(own_shard((proposal, table)))
        kept, mended, late = self._commit(treedef.unflatten(shard), *offered)
        return jax.tree.leaves(kept), mended, late

    def make_commit(self, ready: PeerReady) -> None:
        """Compile the commit: once for this process, since it is the same in every placement."""
        if self._commit is None:
            device = device_of(self.member.device)
            self._commit = self.builder.committer(ready.placement, ready.exe, device)

    def touch(self, slots: Slots, ready: PeerReady, barrier: str) -> None:
        """Make the communicators of `slots`, all members together. Raises `PeerLost` if one of them dies."""
        self.member.barrier(barrier, slots)
        with self.cliques.recording(slots, self.ours):
            ready.touch()
            ready.agreed(0)
        self.warm[slots] = ready

    def keep_only(self, wanted: Sequence[Slots]) -> None:
        """Forget the other placements."""
        for slots in set(self.warm) - set(wanted):
            del self.warm[slots]

    def learn(self, slots: Slots) -> None:
        """On a GPU: tell the processes of `slots` each other's incarnations."""
        devices = [device_of(d) for d in slots]
        if devices[0].platform == "gpu":
            learn_incarnations(devices)


def device_of(device: Device) -> jax.Device:
    """JAX's device for a seat and incarnation.

    On a CPU every process has as many virtual devices as its seat may see incarnations and uses the one of its own: a
    process that takes a dead one's seat so never meets a stale communicator. A GPU process has one device, and JAX
    tells its incarnations apart itself.
    """
    seat, incarnation = device
    local = [d for d in jax.devices() if d.process_index == seat]
    if not local:
        raise BadMesh(f"No process sits in seat {seat}.")
    return local[incarnation] if local[0].platform == "cpu" else local[0]


def successors(slots: Slots, spare: Device, possible: Callable[[Slots], bool]) -> list[Slots]:
    """Every placement that one loss can lead to."""
    every = [tuple(spare if i == slot else d for i, d in enumerate(slots)) for slot in range(len(slots))]
    return [placement for placement in every if possible(placement)]
