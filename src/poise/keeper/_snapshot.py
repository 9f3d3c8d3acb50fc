"""Verified copies of a kept state in host memory, and in files.

A copy is taken from the live state between two steps and counts (is *good*) once two things are known: a later proposal
has verified the marks of the very state that was copied, and the copy matches those marks too. Until then the previous
good copy stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..devices import Placement, shards_by_slot
from ..errors import BadInput
from ..kernels.layout import BANKS
from ..seal._host import block_marks, words_of
from ._form import TAGS, Form, Kept
from ._parts import MANIFEST, read_manifest, read_parts

VERSION = 1


@dataclass(frozen=True)
class HostCopy:
    """A kept state of step `step` in host memory: for each array of the flattened `Kept` its pieces by slot."""

    step: int
    pieces: tuple[tuple[np.ndarray, ...], ...]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(p.nbytes for array in self.pieces for p in array)


def pull(kept: Kept, placement: Placement, step: int) -> HostCopy:
    """Copy every piece to the host (never a view of a device's memory: a later donation would write into it)."""
    # On a CPU JAX hands out views; elsewhere what it hands out is a copy already, and another one would hold the GIL.
    own = placement.devices[0].platform == "cpu"
    arrays = jax.tree.leaves(kept)
    pieces = [
        tuple(np.array(p, copy=True) if own else np.asarray(p) for p in shards_by_slot(x, placement)) for x in arrays
    ]
    return HostCopy(step, tuple(pieces))


def verify(copy: HostCopy, form: Form) -> str:
    """Why the copy cannot be trusted, or an empty string."""
    for slot in range(form.devices):
        why = verify_shard([array[slot] for array in copy.pieces], copy.step, form)
        if why:
            return f"slot {slot}: {why}"
    return ""


def verify_shard(pieces: list[np.ndarray], step: int, form: Form) -> str:
    """Why one slot's pieces of a kept state of `step` cannot be trusted, or an empty string."""
    n = len(form.shapes)
    tags = pieces[-1]
    if not (tags == step).all() or tags.size != TAGS:
        return f"it says step {tags.tolist()}, not {step}"
    local = [words_of(piece) for piece in pieces[:n]]
    for number, unit in enumerate(form.plan.units):
        parts = [local[i] for i in unit.leaves]
        words = parts[0] if len(parts) == 1 else np.concatenate(parts)
        marks = pieces[n + 3 * number + 1]
        off = int((block_marks(words) != marks[:BANKS]).any(-1).sum())
        if off:
            return f"{off} blocks of {unit.name} do not match their marks"
    return ""


def globals_of(copy: HostCopy, form: Form, placement: Placement) -> tuple[np.ndarray, ...]:
    """The state's leaves as whole arrays."""
    out = []
    for i, (shape, spec) in enumerate(zip(form.shapes, form.specs, strict=True)):
        whole = np.empty(shape.shape, shape.dtype)
        where = placement.sharding(spec).devices_indices_map(shape.shape)
        for device, piece in zip(placement.devices, copy.pieces[i], strict=True):
            whole[where[device]] = piece
        out.append(whole)
    return tuple(out)


def fingerprint(leaves: tuple[np.ndarray, ...]) -> str:
    """128 bits of the leaves' bytes, in hexadecimal: equal states have equal fingerprints whatever the mesh."""
    h = hashlib.blake2b(digest_size=16)
    for x in leaves:
        h.update(f"{x.dtype}{x.shape}".encode())
        h.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    return h.hexdigest()


def write(directory: Path, step: int, job: str, form: Form, leaves: tuple[np.ndarray, ...]) -> Path:
    """Write a snapshot file atomically; an interrupted write leaves the older files as they were. Keeps the newest
    two."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"snapshot-{step:09d}.npz"
    meta = {
        "version": VERSION,
        "job": job,
        "step": step,
        "devices": form.devices,
        "fingerprint": fingerprint(leaves),
        "leaves": [
            {"name": n, "dtype": str(x.dtype), "shape": x.shape} for n, x in zip(form.names, leaves, strict=True)
        ],
    }
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            raw = {f"leaf{i}": np.ascontiguousarray(x).reshape(-1).view(np.uint8) for i, x in enumerate(leaves)}
            np.savez(file, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **raw)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    for old in [p for p in snapshot_files(directory) if p.is_file()][:-2]:
        old.unlink(missing_ok=True)
    return path


def snapshot_files(directory: Path) -> list[Path]:
    """Snapshots of a directory, oldest first: files of one process, and finished folders of several (`_parts.py`)."""
    found = [p for p in directory.glob("snapshot-*.npz") if re.fullmatch(r"snapshot-\d{9,}\.npz", p.name)]
    found += [p.parent for p in directory.glob(f"snapshot-*/{MANIFEST}")]
    return sorted(found, key=lambda p: int(p.stem.split("-")[1]))


def load(path: Path) -> tuple[dict[str, Any], list[bytes], bool]:
    """What a snapshot says about itself, its leaves' bytes, and whether they match their fingerprint.

    Raises whatever reading a broken file raises.
    """
    if path.is_dir():
        said, leaves, wholes = read_parts(path)
        return {**said, "leaves": leaves}, [x.tobytes() for x in wholes], True
    # Opened here, since numpy leaves the file open when what is in it is no archive.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as data:
        meta = json.loads(bytes(data["meta"]).decode())
        raw = [bytes(data[f"leaf{i}"]) for i in range(len(meta["leaves"]))]
    return meta, raw, False


def devices_then(path: Path) -> int:
    """The number of devices of the run that wrote a snapshot. Raises whatever reading a broken one raises."""
    if path.is_dir():
        return int(read_manifest(path)["devices"])
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as data:
        return int(json.loads(bytes(data["meta"]).decode())["devices"])


def read(directory: Path, job: str, form: Form) -> tuple[int, tuple[np.ndarray, ...]]:
    """Step and leaves of the newest snapshot in `directory` whose fingerprint matches.

    Raises `BadInput` if there is none, or if it belongs to another job or another shape of state.
    """
    files = snapshot_files(directory) if directory.is_dir() else []
    if not files:
        raise BadInput(f"There is no snapshot to resume from in {directory}; accepted is a directory that a run wrote.")
    want = [(n, str(s.dtype), s.shape) for n, s in zip(form.names, form.shapes, strict=True)]
    for path in reversed(files):
        try:
            meta, raw, checked = load(path)
            said = [(x["name"], x["dtype"], tuple(x["shape"])) for x in meta["leaves"]]
            step, written_for, version = int(meta["step"]), meta["job"], meta["version"]
            mark = None if checked else meta["fingerprint"]
        except Exception:  # whatever is wrong with the newest file, the one before it may be good
            continue
        if version != VERSION or written_for != job or said != want:
            raise BadInput(f"{path} holds a state of {written_for} with {said}; this job needs {want}.")
        if any(len(b) != s.size * s.dtype.itemsize for b, s in zip(raw, form.shapes, strict=True)):
            continue
        leaves = tuple(np.frombuffer(b, s.dtype).reshape(s.shape).copy() for b, s in zip(raw, form.shapes, strict=True))
        if mark is None or fingerprint(leaves) == mark:
            return step, leaves
    raise BadInput(f"No snapshot in {directory} is intact; all {len(files)} fail their fingerprints.")


class Snapshots:
    """The good copy, and at most one that is still being made in the background."""

    def __init__(self, form: Form, job: str, directory: Path | None = None) -> None:
        self.form, self.job, self.directory = form, job, directory
        self.good: HostCopy | None = None
        self.path: Path | None = None
        self._pending: tuple[int, Future[tuple[HostCopy, str]]] | None = None
        self._confirmed = False
        self._file: Future[Path] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="poise-snapshot")

    @property
    def pending(self) -> bool:
        """Whether a copy is waiting to become good."""
        return self._pending is not None

    def first(self, kept: Kept, placement: Placement, step: int) -> None:
        """A good copy, now: of a state that has just been sealed from trusted values."""
        copy = pull(kept, placement, step)
        why = verify(copy, self.form)
        if why:
            raise BadInput(f"The initial state did not survive its own sealing: {why}.")
        self.good = copy
        self._save(placement)

    def start(self, copied: Kept, placement: Placement, step: int) -> None:
        """Begin to make a copy from `copied`, a copy on the devices of the live state of `step`."""

        def work() -> tuple[HostCopy, str]:
            copy = pull(copied, placement, step)
            return copy, verify(copy, self.form)

        self._confirmed = False
        self._pending = (step, self._pool.submit(work))

    def confirm(self, step: int) -> None:
        """A proposal has verified the state of `step`."""
        if self._pending is not None and self._pending[0] == step:
            self._confirmed = True

    def collect(self, placement: Placement, *, wait: bool = False) -> tuple[HostCopy, str] | None:
        """The pending copy and why it is refused (or ""), if it is decided by now; good ones replace the previous
        one."""
        if self._pending is None or not self._confirmed or not (wait or self._pending[1].done()):
            return None
        copy, why = self._pending[1].result()
        self._pending = None
        if not why:
            self.good = copy
            self._save(placement)
        return copy, why

    def discard(self) -> None:
        """Forget a pending copy: the state that it was taken from is in doubt."""
        if self._pending is not None:
            self._pending[1].cancel()
            self._pending = None

    def _save(self, placement: Placement) -> None:
        # A slow disk must not queue up copies: while one file is being written, newer copies stay in memory only.
        if self.directory is None or self.good is None or (self._file is not None and not self._file.done()):
            return
        if self._file is not None:
            self.path = self._file.result()
        self._file = self._pool.submit(self._write, self.good, placement)

    def _write(self, copy: HostCopy, placement: Placement) -> Path:
        assert self.directory is not None
        leaves = globals_of(copy, self.form, placement)
        return write(self.directory, copy.step, self.job, self.form, leaves)

    def save_now(self, placement: Placement) -> Path | None:
        """Write the good copy and wait for it; returns the file's path."""
        if self._file is not None:
            self.path = self._file.result()
            self._file = None
        if self.directory is None or self.good is None:
            return None
        if self.path is None or not self.path.stem.endswith(f"{self.good.step:09d}"):
            self.path = self._write(self.good, placement)
        return self.path

    def close(self) -> None:
        """Wait for the background."""
        self._pool.shutdown(wait=True)
