"""`poise status`: the page's verdict in a terminal, once or until the run ends."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from poise.cli import _status
from poise.cli._app import run_command
from poise.control import Journal, Reader
from poise.control._verdict import verdict
from poise.events import Action, Fault, Mended, Noticed, Paged, Progress, RunFinished, RunStarted, Swapped

FAULT = Fault(5, "lost", (1,), (1,), "told")


def begin(journal: Journal) -> None:
    journal.append(RunStarted("job", 0, (0, 1), (2,)))
    journal.append(Noticed(FAULT, Action.SWAP, "its device is gone"))
    journal.append(Swapped(5, 1, 1, 2, "lost", "replica", 0.1, 0))
    journal.append(Mended(FAULT, Action.SWAP, 0.25, 0, 3))


def test_the_verdict_is_the_pages_and_stands_before_everything(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        begin(journal)
        journal.append(Paged("1-1", "somebody must look"))
        assert run_command(["status", str(path)]) == 0
        out = " ".join(capsys.readouterr().out.split())
        expected = verdict(Reader(path).summary, time.time())
        assert out.startswith(f"{expected.word} {expected.sentence}")
        for words in ("needs a person: somebody must look", "next failure survivable: no", "device", "told", "0.2500"):
            assert words in out
        assert run_command(["status", str(path), "--json", "-"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["verdict"]["word"] == expected.word
        assert said["incidents"][0]["swap"]["new_id"] == 2
        assert said["incidents"][0]["verdict"] == "device"


def test_watching_follows_the_run_until_it_ends(tmp_path: Path, monkeypatch: Any) -> None:
    path, shown = tmp_path / "run.db", io.StringIO()
    monkeypatch.setattr(_status, "console", lambda json: Console(file=shown, force_terminal=True, width=120))
    journal = Journal(path)
    begin(journal)
    watcher = threading.Thread(target=_status.status, args=(path, True, None))
    watcher.start()
    for step in (6, 7, 8):
        journal.append(Progress(step, 10.0))
    while watcher.is_alive() and "Running at step 8" not in shown.getvalue():
        time.sleep(0.01)
    journal.append(RunFinished(9, "ab"))
    watcher.join(30)
    assert not watcher.is_alive()
    assert "Finished at step 9" in shown.getvalue()
    journal.close()
