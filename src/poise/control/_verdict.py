"""How a run is, in one word and one sentence: the same on the page, in the metrics and in the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._registry import State
from ._summary import Summary

WORDS = ("well", "finished", "mending", "paused", "degraded", "unprotected", "silent", "stopped", "empty")
"""All verdicts; what they mean stands in `verdict`."""

SILENT_AFTER = 60.0
"""Seconds without a step after which a run that is not finished counts as silent, where nothing else is known."""


@dataclass(frozen=True)
class Verdict:
    """`word` is one of `WORDS`; `good` says whether a person may go on sleeping."""

    word: str
    sentence: str
    good: bool


def silent_after(s: Summary) -> float:
    """Seconds without a sign of life that are too many for this run: a hundred of its own steps, and never less than a
    minute."""
    return max(SILENT_AFTER, 100.0 / s.rate if s.rate > 0 else 0.0)


def verdict(s: Summary, now: float) -> Verdict:
    """How the run is at the time `now`. The worst that is true is said."""
    r = s.registry
    if not s.last or r.status == "idle":
        return Verdict("empty", "No run has begun.", True)
    if r.status.startswith("stopped"):
        why = r.status.removeprefix("stopped").lstrip(": ")
        return Verdict("stopped", f"Stopped at step {r.step}: {why}", False)
    if r.status == "finished":
        return Verdict("finished", f"Finished at step {r.step}; {_count(r.noticed, 'fault')}, all mended.", True)
    ok, why = r.survivable
    if s.pages:
        return Verdict("degraded", f"A person is needed: {next(iter(s.pages.values()))}", False)
    if r.status == "paused":
        return Verdict("paused", f"Paused at step {r.step} by an operator.", True)
    age = now - max(s.moved, s.at)
    if age > silent_after(s):
        return Verdict("silent", f"No sign of life for {seconds(age)}; the last known step is {r.step}.", False)
    if s.open:
        i = s.open[-1]
        return Verdict("mending", f"Mending {i.kind} at step {i.step}: {i.action}.", True)
    bad = [d for d in r.slots if r.devices[d] is not State.HEALTHY]
    if bad:
        names = ", ".join(f"{d} ({r.devices[d].value})" for d in bad)
        return Verdict("degraded", f"Running at step {r.step} with device {names}.", ok)
    if not ok:
        return Verdict("unprotected", f"Running at step {r.step}, but the next loss of a device ends it: {why}.", False)
    return Verdict("well", f"Running at step {r.step}; the next failure is survivable ({why}).", True)


def goodput(s: Summary, now: float) -> tuple[float | None, float]:
    """The share of the elapsed seconds that was not lost, and those seconds. None before anything has elapsed."""
    alive = s.registry.status in ("running", "paused") and now - max(s.moved, s.at) <= silent_after(s)
    until = max(now, s.at) if alive else s.at
    elapsed = max(0.0, until - s.begun)
    lost = sum(s.lost.values()) + (max(0.0, until - s.paused) if s.paused is not None else 0.0)
    return (max(0.0, 1.0 - lost / elapsed) if elapsed > 0 else None), elapsed


def seconds(value: float) -> str:
    """A duration as people say it."""
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    minutes, hours, days = value / 60, value / 3600, value / 86400
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.1f} h" if hours < 48 else f"{days:.1f} days"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def report(s: Summary, now: float) -> dict[str, Any]:
    """All of it as JSON: what `poise status --json` and `/api/v1/status` say."""
    r, how = s.registry, verdict(s, now)
    ok, why = r.survivable
    share, elapsed = goodput(s, now)
    return {
        "run": s.run,
        "job": r.job,
        "status": r.status,
        "verdict": {"word": how.word, "sentence": how.sentence, "good": how.good},
        "step": r.step,
        "progress_age_seconds": max(0.0, now - s.moved) if s.moved else None,
        "steps_per_second": s.rate,
        "goodput_ratio": share,
        "elapsed_seconds": elapsed,
        "lost_seconds": s.lost,
        "registry": {
            "devices": {str(d): state.value for d, state in r.devices.items()},
            "slots": list(r.slots),
            "spares": list(r.spares),
            "routes": {str(a): b for a, b in r.routes.items()},
            "memory_faults": {str(d): n for d, n in r.faults.items()},
            "orders": list(r.orders),
        },
        "noticed": r.noticed,
        "mended": r.mended,
        "dropped": r.dropped,
        "skip_streak": streak(s),
        "next_failure_survivable": ok,
        "why": why,
        "warm": s.warm,
        "snapshot": s.snapshot,
        "snapshots_refused": s.refused,
        "protection": s.protection,
        "blocks": s.blocks,
        "gates": s.gates,
        "channels": s.channels,
        "channels_unlisted": s.unlisted,
        "hardware": s.hardware,
        "verdicts": s.verdicts,
        "swaps": s.swaps,
        "pages": s.pages,
        "open": [i.to_dict() for i in s.open],
        "last_event": s.last,
        "last_event_at": s.at or None,
    }


def streak(s: Summary) -> int:
    """Batches dropped in a row, up to the present step."""
    return s.streak if s.registry.step <= s.dropped_at + 1 else 0
