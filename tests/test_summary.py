"""What a run adds up to: verdict, goodput, incidents and whose fault they were, and reading it all back from a file."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from poise import BadInput
from poise.control import Journal, replay
from poise.control._incident import attribute, opened
from poise.control._journal import make_journal
from poise.control._read import Reader
from poise.control._summary import Summary
from poise.control._verdict import goodput, report, seconds, silent_after, streak, verdict
from poise.events import (
    Action,
    DeviceChanged,
    Done,
    Dropped,
    Event,
    Fault,
    Mended,
    Noticed,
    Ordered,
    Paged,
    Progress,
    Protected,
    Reported,
    RunFinished,
    RunStarted,
    RunStopped,
    SensorsChanged,
    SnapshotKept,
    Swapped,
    Warmed,
)

STARTED = RunStarted("job", 0, (0, 1, 2), (3,), at=100.0)
PHASES = {"notice": 0.1, "decide": 0.1, "rebuild": 0.2, "swap": 0.1, "first_step": 0.5}


def fault(kind: str, step: int = 5, devices: tuple[int, ...] = (1,), **more) -> Fault:
    return Fault(step, kind, devices, devices, "x[3]", **more)


def noticed(f: Fault, action: Action, at: float = 110.0, **blocks: int) -> Noticed:
    return Noticed(f, action, "because", blocks, at=at)


def mended(f: Fault, action: Action, took: float = 1.0, at: float = 111.0) -> Mended:
    return Mended(f, action, took, 0, 2, PHASES, at=at)


def swapped(cause: str = "state", slot: int = 1, old: int = 1, new: int = 3) -> Swapped:
    return Swapped(5, slot, old, new, cause, "copy", 0.1, 0, at=110.5)


def summary(*events: Event) -> Summary:
    made = Summary(run=1)
    for number, event in enumerate(events, 1):
        made.take(number, event)
    return made


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "now", "word", "good"),
    [
        ((), 0.0, "empty", True),
        ((STARTED,), 101.0, "well", True),
        ((RunStarted("job", 0, (0,), (), at=100.0),), 101.0, "unprotected", False),
        ((STARTED, Progress(9, 10.0, at=120.0)), 400.0, "silent", False),
        ((STARTED, Progress(9, 0.1, at=120.0)), 400.0, "well", True),
        ((STARTED, noticed(fault("nan"), Action.RETRY)), 111.0, "mending", True),
        ((STARTED, DeviceChanged(1, "degraded", "flips", at=105.0)), 106.0, "degraded", True),
        ((STARTED, Paged("1-1", "look here", at=105.0)), 106.0, "degraded", False),
        ((STARTED, RunStopped(4, "no spare", at=105.0)), 106.0, "stopped", False),
        ((STARTED, RunFinished(9, "ab", at=105.0)), 1e6, "finished", True),
        ((STARTED, Ordered("1-1", Action.PAUSE, "", at=105.0), Done("1-1", True, at=106.0)), 900.0, "paused", True),
    ],
)
def test_the_worst_that_is_true_is_said(events: tuple[Event, ...], now: float, word: str, good: bool) -> None:
    found = verdict(summary(*events), now)
    assert (found.word, found.good) == (word, good)
    assert found.sentence.endswith((".", "here", "spare")), found.sentence


def test_goodput_counts_what_was_lost_by_cause() -> None:
    made = summary(
        Warmed(4, 8, 10.0, False, at=100.0), STARTED, Progress(10, 1.0, at=150.0),
        noticed(fault("memory"), Action.REPAIR, at=160.0), mended(fault("memory"), Action.REPAIR, 6.0, at=166.0),
        Ordered("1-1", Action.PAUSE, "", at=170.0), Done("1-1", True, at=170.0),
        Ordered("1-2", Action.RESUME, "", at=180.0), Done("1-2", True, at=180.0), Progress(11, 1.0, at=190.0),
    )  # fmt: skip
    assert made.lost == {"warm-up": 10.0, "memory": 6.0, "pause": 10.0}
    share, elapsed = goodput(made, 190.0)
    assert elapsed == pytest.approx(100.0)
    assert share == pytest.approx(1 - 26 / 100)
    share, elapsed = goodput(made, 190.0 + 10 * silent_after(made))
    assert elapsed == pytest.approx(100.0), "a silent run's clock stands still"


def test_drops_in_a_row_count_until_a_step_is_committed() -> None:
    made = summary(STARTED, Dropped(4, "bad"), Dropped(5, "bad"), Progress(6, 1.0))
    assert streak(made) == 2
    made.take(10, Progress(9, 1.0))
    assert streak(made) == 0
    made.take(11, Dropped(9, "bad"))
    assert streak(made) == 1


def test_channels_hardware_and_protection_are_kept_by_name() -> None:
    made = summary(
        STARTED, Protected(1000, 59, "snapshot"), SnapshotKept(4, 999, "", at=1.0),
        SensorsChanged(3, "u", "nan", (2, 7), -99.0), SensorsChanged(4, "u", "healthy", (2,), 1.0),
        Reported("a", 1, "xid", 1, 79), Reported("a", 2, "xid", 1, 79), Reported("a", 3, "ecc_single", 1, 7),
        Reported("a", 4, "xid", 99, 79),
    )  # fmt: skip
    assert made.channels["2/u"]["state"] == "recovered"
    assert made.channels["2/u"]["failures"] == 1
    assert (made.channels["7/u"]["state"], made.channels["7/u"]["kind"]) == ("failing", "nan")
    assert list(made.hardware) == ["1"], "a device that the run does not have is not counted"
    assert made.hardware["1"]["counts"] == {"xid 79": 2, "ecc_single": 7}
    said = report(made, made.at)
    assert said["protection"]["spare_bytes"] == 59
    json.dumps(said)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0021, "2.1 ms"), (1.5, "1.5 s"), (119, "119 s"), (600, "10 min"), (1e4, "2.8 h"), (1e6, "11.6 days")],
)
def test_durations_are_said_as_people_say_them(value: float, words: str) -> None:
    assert seconds(value) == words


# -- whose fault -------------------------------------------------------------------------------------------------------

AGAIN = fault("state", attempt=1)
BOTH = fault("nan", devices=(1, 3), attempt=2)


@pytest.mark.parametrize(
    ("events", "whose", "words"),
    [
        ([noticed(fault("nan"), Action.RETRY), mended(fault("nan"), Action.RETRY)], "transient", "device 1"),
        (
            [noticed(fault("state"), Action.RETRY), noticed(AGAIN, Action.DRAIN), swapped(),
             mended(AGAIN, Action.DRAIN)],
            "device", "not on device 3",
        ),
        (
            [noticed(fault("nan"), Action.RETRY), noticed(AGAIN, Action.DRAIN), swapped(),
             noticed(fault("state", devices=(3,), attempt=2), Action.DROP), mended(AGAIN, Action.DROP)],
            "data/model", "devices 1, 3",
        ),
        (
            [noticed(fault("inf", in_data=True), Action.DROP), mended(fault("inf"), Action.DROP)],
            "data/model", "host's own copy",
        ),
        ([noticed(fault("memory"), Action.REPAIR, data=2), mended(fault("memory"), Action.REPAIR)],
         "transient", "2 blocks"),
        (
            [noticed(fault("memory", mended=False), Action.ROLLBACK, data=2), mended(fault("memory"), Action.ROLLBACK)],
            "unknown", "beyond parity",
        ),
        ([noticed(fault("memory"), Action.DRAIN, data=1), swapped("memory"), mended(fault("memory"), Action.DRAIN)],
         "device", "left its slot"),
        ([noticed(fault("replicas"), Action.RETRY), mended(fault("replicas"), Action.RETRY)], "transient", "outvoted"),
        (
            [noticed(fault("replicas"), Action.RETRY), noticed(fault("replicas", attempt=1), Action.DRAIN),
             swapped("replicas"), mended(fault("replicas"), Action.DRAIN)],
            "device", "outvoted by the other replicas' fingerprints in 2 tries",
        ),
        (
            [noticed(fault("replicas", devices=(0, 1)), Action.RETRY), mended(fault("replicas"), Action.RETRY)],
            "unknown", "no majority",
        ),
        ([noticed(fault("drain"), Action.DRAIN), swapped("drain"), mended(fault("drain"), Action.DRAIN)],
         "asked", "x[3]"),
        ([noticed(fault("lost"), Action.SWAP), swapped("lost"), mended(fault("lost"), Action.SWAP)], "device", "gone"),
    ],
)  # fmt: skip
def test_a_fault_is_attributed_by_what_replaying_showed(events: list[Event], whose: str, words: str) -> None:
    made = summary(STARTED)
    closed = [i for n, e in enumerate(events, 2) for i in made.take(n, e)]
    assert len(closed) == 1
    assert closed[0].verdict == whose
    assert words in closed[0].evidence
    assert made.verdicts == {whose: 1}
    assert not made.open


def test_an_incident_holds_what_led_to_it_and_how_long_each_part_took() -> None:
    f = fault("drain")
    made = summary(
        STARTED, Reported("page", 1, "drain", 1, who="Ada", why="noise"),
        Ordered("1-1", Action.DRAIN, "Ada: noise", 1, 1, 3, "page/1"), noticed(f, Action.DRAIN), swapped("drain"),
    )  # fmt: skip
    (incident,) = made.take(6, mended(f, Action.DRAIN))
    assert (incident.id, incident.last) == (2, 6)
    assert incident.phases == PHASES
    assert incident.swaps[0]["new_id"] == 3


def test_an_incident_that_ends_the_run_stays_unmended() -> None:
    made = summary(STARTED, noticed(fault("lost"), Action.STOP))
    (incident,) = made.take(3, RunStopped(5, "no spare", at=120.0))
    assert (incident.outcome, incident.seconds) == ("stopped", None)
    assert attribute(opened(1, noticed(fault("nan"), Action.RETRY)))[0]


# -- reading -----------------------------------------------------------------------------------------------------------


def lively(n: int) -> list[Event]:
    """A long run with something of everything."""
    out: list[Event] = [STARTED]
    for step in range(n):
        f = fault("memory", step, (step % 3,))
        out += [Progress(step, 5.0, at=100.0 + step), noticed(f, Action.REPAIR, at=100.0 + step, data=1)]
        out += [mended(f, Action.REPAIR, 0.01, at=100.0 + step), DeviceChanged(step % 3, "degraded", "flips")]
    return out


def test_a_long_journal_is_read_from_its_summary_and_gives_what_all_its_events_give(tmp_path: Path) -> None:
    path, events = tmp_path / "run.db", lively(3000)
    with Journal(path) as journal:
        for start in range(0, len(events), 500):
            journal.append_all(events[start : start + 500]).result()
        early = Reader(path)
        assert early.summary.registry == replay(events)
        journal.append(RunFinished(3000, "ab", at=9999.0))
        assert early.refresh()
        assert not early.refresh()
    whole = Summary(run=1)
    for number, event in enumerate([*events, RunFinished(3000, "ab", at=9999.0)], 1):
        whole.take(number, event)
    assert early.summary.to_dict() == Reader(path).summary.to_dict() == whole.to_dict()
    db = sqlite3.connect(path)
    with db:
        (body,) = db.execute("SELECT body FROM summaries").fetchone()
        assert json.loads(body)["last"] == whole.last, "closing saves it"
        db.execute("DELETE FROM events WHERE id < 12000")
    db.close()
    assert Reader(path).summary.to_dict() == whole.to_dict(), "what was added up is not read again"


def test_incidents_and_events_come_in_pages_and_routine_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        journal.append_all(lively(30)).result()
        f = fault("nan", 77)
        journal.append(noticed(f, Action.RETRY))
        reader = Reader(path)
        first = reader.incidents(10)
        assert [i.step for i in first] == [77, *range(29, 20, -1)], "newest first, the open one too"
        assert [i.step for i in reader.incidents(3, first[-1].id)] == [20, 19, 18]
        assert reader.incident(first[3].id) == first[3]
        assert reader.incident(10**6) is None
        latest = reader.events(5)
        assert [e["kind"] for e in latest] == ["Noticed", "DeviceChanged", "Mended", "Noticed", "DeviceChanged"]
        assert latest[0]["fields"]["fault"]["step"] == 77
        after = reader.events(2, after=latest[2]["id"])
        assert [e["id"] for e in after] == [latest[1]["id"], latest[0]["id"]]
        assert not {"Progress", "SnapshotKept"} & {e["kind"] for e in reader.events(500)}


def test_a_kind_of_a_later_version_is_shown_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        journal.append(STARTED)
        db = sqlite3.connect(path)
        with db:
            for kind, body in (("Quantum", '{"event": "Quantum", "x": 1}'), ("Broken", "no json")):
                db.execute("INSERT INTO events (run, at, kind, body) VALUES (1, 5.0, ?, ?)", (kind, body))
        db.close()
        journal.append(Progress(3, 1.0))
    reader = Reader(path)
    assert reader.summary.registry.step == 3
    assert [(e["kind"], e["fields"]) for e in reader.events(2)] == [("Broken", {}), ("Quantum", {"x": 1})]


def test_a_reader_follows_the_newest_run_or_stays_with_the_one_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    make_journal(path)
    newest = Reader(path)
    assert newest.summary.last == 0
    with Journal(path) as journal:
        journal.append_all(lively(3)).result()
    assert newest.refresh()
    assert newest.summary.run == 1
    with Journal(path) as journal:
        journal.append(RunStarted("other", 0, (7,), (), at=500.0))
        newest.refresh()
        assert (newest.summary.run, newest.summary.registry.job) == (2, "other")
        first = Reader(path, run=1)
        assert first.summary.registry == replay(lively(3))
        assert len(first.incidents()) == 3
        assert [r["run"] for r in newest.runs()] == [2, 1]
    with pytest.raises(BadInput, match="holds no run 9"):
        Reader(path, run=9)


def test_a_journal_from_before_there_were_summaries_is_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        journal.append_all(lively(20)).result()
    db = sqlite3.connect(path)
    db.executescript("DROP TABLE summaries; DROP TABLE incidents; DROP INDEX told")
    db.close()
    reader = Reader(path)
    assert reader.summary.registry == replay(lively(20))
    assert len(reader.incidents()) == 20
    with Journal(path, again=True) as journal:
        assert journal.run == 1
        journal.append(RunFinished(20, "ab"))
    assert Reader(path).summary.registry.status == "finished"


def test_a_million_failing_channels_take_no_more_room_than_two_thousand() -> None:
    made = summary(STARTED, SensorsChanged(1, "u", "nan", tuple(range(3000)), -99.0))
    assert (len(made.channels), made.unlisted) == (2000, 1000)
    made.take(3, SensorsChanged(2, "u", "healthy", tuple(range(10)), 1.0))
    made.take(4, SensorsChanged(3, "v", "inf", (1, 2, 3), -99.0))
    assert len(made.channels) == 2000
    assert made.channels["3/v"]["state"] == "failing"
