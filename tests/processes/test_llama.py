"""Training of a small Llama over processes: a worker is killed and the weights end as if it had not been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1000)  # real processes, each of which compiles for half a minute

JOB = """workload = "llama"
[params]
steps = 24
sequences = 4
length = 32
dtype = "float32"
[params.model]
vocab = 256
width = 32
hidden = 64
layers = 1
heads = 4
kv_heads = 2
[devices]
active = 2
spares = 1
[keeper]
every = 10
"""


def test_a_worker_killed_in_training_changes_no_bit(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "kill.toml").write_text('[[fault]]\nkind = "kill"\nstep = 12\nworker = 1\nphase = "propose"\n')
    words = ["launch", str(tmp_path / "job.toml"), "--faults", str(tmp_path / "kill.toml"), "--json", "-"]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    env = dict(os.environ, XLA_FLAGS="--xla_cpu_multi_thread_eigen=false", **cache)
    done = subprocess.run([sys.executable, "-m", "poise", *words], env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["bit_identical"]
    (swap,) = said["swaps"]
    assert (swap["seat"], swap["source"], swap["compiles"]) == (1, "parity", 0)
    assert swap["steps_lost"] <= 1
