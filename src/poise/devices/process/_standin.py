"""The stand-in: takes a dead worker's seat, so that survivors on a GPU learn of it in half a second.

On a GPU nobody can close NCCL's connections from outside; but as soon as somebody else connects with the dead worker's
id, its old incarnation is stale and every collective that waits for it raises. Started beforehand, without a backend.
"""

from __future__ import annotations

import sys
from typing import Any

from ._orphan import die_with_parent
from ._seat import connect


def main() -> None:
    """`python -m poise.devices.process._standin HOST:PORT PATIENCE`; reads one seat number a line, answers `seated`."""
    die_with_parent()
    address, patience = sys.argv[1:]
    clients: list[Any] = []
    print("waiting", flush=True)
    for line in sys.stdin:
        clients.append(connect(address, int(line), float(patience)))
        print("seated", flush=True)


if __name__ == "__main__":
    main()
