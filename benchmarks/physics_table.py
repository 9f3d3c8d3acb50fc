"""Every physics task beside its goal, each in a process of its own on one core: the errors, the times, what was missed.

    python benchmarks/physics_table.py [TASK ...] [--jobs N] [--seconds S] [--json FILE] [--no-bench]

A task is `poise solve TASK --json -`, bound to one core with one XLA thread; PInv is the median of five seeds. Without
tasks named, all are run, and then `poise bench memory` and `poise bench physics` besides (not with `--no-bench`). Times
mean something on cores that nothing else uses: take N below the number of cores. What is not done after S seconds is
stopped and said so. The exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

# task, options, relative L2 error, seconds warm; the first call may take three seconds more
GOALS: tuple[tuple[str, tuple[str, ...], float, float], ...] = (
    ("heat2d-lt", (), 1e-3, 60),
    ("cavity-re3200", (), 2e-2, 60),
    ("pinv", (), 2e-2, 10),
    ("poisson2d-cg", (), 5e-4, 10),
    ("ks", (), 1e-7, 2),
    ("wave1d-c", (), 1e-10, 1),
    ("poisson2d-c", (), 2e-6, 1),
    ("burgers1d", ("--tol", "1e-6"), 2e-6, 2),
    ("burgers1d", (), 1e-7, 6),
    ("allen-cahn-periodic", (), 2e-5, 1),
    ("advection", (), 1e-8, 2),
    ("ns2d-c", (), 3e-4, 5),
    ("ns2d-c-p", (), 2e-3, 5),
    ("heat2d-ms", (), 1e-6, 5),
    ("pnd", (), 1e-7, 5),
    ("hnd", (), 1e-4, 10),
    ("wave1d-pulse", (), 1e-6, 5),
    ("heat2d-ms-shifted", (), 1e-6, 5),
    ("pnd-coupled", (), 1e-4, 5),
)
LONG = ("poisson3d-cg", "heat2d-cg", "ns2d-cg", "heat2d-lt", "cavity-re3200", "cavity-re1000", "darcy-jump", "pnd-100")
"""Tasks to begin with, so that the last ones to end are short."""
ONE_THREAD = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")},
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}


def seeds() -> dict[str, Any]:
    """PInv with five draws of the noise: the run whose error is the median one."""
    from dataclasses import replace

    from poise.physics.tasks import get, run
    from poise.physics.tasks._inverse import pinv

    made = [run(replace(get("pinv"), problem=lambda seed=seed: pinv(seed)))[0] for seed in range(5)]
    made.sort(key=lambda report: report["rel_l2"])
    return made[2] | {"first_seconds": max(report["first_seconds"] for report in made)}


def child(command: list[str], core: int, until: float) -> tuple[Any, str]:
    """What a command printed as JSON, or None and why."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **ONE_THREAD},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        out, error = process.communicate(timeout=max(until - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, "stopped: no time left"
    if process.returncode:
        return None, (error.strip() or out.strip() or f"exit status {process.returncode}").splitlines()[-1]
    return json.loads(out), ""


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    name = " ".join([row["task"], *row["options"]])
    if row.get("why"):
        return f"{name:32} {row['why']}"
    goal = f"{row['goal']:9.0e} {row['goal_seconds']:5.0f}" if row["goal"] else f"{'':15}"
    verdict = "" if row["met"] is None else "met" if row["met"] else "MISSED"
    numbers = f"{row['rel_l2']:9.1e} {row['error_estimate']:9.1e} {row['seconds']:8.2f} {row['first_seconds']:7.2f}"
    others = "".join(f"; {value:.1e} from {name}" for name, value in row.get("beside", {}).items())
    return f"{name:32} {numbers} {goal} {row['peak_mb']:6.0f}  {verdict:7} {row['reference']}{others}"


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """The row with `met`: error and both times, or None where there is no goal."""
    if row["goal"] is None:
        return row | {"met": None}
    if row.get("why"):
        return row | {"met": False}
    fine = row["rel_l2"] is not None and row["rel_l2"] <= row["goal"] and row["status"] == "converged"
    return row | {
        "met": fine and row["seconds"] <= row["goal_seconds"] and row["first_seconds"] <= row["seconds"] + 3.0
    }


def main() -> int:
    """Run the tasks on the cores there are, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-bench", action="store_true")
    parser.add_argument("--seeds", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seeds:
        print(json.dumps(seeds()))
        return 0
    from poise.physics.tasks import names

    unknown = sorted(set(options.tasks) - set(names()))
    if unknown or options.jobs < 1:
        parser.error(f"no task is called {unknown[0]!r}" if unknown else "--jobs needs a positive number")
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0))[-options.jobs :]:
        cores.put(core)
    until = time.monotonic() + options.seconds
    wanted = [row for row in GOALS if not options.tasks or row[0] in options.tasks]
    stated = {row[0] for row in GOALS}
    wanted += [(name, (), None, None) for name in options.tasks or names() if name not in stated]
    wanted.sort(key=lambda row: LONG.index(row[0]) if row[0] in LONG else len(LONG))
    benches = [] if options.tasks or options.no_bench else ["memory", "physics"]

    def pinned(command: list[str]) -> tuple[Any, str]:
        core = cores.get()
        try:
            return child(command, core, until)
        finally:
            cores.put(core)

    def solved(row: Any) -> dict[str, Any]:
        task, extra, goal, seconds = row
        command = [sys.executable, "-m", "poise", "solve", task, *extra, "--json", "-"]
        report, why = pinned([sys.executable, __file__, "--seeds"] if task == "pinv" else command)
        made = {"task": task, "options": list(extra), "goal": goal, "goal_seconds": seconds, "why": why}
        return judged(made | (report or {}))

    def benched(name: str) -> dict[str, Any]:
        rows, why = pinned([sys.executable, "-m", "poise", "bench", name, "--json", "-"])
        return {"bench": name, "rows": rows, "why": why}

    heading = f"{'task':32} {'rel L2':>9} {'estimate':>9} {'seconds':>8} {'first':>7} {'goal':>9} {'s':>5} {'MB':>6}"
    print(heading, flush=True)
    with ThreadPoolExecutor(cores.qsize()) as pool:
        others = [pool.submit(benched, name) for name in benches]
        pending = [pool.submit(solved, row) for row in wanted]
        rows = []
        for done in pending:
            rows.append(done.result())
            print(line(rows[-1]), flush=True)
        made = [done.result() for done in others]
    for bench in made:
        print(f"\npoise bench {bench['bench']}{': ' + bench['why'] if bench['why'] else ''}")
        for row in bench["rows"] or []:
            print("  " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    if options.json:
        options.json.write_text(json.dumps({"tasks": rows, "bench": made}, indent=1) + "\n")
    return int(any(row["met"] is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
