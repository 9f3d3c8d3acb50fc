"""Where words go: JSON alone to standard output, everything else to standard error when JSON is there."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import BadInput


def console(json_to: str | None) -> Console:
    """For tables and prose: standard output, unless JSON goes there."""
    return Console(stderr=json_to == "-", soft_wrap=False)


def _finite(value: Any) -> Any:
    """NaN and Inf are no JSON; they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def dump(report: dict[str, Any] | list[Any], path: Path) -> None:
    """Write JSON to a file, whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(_finite(report), indent=2) + "\n")
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise BadInput(f"The report cannot be written to {path}: {error.strerror}.") from error


def write_json(report: dict[str, Any] | list[Any], json_to: str | None) -> None:
    """Write the report where `--json` says."""
    if json_to == "-":
        sys.stdout.write(json.dumps(_finite(report), indent=2) + "\n")
    elif json_to is not None:
        dump(report, Path(json_to))


def check_json(json_to: str | None) -> None:
    """Refuse a `--json` path that cannot be written before an hour of computing, not after it."""
    if json_to is None or json_to == "-":
        return
    path = Path(json_to)
    if path.is_dir():
        raise BadInput(f"The report cannot be written to {path}, which is a folder; accepted is a file path or '-'.")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise BadInput(f"The report cannot be written to {path}; its folder must exist and be writable.")


def out_directory(path: Path) -> Path:
    """Make the output directory. Raises `BadInput` where that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"The output directory {path} cannot be made: {error.strerror}.") from error
    if not os.access(path, os.W_OK):
        raise BadInput(f"The output directory {path} is not writable.")
    return path
