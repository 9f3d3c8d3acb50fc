"""The two halves apart: what strikes between propose and commit, and updates in place."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from kept import Momentum, Run, run
from poise import Keeper, Pool
from poise.events import Event, Mended, Noticed, SnapshotKept
from poise.faults import ScriptedFault
from poise.faults._strike import strike_memory
from poise.physics.grid import Burgers2d

GRID = Burgers2d(n=32)


@pytest.fixture(scope="module")
def clean() -> Run:
    return run(Momentum(), steps=16, every=5, fused=False)


def struck_between(workload: Any, fault: ScriptedFault, steps: int, **options: Any) -> tuple[str, list[Event]]:
    """A run whose memory is damaged between the propose and the commit of `fault.step`."""
    events: list[Event] = []
    rng = np.random.default_rng(1)
    with Keeper(workload, Pool(jax.devices()[:4], 0), listen=[events.append], fused=False, **options) as keeper:
        done = []

        def between(index: int) -> None:
            if index == fault.step and not done:
                done.append(strike_memory(keeper.loop, fault, rng))

        keeper.loop.between = between
        for _ in range(steps):
            keeper.step()
        mark = keeper.fingerprint()
        assert done
        return mark, events


def test_both_halves_in_one_executable_give_the_same_bits(clean: Run) -> None:
    assert run(Momentum(), steps=16, every=5).fingerprint == clean.fingerprint


def test_an_update_in_place_mends_what_went_bad_since_the_proposal(clean: Run) -> None:
    mark, events = struck_between(Momentum(), ScriptedFault("bitflip", 7, 2, extent="block"), 16, every=5)
    assert mark == clean.fingerprint
    (noticed,) = [e for e in events if isinstance(e, Noticed)]
    assert (noticed.fault.step, noticed.fault.kind, noticed.fault.slots) == (7, "memory", (2,))
    assert "inside the step" in noticed.reason


@pytest.mark.parametrize("step", [4, 7, 10])
def test_damage_beyond_parity_on_one_device_rolls_all_back(clean: Run, step: int) -> None:
    """Two banks on one device between propose and commit: it leaves everything unwritten and keeps its old tag, the
    others move on, the next proposal sees unequal tags, and all devices go back. Steps 4 and 10 are where snapshots are
    taken."""
    mark, events = struck_between(Momentum(), ScriptedFault("two_banks", step, 2), 16, every=5)
    assert mark == clean.fingerprint
    noticed = [e for e in events if isinstance(e, Noticed)]
    assert any(n.action.value == "rollback" for n in noticed)
    mended = [e for e in events if isinstance(e, Mended)]
    assert mended
    assert mended[-1].compiles == 0
    assert all(e.step != step + 1 or e.at > mended[-1].at for e in events if isinstance(e, SnapshotKept))


def test_a_state_that_is_replaced_anyway_forgives_damage_between_the_halves() -> None:
    mark, events = struck_between(GRID, ScriptedFault("two_banks", 7, 1), 12, every=5)
    assert mark == run(GRID, steps=12, every=5).fingerprint
    assert not [e for e in events if isinstance(e, Noticed)]


def test_the_split_step_survives_the_same_faults() -> None:
    script = [
        {"kind": "nan", "step": 3, "slot": 1},
        {"kind": "bitflip", "step": 6, "slot": 2, "extent": "bank"},
        {"kind": "two_banks", "step": 9, "slot": 3},
    ]
    clean = run(Momentum(), steps=14, every=5, fused=False)
    struck = run(Momentum(), script, steps=14, every=5, fused=False, clean=clean)
    assert struck.fingerprint == clean.fingerprint
    assert all(s.bit_exact and s.noticed_step == s.step and s.compiles == 0 for s in struck.strikes)


def test_a_split_code_cannot_leave_the_devices_apart(clean: Run) -> None:
    """A flip in one device's copy of the agreed code: its tag lags behind with no other cause, and all roll back."""
    events: list[Event] = []
    with Keeper(Momentum(), Pool(jax.devices()[:4], 0), listen=[events.append], every=5, fused=False) as keeper:
        loop = keeper.loop
        commit = loop.stage.exe.commit
        done = []

        def flipped(kept: Any, proposal: Any, table: Any) -> Any:
            if loop.cursor == 8 and not done:
                done.append(True)
                pieces = [np.array(s.data) for s in table.addressable_shards]
                pieces[3][0, 0] = 1
                table = jax.make_array_from_single_device_arrays(
                    table.shape,
                    table.sharding,
                    [jax.device_put(p, s.device) for p, s in zip(pieces, table.addressable_shards, strict=True)],
                )
            return commit(kept, proposal, table)

        object.__setattr__(loop.stage.exe, "commit", flipped)
        for _ in range(16):
            keeper.step()
        assert keeper.fingerprint() == clean.fingerprint
    assert done
    assert [e.fault.kind for e in events if isinstance(e, Noticed)] == ["split"]
