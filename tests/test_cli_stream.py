"""`poise stream`: the example producer, recordings, dead producers, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from poise import memory
from poise.cli._app import run_command
from poise.cli._producer import build
from poise.cli._stream_job import stream_job
from poise.errors import BadJob
from poise.memory import PINN, save_frames

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The producer, built as a user's is, in a cache of its own."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    try:
        yield build()
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before


def report(tmp_path: Path, *tokens: str) -> tuple[int, dict]:
    status = run_command([*tokens, "--json", str(tmp_path / "said.json")])
    return status, json.loads((tmp_path / "said.json").read_text())


def job(tmp_path: Path, **params: object) -> str:
    lines = [f"{k} = {json.dumps(v)}" for k, v in params.items()]
    path = tmp_path / "job.toml"
    path.write_text('workload = "stream"\n[params]\n' + "\n".join(lines) + "\n")
    return str(path)


@needs_compiler
def test_the_example_is_followed_and_its_broken_sensors_named(program, tmp_path):
    spec = job(tmp_path, rows=16, columns=20, rate=60.0, seconds=2.0, fail_at=20)
    status, said = report(tmp_path, "stream", spec, "--out", str(tmp_path / "out"))
    assert status == 0
    assert said["frames"] + said["lost"] + said["torn"] == 120
    assert said["frames"] > 10
    assert (said["records"], said["compiles"], said["bytes_copied"]) == (320, 0, 0)
    assert 0 < said["latency_p50_us"] <= said["latency_p99_us"]
    assert said["failing_count"] == len(said["failing"]) == said["injected"] > 20
    assert {f["kind"] for f in said["failing"]} == {"marker", "nan", "stuck", "spike"}
    assert (said["missed"], said["false_alarms"]) == (0, 0)
    assert said["named_within_frames"] <= 3
    assert 10 * said["rel_l2"] < said["rel_l2_gated"]
    assert said["producer"][-1]["kind"] == "closed"
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"report.json", "run.db", "estimate.npz", "stream.png"} <= written
    assert np.load(tmp_path / "out" / "estimate.npz")["u"].shape == (16, 20)
    status, seen = report(tmp_path, "status", str(tmp_path / "out" / "run.db"))
    assert status == 0
    assert {"marker", "nan", "stuck", "spike"} == {c["kind"] for c in seen["channels"].values()}
    assert len(seen["channels"]) == said["failing_count"]
    assert not list(Path("/dev/shm").glob(f"poise.example-{os.getpid()}*"))


@needs_compiler
def test_a_dead_producer_ends_the_stream_with_status_3(program, tmp_path, capsys):
    name = str(tmp_path / "waves")
    command = [str(program), "--name", name, "--rate", "100", "--frames", "500", "--die-at", "150", "--rows", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        started.stdout.readline()
        spec = job(tmp_path, source=name, wait=0.2, nu=0.03, model="persistence")
        status, said = report(tmp_path, "stream", spec)
        started.send_signal(signal.SIGKILL)
    assert status == 3
    assert said["torn"] >= 1
    assert "died while it wrote frame 150" in said["stopped"]
    assert "did not come back" in capsys.readouterr().err


def recording(tmp_path: Path, frames: int = 8) -> Path:
    records = np.zeros((frames, 4, 6), PINN.dtype)
    rng = np.random.default_rng()
    for axis in "uv":
        records[axis] = 0.7 + 0.01 * rng.normal(size=records.shape)
    records["w"], records["gain"] = 0.7, 0.2
    records["u"][3:, 1, 2] = -99
    save_frames(tmp_path / "r.npz", records, dx=0.2)
    return tmp_path / "r.npz"


@pytest.mark.parametrize("rule", ["nudge", "curl"])
def test_a_recording_is_run_as_a_job(tmp_path, rule):
    recording(tmp_path)
    spec = job(tmp_path, source="r.npz", rule=rule, model="persistence")  # relative to the job's file
    status, said = report(tmp_path, "run", spec, "--out", str(tmp_path / "out"))
    assert status == 0
    assert (said["frames"], said["lost"], said["compiles"], said["bytes_copied"]) == (8, 0, 0, 0)
    assert said["failing"] == [{"sector": 8, "axis": "u", "kind": "marker", "frame": 4}]
    assert (tmp_path / "out" / "stream.png").stat().st_size > 5000


def test_json_alone_goes_to_standard_output(tmp_path, capsys):
    spec = job(tmp_path, source=str(recording(tmp_path)), model="persistence")
    assert run_command(["stream", spec, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 8


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["stream", "nowhere.toml"], "There is no job"),
        (["stream", "burgers2d"], "not of a stream"),
        (["stream", "--source", "nobody-publishes-this"], "no stream"),
        (["stream", "--source", "absent.npz"], "cannot be read"),
        (["stream", "--records", "0"], "records must be a whole number"),
        (["stream", "--rate", "nan"], "rate must be a number"),
        (["stream", "--seconds", "-1"], "seconds must be a number"),
        (["stream", "--json", "/nowhere/x.json"], "cannot be written"),
        (["run", "stream", "--active", "2"], "no fault script"),
        (["plan", "stream"], "no state to keep or plan"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(tokens, said, capsys):
    assert run_command(tokens) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_without_a_compiler_one_sentence_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert run_command(["stream"]) == 2
    assert "needs a C++20 compiler" in capsys.readouterr().err
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run_command(["stream"]) == 2
    assert "no-such-compiler" in capsys.readouterr().err


def test_what_a_job_may_not_say():
    for params, said in (
        ({"colour": "red"}, "no parameters"),
        ({"rows": 3.5}, "whole number"),
        ({"noise": "loud"}, "must be a number"),
        ({"rule": "guess"}, "one of nudge, curl"),
        ({"model": "magic"}, "one of burgers"),
        ({"velocity": [1.0]}, "two numbers"),
        ({"source": 3}, "must be a word"),
        ({"rate": True}, "must be a number"),
    ):
        with pytest.raises(BadJob, match=said):
            stream_job(params)


@pytest.mark.parametrize("records", [1, 7, 1024, 1000, 1_000_000, 999_983])
def test_a_grid_of_any_number_of_records_has_a_stable_step(records):
    made = stream_job({"records": records})
    assert made.rows * made.columns == records
    made.make_rule(made.geometry)


def test_the_header_directory_is_the_one_that_is_installed():
    assert (Path(memory.include_dir()) / "poise" / "records.hpp").is_file()
    assert (Path(memory.include_dir()) / "poise" / "stream.hpp").is_file()
