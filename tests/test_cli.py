"""The command line as a person or a script meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from poise.cli._app import run_command
from poise.cli._report import kept_promises
from poise.control import read_journal
from poise.events import RunStopped

JOB = """
workload = "burgers2d"
[params]
n = 32
[devices]
active = 4
spares = {spares}
[keeper]
every = 6
"""

FAULTS = """
[[fault]]
kind = "nan"
step = 3
[[fault]]
kind = "bitflip"
step = 6
slot = 2
extent = "bank"
[[fault]]
kind = "two_banks"
step = 9
slot = 1
"""

LOST = """
[[fault]]
kind = "lost"
step = 14
slot = 3
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(spares=0))
    return path


def said(capsys: Any) -> dict[str, Any]:
    """The JSON on standard output, which must hold nothing else."""
    return json.loads(capsys.readouterr().out)


def test_a_run_with_faults_says_what_became_of_each(job: Path, tmp_path: Path, capsys: Any) -> None:
    faults = tmp_path / "faults.toml"
    faults.write_text(FAULTS)
    out = tmp_path / "out"
    assert run_command(["run", str(job), "--faults", str(faults), "--out", str(out), "--json", "-"]) == 0
    report = said(capsys)
    assert report["bit_identical"] is True
    assert report["largest_difference"] == 0.0
    assert [f["kind"] for f in report["faults"]] == ["nan", "bitflip", "two_banks"]
    for f in report["faults"]:
        assert f["noticed_step"] == f["step"]
        assert (f["bit_exact"], f["compiles"]) == (True, 0)
        assert f["seconds"] > 0
    assert kept_promises(report | {"rel_l2": 1e-4}) == []
    assert kept_promises(report | {"bit_identical": False}) != []
    assert json.loads((out / "report.json").read_text()) == report
    assert run_command(["status", str(out / "run.db"), "--json", "-"]) == 0
    status = said(capsys)
    assert status["status"] == "finished"
    assert [i["action"] for i in status["incidents"]] == ["retry", "repair", "rollback"]
    assert status["next_failure_survivable"] is False


def test_a_plain_run_says_its_error_and_its_cost(job: Path, capsys: Any) -> None:
    assert run_command(["run", str(job), "--active", "1", "--overhead", "--json", "-"]) == 0
    report = said(capsys)
    assert report["bit_identical"] is None
    assert 0 < report["rel_l2"] < 0.05
    assert report["overhead_ratio"] > 0
    assert report["overhead_snapshots"] >= 3


def test_exhaustion_stops_with_status_3_and_a_resume_that_works(job: Path, tmp_path: Path, capsys: Any) -> None:
    faults, out = tmp_path / "lost.toml", tmp_path / "out"
    faults.write_text(LOST)
    assert run_command(["run", str(job), "--faults", str(faults), "--out", str(out), "--json", "-"]) == 3
    report = said(capsys)
    assert "none is left" in report["stopped"]
    assert report["resume"] == str(out)
    assert run_command(["run", str(job), "--resume", str(out), "--json", "-"]) == 0
    assert said(capsys)["bit_identical"] is True
    assert run_command(["run", str(job), "--active", "2", "--resume", str(out), "--json", "-"]) == 0
    report = said(capsys)
    assert report["resumed"] == {"devices_then": 4, "devices_now": 2}
    assert report["bit_identical"] or report["largest_difference"] < 1e-6


def test_plan_runs_nothing_and_names_what_is_survivable(job: Path, capsys: Any) -> None:
    job.write_text(JOB.format(spares=2))
    assert run_command(["plan", str(job), "--json", "-"]) == 0
    plan = said(capsys)
    assert plan["state_bytes"] == 4 * 2 * 32 * 32
    assert plan["executables"] == 10
    assert {r["fault"]: r["survivable"] for r in plan["survivable"]}["device lost"] is True
    assert run_command(["plan", str(job), "--source", "parity", "--json", "-"]) == 0
    assert said(capsys)["parity_over_devices_bytes"] > 0
    assert run_command(["plan", str(job), "--spares", "0", "--json", "-"]) == 0
    assert {r["fault"]: r["survivable"] for r in said(capsys)["survivable"]}["device lost"] is False


def test_doctor_knows_this_machine(capsys: Any) -> None:
    assert run_command(["doctor", "--json", "-"]) == 0
    report = said(capsys)
    assert report["backend"] == "cpu"
    assert set(report["native"]) == {"cpu", "cuda"}


def test_tasks_are_listed_and_unknown_ones_refused(capsys: Any) -> None:
    assert run_command(["tasks", "--json", "-"]) == 0
    names = [row["task"] for row in said(capsys)]
    assert {"wave1d-c", "poisson2d-c", "burgers1d"} <= set(names)
    assert run_command(["solve", "nope"]) == 2
    assert run_command(["solve", "wave1d-c", "--tol", "2"]) == 2
    assert run_command(["bench", "nope"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_task_is_solved_and_measured(capsys: Any) -> None:
    assert run_command(["solve", "wave1d-c", "--json", "-"]) == 0
    report = said(capsys)
    assert report["status"] == "converged"
    assert report["rel_l2"] < 1e-9


def test_a_workload_of_ones_own_runs(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples"))
    assert run_command(["run", "my_workload:Ring", "--active", "2", "--spares", "0", "--json", "-"]) == 0
    assert said(capsys)["steps"] == 200


def child(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=100, check=False, env={**os.environ, **env}
    )


def test_the_module_is_the_command(job: Path) -> None:
    done = child("-m", "poise", "run", str(job), "--json", "-", "--active", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] > 0


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    job = tmp_path / "long.toml"
    job.write_text('workload = "burgers2d"\n[params]\nn = 32\nsteps = 1000000\n[devices]\nactive = 1\nspares = 0\n')
    out = tmp_path / "out"
    args = [sys.executable, "-m", "poise", "run", str(job), "--out", str(out)]
    with subprocess.Popen(args, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while not list((out / "snapshots").glob("*.npz")) and time.monotonic() < deadline:
                assert process.poll() is None
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert f"resume with: poise run {job} --resume {out}" in said
    events = [e for _, e in read_journal(out / "run.db")]
    assert isinstance(events[-1], RunStopped)
    assert events[-1].reason == "interrupted"
    assert list((out / "snapshots").glob("snapshot-*.npz"))


def test_without_the_extra_there_is_one_hint() -> None:
    code = "import sys; sys.modules['cyclopts'] = None; from poise.cli import main; main(['doctor'])"
    done = child("-c", code)
    assert done.returncode == 2
    assert "pip install 'poise[cli]'" in done.stderr
    assert done.stderr.count("\n") == 1
