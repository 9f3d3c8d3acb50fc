"""The example producer: built once with this machine's C++ compiler, started for a stream."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from ..errors import BadInput, Missing
from ..memory import include_dir

COMPILERS = ("c++", "g++", "clang++")


def compiler() -> str:
    """A C++ compiler's path. Raises `Missing` if there is none."""
    asked = os.environ.get("CXX")
    found = next((path for name in ([asked] if asked else COMPILERS) if (path := shutil.which(name))), None)
    if found is None:
        looked = f"CXX = {asked!r}" if asked else ", ".join(COMPILERS)
        raise Missing(
            f"The example producer needs a C++20 compiler, and there is none ({looked}); accepted instead is "
            "--source with the name of a running stream or a recorded .npz."
        )
    return found


def build() -> Path:
    """The producer's program, built unless the same sources were built before. Raises `Missing` or `BadInput`."""
    source = Path(str(resources.files("poise") / "producer" / "main.cpp"))
    headers = sorted((Path(include_dir()) / "poise").glob("*.hpp"))
    with_what = compiler()
    digest = hashlib.sha256(with_what.encode())
    for file in (source, *headers):
        digest.update(file.read_bytes())
    program = _cache() / f"producer-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    made = program.with_name(f"{program.name}.{os.getpid()}")
    command = [with_what, "-std=c++20", "-O2", f"-I{include_dir()}", str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise BadInput(f"{with_what} cannot build the example producer: {first.strip()}.")
    os.replace(made, program)
    return program


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "poise"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        # A name of its own: what lies under a known one in a shared folder may be somebody else's program.
        home = Path(tempfile.mkdtemp(prefix="poise-"))
    return home


@contextmanager
def started(program: Path, options: dict[str, str]) -> Iterator[Path]:
    """Run the producer; yields where it publishes, once it does. Ends it, if it has not ended by itself."""
    command = [str(program), *(word for key, value in options.items() for word in (f"--{key}", value))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        if not said.startswith("publishing at "):
            raise BadInput(f"The example producer does not start: {process.stderr.read().strip()}.")
        path = Path(said.removeprefix("publishing at ").rstrip("\n"))
        try:
            yield path
        finally:
            process.terminate()
            process.communicate()
            path.unlink(missing_ok=True)
