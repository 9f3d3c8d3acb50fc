"""`poise worker`: one process of a run over several. `poise launch` starts it; so can a cluster's scheduler."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..control import decide
from ..control._registry import Registry, apply
from ..devices.process import INCARNATIONS, Member, die_with_parent, join, listen
from ..errors import BadInput, PoiseError, Stopped
from ..events import Decision, DeviceChanged, Event, Fault, RunStarted, to_dict
from ..faults import ProcessFault
from ..faults._process import DAMAGE
from ..keeper._peer import PeerLoop
from ..keeper._peer_life import PeerLife, Slots
from ..keeper._shardwise import on_device
from ..kernels.layout import Layout
from ._engine import steps_of
from ._job import Job, load_job


def worker(job: str, active: int, out: Path, resume: Path | None, source: str) -> int:
    """Live as one of the run's processes until the launcher ends it."""
    seat = _number("POISE_SEAT")
    die_with_parent()
    import jax

    jax.config.update("jax_num_cpu_devices", INCARNATIONS)
    join(_said("POISE_COORDINATOR"), seat, _number("POISE_SEATS"), float(_said("POISE_PATIENCE")))
    jax.devices()  # the backend learns of the others here
    key = bytes.fromhex(_said("POISE_KEY"))
    host, port = _said("POISE_LAUNCHER").rsplit(":", 1)
    listener = listen("127.0.0.1", key)
    device = (seat, _number("POISE_INCARNATION"))
    member = Member((host, int(port)), key, device)
    try:
        spec = load_job(job)
        workload = spec.make()
        policy = Policy(spec, workload.name, member)
        blows = Blows(member)
        life = PeerLife(
            workload, member, listener, key, active, decide=policy.decide, emit=policy.hear,
            every=spec.options.every, source=source, directory=out, resume=resume, each=blows, entered=policy.entered,
        )  # fmt: skip
        blows.life = life
        member.told = blows.told
        member.start(listener.address)  # type: ignore[arg-type]
        life.live(steps_of(workload))
    except PoiseError as error:
        status = 3 if isinstance(error, Stopped) else error.exit_status
        member.say("failed", sentence=" ".join(str(error).split()), status=status)
        return error.exit_status
    return 0


def _said(name: str) -> str:
    if name not in os.environ:
        raise BadInput(f"poise worker is started by poise launch or a scheduler; {name} is not set.")
    return os.environ[name]


def _number(name: str) -> int:
    return int(_said(name))


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
        for fault in [f for f in self._script if f.phase == phase]:
            late = fault.wait or phase in ("rebuild", "rewarm")
            step = life.loop.settled if phase in ("rebuild", "rewarm", "share") else number
            if not (step >= fault.step if late else step == fault.step):
                continue
            self._script.remove(fault)
            if fault.kind in DAMAGE:
                self._member.say("struck", fault=asdict(fault), at=time.monotonic())
                flip(life.loop, fault.kind)
            elif phase == "share" and courier is not None:
                courier.before = self._torn(fault)
            else:
                self._strike(fault)

    def _torn(self, fault: ProcessFault) -> Any:
        def strike(wire: Any, message: dict[str, Any], words: np.ndarray) -> None:
            wire.tear(message, words.tobytes())
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
