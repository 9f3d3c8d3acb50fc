"""The blows themselves: bits in one device's memory, values in one device's copy of a batch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..devices import Placement, assemble, shards_by_slot
from ..errors import BadJob
from ..keeper import Loop
from ..keeper._form import TAGS, Form
from ..kernels.layout import Layout
from ..seal._host import words_of
from ._script import ScriptedFault

VALUES = {"nan": np.nan, "inf": np.inf, "marker": -99.0}


def struck_arrays(form: Form, fault: ScriptedFault) -> tuple[list[int], slice]:
    """Which arrays of the flattened kept state are struck, and which of their joined words.

    Leaves come first in it, then parity, marks and guard of each unit, then the tag. Damage to data sees the whole unit
    that the leaf is sealed in, since banks are cut across it.
    """
    names = list(form.names)
    leaf = fault.leaf or names[0]
    if leaf not in names:
        raise BadJob(f"The state has no leaf {leaf!r}; it has {', '.join(names)}.")
    number = names.index(leaf)
    if not form.plan.leaves[number].words:
        raise BadJob(f"The state's leaf {leaf!r} is empty; there is nothing to strike.")
    unit = next(i for i, u in enumerate(form.plan.units) if number in u.leaves)
    if fault.kind == "two_banks" and form.plan.units[unit].words < 2:
        raise BadJob(f"The state's leaf {leaf!r} is a single word; it has no two banks.")
    if fault.kind == "two_banks" or fault.where == "data":
        leaves = form.plan.units[unit].leaves
        start = sum(form.plan.leaves[i].words for i in leaves[: leaves.index(number)])
        return list(leaves), slice(start, start + form.plan.leaves[number].words)
    if fault.where == "tag":
        return [len(names) + 3 * len(form.plan.units)], slice(0, TAGS)
    if fault.where == "parity" and not form.plan.units[unit].parity:
        raise BadJob(f"{leaf!r} has no parity (its replicas heal it); accepted here are data, marks, guard and tag.")
    return [len(names) + 3 * unit + {"parity": 0, "marks": 1, "guard": 2}[fault.where]], slice(None)


def damage(words: np.ndarray, part: slice, fault: ScriptedFault, rng: np.random.Generator) -> None:
    """Flip bits of a unit's words, in place, as the fault says; `part` are those of the leaf that is struck."""
    lay = Layout(words.size)
    start, stop, _ = part.indices(words.size)
    flips = rng.integers(1, 2**32, words.size, dtype=np.uint32)
    at = int(rng.integers(start, stop))
    if fault.kind == "two_banks":
        # The same word of two banks of one group, differently: no single bank can be the explanation.
        other = at + lay.L if at + lay.L < words.size else at - lay.L
        words[at] ^= np.uint32(1)
        words[other] ^= np.uint32(2)
    elif fault.where == "tag" or fault.extent == "bit":
        words[at] ^= np.uint32(1) << np.uint32(rng.integers(32))
    elif fault.extent == "bits":
        block = np.arange(max(start, at // lay.B * lay.B), min(stop, at // lay.B * lay.B + lay.B))
        some = rng.choice(block, size=min(5, block.size), replace=False)
        words[some] ^= flips[some]
    else:
        size = lay.B if fault.extent == "block" else lay.L
        begin = at // size * size
        words[begin : begin + size] ^= flips[begin : begin + size]


def strike_memory(loop: Loop, fault: ScriptedFault, rng: np.random.Generator) -> dict[int, np.ndarray]:
    """Damage the live state (the loop must be settled); returns the struck arrays' pieces as they were."""
    numbers, part = struck_arrays(loop.form, fault)
    placement = loop.stage.placement
    arrays, treedef = jax.tree.flatten(loop.kept)
    before = {i: piece_now(loop, i, fault.slot) for i in numbers}
    joined = np.concatenate([words_of(before[i]) for i in numbers])
    damage(joined, part, fault, rng)
    at = 0
    for i in numbers:
        old = before[i]
        size = -(-old.nbytes // 4)
        raw = joined[at : at + size].view(np.uint8)[: old.nbytes]
        at += size
        pieces = list(shards_by_slot(arrays[i], placement))
        pieces[fault.slot] = jax.device_put(
            raw.view(old.dtype).reshape(old.shape).copy(), placement.devices[fault.slot]
        )
        arrays[i] = assemble(pieces, arrays[i], placement)
    loop.kept = treedef.unflatten(arrays)
    return before


def piece_now(loop: Loop, number: int, slot: int) -> np.ndarray:
    """A copy of the piece of one array in one slot, as it is now."""
    return np.array(shards_by_slot(jax.tree.leaves(loop.kept)[number], loop.stage.placement)[slot], copy=True)


def bad_value(fault: ScriptedFault, limit: float) -> float:
    """What a batch fault writes."""
    return VALUES.get(fault.kind, 10.0 * limit)


def batch_leaf(names: tuple[str, ...], fault: ScriptedFault) -> int:
    """The number of the struck leaf of the batch."""
    if not fault.leaf:
        return 0
    if fault.leaf not in names:
        raise BadJob(f"The batch has no leaf {fault.leaf!r}; it has {', '.join(names)}.")
    return names.index(fault.leaf)


def strike_copy(loop: Loop, fault: ScriptedFault, placement: Placement, batch: Any) -> Any:
    """The batch on the devices with a bad value in one device's copy of it alone; the host's batch stays pristine."""
    placed = loop.stage.put(batch)
    arrays, treedef = jax.tree.flatten(placed)
    number = batch_leaf(loop.batch_names, fault)
    pieces = list(shards_by_slot(arrays[number], placement))
    piece = np.array(pieces[fault.slot], copy=True)
    piece.reshape(-1)[piece.size // 2] = bad_value(fault, loop.workload.traits.gate.limit)
    pieces[fault.slot] = jax.device_put(piece, placement.devices[fault.slot])
    arrays[number] = assemble(pieces, arrays[number], placement)
    return treedef.unflatten(arrays)


def strike_batch(loop: Loop, fault: ScriptedFault, batch: Any) -> Any:
    """A batch that is itself bad, on the host."""
    arrays, treedef = jax.tree.flatten(batch)
    number = batch_leaf(loop.batch_names, fault)
    bad = np.array(arrays[number], copy=True)
    bad.reshape(-1)[bad.size // 2] = bad_value(fault, loop.workload.traits.gate.limit)
    arrays[number] = bad
    return treedef.unflatten(arrays)
