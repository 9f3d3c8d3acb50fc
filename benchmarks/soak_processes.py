"""Kills in every phase of a run over processes and at random times: none may hang, none may differ.

    python benchmarks/soak_processes.py [--each N] [--random N] [--seed N] [--jobs N] [--seconds S] [--json FILE]

Three active processes and a spare on a CPU, so many runs at once as `--jobs` says. A run of the first kind is killed
once in each phase, always as soon as it is protected again, and at last in a rebuild, which is beyond the promise: it
must end with a sentence, and its resume must give the same bits. A run of the second kind is killed at random times,
whatever it is at: it goes on, or it ends with a sentence and its resume gives the same bits. Each loss waits for a
replacement that starts and is warmed: some ten seconds on two cores. Exit status 1 if a run hung, differed or compiled.

- `--each`: kills wanted in each phase; `--random`: kills at random times; `--kills`: stop after so many in all.
- `--seconds`: start no new run after so long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PHASES = ("propose", "ready", "agree", "commit", "share", "rewarm", "rebuild")
RARE = ("stop", "spare")
"""A stopped process and a killed spare: a tenth as often."""

PER_RUN = 5
"""Kills of a run at random times; most runs end before, hit while nothing protects them."""


@dataclass
class Campaign:
    """What is wanted, under way and done."""

    rng: random.Random
    wanted: Counter[str]
    kills: int
    done: Counter[str] = field(default_factory=Counter)
    planned: Counter[str] = field(default_factory=Counter)
    runs: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0

    def left(self, name: str) -> int:
        """How many kills of a sort are neither done nor under way."""
        return self.wanted[name] - self.done[name] - self.planned[name]

    def next(self) -> dict[str, Any] | None:
        """The next run, or None if nothing more is wanted."""
        if (self.done + self.planned).total() >= self.kills or not any(self.left(n) > 0 for n in self.wanted):
            return None
        phases = [p for p in (*PHASES, *RARE) if self.left(p) > 0]
        spec: dict[str, Any] = {"seed": self.rng.randrange(2**31), "phases": [], "random": 0, "ending": None}
        share = {n: self.left(n) / self.wanted[n] for n in self.wanted}
        if not phases or share.get("random", 0) > max(share[p] for p in phases):
            spec["random"] = PER_RUN
            plan = Counter(random=PER_RUN)
        else:
            chosen = [p for p in phases if p != "rebuild" and (p in PHASES or share[p] >= max(share.values()))]
            self.rng.shuffle(chosen)
            chosen.sort(key=lambda p: p == "rewarm")  # there is a replacement only behind a loss
            if chosen[:1] == ["rewarm"]:
                chosen.insert(0, "propose")
            spec["phases"] = chosen
            # Now and then a member dies in the re-warming, and not the one that is warmed.
            spec["ending"] = "rebuild" if "rebuild" in phases else None
            if self.number % 4 == 3 and "rewarm" in chosen:
                spec["phases"], spec["ending"] = [p for p in chosen if p != "rewarm"], "rewarm"
            plan = Counter(spec["phases"]) + Counter([spec["ending"]] if spec["ending"] else [])
        self.planned += plan
        self.number += 1
        return spec | {"number": self.number, "plan": dict(plan)}

    def ended(self, spec: dict[str, Any], run: dict[str, Any]) -> None:
        """A run is over."""
        self.planned -= Counter(spec["plan"])
        self.done += Counter(run["phases"]) + Counter(random=run["random"])
        self.runs.append(run)


def one(spec: dict[str, Any], where: Path, hang: float) -> dict[str, Any]:
    """A run in a process of its own; `hang` seconds are too long for it."""
    path = where / f"{spec['number']}.json"
    folder = where / str(spec["number"])
    path.write_text(json.dumps(spec | {"where": str(folder)}))
    nothing = {"phases": [], "random": 0, "swaps": 0, "compiles": 0, "fingerprint": "", "stopped": None}
    try:
        command = [sys.executable, str(HERE / "soak_run.py"), str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=hang)
    except subprocess.TimeoutExpired:
        return nothing | {"hung": True, "logs": tails(folder)}
    if ran.returncode != 0:
        return nothing | {"failed": ran.stderr.splitlines()[-5:], "logs": tails(folder)}
    return json.loads(ran.stdout) | {"logs": tails(folder)}


def tails(folder: Path) -> dict[str, list[str]]:
    """What the processes of a run said last, but for their connections."""
    said = {}
    for path in sorted(folder.glob("*/logs/*.log")):
        lines = [line for line in path.read_text(errors="replace").splitlines() if not line.startswith("[Gloo]")]
        if lines:
            said[str(path.relative_to(folder))] = lines[-12:]
    return said


def judged(run: dict[str, Any], spec: dict[str, Any], clean: dict[str, str]) -> dict[str, Any]:
    """What is wrong with a run, in words."""
    wrong = []
    if run.get("hung") or run.get("failed"):
        wrong.append("hung" if run.get("hung") else "failed")
    elif run["fingerprint"] != clean["random" if spec["random"] else "phases"]:
        wrong.append("other bits")
    if run["compiles"]:
        wrong.append("compiled")
    if run.get("strange"):
        wrong.append("a process ended by itself")
    if "live" in (run["stopped"] or ""):
        wrong.append("gave up though all live")
    if run["stopped"] is not None and not spec["random"] and spec["ending"] not in run["phases"]:
        wrong.append("stopped")
    if not wrong:
        run = {k: v for k, v in run.items() if k != "logs"}
    return run | {"number": spec["number"], "wrong": wrong}


def summary(campaign: Campaign, args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """The JSON."""
    runs = campaign.runs

    def worst(key: str) -> float | None:
        found = [x for run in runs for x in (run.get(key) or [])]
        return round(max(found), 3) if found else None

    ended = [run["ended_in_s"] for run in runs if run.get("ended_in_s") is not None]
    return {
        "seed": args.seed,
        "jobs": args.jobs,
        "cores": os.cpu_count(),
        "seconds": round(seconds, 1),
        "kills": {name: campaign.done[name] for name in campaign.wanted},
        "stops_with_ready_known_to_some": sum(run.get("ready_by_some", 0) for run in runs),
        "runs": len(runs),
        "swaps": sum(run["swaps"] for run in runs),
        "ended_beyond": len(ended),
        "hangs": sum("hung" in run["wrong"] for run in runs),
        "differences": sum("other bits" in run["wrong"] for run in runs),
        "compiles": sum(run["compiles"] for run in runs),
        "killed_though_only_slow": sum(run.get("stopped_unasked", 0) for run in runs),
        "steps_lost_most": max((run.get("steps_lost", 0) for run in runs), default=0),
        "detect_s_most": worst("detect_s"),
        "detect_stopped_s_most": worst("detect_stopped_s"),
        "swap_s_most": worst("swap_s"),
        "ended_in_s_most": round(max(ended), 3) if ended else None,
        "wrong": [run for run in runs if run["wrong"]],
        "each_run": [{k: v for k, v in run.items() if k not in ("logs", "fingerprint")} for run in runs],
    }


def main() -> int:
    """Soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--random", type=int, default=50)
    parser.add_argument("--kills", type=int, default=10**9)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--hang", type=float, default=300.0, help="seconds after which a run counts as hung")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began = time.monotonic()
    rare = -(-args.each // 10)
    wanted = Counter(dict.fromkeys(PHASES, args.each) | dict.fromkeys(RARE, rare) | {"random": args.random})
    campaign, lock = Campaign(random.Random(args.seed), +wanted, args.kills), threading.Lock()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(where / "cache")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        plain = {"phases": [], "random": 0, "ending": None, "seed": 0}
        clean = {}
        for kind in {"random" if name == "random" else "phases" for name in campaign.wanted}:
            alone = one(plain | {"number": f"clean-{kind}", "steps_of": kind}, where, args.hang)
            clean[kind] = alone["fingerprint"]
            if not clean[kind]:
                print("The uninterrupted run did not end:", json.dumps(alone), file=sys.stderr)
                return 1

        def work() -> None:
            while time.monotonic() - began < args.seconds:
                with lock:
                    spec = campaign.next()
                if spec is None:
                    return
                run = judged(one(spec, where, args.hang), spec, clean)
                with lock:
                    campaign.ended(spec, run)
                    print(json.dumps(run), file=sys.stderr, flush=True)
                    if args.json:
                        said = summary(campaign, args, time.monotonic() - began)
                        args.json.write_text(json.dumps(said, indent=2) + "\n")

        with ThreadPoolExecutor(args.jobs) as pool:
            for job in [pool.submit(work) for _ in range(args.jobs)]:
                job.result()
    said = summary(campaign, args, time.monotonic() - began)
    print(json.dumps({k: v for k, v in said.items() if k not in ("wrong", "each_run")}, indent=2))
    return 1 if said["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
