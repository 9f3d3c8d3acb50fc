"""What a step's parity costs over processes: processor time from the members' arrays into the spare's.

    python benchmarks/vault.py [--slots N] [--megabytes MB] [--generations N] [--json FILE]

Members and spare are threads of one process here, so that the time is the sum over all of them; in a launch each has a
process of its own, and its sending runs beside the step.
"""

from __future__ import annotations

import argparse
import json
import secrets
import threading
import time
from pathlib import Path

import numpy as np

from poise.devices.process import Courier, Vault, listen


def main() -> None:
    """Send so many generations; print the cost of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=4)
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    key, whole = secrets.token_bytes(32), threading.Semaphore(0)
    listener = listen("127.0.0.1", key)
    vault = Vault(listener, lambda generation: whole.release())
    vault.open(0, args.slots)
    couriers = [Courier(listener.address, key, 0, slot, lambda: None) for slot in range(args.slots)]  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    shards = [rng.integers(0, 2**32, args.megabytes << 18, dtype=np.uint32) for _ in range(args.slots)]

    def send(generation: int) -> None:
        for courier, shard in zip(couriers, shards, strict=True):
            courier.send(generation, lambda shard=shard: [shard])
        whole.acquire()

    for generation in range(3):
        send(generation)
    cpu, wall = time.process_time(), time.perf_counter()
    for generation in range(3, 3 + args.generations):
        send(generation)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    found = vault.rebuilt(-1, 0, 2 + args.generations)
    assert found is not None
    assert (found == np.bitwise_xor.reduce(shards)).all()
    said = {
        "slots": args.slots,
        "megabytes": args.megabytes,
        "cpu_ms_per_generation": round(cpu / args.generations * 1e3, 3),
        "wall_ms_per_generation": round(wall / args.generations * 1e3, 3),
        "cpu_ms_per_megabyte": round(cpu / args.generations / args.slots / args.megabytes * 1e3, 4),
    }
    listener.close()
    print(json.dumps(said))
    if args.json:
        args.json.write_text(json.dumps(said, indent=2) + "\n")


if __name__ == "__main__":
    main()
