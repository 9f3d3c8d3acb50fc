"""Snapshots in parts, as the processes of a launch write them: each its own shard, all or nothing, for any mesh."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from poise import Keeper, Pool
from poise.errors import BadInput
from poise.keeper._form import Form
from poise.keeper._parts import MANIFEST, folder, write_manifest, write_part
from poise.keeper._snapshot import pull, read, snapshot_files
from poise.physics.grid import Burgers2d

GRID = Burgers2d(n=24)


Written = tuple[Path, Form, dict[int, np.ndarray]]


def write(directory: Path, steps: tuple[int, ...]) -> tuple[Form, dict[int, np.ndarray]]:
    """Write what four processes would at `steps`; the state's form, and what it held at each."""
    held = {}
    with Keeper(GRID, Pool(jax.devices()[:4], 0)) as keeper:
        placement, form = keeper.loop.stage.placement, keeper.loop.form
        for step in steps:
            keeper.run(step)
            held[step] = np.asarray(keeper.state["uv"])
            copy = pull(keeper.loop.kept, placement, step)
            shards = [[array[slot] for array in copy.pieces] for slot in range(4)]
            marks = [write_part(directory, step, slot, shard, form, placement) for slot, shard in enumerate(shards)]
            write_manifest(directory, step, GRID.name, marks)
    return form, held


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Three snapshots, of which the newest two are kept."""
    directory = tmp_path_factory.mktemp("written")
    return directory, *write(directory, (2, 3, 6))


@pytest.fixture
def parts(written: Written, tmp_path: Path) -> Written:
    """A copy of them to damage."""
    directory, form, held = written
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    return tmp_path, form, held


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_they_are_read_on_another_number_of_devices(parts: Written, devices: int) -> None:
    directory, _, held = parts
    with Keeper(GRID, Pool(jax.devices()[:devices], 0), resume=directory) as keeper:
        assert keeper.settled == 6
        np.testing.assert_array_equal(np.asarray(keeper.state["uv"]), held[6])


def test_an_unfinished_snapshot_is_never_read(parts: Written) -> None:
    directory, form, held = parts
    (folder(directory, 6) / MANIFEST).unlink()
    step, (found,) = read(directory, GRID.name, form)
    assert step == 3
    np.testing.assert_array_equal(found, held[3])
    shutil.rmtree(folder(directory, 3))
    with pytest.raises(BadInput, match="no snapshot to resume from"):
        read(directory, GRID.name, form)


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "other step"])
def test_one_bad_part_spoils_the_snapshot_and_the_one_before_it_counts(parts: Written, damage: str) -> None:
    directory, form, held = parts
    part = folder(directory, 6) / "slot-2.npz"
    raw = bytearray(part.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
        part.write_bytes(raw)
    elif damage == "cut":
        part.write_bytes(raw[:-100])
    elif damage == "missing":
        part.unlink()
    else:
        shutil.copy(folder(directory, 3) / "slot-2.npz", part)
    step, (found,) = read(directory, GRID.name, form)
    assert step == 3
    np.testing.assert_array_equal(found, held[3])


def test_the_newest_two_are_kept(parts: Written) -> None:
    directory, _, _ = parts
    assert [p.name for p in snapshot_files(directory)] == ["snapshot-000000003", "snapshot-000000006"]
    assert not folder(directory, 2).exists()
