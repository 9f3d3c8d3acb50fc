"""One struck run of a soak, in a process of its own: `soak_processes.py` starts it and reads its JSON.

    python benchmarks/soak_run.py SPEC

SPEC is a JSON file: `phases` (where to kill, one after the other) or `random` (so many kills at random times), `ending`
(a second loss that is beyond the promise, or null), `seed`, `where` (a folder that does not exist). What ends beyond
the promise is resumed, and the last bits are those of the resumed run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax

from poise.cli._launch import run_over
from poise.cli._launch_plan import make_plan
from poise.cli._launch_report import Ran
from poise.devices.process import Beyond, Report, Situation, Verdict, judge
from poise.devices.process import _launcher as launcher
from poise.events import Event, ProcessLost, ProcessStarted, RunStopped, Survivable
from poise.faults import ProcessFault
from poise.physics.grid import Burgers2d

ACTIVE = 3
STEPS = {"phases": 1000, "random": 2000}
PAUSE = {"phases": 0.15, "random": 0.02}
"""Seconds between two batches until the last blow has been dealt with: replacements take seconds, and blows at random
times should meet all parts of a step."""

KNOWN = ("SIGKILL", "did not answer", "made no step")
"""How a struck process ends; any other end is a mistake of ours."""

AFTER = (0.0, 8.0)
"""A kill at a random time comes so many seconds after the one before, whatever the run is at then."""


class Paced(Burgers2d):
    """`burgers2d` whose data come slowly while the file in PACE_UNTIL is not there, and slower towards the end, so that
    the run outlasts its blows; but never the first that a process asks for, which would count as time of a swap."""

    asked = False

    def batch(self, index: int) -> Any:
        """The batch of a step."""
        until = os.environ.get("PACE_UNTIL")
        if until and Paced.asked and index > 8 and not Path(until).exists():
            time.sleep(float(os.environ["PACE"]) * (1 if index < 0.7 * self.steps else 3))
        Paced.asked = Paced.asked or index > 0
        return super().batch(index)


def script(rng: random.Random, phases: list[str], ending: str | None) -> tuple[list[ProcessFault], int]:
    """The blows for a run, and how many losses of members are to be survived. Who sits where after each is known
    beforehand: the spare takes the dead one's slot, its successor in that seat becomes the next spare."""
    slots, spare = [(seat, 0) for seat in range(ACTIVE)], (ACTIVE, 0)
    blows: list[ProcessFault] = []
    losses = 0

    def lose(slot: int, kind: str, phase: str) -> None:
        nonlocal spare, losses
        seat, incarnation = slots[slot]
        blows.append(ProcessFault(kind, 3, seat, phase, wait=True))
        slots[slot], spare, losses = spare, (seat, incarnation + 1), losses + 1

    for phase in phases:
        if phase == "spare":
            blows.append(ProcessFault("kill", 3, spare[0], wait=True))
            spare = (spare[0], spare[1] + 1)
        elif phase == "rewarm":  # the replacement of the last loss dies while all warm its placements
            blows.append(ProcessFault("kill", 0, spare[0], "rewarm", spare[1]))
            spare = (spare[0], spare[1] + 1)
        elif phase == "stop":
            lose(rng.randrange(ACTIVE), "stop", "")
        else:
            lose(rng.randrange(ACTIVE), "kill", phase)
    if ending is not None:
        first, second = rng.sample(range(ACTIVE), 2)
        newcomer = ending == "rebuild" and rng.random() < 0.5
        blows.append(ProcessFault("kill", 3, spare[0] if newcomer else slots[second][0], ending, wait=True))
        lose(first, "kill", rng.choice(("propose", "commit")))
        losses -= ending == "rebuild"
    return blows, losses


class Watch:
    """What happened, from the run's events; strikes at random times from outside, as `kill -9` does."""

    def __init__(self, fast: Path) -> None:
        self.fast, self.alive, self.protected = fast, dict[int, int](), threading.Event()
        self.times: list[float] = []
        self.detect: list[float] = []
        self.lost_at = self.ended_in = 0.0
        self.causes: list[str] = []
        self.swapped = 0
        self._struck: dict[int, float] = {}
        self._over = threading.Event()

    def hear(self, event: Event) -> None:
        """An event of the run."""
        match event:
            case ProcessStarted():
                self.alive[event.seat] = event.pid
            case ProcessLost():
                pid = self.alive.pop(event.seat, -1)
                self.lost_at = event.at
                self.causes.append(event.cause)
                if pid in self._struck:
                    self.detect.append(time.monotonic() - self._struck[pid])
            case Survivable():
                self.protected.set() if event.yes else self.protected.clear()
            case RunStopped():
                self.ended_in = event.at - self.lost_at

    def strike_at_random(self, rng: random.Random, kills: int) -> None:
        """Kill random processes at random times until so many are dead or the run is over; then let the data flow."""
        self.protected.wait()
        for _ in range(kills):
            if self._over.wait(rng.uniform(*AFTER)):
                return
            pids = sorted(self.alive.values())
            if not pids:
                return
            pid = rng.choice(pids)
            self._struck[pid] = time.monotonic()
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self.times.append(self._struck[pid])
        self.fast.touch()

    def end(self) -> None:
        """The run is over."""
        self._over.set()
        self.protected.set()


def split(found: list[bool]) -> Any:
    """`judge`, noting whether a stop found some members through the ready reduction of a step and others not."""

    def noting(at: Situation, reports: Any) -> Verdict | Beyond:
        alive: list[Report] = [reports[d] for d in at.slots if d in reports]
        ready = max((r.ready for r in alive), default=-1)
        found.append(any(r.ready < ready for r in alive) or any(r.proposal > ready for r in alive))
        return judge(at, reports)

    return noting


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run as the spec says."""
    rng, where = random.Random(spec["seed"]), Path(spec["where"])
    kind = spec.get("steps_of") or ("random" if spec["random"] else "phases")
    where.mkdir(parents=True)
    job = where / "job.toml"
    job.write_text(f'workload = "soak_run:Paced"\n[params]\nn = 24\nsteps = {STEPS[kind]}\n[keeper]\nevery = 50\n')
    blows, losses = script(rng, spec["phases"], spec["ending"])
    fast = where / "fast"
    os.environ |= {"PACE_UNTIL": str(fast), "PACE": str(PAUSE[kind])}
    watch, through = Watch(fast), list[bool]()
    launcher.judge = split(through)

    def hear(event: Event) -> None:
        watch.hear(event)
        watch.swapped += type(event).__name__ == "Swapped"
        over = watch.swapped >= losses and len(watch.causes) >= len(blows)
        if kind == "phases" and over and spec["ending"] is None:
            fast.touch()

    if not blows and not spec["random"]:
        fast.touch()
    striker = threading.Thread(target=watch.strike_at_random, args=(rng, spec["random"]), daemon=True)
    if spec["random"]:
        striker.start()
    began = time.monotonic()
    plan = make_plan(str(job), ACTIVE, 1 if blows or spec["random"] else 0)
    ran: Ran = run_over(plan, where / "run", None, blows, [hear])
    watch.end()
    noticed = [s for s in ran.swaps if s.detect_s is not None]
    said: dict[str, Any] = {
        "seed": spec["seed"],
        "phases": [name(b) for b in ran.struck],
        "random": len(watch.times),
        "stopped": None if ran.stopped is None else str(ran.stopped),
        "ended_in_s": watch.ended_in if ran.stopped is not None else None,
        "swaps": len(ran.swaps),
        "compiles": sum(s.compiles for s in ran.swaps),
        "steps_lost": max((s.steps_lost for s in ran.swaps), default=0),
        "swap_s": [s.swap_s for s in ran.swaps],
        "detect_s": [s.detect_s for s in noticed if "answer" not in s.cause] + watch.detect,
        "detect_stopped_s": [s.detect_s for s in noticed if "answer" in s.cause],
        "ready_by_some": sum(through),
        "stopped_unasked": sum("SIGKILL" not in c for c in watch.causes) - sum(b.kind == "stop" for b in ran.struck),
        "strange": [c for c in watch.causes if not any(known in c for known in KNOWN)],
    }
    if ran.stopped is not None:
        fast.touch()
        ran = run_over(plan, where / "resumed", where / "run" / "snapshots", [], [])
    return said | {"fingerprint": ran.fingerprint, "seconds": time.monotonic() - began}


def name(blow: ProcessFault) -> str:
    """What a blow counts as."""
    return "stop" if blow.kind == "stop" else "spare" if not blow.phase else blow.phase


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
