"""From a view to what the templates show: plain values, in the order of the page."""

from __future__ import annotations

import time
from typing import Any

from .._incident import PHASES, Incident
from .._registry import IN_SLOT, State
from .._summary import Summary
from .._verdict import goodput, seconds, streak, verdict
from ._live import View

MANY = 64
"""Devices up to which every one has a tile on the first page."""

WORDS = {
    "nan": "NaN", "inf": "infinity", "overflow": "overflow", "marker": "marker value", "state": "bad next state",
    "memory": "damaged memory", "tag": "step tag", "replicas": "replicas differ", "split": "devices disagree",
    "raised": "backend error", "drain": "device drained", "lost": "device lost", "warm-up": "warm-up", "pause": "pause",
}  # fmt: skip
"""Kinds of fault as the page says them; other kinds are shown as they are."""


def size(n: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if n < 1024 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def context(view: View, now: float | None = None) -> dict[str, Any]:
    """All that the page shows."""
    now = time.time() if now is None else now
    s = view.summary
    r = s.registry
    share, elapsed = goodput(s, now)
    ok, why = r.survivable
    return {
        "s": s,
        "r": r,
        "now": now,
        "verdict": verdict(s, now),
        "governed": view.governed,
        "running": r.status in ("running", "paused"),
        "goodput": share,
        "elapsed": elapsed,
        "lost": sorted(s.lost.items(), key=lambda item: -item[1]),
        "spark": spark(s.rates),
        "devices": devices(s),
        "survivable": ok,
        "why": why,
        "streak": streak(s),
        "channels": sorted(s.channels.values(), key=lambda c: (c["state"] != "failing", c["node"], c["channel"])),
        "hardware": [(d, h) for d, h in s.hardware.items() if d != "-"],
        "unwatched": s.hardware.get("-", {}).get("last"),
        "incidents": [incident(i) for i in view.incidents],
        "events": [told(e) for e in view.events],
    }


def devices(s: Summary) -> dict[str, Any]:
    """Tiles for the devices: those in slots, in slot order, then the others."""
    r = s.registry
    orders = {o.device_id: o for o in r.orders.values() if o.device_id >= 0}

    def tile(device: int) -> dict[str, Any]:
        state = r.devices.get(device, State.HEALTHY)
        in_slot = device in r.slots
        order = orders.get(device)
        role = f"slot {r.slots.index(device)}" if in_slot else "spare" if state is State.SPARE else "out"
        return {
            "id": device,
            "state": state.value,
            "role": "put aside" if state is State.RESERVED else role,
            "in_slot": in_slot,
            "reason": s.reasons.get(str(device), "") if state not in (State.HEALTHY, State.SPARE) else "",
            "by": r.routes.get(device),
            "faults": r.faults.get(device, 0),
            "order": f"{order.action.value} ordered" if order else "",
            "movable": (state in IN_SLOT or state is State.SPARE) and order is None,
        }

    slots = [tile(d) for d in r.slots]
    others = [tile(d) for d in r.devices if d not in r.slots]
    others.sort(key=lambda t: ("spare", "reserved", "failed", "retired").index(t["state"]))
    if len(slots) + len(others) > MANY:
        well = [t for t in slots if t["state"] == "healthy"]
        waiting = [t for t in others if t["state"] == "spare"]
        rest = [t for t in (*slots, *others) if t not in well and t not in waiting]
        return {
            "slots": rest[:MANY],
            "others": [],
            "well": len(well),
            "waiting": len(waiting),
            "hidden": len(rest[MANY:]),
        }
    return {"slots": slots, "others": others, "well": 0, "waiting": 0, "hidden": 0}


def spark(rates: list[float]) -> str:
    """The step rate as points of a polyline in a box of 300 by 48."""
    if len(rates) < 2:
        return ""
    top = max(rates) or 1.0
    step = 300 / (len(rates) - 1)
    return " ".join(f"{i * step:.1f},{46 - 44 * rate / top:.1f}" for i, rate in enumerate(rates))


def incident(i: Incident) -> dict[str, Any]:
    """An incident with its phases as parts of a bar 240 wide."""
    total = sum(i.phases.get(p, 0.0) for p in PHASES)
    bar, x = [], 0.0
    for phase in PHASES:
        took = i.phases.get(phase, 0.0)
        if took > 0 and total > 0:
            width = 240 * took / total
            bar.append({"phase": phase, "x": round(x, 1), "width": round(width, 1), "seconds": took})
            x += width
    shown = {**i.to_dict(), "bar": bar, "word": WORDS.get(i.kind, i.kind)}
    shown["devices"] = ", ".join(map(str, i.devices)) or "-"
    return shown


def told(event: dict[str, Any]) -> dict[str, Any]:
    """One event of any kind, known or not, in a line: its fields as they are, long ones cut."""
    said = []
    for key, value in flat(event["fields"]):
        if value in ("", None, [], {}, -1):
            continue
        word = f"{value:.6g}" if isinstance(value, float) else str(value)
        said.append((key, word if len(word) <= 160 else word[:157] + "..."))
    return {"id": event["id"], "at": event["at"], "kind": event["kind"], "said": said}


def flat(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Fields with what is nested put beside what holds it."""
    out: list[tuple[str, Any]] = []
    for key, value in fields.items():
        if isinstance(value, dict):
            out += [(f"{key}.{k}" if key != "fault" else k, v) for k, v in value.items()]
        elif isinstance(value, list):
            out.append((key, ", ".join(map(str, value))))
        else:
            out.append((key, value))
    return out


FILTERS = {"seconds": seconds, "size": size, "word": lambda kind: WORDS.get(kind, kind)}
