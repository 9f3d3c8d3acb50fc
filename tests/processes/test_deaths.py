"""kill -9 and SIGSTOP of any process of a run: it goes on bit for bit, without a compile."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launching import run

from poise.events import Event, Noticed, ProcessLost, Survivable
from poise.faults import ProcessFault

pytestmark = pytest.mark.timeout(400)  # real processes, each of which starts JAX and compiles its placements


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final state's fingerprint of the uninterrupted run."""
    ran, _ = run(tmp_path_factory.mktemp("clean"), spares=0)
    assert ran.stopped is None
    return ran.fingerprint


def losses(events: list[Event]) -> list[ProcessLost]:
    return [e for e in events if isinstance(e, ProcessLost)]


def test_every_process_may_die_in_turn(clean: str, tmp_path: Path) -> None:
    """The spare, then a stopped member, then one in its proposal and one amid its parity message; a flipped bit too."""
    script = [
        ProcessFault("bitflip", 5, 0, "begin"),
        ProcessFault("kill", 3, 3, wait=True),
        ProcessFault("stop", 4, 0, wait=True),
        ProcessFault("kill", 4, 1, "propose", wait=True),
        ProcessFault("kill", 4, 2, "share", wait=True),
    ]
    ran, events = run(tmp_path, script, swaps=3)
    assert ran.stopped is None
    assert len(ran.struck) == len(script)
    assert ran.fingerprint == clean
    assert [s.slot for s in ran.swaps] == [0, 1, 2]
    assert all(s.compiles == 0 and s.steps_lost <= 1 for s in ran.swaps)
    stopped = next(s for s in ran.swaps if s.slot == 0)
    assert "did not answer" in stopped.cause
    assert "most recent call first" in (tmp_path / "logs" / "worker-0.0.log").read_text(), "its stacks are in its log"
    assert [e.fault.kind for e in events if isinstance(e, Noticed)] == ["memory", "lost", "lost", "lost"]
    assert [e.slot for e in losses(events)] == [-1, 0, 1, 2]
    known = [e.yes for e in events if isinstance(e, Survivable)]
    assert known[:3] == [True, False, True], "protected, the spare killed, protected again"


def test_damage_beyond_parity_costs_a_process_and_not_the_run(clean: str, tmp_path: Path) -> None:
    ran, events = run(tmp_path, [ProcessFault("two_banks", 3, 1, "begin", wait=True)], swaps=1)
    assert ran.stopped is None
    assert ran.fingerprint == clean
    assert [s.slot for s in ran.swaps] == [1]
    assert "beyond parity" in losses(events)[0].cause


def test_the_only_member_of_a_run_may_die(tmp_path: Path) -> None:
    plain, _ = run(tmp_path / "plain", active=1, spares=0)
    ran, _ = run(tmp_path / "struck", [ProcessFault("kill", 30, 0, "commit", wait=True)], active=1, swaps=1)
    assert ran.stopped is None
    assert ran.fingerprint == plain.fingerprint
    (swap,) = ran.swaps
    assert swap.compiles == 0
    assert swap.steps_lost <= 2, "two generations may be on their way to the spare"


def test_without_a_coordinator_the_run_ends_and_a_resume_gives_the_same_bits(clean: str, tmp_path: Path) -> None:
    first, _ = run(tmp_path, [ProcessFault("kill", 90, -1)])
    assert first.stopped is not None
    assert "coordinator" in str(first.stopped)
    second, _ = run(tmp_path / "again", resume=tmp_path / "snapshots")
    assert second.fingerprint == clean


def test_a_second_loss_amid_the_rebuild_ends_the_run_and_a_resume_gives_the_same_bits(
    clean: str, tmp_path: Path
) -> None:
    script = [ProcessFault("kill", 90, 2, "rebuild"), ProcessFault("kill", 95, 0)]
    first, events = run(tmp_path, script)
    assert first.stopped is not None
    assert "no spare" in str(first.stopped) or "at once" in str(first.stopped)
    assert [e.slot for e in losses(events)][:2] == [0, 2]
    second, _ = run(tmp_path / "again", resume=tmp_path / "snapshots")
    assert second.fingerprint == clean
