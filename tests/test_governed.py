"""A kept run with a governor beside it: orders are carried out between two steps, and the state stays what it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import poise
from poise import BadInput, Limits
from poise.control import Keeper, State, read_journal
from poise.control._read import Reader
from poise.control._socket import Reporter, socket_path
from poise.events import Done, Mended, Ordered, Paged, RunStarted, Swapped
from poise.physics.grid import Burgers2d

STEPS = 12
PERSON = {"who": "Ada", "why": "it whines"}


def keeper(path: Path, active: int = 2, spares: int = 2, **more: Any) -> Keeper:
    return Keeper(
        Burgers2d(n=16, steps=STEPS), poise.Pool(jax.devices()[: active + spares], spares), journal=path, governed=True,
        **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def clean() -> str:
    with Keeper(Burgers2d(n=16, steps=STEPS), poise.Pool(jax.devices()[:2], 0)) as kept:
        kept.run(STEPS)
        return kept.fingerprint()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "run.db"
    assert not socket_path(tmp_path / "run.db").exists(), "the socket outlives the run"


def of(path: Path, kind: type) -> list[Any]:
    return [e for _, e in read_journal(path) if isinstance(e, kind)]


def test_orders_from_outside_are_carried_out_and_the_state_is_the_clean_runs(path: Path, clean: str) -> None:
    with keeper(path) as kept:
        kept.run(3)
        agent = Reporter(path, "agent")
        assert agent.report("drain", device_id=1, **PERSON)["outcome"] == "accepted"
        kept.step()
        assert dict(kept.registry.devices)[1] is State.RETIRED
        assert agent.report("xid", device_id=0, number=79)["outcome"] == "accepted"
        kept.step()
        assert kept.registry.devices[0] is State.FAILED
        assert kept.registry.slots == (3, 2)
        assert agent.report("drain", device_id=2, **PERSON)["outcome"] == "refused"
        agent.close()
        kept.run(STEPS)
        assert kept.fingerprint() == clean
        kept.finish()
    assert [(e.old_id, e.new_id, e.compiles) for e in of(path, Swapped)] == [(1, 2, 0), (0, 3, 0)]
    assert all(e.ok for e in of(path, Done))
    for mended in of(path, Mended):
        assert mended.phases["rebuild"] > 0
        assert mended.seconds >= mended.phases["swap"] + mended.phases["rebuild"] + mended.phases["first_step"] - 1e-6
    incident = Reader(path).incidents()[-1]
    assert incident.verdict == "asked"
    first = Reader(path).events(50, after=incident.id - 1, before=incident.last + 1)[0]
    assert (first["kind"], first["fields"]["who"]) == ("Reported", "Ada"), "the incident begins with what led to it"


def test_a_spare_that_failed_while_it_waited_is_not_used(path: Path, clean: str) -> None:
    with keeper(path) as kept:
        kept.run(2)
        agent = Reporter(path, "agent")
        agent.report("xid", device_id=2, number=48)
        kept.step()
        kept.lost(0, "told")
        agent.close()
        assert kept.registry.slots == (3, 1)
        assert kept.registry.devices[2] is State.FAILED
        kept.run(STEPS)
        assert kept.fingerprint() == clean
    assert of(path, Swapped)[0].new_id == 3


def test_a_paused_run_waits_and_goes_on_when_told(path: Path, clean: str) -> None:
    with keeper(path) as kept:
        kept.run(2)
        agent = Reporter(path, "agent")
        agent.report("pause", **PERSON)
        seen: list[str] = []

        def later() -> None:
            reader = Reader(path)
            while reader.summary.registry.status != "paused":
                reader.refresh()
            seen.append(reader.summary.registry.status)
            # What is ordered meanwhile is done meanwhile.
            agent.report("drain", device_id=0, **PERSON)
            while reader.summary.registry.devices[0] is not State.RETIRED:
                reader.refresh()
            seen.append(reader.summary.registry.status)
            agent.report("resume", **PERSON)
            agent.close()

        other = threading.Thread(target=later)
        other.start()
        kept.step()
        other.join(60)
        assert seen == ["paused", "paused"]
        kept.run(STEPS)
        assert kept.fingerprint() == clean
    assert Reader(path).summary.lost["pause"] > 0


def test_without_a_spare_the_run_stops_with_a_snapshot_and_a_person_is_called(path: Path, tmp_path: Path) -> None:
    with keeper(path, spares=0, directory=tmp_path / "snapshots") as kept:
        kept.run(5)
        agent = Reporter(path, "agent")
        agent.report("xid", device_id=1, number=79)
        agent.close()
        with pytest.raises(poise.Stopped, match="no spare is left") as stopped:
            kept.step()
        assert stopped.value.resume == str(tmp_path / "snapshots")
    assert len(of(path, Paged)) == 1
    assert Reader(path).summary.registry.status.startswith("stopped")


@pytest.mark.parametrize("governed", [True, False])
def test_without_a_spare_a_run_may_shrink_and_ends_where_it_would_have(
    path: Path, tmp_path: Path, governed: bool
) -> None:
    """Four devices become two (three cannot share the grid); the third waits as a spare."""
    with Keeper(
        Burgers2d(n=16, steps=STEPS), poise.Pool(jax.devices()[:4], 0), journal=path, governed=governed, every=4,
        directory=tmp_path / "snapshots", limits=Limits(exhausted="shrink"),
    ) as kept:  # fmt: skip
        for _ in range(6):
            metrics = kept.step()
        if governed:
            agent = Reporter(path, "agent")
            agent.report("lost", device_id=1)
            agent.close()
        else:
            kept.lost(1, "told")
        for _ in range(6, STEPS):
            metrics = kept.step()
        assert metrics.step == STEPS - 1
        assert len(dict(metrics)) >= 0, "the last metrics are there"
        kept.flush()
        assert kept.settled == STEPS
        assert set(kept.registry.slots) < {0, 2, 3}
        assert len(kept.registry.slots) == 2
        assert kept.registry.spares, "what the workload cannot use waits as a spare"
        shrunk = np.asarray(kept.state["uv"])
    with Keeper(Burgers2d(n=16, steps=STEPS), poise.Pool(jax.devices()[:4], 0)) as kept:
        kept.run(STEPS)
        np.testing.assert_allclose(shrunk, np.asarray(kept.state["uv"]), rtol=0, atol=1e-5)
    starts = of(path, RunStarted)
    assert [len(e.slots) for e in starts] == [4, 2]
    assert 0 < starts[1].step <= 6


def test_one_governor_a_journal_and_a_journal_for_each(path: Path) -> None:
    with keeper(path), pytest.raises(BadInput, match="Another process governs"):
        keeper(path)
    with pytest.raises(BadInput, match="needs a journal"):
        Keeper(Burgers2d(n=16), poise.Pool(jax.devices()[:1], 0), governed=True)


def test_an_order_that_has_become_impossible_is_answered_so(path: Path) -> None:
    with keeper(path, spares=1) as kept:
        kept.run(2)
        agent = Reporter(path, "agent")
        agent.report("drain", device_id=1, **PERSON)
        agent.close()
        kept.lost(0, "it went first")  # and takes the spare that was put aside
        kept.step()
        assert kept.registry.slots == (2, 1)
    (done,) = of(path, Done)
    assert not done.ok
    assert "spare has been used" in done.detail
    assert len(of(path, Ordered)) == 1
