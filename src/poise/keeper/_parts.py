"""Snapshots in parts: each process writes its own shard, and a manifest makes them count.

`snapshot-000000123/slot-0.npz …` and, written last and at once, `manifest.json` with the fingerprint of every part. A
folder without a manifest is unfinished and never read. Leaves say which part of the whole they are, so a run on another
number of devices can go on from them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..devices import Placement
from ._form import Form

VERSION = 1
MANIFEST = "manifest.json"


def folder(directory: Path, step: int) -> Path:
    """Where the parts of `step` lie."""
    return directory / f"snapshot-{step:09d}"


def write_part(
    directory: Path, step: int, slot: int, pieces: list[np.ndarray], form: Form, placement: Placement
) -> str:
    """Write one slot's leaves atomically; returns the part's fingerprint."""
    where = folder(directory, step)
    where.mkdir(parents=True, exist_ok=True)
    device = placement.devices[slot]
    leaves, raw = [], {}
    digest = hashlib.blake2b(digest_size=16)
    for i, (name, shape, spec) in enumerate(zip(form.names, form.shapes, form.specs, strict=True)):
        index = placement.sharding(spec).devices_indices_map(shape.shape)[device]
        bounds = [s.indices(size)[:2] for s, size in zip(index, shape.shape, strict=True)]
        leaves.append({"name": name, "dtype": str(shape.dtype), "shape": shape.shape, "bounds": bounds})
        raw[f"leaf{i}"] = np.ascontiguousarray(pieces[i]).reshape(-1).view(np.uint8)
        digest.update(raw[f"leaf{i}"])  # type: ignore[arg-type]
    meta = np.frombuffer(json.dumps({"version": VERSION, "step": step, "leaves": leaves}).encode(), np.uint8)
    path = where / f"slot-{slot}.npz"
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            np.savez(file, meta=meta, **raw)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return digest.hexdigest()


def write_manifest(directory: Path, step: int, job: str, marks: list[str]) -> Path:
    """Make the parts of `step` count; forgets all but the newest two, and what was never finished before them."""
    where = folder(directory, step)
    said = {"version": VERSION, "job": job, "step": step, "devices": len(marks), "parts": marks}
    part = where / f"{MANIFEST}.{os.getpid()}.part"
    try:
        with open(part, "w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, where / MANIFEST)
    finally:
        part.unlink(missing_ok=True)
    finished = sorted(p.parent for p in directory.glob(f"snapshot-*/{MANIFEST}"))
    for old in [p for p in directory.glob("snapshot-*") if p.is_dir() and p < finished[-2:][0]]:
        shutil.rmtree(old, ignore_errors=True)
    return where


def read_manifest(where: Path) -> dict[str, Any]:
    """The manifest of a folder. Raises OSError, ValueError or KeyError for one that is not finished or not ours."""
    said = json.loads((where / MANIFEST).read_text())
    if said["version"] != VERSION:
        raise ValueError(said["version"])
    return said


def read_parts(where: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[np.ndarray]]:
    """Manifest, leaves and their whole arrays' bytes from a finished folder.

    Raises ValueError (and what reading files raises) if a part does not match its fingerprint or a leaf has holes.
    """
    said = read_manifest(where)
    leaves: list[dict[str, Any]] = []
    wholes: list[np.ndarray] = []
    filled: list[np.ndarray] = []
    for slot, mark in enumerate(said["parts"]):
        with open(where / f"slot-{slot}.npz", "rb") as file, np.load(file, allow_pickle=False) as data:
            meta = json.loads(bytes(data["meta"]).decode())
            raw = [data[f"leaf{i}"] for i in range(len(meta["leaves"]))]
        digest = hashlib.blake2b(digest_size=16)
        for piece in raw:
            digest.update(piece)
        if digest.hexdigest() != mark or meta["step"] != said["step"]:
            raise ValueError(f"part {slot}")
        if not leaves:
            leaves = [{k: leaf[k] for k in ("name", "dtype", "shape")} for leaf in meta["leaves"]]
            # By bytes: a dtype's name need not be known to numpy (bfloat16).
            sizes = [np.dtype(jax.numpy.dtype(leaf["dtype"])).itemsize for leaf in leaves]
            wholes = [np.zeros((*leaf["shape"], size), np.uint8) for leaf, size in zip(leaves, sizes, strict=True)]
            filled = [np.zeros(leaf["shape"], bool) for leaf in leaves]
        for leaf, piece, whole, full in zip(meta["leaves"], raw, wholes, filled, strict=True):
            index = tuple(slice(a, b) for a, b in leaf["bounds"])
            whole[index] = piece.reshape(whole[index].shape)
            full[index] = True
    if not all(full.all() for full in filled):
        raise ValueError("holes")
    return said, leaves, wholes
