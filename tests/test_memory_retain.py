"""What a process frees stays with it where it asks for that, and only there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import resource
import numpy as np
import poise

def fresh():
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.empty(1 << 24, np.float32).fill(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start

before, asked = fresh(), poise.memory.retain_freed()
fresh()
print(before, asked, fresh())
"""


@pytest.mark.skipif(not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"), reason="not glibc")
def test_freed_blocks_are_used_again_once_asked_for() -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=env, timeout=110, check=True
    )
    before, asked, after = done.stdout.split()
    assert asked == "True"
    assert int(before) >= 100  # ten times 64 MiB, in huge pages at least
    assert int(after) < 10
