"""`poise run` and `poise generate` on a tiny Llama, as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from poise import llama
from poise.cli._app import run_command

JOB = """
workload = "llama"
[params]
method = "forward"
steps = 4
sequences = 2
length = 16
held = 1
rate = 1e-3
dtype = "float32"
characters = 5000
[params.model]
vocab = 256
width = 16
hidden = 32
layers = 1
heads = 2
[devices]
active = 1
spares = 0
"""


def test_a_run_leaves_a_model_a_history_and_a_text(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    out = tmp_path / "out"
    assert run_command(["run", str(tmp_path / "job.toml"), "--out", str(out), "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["losses"]) == 4
    assert said["products"]["mode"] == "off"
    assert said["history_bytes"] == 48
    end, config = llama.load(out / "model")
    from poise.cli._job import load_job

    start = load_job(str(tmp_path / "job.toml")).make().init()["w"]
    again = llama.replay(start, llama.read_history(out / "history.poise"))
    for a, b in zip(jax.tree.leaves(end), jax.tree.leaves(again), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert run_command(["generate", str(out / "model"), "def ", "--tokens", "5", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    texts, _ = llama.generate(end, config, [list(b"def ")], 5)
    assert said["tokens"] == texts[0]
    assert said["spare_bytes"] > 0
    assert (said["products"]["mode"], said["products"]["failed"]) == ("all", 0)
    assert "attention" in said["products"]["not_covered"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("steps = 4", "steps = 0"), "steps is a positive whole number"),
        (("heads = 2", "heads = 3"), "channels"),
        (('method = "forward"', 'method = "magic"'), "method is adamw, forward"),
        (("rate = 1e-3", "clip = 1.0"), "no parameters ['clip']"),
        (("active = 1", "active = 3"), "spread over 3 devices"),
    ],
)
def test_a_bad_job_is_one_sentence_and_status_2(
    tmp_path: Path, capsys: Any, change: tuple[str, str], words: str
) -> None:
    assert change[0] in JOB
    (tmp_path / "job.toml").write_text(JOB.replace(*change))
    assert run_command(["run", str(tmp_path / "job.toml")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_what_generate_cannot_use_is_one_sentence(tmp_path: Path, capsys: Any) -> None:
    for arguments in (
        ["generate", str(tmp_path), "x"],
        ["generate", str(tmp_path), "x", "--dtype", "int8"],
        ["generate", str(tmp_path), "x", "--abft", "some"],
        ["demo", "x"],
    ):
        assert run_command(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
