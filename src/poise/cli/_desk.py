"""What a launch hears from its workers besides deaths: events, parts of snapshots; and the fault script's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any

from ..devices.process import Device, Launcher
from ..events import Event, Mended, ProcessLost, SnapshotKept, SnapshotRefused, from_dict
from ..faults import COORDINATOR, ProcessFault
from ..faults._process import RECOVERY
from ..keeper._parts import write_manifest
from ._launch_plan import Plan

Listener = Callable[[Event], None]


class Desk:
    """What workers say that is not the launcher's business: events, parts of snapshots, and the fault script's clock.

    Faults with a step are sent to their worker as it starts. Those that wait are sent one by one, in the script's
    order, each when the run is protected again after the one before.
    """

    def __init__(self, plan: Plan, snapshots: Path, hear: Listener, script: list[ProcessFault]) -> None:
        self.plan, self.snapshots, self._hear = plan, snapshots, hear
        self.launcher: Launcher | None = None
        self.struck: list[ProcessFault] = []
        self._script, self._waiting = [f for f in script if not f.wait], [f for f in script if f.wait]
        self.timing: list[tuple[float, float]] = []
        self._open = False
        self._parts: dict[int, dict[int, str]] = {}

    def hear(self, event: Event) -> None:
        """An event of the launcher's or of a worker's."""
        if isinstance(event, ProcessLost | Mended):
            self._open = False
        self._hear(event)

    def heard(self, device: Device, message: dict[str, Any]) -> None:
        """A worker said something."""
        assert self.launcher is not None
        match message["say"]:
            case "event" if device == self.launcher.slots[0]:
                self.hear(from_dict(message["event"]))
            case "written":
                self._written(int(message["step"]), int(message["slot"]), message["mark"])
            case "hello":
                for fault in [f for f in self._script if f.phase and (f.worker, f.incarnation) == device]:
                    self._send(fault, device)
            case "struck":
                self.struck.append(ProcessFault(**message["fault"]))
            case "timing":
                self.timing.append((float(message["on"]), float(message["off"])))
            case "stepped":
                self._clock(int(message["step"]))

    def _written(self, step: int, slot: int, mark: str) -> None:
        parts = self._parts.setdefault(step, {})
        parts[slot] = mark
        if mark.startswith("!"):
            self.hear(SnapshotRefused(step, f"slot {slot}: {mark[1:]}"))
        if len(parts) == self.plan.active:
            del self._parts[step]
            if not any(m.startswith("!") for m in parts.values()):
                marks = [parts[s] for s in range(self.plan.active)]
                path = write_manifest(self.snapshots, step, self.plan.workload.name, marks)
                self.hear(SnapshotKept(step, self.plan.form.state_bytes, str(path)))

    def _clock(self, step: int) -> None:
        launcher = self.launcher
        assert launcher is not None
        for fault in [f for f in self._script if not f.phase and step >= f.step]:
            self._script.remove(fault)
            self._strike(fault)
        if self._waiting and launcher.protected and not self._open and step >= self._waiting[0].step:
            fault = self._waiting.pop(0)
            self._open = fault.phase not in RECOVERY  # there another blow must come first
            device = launcher.crew.sitting(fault.worker)
            if fault.phase and device is not None:
                self._send(fault, device)
            else:
                self._strike(fault)

    def _send(self, fault: ProcessFault, device: Device) -> None:
        assert self.launcher is not None
        self.launcher.crew.tell(device, {"do": "strike", "fault": asdict(fault)})

    def _strike(self, fault: ProcessFault) -> None:
        assert self.launcher is not None
        number = SIGKILL if fault.kind == "kill" else SIGSTOP
        self.launcher.crew.kill("coordinator" if fault.worker == COORDINATOR else fault.worker, number)
        self.struck.append(fault)
