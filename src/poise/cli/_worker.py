"""`poise worker`: one process of a run over several. `poise launch` starts it; so can a cluster's scheduler."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..control import decide
from ..control._registry import Registry, apply
from ..devices.process import INCARNATIONS, Member, listen
from ..errors import PoiseError
from ..events import Decision, DeviceChanged, Event, Fault, RunStarted, to_dict
from ..faults import ProcessFault
from ..faults._process import DAMAGE, RECOVERY
from ..keeper._peer import PeerLoop
from ..keeper._peer_life import PeerLife, Slots
from ..keeper._shardwise import on_device
from ..kernels.layout import Layout
from ._job import Job
from ._launch_plan import make_plan
from ._seats import apart, launched_seat, scheduled_seat


def worker(job: str, active: int, spares: int, out: Path, resume: Path | None, source: str | None) -> int:
    """Live as one of the run's processes until it is over."""
    import jax

    jax.config.update("jax_num_cpu_devices", INCARNATIONS)
    launched = "POISE_LAUNCHER" in os.environ
    seat = launched_seat() if launched else scheduled_seat(job, active, spares, out, resume)
    jax.devices()  # the backend learns of the others here
    listener = listen(seat.host, seat.key)
    member = Member(seat.launcher, seat.key, seat.device)
    try:
        plan = make_plan(job, active, spares)
        policy = Policy(plan.spec, plan.workload.name, member)
        blows = Blows(member)
        life = PeerLife(
            plan.workload, member, listener, seat.key, active, decide=policy.decide, emit=policy.hear,
            every=plan.spec.options.every, source=source or plan.source, directory=out / "snapshots", resume=resume,
            each=blows, entered=policy.entered, possible=apart,
        )  # fmt: skip
        blows.life = life
        life.loop.alternate = int(os.environ.get("POISE_ALTERNATE", "0"))
        member.told = blows.told
        member.start((seat.host, int(listener.address[1])))  # type: ignore[index]
        life.live(plan.steps)
    except PoiseError as error:
        member.say("failed", sentence=" ".join(str(error).split()), status=error.exit_status)
        return error.exit_status
    return 0


AGREEING = 2e-3
"""Seconds that the reduction before a commit takes on a CPU, about."""


class Policy:
    """Registry and policy of one member. Every epoch begins with a fresh registry, so that a process that has just
    taken a seat decides as the others do."""

    def __init__(self, job: Job, name: str, member: Member) -> None:
        self._job, self._name, self._member = job, name, member
        self._registry = Registry()

    def entered(self, slots: Slots) -> None:
        """An epoch begins."""
        seats = tuple(seat for seat, _ in slots)
        # Whether there is a spare only the launcher knows; a member that must go goes, and the launcher has the word.
        self._registry = apply(Registry(), RunStarted(self._name, 0, seats, (max(seats) + 1,)))

    def decide(self, fault: Fault) -> Decision:
        """The same for the same history on every member."""
        decision = decide(self._registry, fault, self._job.limits)
        for seat in fault.device_ids:
            if fault.kind in ("memory", "tag"):
                self.hear(DeviceChanged(seat, "degraded", f"{fault.kind} fault: {fault.where}"))
        return decision

    def hear(self, event: Event) -> None:
        """Into the registry, and to the launcher, who journals what the member in the first slot says."""
        self._registry = apply(self._registry, event)
        self._member.say("event", event=to_dict(event))


class Blows:
    """Strikes this process when the launcher says so, at the very phase."""

    def __init__(self, member: Member) -> None:
        self._script: list[ProcessFault] = []
        self._member = member
        self.life: PeerLife | None = None

    def told(self, message: dict[str, Any]) -> None:
        """What the launcher says: a blow to come, or an order."""
        assert self.life is not None
        if message["do"] == "strike":
            self._script.append(ProcessFault(**message["fault"]))
        else:
            self.life.orders.hear(message)

    def __call__(self, phase: str, number: int) -> None:
        """A phase is reached; `number` is the step in steps, else the epoch or order."""
        life = self.life
        assert life is not None
        courier = life.loop.courier
        begins = ("ready", "agree") if phase == "ready" else (phase,)
        for fault in [f for f in self._script if f.phase in begins]:
            recovery = phase in RECOVERY
            step = life.loop.settled if recovery or phase == "share" else number
            # One that waits for a recovery was sent behind its step; a spare has no step to compare it with.
            late = fault.wait or recovery
            if not ((recovery and fault.wait) or (step >= fault.step if late else step == fault.step)):
                continue
            self._script.remove(fault)
            if fault.kind in DAMAGE:
                self._member.say("struck", fault=asdict(fault), at=time.monotonic())
                flip(life.loop, fault.kind)
            elif phase == "share" and courier is not None:
                courier.before = self._torn(fault)
            elif fault.phase == "agree":
                threading.Timer(random.uniform(0.0, AGREEING), self._strike, [fault]).start()
            else:
                self._strike(fault)

    def _torn(self, fault: ProcessFault) -> Any:
        def strike(wire: Any, message: dict[str, Any], pieces: Sequence[np.ndarray]) -> None:
            wire.tear(message, pieces)
            self._strike(fault)

        return strike

    def _strike(self, fault: ProcessFault) -> None:
        self._member.say("struck", fault=asdict(fault), at=time.monotonic())
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)


def flip(loop: PeerLoop, kind: str) -> None:
    """Damage this process's shard: one bit, or one word in two banks at once, which no single bank explains."""
    shard, step = loop.held[loop.settled], loop.settled
    piece = np.array(shard[0], copy=True)
    words = piece.reshape(-1).view(np.uint32)
    words[0] ^= np.uint32(1 << 7)
    if kind == "two_banks":
        words[Layout(words.size).L] ^= np.uint32(1 << 9)
    loop.held[step] = [*on_device([piece], next(iter(shard[0].devices()))), *shard[1:]]
