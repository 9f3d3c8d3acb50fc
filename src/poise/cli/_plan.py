"""`poise plan`: what keeping will cost here, before anything runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
from rich.table import Table

from ..keeper._form import Form
from ..keeper._stage import choose_source
from ..keeper._step import Builder
from ._job import load_job
from ._output import check_json, console, write_json
from ._platform import cpu_devices, pool, wanted


def plan(job: str, active: int | None, spares: int | None, source: str | None, json: str | None) -> int:
    """Print the plan."""
    check_json(json)
    spec = load_job(job).with_devices(active, spares)
    if source is not None:
        spec = replace(spec, options=replace(spec.options, source=source))
    cpu_devices(wanted(spec.active, spec.spares))
    workload, devices = spec.make(), pool(spec.active, spec.spares)
    axes = workload.axes(len(devices.active))
    state = workload.init()
    form = Form.of(state, workload.state_specs(), axes, workload.traits.heal)
    placement = devices.placement(axes)
    chosen = choose_source(spec.options.source, form, devices)
    with jax.enable_x64(workload.traits.x64):
        t0 = time.perf_counter()
        made = Builder(workload, form, workload.batch(0), fused=spec.options.fused)(placement)
        seconds = time.perf_counter() - t0
    placements = 1 + len(devices.successors(axes))
    kept_bytes = form.state_bytes + form.spare_bytes
    parity = kept_bytes // len(devices.active) if chosen == "parity" else 0
    said: dict[str, Any] = {
        "job": workload.name,
        "backend": jax.default_backend(),
        "active": len(devices.active),
        "spares": len(devices.spares),
        "mesh": axes,
        "state_bytes": form.state_bytes,
        "spare_bytes": form.spare_bytes,
        "snapshot_bytes": 2 * kept_bytes,
        "parity_over_devices_bytes": parity,
        "traffic_bytes_per_step": kept_bytes if chosen == "parity" else 0,
        "source": chosen,
        "placements": placements,
        "executables": placements * (made.count + (chosen == "parity")),
        "warm_seconds_estimate": seconds * placements,
        "survivable": survivable(form, chosen, spec.options.every, len(devices.spares), spec.options.depth),
    }
    write_json(said, json)
    show = console(json)
    show.print(f"{workload.name} on {len(devices.active)} active devices {axes} and {len(devices.spares)} spares")
    mib = 2.0**20
    show.print(
        f"state {form.state_bytes / mib:.2f} MiB, spare {form.spare_bytes / mib:.2f} MiB "
        f"({100 * form.spare_bytes / max(1, form.state_bytes):.1f} %), host snapshots {2 * kept_bytes / mib:.2f} MiB"
    )
    show.print(
        f"{said['executables']} executables for {placements} placements, about {seconds * placements:.0f} s to warm"
    )
    table = Table(title="What is survivable", title_justify="left")
    for name in ("fault", "mended by", "work lost"):
        table.add_column(name)
    for row in said["survivable"]:
        table.add_row(
            row["fault"], row["by"] if row["survivable"] else f"[red]not here:[/red] {row['by']}", row["work_lost"]
        )
    show.print(table)
    return 0


def survivable(form: Form, source: str, every: int, spares: int, depth: int) -> list[dict[str, Any]]:
    """The promise table, for this run."""
    lost = {"replica": "0 steps", "parity": "0 steps", "snapshot": f"up to {every} steps, replayed"}[source]
    healed = all(not unit.parity for unit in form.plan.units)
    replay = f"{depth} steps in flight, replayed"
    rows = [
        ("bad number in a batch or a step", True, "withheld, retried with a fresh batch", replay),
        ("bit flips, up to a whole bank per device", True, "a replica" if healed else "XOR parity, in place", replay),
        ("more than parity can mend", True, "the last good snapshot", f"up to {every} steps, replayed"),
        ("suspect device that can be read", spares > 0, "a spare, by copy" if spares else "no spare", "0 steps"),
        ("device lost", spares > 0, f"a spare, from {source}" if spares else "no spare: stop, resume", lost),
        ("process lost", False, "a checkpoint; one process has no peer", "since the last snapshot file"),
    ]
    return [{"fault": f, "survivable": s, "by": b, "work_lost": w} for f, s, b, w in rows]
