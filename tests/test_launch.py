"""A launch whose processes die, small enough for every test run; `make test-processes` strikes everywhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent / "processes"))

from launching import STEPS, run

from poise import Keeper, Pool
from poise.events import RunStopped
from poise.faults import ProcessFault
from poise.physics.grid import Burgers2d

pytestmark = pytest.mark.timeout(300)  # real processes, each of which starts JAX and compiles its placements


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What one run's processes compile, the next run's find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@pytest.fixture(scope="module")
def clean() -> str:
    """The final state's fingerprint of an uninterrupted run: a stencil's bits do not depend on who computes which
    part, nor in how many processes."""
    with Keeper(Burgers2d(n=24, steps=STEPS), Pool(jax.devices()[:2], 0)) as keeper:
        keeper.run(STEPS)
        return keeper.fingerprint()


def test_a_member_is_killed_and_the_run_goes_on_to_the_same_bits(clean: str, tmp_path: Path) -> None:
    ran, _ = run(tmp_path, [ProcessFault("kill", 3, 1, "ready", wait=True)], active=2, swaps=1)
    assert ran.stopped is None
    assert ran.fingerprint == clean
    (swap,) = ran.swaps
    assert (swap.slot, swap.seat, swap.source, swap.compiles) == (1, 1, "parity", 0)
    assert swap.steps_lost <= 1


def test_a_loss_without_a_spare_ends_with_status_3_and_resumes_to_the_same_bits(clean: str, tmp_path: Path) -> None:
    first, events = run(tmp_path, [ProcessFault("kill", 90, 0, "commit")], active=1, spares=0)
    assert first.stopped is not None
    assert first.stopped.exit_status == 3
    assert "no spare" in str(first.stopped)
    assert isinstance(events[-1], RunStopped)
    second, _ = run(tmp_path / "again", active=1, spares=0, resume=tmp_path / "snapshots")
    assert second.fingerprint == clean
