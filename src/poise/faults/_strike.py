"""The blows themselves: bits in one device's memory, values in one device's copy of a batch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..devices import Placement, assemble, shards_by_slot
from ..errors import BadJob
from ..kernels.layout import Layout
from ..keeper import Loop
from ..keeper._form import TAGS
from ._script import ScriptedFault

VALUES = {"nan": np.nan, "inf": np.inf, "marker": -99.0}


def array_number(loop: Loop, fault: ScriptedFault) -> int:
    """Which array of the flattened kept state is struck: leaves come first, then parity, marks, guard of each unit, the tag."""
    form = loop.form
    names = list(form.names)
    leaf = fault.leaf or names[0]
    if leaf not in names:
        raise BadJob(f"The state has no leaf {leaf!r}; it has {', '.join(names)}.")
    number = names.index(leaf)
    if fault.kind == "two_banks" or fault.where == "data":
        return number
    if fault.where == "tag":
        return len(names) + 3 * len(form.plan.units)
    unit = next(i for i, u in enumerate(form.plan.units) if number in u.leaves)
    if fault.where == "parity" and not form.plan.units[unit].parity:
        raise BadJob(f"{leaf!r} has no parity (its replicas heal it); accepted here are data, marks, guard and tag.")
    return len(names) + 3 * unit + {"parity": 0, "marks": 1, "guard": 2}[fault.where]


def damage(words: np.ndarray, fault: ScriptedFault, rng: np.random.Generator) -> None:
    """Flip bits of one array's words, in place, as the fault says."""
    lay = Layout(words.size)
    flips = rng.integers(1, 2**32, words.size, dtype=np.uint32)
    at = int(rng.integers(words.size))
    if fault.kind == "two_banks":
        # The same word of two banks of one group, so that no single bank can be the explanation.
        pair = np.array([at % lay.L, at % lay.L + lay.L])
        words[pair] ^= flips[pair] | np.uint32(1)
        words[pair[1]] ^= np.uint32(2)
    elif fault.where == "tag" or fault.extent == "bit":
        words[at] ^= np.uint32(1) << np.uint32(rng.integers(32))
    elif fault.extent == "bits":
        some = rng.choice(min(lay.B, words.size), size=min(5, words.size), replace=False)
        words[some] ^= flips[some]
    else:
        size = lay.B if fault.extent == "block" else lay.L
        start = at // size * size
        words[start : start + size] ^= flips[start : start + size]


def strike_memory(loop: Loop, fault: ScriptedFault, rng: np.random.Generator) -> tuple[int, np.ndarray]:
    """Damage the live state (the loop must be settled); returns the array's number and its piece as it was."""
    number = array_number(loop, fault)
    placement = loop.stage.placement
    arrays, treedef = jax.tree.flatten(loop.kept)
    pieces = list(shards_by_slot(arrays[number], placement))
    if fault.slot >= len(pieces):
        raise BadJob(f"There is no slot {fault.slot}; the slots are 0 to {len(pieces) - 1}.")
    before = np.array(pieces[fault.slot], copy=True)
    after = before.copy()
    raw = after.reshape(-1).view(np.uint8)
    words = np.zeros(-(-raw.size // 4), np.uint32)
    words.view(np.uint8)[: raw.size] = raw
    damage(words[:TAGS] if fault.where == "tag" else words, fault, rng)
    raw[:] = words.view(np.uint8)[: raw.size]
    pieces[fault.slot] = jax.device_put(after, placement.devices[fault.slot])
    arrays[number] = assemble(pieces, arrays[number], placement)
    loop.kept = treedef.unflatten(arrays)
    return number, before


def piece_now(loop: Loop, number: int, slot: int) -> np.ndarray:
    """The piece of one array in one slot, as it is now."""
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
