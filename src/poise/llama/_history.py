"""The history of a forward-only run: what moved the weights, 12 bytes a step, and how to walk it again.

A file is a line of JSON and then a record per committed step: its number, the run's seed (uint32 each), and the scalar
(float32) by which the step's direction was taken. Replaying it onto the weights of step 0 gives the weights of the end,
bit for bit, without a forward pass: piece by piece, on any devices."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..errors import BadInput
from ._noise import hashes, key_of, moved

RECORD = np.dtype([("step", "<u4"), ("seed", "<u4"), ("scalar", "<f4")])
MAGIC = "poise-llama-history"


@dataclass(frozen=True)
class History:
    """`scalars` by step, under one `seed`. `start` is the fingerprint of the weights of step 0; `trained` names what
    moves."""

    seed: int
    scalars: np.ndarray
    start: str
    trained: str

    def save(self, path: str | Path) -> None:
        """Write it."""
        with open(path, "wb") as file:
            begin(file, self.start, self.trained)
            rows = np.zeros(len(self.scalars), RECORD)
            rows["step"], rows["seed"], rows["scalar"] = np.arange(len(rows)), self.seed, self.scalars
            file.write(rows.tobytes())


def begin(file: BinaryIO, start: str, trained: str) -> None:
    """Write the first line of a history."""
    file.write((json.dumps({"format": MAGIC, "version": 1, "start": start, "trained": trained}) + "\n").encode())


def note(file: BinaryIO, step: int, seed: int, scalar: float) -> None:
    """Append a step and hand it to the operating system, so that a killed process loses none."""
    file.write(np.array([(step, seed, scalar)], RECORD).tobytes())
    file.flush()


def read_history(path: str | Path) -> History:
    """A history from its file. A record that is cut off counts as not written; of two for one step the later one
    counts.

    Raises `BadInput` for anything else than a history.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"The history {path} cannot be read: {error.strerror}.") from error
    line, _, rest = data.partition(b"\n")
    try:
        said = json.loads(line)
        if said["format"] != MAGIC or said["version"] != 1:
            raise BadInput(f"{path} is a {said['format']} of version {said['version']}; accepted is {MAGIC} 1.")
        start, trained = str(said["start"]), str(said["trained"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is no history of a forward-only run.") from error
    rows = np.frombuffer(rest[: len(rest) // RECORD.itemsize * RECORD.itemsize], RECORD)
    seeds = np.unique(rows["seed"])
    if len(seeds) > 1:
        raise BadInput(f"The history {path} mixes the seeds {seeds.tolist()}; one run has one.")
    last = int(rows["step"].max()) + 1 if len(rows) else 0
    if last > 10**8:
        raise BadInput(f"The history {path} says it has {last} steps; it is damaged.")
    scalars = np.zeros(last, np.float32)
    scalars[rows["step"]] = rows["scalar"]
    return History(int(seeds[0]) if len(seeds) else 0, scalars, start, trained)


def leaf_numbers(tree: Any) -> dict[str, int]:
    """The number of each leaf by its path, in flattening order: a part of the directions' keys."""
    paths, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(p, simple=True, separator="."): i for i, (p, _) in enumerate(paths)}


def is_stacked(name: str) -> bool:
    """Whether a leaf has layers along its first dimension."""
    return name.startswith("layers.") or name.endswith(("_a", "_b"))


def step_leaf(
    w: Array, name: str, number: int, seed: Any, step: Any, scalar: Any, whole: tuple[int, ...] | None = None,
    offset: tuple[Any, ...] | None = None,
) -> Array:  # fmt: skip
    """A leaf, or the piece of it that begins at `offset` of the `whole`, after one step."""
    whole = w.shape if whole is None else whole
    offset = (0,) * w.ndim if offset is None else offset
    if is_stacked(name):
        layers = jnp.arange(w.shape[0], dtype=jnp.uint32) + jnp.asarray(offset[0]).astype(jnp.uint32)
        words = hashes(key_of(seed, step, number, layers), w.shape[1:], whole[1:], offset[1:])
    else:
        words = hashes(key_of(seed, step, number, 0), w.shape, whole, offset)
    return moved(w, words, scalar)


@partial(jax.jit, static_argnames=("name", "number", "whole"), donate_argnums=0)
def _walk(w: Array, seed: Any, scalars: Array, offset: Any, *, name: str, number: int, whole: tuple[int, ...]) -> Array:
    def one(t: Array, w: Array) -> Array:
        return step_leaf(w, name, number, seed, t, scalars[t], whole, offset)

    return lax.fori_loop(0, scalars.shape[0], one, w)


def replay(start: Any, history: History) -> Any:
    """The trained tree after `history`, from that of step 0 (which stays as it is). No forward pass, one leaf at a
    time."""
    numbers = leaf_numbers(start)
    leaves, treedef = jax.tree.flatten(start)
    out = [
        replay_piece(leaf, name, number, np.shape(leaf), (0,) * np.ndim(leaf), history)
        for leaf, (name, number) in zip(leaves, numbers.items(), strict=True)
    ]
    return treedef.unflatten(out)


def replay_piece(
    piece: Any, name: str, number: int, whole: tuple[int, ...], offset: tuple[int, ...], history: History
) -> Array:
    """One device's piece of one leaf after `history`: what rebuilds a lost shard from the weights of step 0."""
    w = jnp.array(piece, copy=True)
    at = tuple(np.uint32(o) for o in offset)
    return _walk(
        w, np.uint32(history.seed), jnp.asarray(history.scalars), at, name=name, number=number, whole=tuple(whole)
    )
