"""`poise status`: what happened in a run, from its journal."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from ..control import read_journal, replay
from ..errors import BadInput
from ..events import Event, Mended, Noticed, Swapped, to_dict
from ._output import check_json, console, write_json


def status(journal: Path, json: str | None) -> int:
    """Print the newest run's registry and incidents."""
    check_json(json)
    runs: dict[int, list[Event]] = defaultdict(list)
    for number, event in read_journal(journal):
        runs[number].append(event)
    if not runs:
        raise BadInput(f"The journal {journal} holds no events yet.")
    last = max(runs)
    events = runs[last]
    registry = replay(events)
    ok, why = registry.survivable
    said: dict[str, Any] = {
        "journal": str(journal),
        "run": last,
        "runs": len(runs),
        "job": registry.job,
        "status": registry.status,
        "step": registry.step,
        "registry": {
            "devices": {str(d): s.value for d, s in registry.devices.items()},
            "slots": list(registry.slots),
            "spares": list(registry.spares),
            "routes": {str(a): b for a, b in registry.routes.items()},
            "memory_faults": {str(d): n for d, n in registry.faults.items()},
        },
        "noticed": registry.noticed,
        "mended": registry.mended,
        "dropped": registry.dropped,
        "next_failure_survivable": ok,
        "why": why,
        "incidents": incidents(events),
    }
    write_json(said, json)
    show = console(json)
    show.print(f"{registry.job}: {registry.status} at step {registry.step} (run {last} of {len(runs)} in {journal})")
    show.print(f"next failure survivable: {'yes' if ok else 'no'}, {why}")
    devices = Table("device", "state", "slot", "replaced by", "memory faults", title="Devices", title_justify="left")
    for device, state in sorted(registry.devices.items()):
        slot = registry.slots.index(device) if device in registry.slots else None
        devices.add_row(
            str(device), state.value, "-" if slot is None else str(slot), str(registry.routes.get(device, "-")),
            str(registry.faults.get(device, 0)),
        )  # fmt: skip
    show.print(devices)
    if said["incidents"]:
        table = Table("at", "step", "what", "where", "action", "seconds", title="Incidents", title_justify="left")
        for i in said["incidents"]:
            at = datetime.fromtimestamp(i["at"]).strftime("%H:%M:%S")
            seconds = "open" if i["seconds"] is None else f"{i['seconds']:.4f}"
            table.add_row(at, str(i["step"]), i["kind"], i["where"], i["action"], seconds)
        show.print(table)
    return 0


def incidents(events: list[Event]) -> list[dict[str, Any]]:
    """Faults with what was done about them; `seconds` is None while one is open."""
    out: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, Noticed):
            fault = event.fault
            out.append(
                {
                    "at": event.at, "step": fault.step, "kind": fault.kind, "where": fault.where,
                    "devices": list(fault.device_ids), "action": event.action.value, "reason": event.reason,
                    "blocks": event.blocks, "seconds": None, "compiles": None, "replayed": None, "swap": None,
                }
            )  # fmt: skip
        elif isinstance(event, Swapped) and out:
            out[-1]["swap"] = to_dict(event)
        elif isinstance(event, Mended):
            for i in out:
                if i["seconds"] is None and i["step"] <= event.fault.step:
                    i |= {"seconds": event.seconds, "compiles": event.compiles, "replayed": event.replayed}
    return out
