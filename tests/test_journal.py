"""The journal: every acknowledged event survives `kill -9`, and only our own files are touched."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import poise
from poise import BadInput, events
from poise.control import Journal, read_journal, replay
from poise.events import Action, Dropped, Event, Fault, Noticed, Progress, RunStarted, Swapped, from_dict, to_dict

# -- events as values -------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=20)
NUMBER = st.integers(-(2**40), 2**40)
SECONDS = st.floats(allow_nan=False)
IDS = st.lists(st.integers(0, 2**31), max_size=4).map(tuple)
FAULTS = st.builds(
    Fault, NUMBER, TEXT, IDS, IDS, TEXT, NUMBER, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 9)
)
BY_TYPE = {
    "str": TEXT, "int": NUMBER, "float": SECONDS, "bool": st.booleans(), "tuple[int, ...]": IDS, "Fault": FAULTS,
    "Action": st.sampled_from(Action), "dict[str, int]": st.dictionaries(TEXT, NUMBER, max_size=3),
    "dict[str, float]": st.dictionaries(TEXT, SECONDS, max_size=3),
}  # fmt: skip


def any_event(kind: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(kind, **{f.name: BY_TYPE[str(f.type)] for f in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", events.KINDS)
def test_every_kind_of_event_comes_back_equal_through_json(kind):
    @settings(max_examples=25, deadline=None)
    @given(any_event(events.KINDS[kind]))
    def through_json(event):
        again = from_dict(json.loads(json.dumps(to_dict(event))))
        assert again == event
        assert type(again) is type(event)

    through_json()


def test_no_kind_of_event_is_left_out_of_the_table():
    kinds = {c for c in vars(events).values() if isinstance(c, type) and issubclass(c, Event) and c is not Event}
    assert set(events.KINDS.values()) == kinds


def test_an_unknown_kind_says_so_and_the_given_dict_is_left_alone():
    data = {"event": "Noise", "at": 1.0}
    with pytest.raises(KeyError):
        from_dict(data)
    assert data == {"event": "Noise", "at": 1.0}


# -- writing and reading ----------------------------------------------------------------------------------------------

STARTED = RunStarted("burgers2d", 0, (0, 1), (2,))
NOTICED = Noticed(Fault(3, "memory", (1,), (1,), "uv"), Action.REPAIR, "mended", {"data": 1})
SWAPPED = Swapped(5, 0, 0, 2, "lost", "snapshot", 0.1, 0)


def bodies(path: Path, run: int | None = None) -> list[Event]:
    return [event for _, event in read_journal(path, run)]


def test_what_was_appended_is_read_back_in_order(tmp_path):
    path = tmp_path / "new" / "folder" / "run.db"
    with Journal(path) as journal:
        assert journal.run == 1
        for event in (STARTED, NOTICED, SWAPPED):
            journal.append(event)
            assert bodies(path)[-1] == event, "durable as soon as append returns"
    assert bodies(path) == [STARTED, NOTICED, SWAPPED]
    assert replay(bodies(path)).slots == (2, 1)
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.db"], "a closed journal is one file"


def test_progress_may_wait_but_is_there_after_closing(tmp_path):
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        for step in range(50):
            journal.append(Progress(step, 1.0))
    assert [e.step for e in bodies(path)] == list(range(50))


def test_several_runs_share_a_file_and_are_told_apart(tmp_path):
    path = tmp_path / "run.db"
    for number in (1, 2, 3):
        with Journal(path) as journal:
            assert journal.run == number
            journal.append(Dropped(number, "bad"))
    assert [(run, e.step) for run, e in read_journal(path)] == [(1, 1), (2, 2), (3, 3)]
    assert [e.step for e in bodies(path, run=2)] == [2]


def test_many_threads_may_append(tmp_path):
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        threads = [
            threading.Thread(target=lambda n=n: [journal.append(Dropped(100 * n + i, "x")) for i in range(20)])
            for n in range(4)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
    steps = [e.step for e in bodies(path)]
    assert sorted(steps) == [100 * n + i for n in range(4) for i in range(20)]
    for n in range(4):
        mine = [s for s in steps if s // 100 == n]
        assert mine == sorted(mine), "one thread's events stay in order"


def test_reading_while_writing_sees_a_growing_prefix(tmp_path):
    path = tmp_path / "run.db"
    lengths = []
    with Journal(path) as journal:
        stop = threading.Event()

        def write() -> None:
            step = 0
            while not stop.is_set():
                journal.append(Dropped(step, "x"))
                step += 1

        writer = threading.Thread(target=write)
        writer.start()
        while len(lengths) < 20:
            steps = [e.step for e in bodies(path)]
            assert steps == list(range(len(steps)))
            lengths.append(len(steps))
        stop.set()
        writer.join(30)
    assert lengths == sorted(lengths)
    assert len(bodies(path)) >= lengths[-1]


def test_names_with_signs_that_mean_something_in_a_uri(tmp_path):
    path = tmp_path / "run #1?mode=rw%20.db"
    with Journal(path) as journal:
        journal.append(STARTED)
    assert bodies(path) == [STARTED]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_kinds_of_a_later_version_are_skipped(tmp_path):
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        journal.append(STARTED)
    db = sqlite3.connect(path)
    later = ['{"event": "Quantum", "at": 1}', '{"event": "Dropped", "at": 1, "step": 1, "reason": "", "new": 2}',
             '{"event": "Noticed", "fault": "memory"}', "[]", "no json"]  # fmt: skip
    with db:
        for body in later:
            db.execute("INSERT INTO events (run, at, kind, body) VALUES (1, 0, '', ?)", (body,))
    db.close()
    with Journal(path) as journal:
        journal.append(SWAPPED)
        half = read_journal(path)
        assert next(half) == (1, STARTED)
    assert list(half) == [(2, SWAPPED)], "closing does not disturb somebody who reads"
    assert bodies(path) == [STARTED, SWAPPED]


def test_an_event_that_is_no_json_fails_where_it_was_made_and_the_journal_goes_on(tmp_path):
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        with pytest.raises(TypeError):
            journal.append(Dropped(np.int32(3), "x"))  # type: ignore[arg-type]
        journal.append(STARTED)
    assert bodies(path) == [STARTED]


def test_a_closed_journal_refuses_events_instead_of_waiting_for_ever(tmp_path):
    journal = Journal(tmp_path / "run.db")
    journal.close()
    journal.close()
    with pytest.raises(BadInput, match="closed"):
        journal.append(STARTED)


# -- what is not a journal --------------------------------------------------------------------------------------------


def other_database(path: Path) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TABLE photos (id INTEGER)")
        db.execute("INSERT INTO photos VALUES (7)")
    db.close()


def claimed_but_empty(path: Path) -> None:
    """What a process leaves that was killed while it made its first journal."""
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA application_id = {0x706F6973}")
    db.close()


NOT_OURS = {
    "text": lambda p: p.write_text("step,loss\n0,1.0\n" * 400),
    "binary": lambda p: p.write_bytes(os.urandom(5000)),
    "database": other_database,
    "cut": lambda p: p.write_bytes(b"SQLite format 3\x00" + bytes(200)),
}


@pytest.mark.parametrize("kind", NOT_OURS)
def test_other_files_are_refused_in_one_sentence_and_not_touched(kind, tmp_path):
    path = tmp_path / "precious.db"
    NOT_OURS[kind](path)
    before = path.read_bytes()
    for use in (lambda: Journal(path), lambda: list(read_journal(path))):
        with pytest.raises(BadInput) as info:
            use()
        assert str(path) in str(info.value)
        assert "\n" not in str(info.value)
        assert str(info.value).endswith(".")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["precious.db"]


def test_folders_and_impossible_paths_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "run.db"):
        with pytest.raises(BadInput):
            Journal(path)
        with pytest.raises(BadInput):
            list(read_journal(path))
    with pytest.raises(BadInput, match="no journal"):
        list(read_journal(tmp_path / "missing.db"))
    assert not (tmp_path / "missing.db").exists(), "reading makes no file"


def test_an_empty_or_barely_begun_file_can_be_used(tmp_path):
    (tmp_path / "empty.db").touch()
    claimed_but_empty(tmp_path / "begun.db")
    for name in ("empty.db", "begun.db"):
        with pytest.raises(BadInput):
            list(read_journal(tmp_path / name))
        with Journal(tmp_path / name) as journal:
            journal.append(STARTED)
        assert bodies(tmp_path / name) == [STARTED]


# -- kill -9 ----------------------------------------------------------------------------------------------------------

CHILD = """
import sys
from poise.control._journal import Journal
from poise.events import Dropped, Progress
journal = Journal(sys.argv[1])
step = 0
while True:
    journal.append(Progress(step, 1.0))
    journal.append(Dropped(step, "x" * 300))
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
    step += 1
"""


@pytest.mark.timeout(100)
def test_every_acknowledged_event_survives_kill_9(tmp_path):
    path = tmp_path / "run.db"
    for attempt, wanted in enumerate((1, 60)):
        env = {**os.environ, "PYTHONPATH": str(Path(poise.__file__).parents[1])}
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True, env=env)
        watchdog = threading.Timer(45, child.kill)
        watchdog.start()
        try:
            assert child.stdout is not None
            said = [child.stdout.readline() for _ in range(wanted)]
            time.sleep(0.01 * attempt)
            os.kill(child.pid, signal.SIGKILL)
            said += child.stdout.readlines()
        finally:
            watchdog.cancel()
            child.kill()
            child.wait(20)
            if child.stdout is not None:
                child.stdout.close()
        assert child.returncode == -signal.SIGKILL
        acknowledged = [int(line) for line in said if line.endswith("\n")]
        assert len(acknowledged) >= wanted, "the child did not get going"
        there = [e.step for e in bodies(path, run=attempt + 1) if isinstance(e, Dropped)]
        assert there[: len(acknowledged)] == acknowledged
        assert len(there) - len(acknowledged) in (0, 1), "at most the one that was being acknowledged"
    with Journal(path) as journal:
        assert journal.run == 3
        journal.append(STARTED)
    assert bodies(path, run=3) == [STARTED]
