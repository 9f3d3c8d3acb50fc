"""The report of a run: DESIGN's words as JSON, and a table for people."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from ..devices import Pool
from ..keeper import Workload
from ._engine import Outcome, Overhead


def rel_l2(workload: Workload, outcome: Outcome) -> float | None:
    """The relative L2 error of the final state, where the workload knows the exact solution of its own start."""
    error = getattr(workload, "error", None)
    if error is None or outcome.state is None or getattr(workload, "initial", None) is not None:
        return None
    return float(error(outcome.state, outcome.steps))


def difference(a: Any, b: Any) -> float:
    """Largest absolute difference of two states, over all leaves."""

    def one(x: Any, y: Any) -> float:
        return float(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)), initial=0.0))

    return max(map(one, jax.tree.leaves(a), jax.tree.leaves(b)), default=0.0)


def report(
    workload: Workload,
    pool: Pool,
    outcome: Outcome,
    clean: Outcome | None = None,
    overhead: Overhead | None = None,
) -> dict[str, Any]:
    """The JSON of `demo` and `run`."""
    same = None
    if clean is not None and outcome.stopped is None:
        same = outcome.fingerprint == clean.fingerprint
    out: dict[str, Any] = {
        "job": workload.name,
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "active": len(pool.active),
        "spares": len(pool.spares),
        "steps": outcome.steps,
        "rel_l2": rel_l2(workload, outcome),
        "bit_identical": same,
        "faults": [s.to_dict() for s in outcome.strikes],
        "overhead_ratio": None if overhead is None else overhead.ratio,
        "fingerprint": outcome.fingerprint or None,
        "seconds": outcome.seconds,
        "warm_seconds": outcome.warm_seconds,
        "compiles": outcome.compiles,
        "rewarm_compiles": outcome.rewarm_compiles,
        "counts": outcome.counts,
    }
    if clean is not None and outcome.stopped is None:
        out["largest_difference"] = difference(outcome.state, clean.state)
    if overhead is not None:
        out |= overhead.to_dict()
    if outcome.stopped is not None:
        out["stopped"] = str(outcome.stopped)
        out["resume"] = outcome.stopped.resume
    return out


def fault_table(console: Console, said: dict[str, Any]) -> None:
    """The faults, one line each."""
    if not said["faults"]:
        return
    table = Table(title="What struck, and what became of it", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name, justify in (
        ("fault", "left"), ("slot", "right"), ("step", "right"), ("noticed", "right"), ("action", "left"),
        ("exact", "left"), ("seconds", "right"), ("compiles", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    words = {True: "yes", False: "[red]NO[/red]", None: "-"}
    for f in said["faults"]:
        seconds = "-" if f["seconds"] is None else f"{f['seconds']:.4f}"
        if f["waited"] > 0.01:
            seconds += f" ({f['waited']:.1f} wait)"
        table.add_row(
            f["label"], str(f["slot"]), str(f["step"]), "-" if f["noticed_step"] is None else str(f["noticed_step"]),
            f["action"] or "[red]missed[/red]", words[f["bit_exact"]], seconds,
            "-" if f["compiles"] is None else str(f["compiles"]),
        )  # fmt: skip
    console.print(table)


def summary(console: Console, said: dict[str, Any]) -> None:
    """The verdict in a few lines."""
    if said["rel_l2"] is not None:
        console.print(f"relative L2 error against the exact solution: {said['rel_l2']:.2e}")
    if said["bit_identical"] is not None:
        if said["bit_identical"]:
            console.print("[green]final state equals the clean run's, bit for bit[/green]")
        else:
            console.print(
                f"final state equals the clean run's to rounding only: "
                f"largest difference {said['largest_difference']:.1e}"
            )
    if said["overhead_ratio"] is not None:
        console.print(
            f"kept / unguarded time: {said['overhead_ratio']:.3f} "
            f"({said['overhead_steps']} steps, {said['overhead_snapshots']} snapshots)"
        )
    if said.get("held_out_loss") is not None:
        console.print(
            f"loss {said['losses'][0]:.3f} -> {said['losses'][-1]:.3f}, held out {said['held_out_loss']:.3f} nats a "
            f"token; matrix products checked: {said['products']['mode']}",
            soft_wrap=True,
        )
    if said.get("stopped"):
        console.print(f"[red]stopped:[/red] {said['stopped']}")


def kept_promises(said: dict[str, Any]) -> list[str]:
    """What a demo promised and did not keep; empty if all is well."""
    broken = []
    if said["bit_identical"] is False:
        broken.append("the final state differs from the clean run's")
    if said["rel_l2"] is not None and said["rel_l2"] > 1e-3:
        broken.append(f"the relative L2 error is {said['rel_l2']:.1e}, above 1e-3")
    for f in said["faults"]:
        name = f"{f['label']} at step {f['step']}"
        if f["noticed_step"] != f["step"]:
            broken.append(f"{name} was noticed at step {f['noticed_step']}")
        if f["bit_exact"] is not True:
            broken.append(f"{name} was not mended bit for bit")
        if f["compiles"]:
            broken.append(f"{name} cost {f['compiles']} compilations")
    return broken
