"""How a launch ended: its JSON and what a person reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..devices.process import Swap
from ..errors import Stopped
from ..faults import ProcessFault
from ._launch_plan import Plan


@dataclass
class Ran:
    """How it ended; `stopped` is set if that was before the last step."""

    swaps: list[Swap] = field(default_factory=list)
    fingerprint: str = ""
    leaves: tuple[Any, ...] = ()
    seconds: float = 0.0
    rewarm_compiles: int = 0
    struck: list[ProcessFault] = field(default_factory=list)
    timing: list[tuple[float, float]] = field(default_factory=list)
    stopped: Stopped | None = None


def report(plan: Plan, ran: Ran, clean: Ran | None, script: list[ProcessFault]) -> dict[str, Any]:
    """The JSON of `launch`."""
    error = getattr(plan.workload, "error", None)
    exact = None
    if error is not None and ran.leaves and getattr(plan.workload, "initial", None) is None:
        exact = float(error(plan.form.unflatten(ran.leaves), plan.steps))
    said: dict[str, Any] = {
        "job": plan.workload.name,
        "active": plan.active,
        "spares": plan.spares,
        "source": plan.source,
        "steps": plan.steps,
        "rel_l2": exact,
        "bit_identical": None if clean is None or ran.stopped is not None else ran.fingerprint == clean.fingerprint,
        "faults": [asdict(f) | {"struck": f in ran.struck} for f in script],
        "swaps": [asdict(s) for s in ran.swaps],
        "compiles": sum(s.compiles for s in ran.swaps),
        "rewarm_compiles": ran.rewarm_compiles,
        "steps_lost": max((s.steps_lost for s in ran.swaps), default=0),
        "fingerprint": ran.fingerprint or None,
        "seconds": ran.seconds,
    }
    if ran.stopped is not None:
        said["stopped"] = str(ran.stopped)
    return said


def cost(ran: Ran) -> dict[str, Any]:
    """Median step with the protection against losses over the median without it, blocks of the same run in turns."""
    if not ran.timing:
        return {"overhead_ratio": None}
    on, off = (max(column) for column in zip(*ran.timing, strict=True))
    return {"overhead_ratio": on / off, "overhead_step_s": on, "overhead_unprotected_step_s": off}


def table(show: Any, said: dict[str, Any]) -> None:
    """The swaps, one line each, and the verdict."""
    for s in said["swaps"]:
        noticed = "" if s["detect_s"] is None else f"noticed in {s['detect_s'] * 1e3:.0f} ms, "
        show.print(
            f"slot {s['slot']}: worker {s['seat']} {s['cause']}; {noticed}went on after {s['swap_s'] * 1e3:.0f} ms "
            f"from step {s['step']} ({s['source']}), {s['steps_lost']} steps replayed, {s['compiles']} compiled",
            soft_wrap=True,
        )
    if said.get("overhead_ratio") is not None:
        show.print(
            f"protected / unprotected step: {said['overhead_ratio']:.3f} ({said['overhead_step_s'] * 1e3:.1f} ms)"
        )
    if said["bit_identical"] is not None:
        good = said["bit_identical"]
        show.print(
            "[green]final state equals the uninterrupted run's, bit for bit[/green]" if good
            else "[red]final state differs from the uninterrupted run's[/red]"
        )  # fmt: skip
