"""`poise status`: how a run is and what happened in it, from its journal; the verdict is the page's own."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..control._changes import Changes
from ..control._incident import Incident
from ..control._read import Reader
from ..control._verdict import report, seconds
from ..errors import BadInput
from ._output import check_json, console, write_json

COLOURS = {"well": "green", "finished": "green", "mending": "yellow", "paused": "yellow", "degraded": "yellow"}
"""Of the verdict; the others are red."""

LATE = 5.0
"""Seconds after which a watched run is looked at without having been told, so that its silence shows."""


def status(journal: Path, watch: bool, json: str | None) -> int:
    """Print the newest run's verdict, registry and incidents; with `watch`, go on until the run ends."""
    check_json(json)
    reader = Reader(journal)
    if not reader.summary.last:
        raise BadInput(f"The journal {journal} holds no events yet.")
    show = console(json)
    if watch:
        _follow(reader, show)
    said = _said(reader)
    write_json(said, json)
    if not watch:
        show.print(_shown(said))
    return 0


def _follow(reader: Reader, show: Console) -> None:
    with Changes(reader.path) as changes, Live(_shown(_said(reader)), console=show, auto_refresh=False) as live:
        while reader.summary.registry.status in ("idle", "running", "paused"):
            changes.changed(LATE)
            reader.refresh()
            live.update(_shown(_said(reader)), refresh=True)


def _said(reader: Reader) -> dict[str, Any]:
    found = report(reader.summary, time.time())
    incidents = [_incident(i) for i in reversed(reader.incidents(1000))]
    return {"journal": str(reader.path), "runs": len(reader.runs()), **found, "incidents": incidents}


def _incident(i: Incident) -> dict[str, Any]:
    return {**i.to_dict(), "at": i.opened, "swap": i.swaps[-1] if i.swaps else None}


def _shown(said: dict[str, Any]) -> RenderableType:
    word = said["verdict"]["word"]
    head = Text.assemble(
        (word, f"bold {COLOURS.get(word, 'red')}"), f"  {said['verdict']['sentence']}\n",
        f"{said['job'] or 'no job'}: run {said['run']} of {said['runs']} in {said['journal']}",
    )  # fmt: skip
    share = said["goodput_ratio"]
    if share is not None:
        head.append(f"; goodput {100 * share:.1f} % of {seconds(said['elapsed_seconds'])}")
    ok = "yes" if said["next_failure_survivable"] else "no"
    head.append(f"\nnext failure survivable: {ok}, {said['why']}")
    registry = said["registry"]
    devices = Table("device", "state", "slot", "replaced by", "memory faults", title="Devices", title_justify="left")
    for device, state in sorted(registry["devices"].items(), key=lambda item: int(item[0])):
        slots = registry["slots"]
        slot = str(slots.index(int(device))) if int(device) in slots else "-"
        by, faults = registry["routes"].get(device, "-"), registry["memory_faults"].get(device, 0)
        devices.add_row(device, state, slot, str(by), str(faults))
    parts: list[RenderableType] = [head, devices]
    if said["pages"]:
        parts.append(Text("\n".join(f"needs a person: {reason}" for reason in said["pages"].values()), "bold red"))
    if said["incidents"]:
        table = Table(
            "at", "step", "what", "where", "action", "whose fault", "seconds", title="Incidents", title_justify="left"
        )
        for i in said["incidents"][-30:]:
            took = i["outcome"] or "open" if i["seconds"] is None else f"{i['seconds']:.4f}"
            at = datetime.fromtimestamp(i["at"]).strftime("%H:%M:%S")
            table.add_row(at, str(i["step"]), i["kind"], i["where"], i["action"], i["verdict"], took)
        parts.append(table)
    return Group(*parts)
