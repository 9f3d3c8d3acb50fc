"""The command line: the only place that knows everybody."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import need
from ..memory import retain_freed


def main(tokens: Sequence[str] | None = None) -> None:
    """The `poise` command. Ends the process with 0 well, 1 our own error, 2 bad input, 3 stopped beyond the promise."""
    try:
        import cyclopts
        import rich
    except ImportError as error:
        print(f"poise: {need(error.name or 'cyclopts', 'cli')}", file=sys.stderr)
        sys.exit(2)
    del cyclopts, rich
    from ._app import run_command

    if tokens is None:  # this process is the command's own
        retain_freed()
    sys.exit(run_command(sys.argv[1:] if tokens is None else list(tokens)))
