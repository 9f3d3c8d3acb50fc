"""The form of a kept state: what its leaves are, how they are sharded, what is sealed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from ..devices import Placement
from ..errors import BadInput, BadMesh
from ..kernels.layout import BANKS, ROWS, Layout
from ..kernels.ref import Seal
from ..seal._plan import Leaf, Plan, named_leaves
from ..seal._words import is_key, key_impl

TAGS = 3
"""Copies of the step tag on each device; the majority counts."""


class Kept(NamedTuple):
    """A sealed state on its devices. Seals and tags are stacked over devices along their first axis."""

    leaves: tuple[Array, ...]
    seals: tuple[Seal, ...]
    tag: Array


@dataclass(frozen=True)
class Form:
    """Static facts about a state; the same for every placement with the same axes.

    PRNG keys are kept as their key data, so that every leaf is an ordinary array that can be copied to the host.
    """

    treedef: Any
    names: tuple[str, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    keys: tuple[str | None, ...]
    specs: tuple[P, ...]
    axes: tuple[tuple[str, int], ...]
    plan: Plan

    @staticmethod
    def of(state: Any, specs: Any, axes: dict[str, int], heal: str = "parity") -> Form:
        """The form of `state` (arrays or shapes) under `specs` on a mesh with `axes`."""
        named = named_leaves(state)
        treedef = jax.tree.structure(state)
        flat_specs = tuple(broadcast_specs(specs, state))
        shapes, keys, local, replicas = [], [], [], []
        for (name, leaf), spec in zip(named, flat_specs, strict=True):
            if not hasattr(leaf, "dtype"):
                raise BadInput(f"The state's leaf {name!r} is {type(leaf).__name__}, not an array; keep it aside.")
            key = key_impl(leaf.dtype) if is_key(leaf.dtype) else None
            plain = jax.eval_shape(jax.random.key_data, leaf) if key is not None else leaf
            keys.append(key)
            shapes.append(jax.ShapeDtypeStruct(plain.shape, plain.dtype))
            local.append(Leaf(name, shard_shape(name, plain.shape, spec, axes), plain.dtype))
            used = {a for part in spec for a in axes_of(part)}
            free = tuple(a for a, size in axes.items() if a not in used and size > 1)
            replicas.append(free if heal == "replica" else ())
        names = tuple(name for name, _ in named)
        plan = Plan.of(local, replicas)
        return Form(treedef, names, tuple(shapes), tuple(keys), flat_specs, tuple(axes.items()), plan)

    @property
    def stacked(self) -> P:
        """The spec of what has one part per device."""
        return P(tuple(name for name, _ in self.axes))

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return prod(size for _, size in self.axes)

    def replicas(self, slot: int) -> list[int]:
        """The other slots that hold the same piece of every leaf as `slot`."""
        used = {a for spec in self.specs for part in spec for a in axes_of(part)}
        shape = tuple(size for _, size in self.axes)
        places = np.stack(np.unravel_index(np.arange(self.devices), shape), -1)
        held = places[:, [name in used for name, _ in self.axes]]
        same = (held == held[slot]).all(-1)
        return [other for other in np.flatnonzero(same).tolist() if other != slot]

    @property
    def replicated(self) -> bool:
        """Whether every slot has a replica: slots of one mesh have equally many."""
        return bool(self.replicas(0))

    @property
    def kept_specs(self) -> Kept:
        """Specs of a kept state, leaf by leaf."""
        spec: Any = self.stacked
        seals = tuple(Seal(spec, spec, spec) for _ in self.plan.units)
        leaves: Any = self.specs
        return Kept(leaves, seals, spec)

    def kept_shapes(self, placement: Placement) -> Kept:
        """`ShapeDtypeStruct`s with shardings: enough to compile without allocating."""

        def on(shape: tuple[int, ...], dtype: Any, spec: P) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=placement.sharding(spec))

        n, words = self.devices, np.dtype(np.uint32)
        leaves = tuple(on(s.shape, s.dtype, p) for s, p in zip(self.shapes, self.specs, strict=True))
        seals = []
        for unit in self.plan.units:
            lay = Layout(unit.words)
            rows = ROWS if unit.parity else BANKS
            seals.append(
                Seal(
                    on((n * (lay.L if unit.parity else 1),), words, self.stacked),
                    on((n * rows, lay.G, 2), words, self.stacked),
                    on((n * lay.G, 2), words, self.stacked),
                )
            )
        tag = on((n * TAGS,), np.dtype(np.int32), self.stacked)
        return Kept(leaves, tuple(seals), tag)

    def flatten(self, state: Any) -> tuple[Any, ...]:
        """The state's leaves, keys as key data."""
        leaves = jax.tree.leaves(state)
        return tuple(
            leaf if key is None else jax.random.key_data(leaf) for leaf, key in zip(leaves, self.keys, strict=True)
        )

    def unflatten(self, leaves: Any) -> Any:
        """The inverse of `flatten`."""
        made = [
            leaf if key is None else jax.random.wrap_key_data(leaf, impl=key)
            for leaf, key in zip(leaves, self.keys, strict=True)
        ]
        return self.treedef.unflatten(made)

    def by_leaf(self, seals: Sequence[Seal]) -> list[Seal]:
        """The seals in the order of the leaves, where each unit is one leaf."""
        order = {unit.leaves[0]: seal for unit, seal in zip(self.plan.units, seals, strict=True)}
        return [order[i] for i in range(len(self.plan.leaves))]

    def by_unit(self, seals: Sequence[Seal]) -> tuple[Seal, ...]:
        """The inverse of `by_leaf`."""
        return tuple(seals[unit.leaves[0]] for unit in self.plan.units)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state, all devices together, replicas counted once per device."""
        return 4 * self.devices * sum(unit.words for unit in self.plan.units)

    @property
    def spare_bytes(self) -> int:
        """Bytes of parity, marks and guards on all devices together."""
        total = 0
        for unit in self.plan.units:
            lay = Layout(unit.words)
            total += lay.spare_words if unit.parity else 1 + BANKS * lay.G * 2 + lay.G * 2
        return 4 * self.devices * total


def axes_of(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes over which one dimension is cut, as a `PartitionSpec` says it."""
    return (part,) if isinstance(part, str) else part or ()


def broadcast_specs(specs: Any, tree: Any) -> list[P]:
    """One spec per leaf of `tree`, `specs` being a prefix of it."""
    out: list[P] = []
    jax.tree.map(
        lambda spec, sub: out.extend([spec] * len(jax.tree.leaves(sub))),
        specs,
        tree,
        is_leaf=lambda x: isinstance(x, P),
    )
    return out


def shard_shape(name: str, shape: tuple[int, ...], spec: P, axes: dict[str, int]) -> tuple[int, ...]:
    """The shape of one device's piece. Raises `BadMesh` if the mesh does not divide the array."""
    out = list(shape)
    for dim, part in enumerate(spec):
        for a in axes_of(part):
            if out[dim] % axes[a]:
                raise BadMesh(
                    f"{name!r} has {shape[dim]} entries along dimension {dim}, which the {axes[a]} devices of the mesh "
                    f"axis {a!r} cannot share equally; accepted are multiples of {axes[a]}."
                )
            out[dim] //= axes[a]
    return tuple(out)
