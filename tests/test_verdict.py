"""What becomes of a run when processes die: laws of the verdict, whatever was in flight."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from poise.devices.process import Beyond, Report, Situation, Verdict, judge
from poise.keeper._peer import runtime_failed

SLOTS = ((0, 0), (1, 0), (2, 0))
SPARE = (3, 0)
SUCCESSORS = tuple(tuple(SPARE if i == slot else d for i, d in enumerate(SLOTS)) for slot in range(3))


def situation(dead: set[tuple[int, int]], source: str = "parity", **more: object) -> Situation:
    return Situation(SLOTS, frozenset(dead), SPARE, source, **more)  # type: ignore[arg-type]


@st.composite
def stops(draw: st.DrawFn) -> tuple[int, dict[tuple[int, int], Report]]:
    """A stop at any point of step g of a run that keeps the protocol: who is dead, and what the others report."""
    g = draw(st.integers(2, 50))
    dead = draw(st.integers(0, 2))
    alive = [d for i, d in enumerate(SLOTS) if i != dead]
    through = [draw(st.booleans()) for _ in alive]
    # Ready completes for somebody only when everybody has entered it, so all hold the proposal then.
    has = [True for _ in alive] if any(through) else [draw(st.booleans()) for _ in alive]
    committed = [t and draw(st.booleans()) for t in through]
    # The vault is at most two generations behind; a member forgets only what the vault has newer whole.
    acked = draw(st.integers(g - 2, g))
    reports = {}
    for device, t, h, c in zip(alive, through, has, committed, strict=True):
        newest = g + 1 if c else g
        oldest = draw(st.integers(g - 3, acked))
        reports[device] = Report(
            held=tuple(range(oldest, newest + 1)),
            proposal=g if h and not c else -1,
            ready=g if t else g - 1,
            settled=newest,
            warm=(SLOTS, *SUCCESSORS),
        )
    reports[SPARE] = Report(vault=(acked,), warm=SUCCESSORS)
    return dead, reports


@given(stops())
def test_one_loss_is_always_survived_from_a_generation_that_all_hold_and_the_vault_has(
    stop: tuple[int, dict[tuple[int, int], Report]],
) -> None:
    dead, reports = stop
    verdict = judge(situation({SLOTS[dead]}), reports)
    assert isinstance(verdict, Verdict)
    assert verdict.rebuilt == dead
    assert verdict.slots[dead] == SPARE
    assert verdict.restart in reports[SPARE].vault
    for device in SLOTS:
        if device in reports:
            assert verdict.restart in reports[device].held
    assert 0 <= verdict.lost <= 3


@given(stops())
def test_what_anybody_committed_is_committed_by_all_who_hold_its_proposal(
    stop: tuple[int, dict[tuple[int, int], Report]],
) -> None:
    dead, reports = stop
    verdict = judge(situation({SLOTS[dead]}), reports)
    assert isinstance(verdict, Verdict)
    passed = max(r.ready for d, r in reports.items() if d != SPARE)
    waiting = [r for d, r in reports.items() if d != SPARE and r.proposal == passed]
    assert verdict.commit == (passed if waiting else -1)


@given(stops())
def test_with_a_replica_at_most_one_step_is_lost(stop: tuple[int, dict[tuple[int, int], Report]]) -> None:
    dead, reports = stop
    replicas = {slot: [other for other in range(3) if other != slot] for slot in range(3)}
    verdict = judge(situation({SLOTS[dead]}, "replica", replicas=replicas), reports)
    assert isinstance(verdict, Verdict)
    assert verdict.source == "replica"
    assert SLOTS[verdict.peer] in reports
    assert verdict.lost <= 1


def good() -> dict[tuple[int, int], Report]:
    member = Report(held=(4, 5), settled=5, ready=4, warm=(SLOTS, *SUCCESSORS))
    return {SLOTS[0]: member, SLOTS[2]: member, SPARE: Report(vault=(5,), warm=SUCCESSORS)}


def test_two_losses_at_once_are_beyond() -> None:
    reports = good()
    del reports[SLOTS[2]]
    verdict = judge(situation({SLOTS[1], SLOTS[2]}), reports)
    assert isinstance(verdict, Beyond)
    assert "slots 1, 2" in verdict.reason


def test_without_a_spare_a_loss_is_beyond() -> None:
    verdict = judge(replace(situation({SLOTS[1]}), standby=None), good())
    assert isinstance(verdict, Beyond)
    assert "no spare" in verdict.reason


def test_a_successor_that_is_not_warm_everywhere_is_beyond() -> None:
    reports = good()
    reports[SPARE] = replace(reports[SPARE], warm=())
    verdict = judge(situation({SLOTS[1]}), reports)
    assert isinstance(verdict, Beyond)
    assert "no spare is warm" in verdict.reason


def test_a_vault_without_a_generation_that_the_members_hold_is_beyond() -> None:
    reports = good()
    reports[SPARE] = replace(reports[SPARE], vault=(2,))
    assert isinstance(judge(situation({SLOTS[1]}), reports), Beyond)


def test_a_stop_without_a_loss_goes_on_where_all_are() -> None:
    reports = good() | {SLOTS[1]: Report(held=(4,), settled=4, ready=3, proposal=4, warm=(SLOTS,))}
    verdict = judge(situation(set()), reports)
    assert isinstance(verdict, Verdict)
    # Slots 0 and 2 went through the ready reduction of step 4, so slot 1 commits it too.
    assert (verdict.slots, verdict.restart, verdict.commit, verdict.rebuilt) == (SLOTS, 5, 4, -1)


def test_the_only_member_comes_back_from_the_spare_alone() -> None:
    alone = Situation(SLOTS[:1], frozenset(SLOTS[:1]), SPARE, "parity")
    warm = ((SPARE,),)
    verdict = judge(alone, {SPARE: Report(vault=(7,), warm=warm)})
    assert isinstance(verdict, Verdict)
    assert (verdict.slots, verdict.restart, verdict.rebuilt, verdict.commit) == ((SPARE,), 7, 0, -1)
    assert isinstance(judge(alone, {SPARE: Report(warm=warm)}), Beyond)
    assert isinstance(judge(replace(alone, standby=None), {}), Beyond)


def test_a_failed_collective_is_told_from_a_mistake() -> None:
    """Recorded: the reduction before a commit failed while it was being dispatched."""
    said = "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error"
    assert runtime_failed(ValueError(said))
    assert not runtime_failed(ValueError("operands could not be broadcast together with shapes (2,) (3,)"))
