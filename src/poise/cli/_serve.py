"""`poise serve`, and the page beside a run: a process of its own, so that a run's step never waits for a reader."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..control._journal import make_journal
from ..errors import BadInput, need


def serve(
    journal: Path, port: int, host: str, token_file: Path | None, run: int | None, until_closed: bool
) -> int:  # fmt: skip
    """Serve until interrupted."""
    check_port(port)
    token = None
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"The token file {token_file} cannot be read: {error}.") from error
    _needed()
    from ..control.serve import serve as command

    command(journal, host=host, port=port, token=token, run=run, until_closed=until_closed)
    return 0


@contextlib.contextmanager
def served(journal: Path, port: int) -> Iterator[None]:
    """Serve a journal from another process as long as the context lasts, or this process lives."""
    check_port(port)
    _needed()
    make_journal(journal)
    code = "from poise.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(journal), "--port", str(port), "--until-closed"]
    # The page has no business with a device.
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    try:
        yield
    finally:
        assert child.stdin is not None
        child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def check_port(port: int) -> None:
    """Refuse what is no port."""
    if not 0 <= port <= 65535:
        raise BadInput(f"A port is a number from 0 to 65535, not {port}.")


def _needed() -> None:
    for module in ("anyio", "starlette", "uvicorn", "jinja2", "prometheus_client", "inotify_simple"):
        try:
            __import__(module)
        except ImportError as error:
            raise need(module, "serve") from error
