"""poise launch and poise worker as a user and a scheduler see them: JSON, refusals, endings, no process left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from launching import HERE, job_file

from poise.devices.process._children import free_port

pytestmark = pytest.mark.timeout(300)  # real processes, each of which starts JAX and compiles its placements


@pytest.fixture
def environment() -> dict[str, str]:
    env = dict(os.environ, XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), *([env["PYTHONPATH"]] if "PYTHONPATH" in env else [])])
    return env


def poise(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "poise", *words], env=env, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", "3", "burgers2d", "--faults", "nothing.toml"], "cannot be read"),
        (["-n", "7", "burgers2d"], "cannot share a grid"),
        (["-n", "0", "burgers2d"], "at least one active"),
        (["-n", "2", "no-such-job"], "There is no job"),
        (["-n", "2", "burgers2d", "--resume", "nowhere"], "no snapshot to resume from"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(
    words: list[str], sentence: str, environment: dict[str, str]
) -> None:
    done = poise("launch", *words, env=environment)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('kind = "nan"\nstep = 1\nworker = 0', "poise run"),
        ('kind = "kill"\nstep = 1\nworker = 9', "workers are 0 to 3"),
        ('kind = "kill"\nstep = 1\nworker = 0\nphase = "lunch"', "phase is one of"),
        ('kind = "kill"\nstep = 5000\nworker = 0', "the run has steps 0 to"),
        ('kind = "kill"\nworker = 0', "has no 'step'"),
    ],
)
def test_fault_scripts_are_refused_with_a_sentence(
    table: str, sentence: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "f.toml").write_text(f"[[fault]]\n{table}\n")
    job = job_file(tmp_path)
    done = poise("launch", str(job), "--faults", str(tmp_path / "f.toml"), env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr


def test_a_worker_that_nobody_started_says_how_it_is_started(environment: dict[str, str]) -> None:
    done = poise("worker", "burgers2d", "--active", "2", "--spares", "1", "--out", "x", env=environment)
    assert done.returncode == 2
    assert "poise launch" in done.stderr


@pytest.fixture
def running(tmp_path: Path, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A launch whose data come slowly for ever, and the ids of all its processes once it is under way."""
    job = job_file(tmp_path)
    environment["SLOW_UNTIL"] = str(tmp_path / "never")
    command = [sys.executable, "-m", "poise", "launch", str(job), "--out", str(tmp_path / "out"), "--json", "-"]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        workers = wait_for_start(tmp_path / "out" / "run.db", child)
        yield child, workers
    finally:
        child.kill()
        child.communicate()


def wait_for_start(journal: Path, child: subprocess.Popen[str]) -> list[int]:
    """The workers' process ids, as soon as the journal says that the run is protected."""
    import sqlite3
    import time

    until = time.monotonic() + 200
    while time.monotonic() < until and child.poll() is None:
        if journal.exists():
            rows = []
            with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as db, suppress(sqlite3.OperationalError):
                rows = db.execute("select kind, body from events").fetchall()  # its tables may not be there yet
            db.close()
            if any(kind == "Survivable" for kind, _ in rows):
                return [json.loads(body)["pid"] for kind, body in rows if kind == "ProcessStarted"]
        select.select([], [], [], 0.2)  # another process's file: there is nothing to wait on
    raise AssertionError(f"it did not start: {child.communicate()[1] if child.poll() is not None else 'too slow'}")


def all_end(pids: list[int]) -> bool:
    """Whether these processes, which are not our children, end within 20 s."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([fd], [], [], 20)[0]:
                return False
        finally:
            os.close(fd)
    return True


def test_killing_the_parent_leaves_nobody_behind(running: tuple[subprocess.Popen[str], list[int]]) -> None:
    child, workers = running
    assert len(workers) == 4
    os.kill(workers[0], signal.SIGSTOP)  # one that could not hear anything dies too
    child.kill()
    assert all_end(workers)


def test_ctrl_c_ends_everybody_and_says_how_to_go_on(running: tuple[subprocess.Popen[str], list[int]]) -> None:
    child, workers = running
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "--resume" in said
    assert all_end(workers)


def test_under_a_scheduler_the_workers_find_each_other(tmp_path: Path, environment: dict[str, str]) -> None:
    """SLURM's variables, faked on one machine: two active and a spare, coordinated by a process beside seat 0."""
    job = job_file(tmp_path, workload="burgers2d", steps=60)
    environment |= {
        "SLURM_JOB_ID": "4242", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "3",
        "JAX_COORDINATOR_PORT": str(free_port()),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "poise", "worker", str(job), "--active", "2", "--spares", "1",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    tasks = []
    for number in range(3):
        env = environment | {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
        tasks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        said = [task.communicate(timeout=200)[0] for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    assert [task.returncode for task in tasks] == [0, 0, 0], "\n".join(said)
    # The launcher beside seat 0 writes the report as it ends, a moment after the last worker.
    report = tmp_path / "out" / "report.json"
    for _ in range(100):
        if report.exists():
            break
        select.select([], [], [], 0.2)
    found = json.loads(report.read_text())
    assert (found["steps"], found["active"]) == (60, 2)
    assert found["rel_l2"] < 0.1
