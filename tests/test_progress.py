"""Who of a run's members holds the others up: `poise.devices.process`'s progress age, with no process at all."""

from __future__ import annotations

import pytest

from poise.devices.process import _progress
from poise.devices.process._progress import ANSWER, FLOOR, PATIENT, QUIET, Progress

A, B, C = (0, 0), (1, 0), (2, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still unless a test moves it."""
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    return now


def stepping(*devices: tuple[int, int]) -> Progress:
    progress = Progress()
    for device in devices:
        progress.begin(device, 7)
    return progress


def test_who_does_not_answer_in_a_step_is_to_blame(clock: list[float]) -> None:
    progress = stepping(A, B, C)
    assert progress.patience() == pytest.approx(FLOOR)
    progress.ask([A, B, C])
    for device in (A, C):
        progress.pong(device, "device", 7)
    assert progress.patience() == pytest.approx(ANSWER)
    clock[0] += ANSWER
    assert progress.culprits() == [B]
    assert "did not answer" in progress.reason(B)


def test_nobody_is_to_blame_who_was_not_asked(clock: list[float]) -> None:
    """A process that comes while the others are being asked has heard no question."""
    progress = Progress()
    progress.ask([A])
    progress.heard()
    progress.pong(A, "host", -1)
    assert progress.patience() == 0, "all have answered"
    assert progress.culprits() == []


def test_where_several_are_silent_the_machine_may_be_busy(clock: list[float]) -> None:
    progress = stepping(A, B, C)
    progress.ask([A, B, C])
    progress.pong(A, "wait", 7)
    clock[0] += ANSWER
    assert progress.culprits() == []
    assert progress.asking
    assert progress.patience() == pytest.approx(PATIENT)
    progress.pong(B, "device", 7)
    clock[0] += PATIENT
    assert progress.culprits() == [C]


def test_outside_of_steps_there_is_more_time_to_answer(clock: list[float]) -> None:
    progress = Progress()
    assert progress.patience() == pytest.approx(QUIET)
    progress.ask([A, B])
    assert progress.patience() == pytest.approx(PATIENT)
    progress.forget(B)
    progress.pong(A, "host", -1)
    assert progress.patience() == 0, "who has died is not waited for"


def test_who_is_on_the_host_while_the_others_wait_is_to_blame(clock: list[float]) -> None:
    progress = stepping(A, B, C)
    progress.ask([A, B, C])
    for device, busy in ((A, "device"), (B, "host"), (C, "wait")):
        progress.pong(device, busy, 7)
    assert progress.culprits() == [B]
    for device in (A, B, C):
        progress.begin(device, 8)
    progress.ask([A, B, C])
    for device in (A, B, C):
        progress.pong(device, "host", 8)
    assert progress.culprits() == [], "all alike: a slow step"
