"""The CPU kernels' headers under the address and undefined-behaviour sanitizers, with 10,000 random damage patterns."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_headers_are_clean_and_every_pattern_is_exact_or_reported(tmp_path):
    program = tmp_path / "cpu_check"
    # -O1 and no vectors: the sanitizers see every access. Unsigned wrap-around is the arithmetic of the sums.
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-strict-aliasing"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include = [f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'cpu'}"]
    source = NATIVE / "check" / "cpu_check.cc"
    built = subprocess.run(
        ["g++", *flags, *sanitize, *include, str(source), "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "cannot find" in built.stderr and "san" in built.stderr:
        pytest.skip("this compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program), "10000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout
