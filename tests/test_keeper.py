"""Every fault that the promise table names, on a small run: noticed in its step, mended bit for bit, nothing
compiled."""

from __future__ import annotations

import pytest

from kept import Momentum, Run, run
from poise.errors import Exhausted, Stopped
from poise.events import Dropped, Mended, Noticed, SnapshotKept, SnapshotRefused, Swapped
from poise.physics.grid import Burgers2d

WORKLOAD = Burgers2d(n=32)
STEPS = 24


@pytest.fixture(scope="module")
def clean() -> Run:
    return run(WORKLOAD, steps=STEPS, every=6)


MEMORY = [{"kind": "bitflip", "extent": e} for e in ("bit", "bits", "block", "bank")]
MEMORY += [{"kind": "bitflip", "where": w} for w in ("marks", "guard", "parity", "tag")]
BATCH = [{"kind": k} for k in ("nan", "inf", "marker", "overflow")]
BATCH += [{"kind": "nan", "leaf": "south_north"}, {"kind": "inf", "leaf": "forcing"}]


@pytest.mark.parametrize("step", [0, 9, STEPS - 1])
def test_every_memory_and_batch_fault_is_mended_bit_for_bit(clean: Run, step: int) -> None:
    # One run per step with each fault in turn would compile as often; strike the same step range in one run instead.
    faults = [*MEMORY, *BATCH]
    span = [(step + i) % STEPS for i in range(len(faults))]
    script = [{**f, "step": s, "slot": i % 4} for i, (f, s) in enumerate(zip(faults, span, strict=True))]
    struck = run(WORKLOAD, script, steps=STEPS, every=6, clean=clean, seed=step)
    assert struck.fingerprint == clean.fingerprint
    assert len(struck.strikes) == len(faults)
    for strike in struck.strikes:
        assert strike.noticed_step == strike.step, strike
        assert strike.bit_exact is True, strike
        assert strike.compiles == 0, strike
        assert strike.action == ("retry" if strike.kind in ("nan", "inf", "marker", "overflow") else "repair")


def test_two_devices_at_once_are_both_named(clean: Run) -> None:
    script = [{"kind": "bitflip", "step": 5, "slot": s, "extent": "block"} for s in (0, 3)]
    struck = run(WORKLOAD, script, steps=STEPS, every=6, clean=clean)
    (noticed,) = struck.seen(Noticed)
    assert noticed.fault.slots == (0, 3)
    assert struck.fingerprint == clean.fingerprint
    assert all(s.bit_exact for s in struck.strikes)


def test_damage_beyond_parity_rolls_back_and_replays(clean: Run) -> None:
    script = [{"kind": "two_banks", "step": 15, "slot": 2}]
    struck = run(WORKLOAD, script, steps=STEPS, every=6, clean=clean)
    (strike,) = struck.strikes
    assert (strike.action, strike.noticed_step, strike.bit_exact, strike.compiles) == ("rollback", 15, True, 0)
    assert strike.replayed is not None
    assert 0 < strike.replayed <= 6 + 3
    assert struck.fingerprint == clean.fingerprint


@pytest.mark.parametrize("source", ["snapshot", "parity"])
def test_drain_and_loss_move_to_warm_spares_without_compiling(clean: Run, source: str) -> None:
    script = [{"kind": "drain", "step": 7, "slot": 1}, {"kind": "lost", "step": 16, "slot": 2}]
    struck = run(WORKLOAD, script, spares=2, steps=STEPS, every=6, clean=clean, source=source)
    assert struck.fingerprint == clean.fingerprint
    drain, lost = struck.seen(Swapped)
    assert (drain.source, lost.source) == ("copy", source)
    assert (drain.compiles, lost.compiles) == (0, 0)
    assert drain.old_id != drain.new_id
    assert [s.compiles for s in struck.strikes] == [0, 0]
    assert all(s.bit_exact for s in struck.strikes)
    assert struck.strikes[1].replayed == (0 if source == "parity" else lost_after(struck, 16))
    assert struck.keeper.loop.rewarm_compiles > 0


def lost_after(struck: Run, step: int) -> int:
    """Steps between the newest good snapshot before `step` and `step`."""
    kept = [e.step for e in struck.seen(SnapshotKept) if e.step <= step]
    return step - max(kept, default=0)


def test_faults_while_a_fault_is_being_replayed(clean: Run) -> None:
    script = [
        {"kind": "two_banks", "step": 15, "slot": 2},
        {"kind": "nan", "step": 15, "slot": 0},
        {"kind": "bitflip", "step": 16, "slot": 1},
    ]
    struck = run(WORKLOAD, script, steps=STEPS, every=6, clean=clean)
    assert struck.fingerprint == clean.fingerprint
    assert len(struck.seen(Mended)) >= 2


def test_a_persistent_fault_of_a_device_is_drained_away(clean: Run) -> None:
    script = [{"kind": "nan", "step": 8, "slot": 1, "persistent": True}]
    struck = run(WORKLOAD, script, spares=1, steps=STEPS, every=6, clean=clean)
    assert [n.action.value for n in struck.seen(Noticed)] == ["retry", "drain"]
    (swap,) = struck.seen(Swapped)
    assert (swap.slot, swap.compiles) == (1, 0)
    assert struck.fingerprint == clean.fingerprint


def test_bad_data_stop_a_simulation_and_are_dropped_by_a_learner() -> None:
    with pytest.raises(Stopped, match="may not drop"):
        run(WORKLOAD, [{"kind": "inf", "step": 4, "origin": "data"}], steps=8)
    learner = run(Momentum(), [{"kind": "inf", "step": 4, "origin": "data"}], steps=12)
    assert [d.step for d in learner.seen(Dropped)] == [4]


def test_dropped_batches_in_a_row_stop_the_run() -> None:
    script = [{"kind": "nan", "step": s, "origin": "data"} for s in (4, 5, 6, 7)]
    with pytest.raises(Stopped, match="dropped in a row"):
        run(Momentum(), script, steps=12)


def test_a_drop_is_replayed_as_a_drop() -> None:
    drop = {"kind": "nan", "step": 7, "origin": "data"}
    once = run(Momentum(), [drop], steps=14, every=5)
    again = run(Momentum(), [drop, {"kind": "two_banks", "step": 9, "slot": 1}], steps=14, every=5)
    assert again.seen(Noticed)[-1].action.value == "rollback"
    assert again.fingerprint == once.fingerprint


def test_losses_beyond_the_spares_stop_with_one_sentence() -> None:
    with pytest.raises(Stopped, match="none is left") as stopped:
        run(WORKLOAD, [{"kind": "lost", "step": 4, "slot": 1}], steps=8)
    assert not isinstance(stopped.value, Exhausted) or stopped.value.exit_status == 3


@pytest.mark.parametrize("depth", [0, 5])
def test_the_depth_changes_nothing(clean: Run, depth: int) -> None:
    script = [{"kind": "nan", "step": 5}, {"kind": "bitflip", "step": 11, "slot": 3}]
    assert run(WORKLOAD, script, steps=STEPS, every=6, clean=clean, depth=depth).fingerprint == clean.fingerprint


def test_metrics_are_those_of_the_committed_attempt() -> None:
    from kept import Pool, jax
    from poise import Keeper
    from poise.faults import Injector, parse_script

    def losses(script: list[dict]) -> list[float]:
        with Keeper(Momentum(), Pool(jax.devices()[:4], 0)) as keeper:
            injector = Injector(keeper.loop, parse_script({"fault": script}))
            keeper.listeners.append(injector.hear)
            metrics = [(injector.before(i), keeper.step(injector.batch(i)))[1] for i in range(8)]
            return [float(m["loss"]) for m in metrics]

    assert losses([{"kind": "nan", "step": 3}, {"kind": "bitflip", "step": 5}]) == losses([])


def test_a_snapshot_of_damaged_memory_never_counts(clean: Run) -> None:
    # Step 6 is when the snapshot is taken; damage just before it is copied along.
    struck = run(WORKLOAD, [{"kind": "bitflip", "step": 6, "slot": 1}, {"kind": "two_banks", "step": 9}],
                 steps=STEPS, every=6, clean=clean)  # fmt: skip
    assert all(e.step != 6 or e.step == 6 for e in struck.seen(SnapshotKept))
    assert struck.fingerprint == clean.fingerprint
    refused = {e.step for e in struck.seen(SnapshotRefused)}
    kept = {e.step for e in struck.seen(SnapshotKept)}
    assert not (refused & kept)
