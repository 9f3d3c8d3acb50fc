"""What poise raises.

    PoiseError
    ├── BadInput          what the caller gave cannot be used; exit status 2
    │   ├── BadJob        a job or fault script: unreadable, unknown keys, impossible values
    │   └── BadMesh       devices, meshes and shardings that do not fit together
    ├── Stopped           beyond the promise: the run ended, a resume is possible; exit status 3
    │   └── Exhausted     no spare is left for a device that is gone
    └── Missing           an optional dependency is not installed; exit status 2

Inside a compiled step a failure is a value (`poise.Code`); these are for the edge, where a person reads them. Every
message is one sentence that says what was wrong and what is accepted.
"""

from __future__ import annotations


class PoiseError(Exception):
    """The root of everything that poise raises on purpose."""

    exit_status = 1


class BadInput(PoiseError, ValueError):
    """What the caller gave cannot be used; nothing was changed or half-written."""

    exit_status = 2


class BadJob(BadInput):
    """A job file or a fault script that cannot be used."""


class BadMesh(BadInput):
    """Devices, meshes and shardings that do not fit together."""


class Stopped(PoiseError):
    """The run met something beyond its promise and ended cleanly.

    `resume` is the directory of the last good snapshot file, or None if none was written.
    """

    exit_status = 3

    def __init__(self, message: str, *, resume: str | None = None) -> None:
        super().__init__(message)
        self.resume = resume


class Exhausted(Stopped):
    """A device is gone and no spare is left to take its place."""


class Missing(PoiseError, ImportError):
    """An optional dependency is not installed."""

    exit_status = 2


def need(module: str, extra: str) -> Missing:
    """The sentence for an optional dependency that is not there."""
    return Missing(f"{module} is not installed; it comes with the extra: pip install 'poise[{extra}]'.")
