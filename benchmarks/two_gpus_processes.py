"""Lost processes on two GPUs: the peer is killed and stopped in turn, the run goes on; what protection costs.

    python benchmarks/two_gpus_processes.py [--small] [--losses N]

Two active workers, one on each GPU, and a spare that shares the second one: the process in slot 1 may die again and
again, each replacement becomes the next spare. Prints one JSON. Runs on CPUs with `--small`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from poise.cli._launch import BLOCK, run_over
from poise.cli._launch_plan import make_plan
from poise.cli._launch_report import cost
from poise.events import Event, ProcessStarted, Survivable, Swapped
from poise.faults import ProcessFault
from poise.physics.grid import Burgers2d

HERE = Path(__file__).parent
PHASES = ("propose", "ready", "commit", "share", "")


class Throttled(Burgers2d):
    """`burgers2d` with data every 0.2 s while the file in THROTTLE_UNTIL is not there: replacements take seconds."""

    def batch(self, index: int) -> Any:
        """The batch of a step."""
        until = os.environ.get("THROTTLE_UNTIL")
        if until and index > 8 and not Path(until).exists():
            time.sleep(0.2)
        return super().batch(index)


def job(where: Path, n: int, steps: int) -> Path:
    """The job file."""
    path = where / "job.toml"
    path.write_text(
        f'workload = "two_gpus_processes:Throttled"\n[params]\nn = {n}\nsteps = {steps}\n[keeper]\nevery = 10000\n'
    )
    return path


def used_bytes() -> list[int]:
    """Memory in use on each GPU, in bytes; empty where there is none."""
    try:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return [int(line) << 20 for line in subprocess.run(command, capture_output=True, text=True).stdout.split()]
    except OSError:
        return []


def losses(where: Path, n: int, steps: int, count: int) -> dict[str, Any]:
    """Kill and stop the process in slot 1, `count` times in all, each at another phase."""
    seats = (1, 2)
    script = [
        ProcessFault(
            "stop" if i % 2 else "kill", 5, seats[i % 2], "" if i % 2 else PHASES[i // 2 % len(PHASES)], wait=True
        )
        for i in range(count)
    ]
    until = where / "fast"
    os.environ["THROTTLE_UNTIL"] = str(until)
    plan = make_plan(str(job(where, n, steps)), 2, 1)
    clean_at = where / "clean"
    until.touch()
    clean = run_over(make_plan(str(job(where, n, steps)), 2, 0), clean_at, None, [], [])
    until.unlink()
    swapped, memory = 0, {}

    def listen(event: Event) -> None:
        nonlocal swapped
        swapped += isinstance(event, Swapped)
        if swapped >= count:
            until.touch()
        if isinstance(event, ProcessStarted) and event.seat == 0:
            memory["before"] = used_bytes()
        if isinstance(event, Survivable) and "after" not in memory:
            memory["after"] = used_bytes()

    ran = run_over(plan, where / "struck", None, script, [listen])
    out: dict[str, Any] = {
        "losses": count,
        "swaps": len(ran.swaps),
        "stopped": None if ran.stopped is None else str(ran.stopped),
    }
    out["bit_identical"] = ran.fingerprint == clean.fingerprint and bool(ran.fingerprint)
    out["compiles"] = sum(s.compiles for s in ran.swaps)
    out["steps_lost_most"] = max((s.steps_lost for s in ran.swaps), default=None)
    for kind in ("kill", "stop"):
        mine = [s for s in ran.swaps if ("SIGKILL" in s.cause) == (kind == "kill")]
        if mine:
            detect = [s.detect_s for s in mine if s.detect_s is not None]
            out[kind] = {
                "count": len(mine),
                "detect_s_median": statistics.median(detect) if detect else None,
                "detect_s_most": max(detect, default=None),
                "swap_s_median": statistics.median(s.swap_s for s in mine),
                "swap_s_most": max(s.swap_s for s in mine),
            }
    if memory.get("before") and memory.get("after"):
        out["bytes_for_two_placements"] = [b - a for a, b in zip(memory["before"], memory["after"], strict=True)]
    return out


def main() -> int:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--losses", type=int, default=10)
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the GPUs belong to the workers
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    n, steps = (48, 400) if args.small else (2048, 400)
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(where / "cache"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        try:
            said = losses(where, n, steps, args.losses)
            os.environ.pop("THROTTLE_UNTIL")
            spent = run_over(make_plan(str(job(where, n, steps)), 2, 1), where / "cost", None, [], [], alternate=BLOCK)
            said["healthy_cost"] = cost(spent) | {"n": n}
        finally:
            for log in sorted(where.glob("*/logs/*.log")):
                tail = [t for t in log.read_text(errors="replace").splitlines() if "Gloo" not in t][-4:]
                print(log.relative_to(where), *tail, sep="\n  ", file=sys.stderr)
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
