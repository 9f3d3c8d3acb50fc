"""The kernels' headers under the address and undefined-behaviour sanitizers: the CPU's with 10,000 random damage
patterns, the CUDA kernels of records and of the Burgers stage emulated on the CPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


def built(tmp_path, source, *flags):
    """The program, with both sanitizers. -O1 and no vectors: they see every access. Unsigned wrap-around is the
    arithmetic of the sums."""
    program = tmp_path / source.removesuffix(".cc")
    common = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-strict-aliasing"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include, code = f"-I{NATIVE / 'include'}", str(NATIVE / "check" / source)
    command = ["g++", *common, *sanitize, *flags, include, code, "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in done.stderr and "san" in done.stderr:
        pytest.skip("this compiler has no sanitizers")
    if "barrier: No such file" in done.stderr:
        pytest.skip("this compiler's library has no std::barrier")
    assert done.returncode == 0, done.stderr
    return program


def test_headers_are_clean_and_every_pattern_is_exact_or_reported(tmp_path):
    program = built(tmp_path, "cpu_check.cc", "-std=c++17", f"-I{NATIVE / 'cpu'}")
    done = subprocess.run([str(program), "10000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout


def test_cuda_kernels_emulated_on_the_cpu_are_clean_and_equal_the_cpu_kernels(tmp_path):
    emulated = f"-I{NATIVE / 'check' / 'emulated'}"
    program = built(tmp_path, "cuda_on_cpu.cc", "-std=c++20", "-Wno-unknown-pragmas", "-pthread", emulated)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "cuda_on_cpu: 0 wrong\n"
