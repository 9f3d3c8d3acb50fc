"""What is sealed together: a plan over the leaves of one shard.

A big leaf is a unit of its own; small leaves of the same kind share one, so that a model with a hundred biases does not
cost a hundred little reductions. A unit has parity, or it has marks only because replicas of it on other devices can
heal it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import UInt32

from ._words import count, from_words, plain, to_words

SMALL = 16384
"""Leaves of fewer words share a unit: 64 KiB, where launching a reduction costs more than its bytes."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of the shard: its path in the tree, and its shape and dtype there."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def words(self) -> int:
        """Number of uint32 words."""
        return count(self.shape, self.dtype)


@dataclass(frozen=True)
class Unit:
    """Leaves that are sealed together, by number; `replicas` are the mesh axes over which copies lie (none: parity)."""

    leaves: tuple[int, ...]
    words: int
    name: str
    replicas: tuple[str, ...] = ()

    @property
    def parity(self) -> bool:
        """Whether the unit carries its own parity."""
        return not self.replicas


@dataclass(frozen=True)
class Plan:
    """How the leaves of a shard make units."""

    leaves: tuple[Leaf, ...]
    units: tuple[Unit, ...]

    @staticmethod
    def of(leaves: Sequence[Leaf], replicas: Sequence[tuple[str, ...]] | None = None, small: int = SMALL) -> Plan:
        """A plan for `leaves`; `replicas[i]` names the mesh axes over which leaf i is replicated and may be healed."""
        axes = [()] * len(leaves) if replicas is None else list(replicas)
        big = [Unit((i,), x.words, x.name, axes[i]) for i, x in enumerate(leaves) if x.words >= small]
        shared = []
        for kind in sorted({a for i, a in enumerate(axes) if leaves[i].words < small}):
            some = tuple(i for i, x in enumerate(leaves) if x.words < small and axes[i] == kind)
            name = leaves[some[0]].name if len(some) == 1 else f"{len(some)} small leaves"
            shared.append(Unit(some, sum(leaves[i].words for i in some), name, kind))
        return Plan(tuple(leaves), tuple(big + shared))

    def single(self, unit: Unit) -> bool:
        """Whether a unit is one float32 leaf, which the kernels take as it lies."""
        return len(unit.leaves) == 1 and self.leaves[unit.leaves[0]].dtype == jnp.float32

    def words(self, arrays: Sequence[Array]) -> list[UInt32[Array, " n"]]:
        """The words of each unit."""
        return [_joined(unit, arrays) for unit in self.units]

    def read(self, arrays: Sequence[Array]) -> list[Array]:
        """Each unit as something to read: a leaf of its own whose items have 4 or 8 bytes as it is, else the words.

        XLA copies an array to bitcast it, and the kernels that only read do not need that.
        """
        out: list[Array] = []
        for unit in self.units:
            leaf = self.leaves[unit.leaves[0]]
            if len(unit.leaves) == 1 and plain(leaf.dtype):
                out.append(arrays[unit.leaves[0]])
            else:
                out.append(_joined(unit, arrays))
        return out

    def part(self, units: Iterable[int]) -> Plan:
        """The same leaves, with these units alone."""
        return Plan(self.leaves, tuple(self.units[i] for i in units))

    def arrays(self, words: Sequence[UInt32[Array, " n"]], given: Sequence[Array]) -> list[Array]:
        """The inverse of `words`; leaves that are in no unit are those `given`."""
        out = list(given)
        for unit, w in zip(self.units, words, strict=True):
            at = 0
            for i in unit.leaves:
                leaf = self.leaves[i]
                out[i] = from_words(w[at : at + leaf.words], leaf.shape, leaf.dtype)
                at += leaf.words
        return out


def _joined(unit: Unit, arrays: Sequence[Array]) -> UInt32[Array, " n"]:
    parts = [to_words(arrays[i]) for i in unit.leaves]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Leaves with their paths in words, `params.w[0]`-like, in flattening order."""
    paths, _ = jax.tree.flatten_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "state", leaf) for path, leaf in paths]
