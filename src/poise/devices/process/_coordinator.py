"""The coordinator's process: serves until its standard input closes, which it does when its parent is gone."""

from __future__ import annotations

import sys

from ._orphan import die_with_parent
from ._seat import serve


def main() -> None:
    """`python -m poise.devices.process._coordinator HOST:PORT SEATS PATIENCE`."""
    die_with_parent()
    address, seats, patience = sys.argv[1:]
    service = serve(address, int(seats), float(patience))
    print("serving", flush=True)
    sys.stdin.read()
    del service


if __name__ == "__main__":
    main()
