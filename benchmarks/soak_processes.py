"""Kills and stops at random, until so many losses have been survived: none may hang, none may differ.

    python benchmarks/soak_processes.py [--seed N] [--kills N] [--json FILE]

Three active processes and a spare. Each run is struck `PER_RUN` times, in a phase and a seat that the seed chooses,
always as soon as the run is protected again; its last bits are compared with an uninterrupted run's. Every third run
ends in a second loss amid the rebuild instead, which is beyond the promise: it must end with a sentence, and its resume
must give the same bits. One loss takes some ten seconds, since a replacement is started and warmed after each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from poise.cli._launch import run_over
from poise.cli._launch_plan import Plan, make_plan
from poise.cli._launch_report import Ran
from poise.events import Event, Swapped
from poise.faults import ProcessFault

HERE = Path(__file__).parent
PHASES = ("", "propose", "ready", "commit", "share", "stop", "spare")
PER_RUN = 6
ACTIVE = 3


def script(rng: random.Random) -> tuple[list[ProcessFault], int]:
    """A run's blows, and how many of them cost a member. Who sits where after each is known beforehand, since the spare
    takes the dead one's slot."""
    slots, spare, blows, losses = list(range(ACTIVE)), ACTIVE, [], 0
    for _ in range(PER_RUN):
        phase = rng.choice(PHASES)
        if phase == "spare":
            blows.append(ProcessFault("kill", 3, spare, wait=True))
            continue
        slot = rng.randrange(ACTIVE)
        kind = "stop" if phase == "stop" else "kill"
        blows.append(ProcessFault(kind, 3, slots[slot], "" if phase == "stop" else phase, wait=True))
        slots[slot], spare, losses = spare, slots[slot], losses + 1
    return blows, losses


def struck(
    plan: Plan, where: Path, blows: list[ProcessFault], losses: int, resume: Path | None = None
) -> tuple[Ran, float]:
    """One run, whose data come slowly until `losses` have been mended; and the seconds it took."""
    until = where / "fast"
    where.mkdir(parents=True)
    os.environ["THROTTLE_UNTIL"] = str(until)
    swaps = 0

    def listen(event: Event) -> None:
        nonlocal swaps
        swaps += isinstance(event, Swapped)
        if swaps >= losses:
            until.touch()

    if losses == 0:
        until.touch()
    began = time.perf_counter()
    return run_over(plan, where, resume, blows, [listen]), time.perf_counter() - began


def main() -> int:
    """Soak until the kills are done; exit status 1 if a run hung or differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    rng = random.Random(args.seed)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        job = where / "job.toml"
        job.write_text(
            'workload = "two_gpus_processes:Throttled"\n[params]\nn = 24\nsteps = 600\n[keeper]\nevery = 50\n'
        )
        plan = make_plan(str(job), ACTIVE, 1)
        clean, _ = struck(make_plan(str(job), ACTIVE, 0), where / "clean", [], 0)
        while sum(run["struck"] for run in runs) < args.kills:
            number = len(runs)
            beyond = number % 3 == 2
            blows, losses = script(rng)
            if beyond:
                first, second = rng.sample(range(ACTIVE), 2)
                blows = [ProcessFault("kill", 3, second, "rebuild"), ProcessFault("kill", 40, first, wait=True)]
                losses = 1
            ran, seconds = struck(plan, where / str(number), blows, losses)
            same = ran.fingerprint == clean.fingerprint
            if beyond and ran.stopped is not None:
                again, _ = struck(plan, where / f"{number}-resumed", [], 0, where / str(number) / "snapshots")
                same = again.fingerprint == clean.fingerprint
            runs.append(
                {
                    "blows": [[b.kind, b.worker, b.phase] for b in blows],
                    "struck": len(ran.struck),
                    "swaps": len(ran.swaps),
                    "stopped": None if ran.stopped is None else str(ran.stopped),
                    "bit_identical": same,
                    "compiles": sum(s.compiles for s in ran.swaps),
                    "steps_lost": max((s.steps_lost for s in ran.swaps), default=0),
                    "swap_s": [round(s.swap_s, 3) for s in ran.swaps],
                    "detect_s": [None if s.detect_s is None else round(s.detect_s, 3) for s in ran.swaps],
                    "seconds": round(seconds, 1),
                }
            )
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
            wrong = not same or (ran.stopped is not None and not beyond) or runs[-1]["compiles"]
            runs[-1]["good"] = not wrong
    said = {"seed": args.seed, "struck": sum(run["struck"] for run in runs), "runs": runs}
    if args.json:
        args.json.write_text(json.dumps(said, indent=2) + "\n")
    bad = [run for run in runs if not run["good"]]
    print(f"{said['struck']} blows in {len(runs)} runs, {len(bad)} runs went wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
