"""`sealed = seal(state)`, `verify(sealed)`, `sealed, report = repair(sealed)`: any pytree of arrays, shard by shard.

Nothing is communicated: every device seals what it holds. Leaves on different meshes, or on single devices, may be
mixed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from ..errors import BadInput
from ..kernels.ref import Seal
from ._plan import Leaf, Plan, named_leaves
from ._report import SealReport, findings
from ._shard import check_shard, repair_shard, seal_shard
from ._words import is_key

PIECE = 1 << 28
"""Bytes that are verified in one go: a sweep pauses in between."""


@dataclass(frozen=True)
class Group:
    """Leaves that lie on one mesh: their numbers, their specs, and the plan of one shard of them."""

    mesh: Mesh
    leaves: tuple[int, ...]
    specs: tuple[PartitionSpec, ...]
    plan: Plan

    @property
    def stacked(self) -> PartitionSpec:
        """One part per device."""
        return PartitionSpec(self.mesh.axis_names)


@dataclass(frozen=True)
class Sealed:
    """A state with its seals. `data` is the state as it was given, yours to read; to change it, seal the new one.

    `spare` is the share of memory that parity takes: 0.05, or 0.0 for marks alone (noticing without mending). A pytree.
    """

    data: Any
    seals: tuple[tuple[Seal, ...], ...]
    groups: tuple[Group, ...]
    spare: float

    @property
    def spare_bytes(self) -> int:
        """Bytes of parity, marks and guards on all devices together."""
        return sum(x.nbytes for x in jax.tree.leaves(self.seals))


jax.tree_util.register_dataclass(Sealed, data_fields=["data", "seals"], meta_fields=["groups", "spare"])


def seal(state: Any, spare: float = 0.05) -> Sealed:
    """Marks and parity for every array of `state`, on the devices where they lie.

    Any shape and dtype (empty, scalar, bool, int4, bfloat16, complex, PRNG keys); numpy arrays and numbers become JAX
    arrays. Raises `BadInput` for leaves that are no arrays, for shardings without a mesh, and for any `spare` but 0.05
    and 0.
    """
    if spare not in (0.05, 0.0, 0):
        raise BadInput(f"spare must be 0.05 (one parity bank for twenty) or 0.0 (marks only), not {spare!r}.")
    named = named_leaves(state)
    arrays = [_as_array(name, leaf) for name, leaf in named]
    by_mesh: dict[Mesh, list[int]] = defaultdict(list)
    specs: list[PartitionSpec] = []
    for number, ((name, _), x) in enumerate(zip(named, arrays, strict=True)):
        mesh, spec = _mesh_of(name, x)
        by_mesh[mesh].append(number)
        specs.append(spec)
    groups, seals = [], []
    for mesh, numbers in _pieces(by_mesh, arrays):
        leaves = [
            Leaf(named[i][0], NamedSharding(mesh, specs[i]).shard_shape(arrays[i].shape), arrays[i].dtype)
            for i in numbers
        ]
        # Marks without parity are what units with replicas carry; here nobody heals them, so the axes only say "no
        # parity".
        replicas = None if spare else [mesh.axis_names] * len(leaves)
        group = Group(mesh, tuple(numbers), tuple(specs[i] for i in numbers), Plan.of(leaves, replicas))
        groups.append(group)
        seals.append(_compiled(group, "seal")(tuple(arrays[i] for i in numbers)))
    data = jax.tree.structure(state).unflatten(arrays)
    return Sealed(data, tuple(seals), tuple(groups), float(spare))


def scrub(sealed: Sealed) -> Iterator[SealReport]:
    """Verify piece by piece (at most 256 MiB of a device each); whoever iterates decides how fast."""
    arrays = jax.tree.leaves(sealed.data)
    for group, seals in zip(sealed.groups, sealed.seals, strict=True):
        rows = _compiled(group, "check")(tuple(arrays[i] for i in group.leaves), seals)
        yield SealReport(tuple(_findings(group, rows)), repaired=False)


def verify(sealed: Sealed) -> SealReport:
    """Compare everything with its marks, reading it once; mends nothing. The kinds of damage are told apart by
    `repair`: here parity counts as parity, and what is off in the data may also be a damaged mark."""
    return sum(scrub(sealed), SealReport((), repaired=False))


def repair(sealed: Sealed) -> tuple[Sealed, SealReport]:
    """Verify, mend what can be mended (bit exact, up to a whole bank of every group), and report what was found.

    What is beyond repair is left exactly as it is. The given `sealed` stays valid; nothing is donated.
    """
    arrays = jax.tree.leaves(sealed.data)
    new_seals, found = [], []
    for group, seals in zip(sealed.groups, sealed.seals, strict=True):
        fixed, fresh, rows = _compiled(group, "repair")(tuple(arrays[i] for i in group.leaves), seals)
        for number, x in zip(group.leaves, fixed, strict=True):
            arrays[number] = x
        new_seals.append(fresh)
        found += _findings(group, rows)
    data = jax.tree.structure(sealed.data).unflatten(arrays)
    return Sealed(data, tuple(new_seals), sealed.groups, sealed.spare), SealReport(tuple(found), repaired=True)


def _pieces(by_mesh: dict[Mesh, list[int]], arrays: list[Array]) -> Iterator[tuple[Mesh, list[int]]]:
    """Leaves of one mesh, cut so that a sweep can pause: at most `PIECE` bytes of the global arrays per device."""
    for mesh, numbers in by_mesh.items():
        piece: list[int] = []
        size = 0
        for i in numbers:
            nbytes = arrays[i].nbytes // mesh.size
            if piece and size + nbytes > PIECE:
                yield mesh, piece
                piece, size = [], 0
            piece.append(i)
            size += nbytes
        yield mesh, piece


def _as_array(name: str, leaf: Any) -> Array:
    if isinstance(leaf, Tracer):
        raise BadInput(f"The leaf {name!r} is traced; seal concrete arrays, outside jit.")
    if isinstance(leaf, Array):
        return leaf
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        try:
            return jnp.asarray(leaf)
        except (TypeError, OverflowError) as error:
            raise BadInput(f"The leaf {name!r} cannot become a JAX array: {str(error).splitlines()[0]}") from error
    raise BadInput(f"The leaf {name!r} is {type(leaf).__name__}; accepted are JAX and numpy arrays and numbers.")


def _mesh_of(name: str, x: Array) -> tuple[Mesh, PartitionSpec]:
    sharding = x.sharding
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        return sharding.mesh, sharding.spec
    if isinstance(sharding, SingleDeviceSharding) or len(sharding.device_set) == 1:
        (device,) = sharding.device_set
        return Mesh(np.array([device], dtype=object), ("device",)), PartitionSpec()
    kind = type(sharding).__name__
    raise BadInput(f"The leaf {name!r} has a {kind}; accepted are NamedSharding and arrays on a single device.")


def _findings(group: Group, rows: Array) -> list[Any]:
    names = [unit.name for unit in group.plan.units]
    out = []
    by_device = {s.device: np.asarray(s.data) for s in rows.addressable_shards}
    for device in group.mesh.devices.flat:
        if device in by_device:
            out += findings(by_device[device], device.id, names)
    return out


@cache
def _compiled(group: Group, what: str) -> Any:
    """The jitted function for a group; the cache makes a second call with the same form compile nothing."""
    plan = group.plan
    stacked: Any = group.stacked
    seal_specs = tuple(Seal(stacked, stacked, stacked) for _ in plan.units)

    def seal_it(arrays: tuple[Array, ...]) -> tuple[Seal, ...]:
        return tuple(seal_shard(plan, arrays))

    def check_it(arrays: tuple[Array, ...], seals: tuple[Seal, ...]) -> Array:
        zero = jnp.int32(0)
        seen = check_shard(plan, arrays, seals)
        rows = [jnp.stack((c.data, c.guard, c.parity, zero, zero)) for c in seen]
        return jnp.stack(rows) if rows else jnp.zeros((0, 5), jnp.int32)

    def repair_it(arrays: tuple[Array, ...], seals: tuple[Seal, ...]) -> Any:
        fixed, fresh, rows = repair_shard(plan, arrays, seals)
        return tuple(fixed), tuple(fresh), rows

    function: Any
    match what:
        case "seal":
            function, ins, outs = seal_it, (group.specs,), seal_specs
        case "check":
            function, ins, outs = check_it, (group.specs, seal_specs), stacked
        case _:
            function, ins, outs = repair_it, (group.specs, seal_specs), (group.specs, seal_specs, stacked)
    jitted = jax.jit(jax.shard_map(function, mesh=group.mesh, in_specs=ins, out_specs=outs, check_vma=False))
    if all(np.dtype(leaf.dtype).itemsize < 8 for leaf in plan.leaves if not is_key(leaf.dtype)):
        return jitted

    def wide(*args: Any) -> Any:
        # Without this JAX truncates 64-bit leaves in a program that runs with 32 bits, and their bits would be lost.
        with jax.enable_x64(True):
            return jitted(*args)

    return wide
