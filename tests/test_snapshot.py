"""Snapshot files: atomic, verified, resumable on another number of devices."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from kept import Momentum, run
from poise import Keeper, Pool
from poise.errors import BadInput, Stopped
from poise.keeper._snapshot import pull, snapshot_files, verify
from poise.physics.grid import Burgers2d

GRID = Burgers2d(n=32)


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    clean = run(GRID, steps=20, every=5)
    with pytest.raises(Stopped) as stopped:
        run(GRID, [{"kind": "lost", "step": 12, "slot": 1}], steps=20, every=5, directory=tmp_path)
    assert stopped.value.resume == str(tmp_path)
    assert [p.name for p in snapshot_files(tmp_path)][-1] == "snapshot-000000010.npz"
    resumed = run(GRID, steps=20, every=5, resume=tmp_path)
    assert resumed.fingerprint == clean.fingerprint


@pytest.mark.parametrize("active", [1, 2])
def test_a_resume_on_fewer_devices_agrees_to_rounding(tmp_path: Path, active: int) -> None:
    with Keeper(GRID, Pool(jax.devices()[:4], 0), directory=tmp_path) as keeper:
        keeper.run(10)
        keeper.finish()
    with Keeper(GRID, Pool(jax.devices()[:active], 0), resume=tmp_path) as keeper:
        assert keeper.settled == 10
        keeper.run(20)
        state = np.asarray(keeper.state["uv"])
    with Keeper(GRID, Pool(jax.devices()[:4], 0)) as keeper:
        keeper.run(20)
        np.testing.assert_allclose(state, np.asarray(keeper.state["uv"]), rtol=0, atol=1e-6)


def test_a_damaged_file_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    with Keeper(GRID, Pool(jax.devices()[:1], 0), directory=tmp_path, every=5) as keeper:
        keeper.run(12)
    newest = snapshot_files(tmp_path)[-1]
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 1
    newest.write_bytes(raw)
    older = int(snapshot_files(tmp_path)[0].stem.split("-")[1])
    with Keeper(GRID, Pool(jax.devices()[:1], 0), resume=tmp_path) as keeper:
        assert keeper.settled == older
    snapshot_files(tmp_path)[0].write_bytes(b"nonsense")
    with pytest.raises(BadInput, match="intact"):
        Keeper(GRID, Pool(jax.devices()[:1], 0), resume=tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), b"\x93NUMPY", b"{}"])
def test_whatever_is_wrong_with_the_newest_file_the_one_before_it_counts(tmp_path: Path, content: bytes) -> None:
    with Keeper(GRID, Pool(jax.devices()[:1], 0), directory=tmp_path) as keeper:
        keeper.run(2)
        keeper.finish()
    (tmp_path / "snapshot-000000009.npz").write_bytes(content)
    with Keeper(GRID, Pool(jax.devices()[:1], 0), resume=tmp_path) as keeper:
        assert keeper.settled == 2


def test_another_jobs_snapshot_is_refused(tmp_path: Path) -> None:
    with Keeper(GRID, Pool(jax.devices()[:1], 0), directory=tmp_path) as keeper:
        keeper.run(2)
        keeper.finish()
    with pytest.raises(BadInput, match="this job needs"):
        Keeper(Burgers2d(n=16), Pool(jax.devices()[:1], 0), resume=tmp_path)
    with pytest.raises(BadInput, match="this job needs"):
        Keeper(Momentum(), Pool(jax.devices()[:1], 0), resume=tmp_path)
    with pytest.raises(BadInput, match="no snapshot"):
        Keeper(GRID, Pool(jax.devices()[:1], 0), resume=tmp_path / "nowhere")


def test_no_partial_file_is_left_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Keeper(GRID, Pool(jax.devices()[:1], 0), directory=tmp_path, every=4) as keeper:
        keeper.run(2)
        keeper.finish()
    before = [p.name for p in tmp_path.iterdir()]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with (
        pytest.raises(OSError, match="No space"),
        Keeper(GRID, Pool(jax.devices()[:1], 0), directory=tmp_path) as keeper,
    ):
        keeper.run(3)
        keeper.finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(before)


def test_a_copy_that_rots_on_the_host_is_noticed() -> None:
    with Keeper(GRID, Pool(jax.devices()[:4], 0)) as keeper:
        keeper.run(3)
        loop = keeper.loop
        copy = pull(loop.kept, loop.stage.placement, 3)
        assert verify(copy, loop.form) == ""
        copy.pieces[0][2].reshape(-1).view(np.uint32)[77] ^= 1 << 9
        assert "slot 2" in verify(copy, loop.form)
        copy = pull(loop.kept, loop.stage.placement, 3)
        assert "says step" in verify(copy.__class__(4, copy.pieces), loop.form)


def test_64_bit_states_keep_their_bits_in_a_32_bit_program(tmp_path: Path) -> None:
    wide = Burgers2d(n=16, dtype="float64")
    clean = run(wide, steps=10, every=4)
    script = [{"kind": "bitflip", "step": 3, "slot": 1}, {"kind": "two_banks", "step": 7}, {"kind": "nan", "step": 5}]
    struck = run(wide, script, steps=10, every=4, clean=clean)
    assert struck.fingerprint == clean.fingerprint
    assert all(s.bit_exact and s.compiles == 0 for s in struck.strikes)
    assert jax.numpy.arange(2.0).dtype == jax.numpy.float32
