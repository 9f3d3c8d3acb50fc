"""What a stream's run comes to: the report, its check against the example's own words, the estimate, the picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory import Subscriber
from ..physics.rules import AXES, KINDS
from ._output import dump

if TYPE_CHECKING:
    from ._stream import Following


def report(follow: Following) -> dict[str, Any]:
    """What `--json` says."""
    g, micro = follow.frames.geometry, 1e6
    p50, p99 = (float(np.percentile(follow.latency or [np.nan], q)) * micro for q in (50, 99))
    a50, a99 = (float(np.percentile(follow.ages or [np.nan], q)) * micro for q in (50, 99))
    failing = [
        {"sector": int(s), "axis": AXES[a], "kind": KINDS[follow.code[a, s]], "frame": int(follow.since[a, s])}
        for a, s in np.argwhere(follow.code)
    ]
    live = isinstance(follow.frames, Subscriber)
    return {
        "job": "stream", "source": follow.job.source, "rule": follow.job.rule, "rows": g.rows, "columns": g.columns,
        "records": g.count, "frames": follow.count, "lost": follow.frames.lost, "torn": follow.frames.torn,
        "compiles": follow.compiled, "bytes_copied": follow.follower.bytes_copied, "latency_p50_us": p50,
        "latency_p99_us": p99, "age_p50_us": a50 if live else None, "age_p99_us": a99 if live else None,
        "frames_per_s": follow.count / max(1e-9, follow.ended - follow.began),
        "device": str(follow.follower.device),
        "failing": failing, "failing_count": len(failing), "healed": follow.healed, **errors(follow), **check(follow),
        "producer": [{"kind": n.kind, "frame": n.sequence, "sentence": n.sentence} for n in follow.notices],
        "restarts": follow.frames.restarts, "stopped": follow.stopped or None,
    }  # fmt: skip


def errors(follow: Following) -> dict[str, float | None]:
    """Relative L2 errors at the last frame: of the estimate, and of what the gate alone lets through (if the readings
    are still there)."""
    exact, said = truth(follow), readings(follow)
    if exact is None or follow.job.rule != "nudge":
        return {"rel_l2": None, "rel_l2_gated": None}
    size = float(np.linalg.norm(exact))
    out: dict[str, float | None] = {
        "rel_l2": float(np.linalg.norm(np.asarray(follow.follower.state.estimate) - exact)) / size,
        "rel_l2_gated": None,
    }
    if said is not None:
        gate = follow.job.sensors.gate
        good = np.abs(said) <= gate.limit
        for marker in gate.markers:
            good &= ~(np.abs(said - marker) <= gate.tolerance)
        out["rel_l2_gated"] = float(np.linalg.norm(np.where(good, said, gate.fill) - exact)) / size
    return out


def check(follow: Following) -> dict[str, Any]:
    """Against what the example did to its sensors: how soon all were named, which were missed or wrongly named."""
    if follow.log is None:
        return {}
    used, named = np.array(follow.used or [0]), follow.first
    injected, late, missed = np.zeros(named.shape, bool), 0, 0
    for line in follow.log.read_text().splitlines():
        frame, sector, axis, _ = line.split()
        at = AXES.index(axis), int(sector)
        injected[at] = True
        if named[at]:
            late = max(late, int(((used >= int(frame)) & (used <= named[at])).sum()))
        elif int(frame) + 3 <= used[-1]:
            missed += 1
    false = int(((named > 0) & ~injected).sum())
    return {
        "injected": int(injected.sum()), "named_within_frames": late, "missed": missed, "false_alarms": false
    }  # fmt: skip


def truth(follow: Following) -> np.ndarray | None:
    """The exact field of the last frame, `(2, rows, columns)`."""
    if follow.job.truth != "wave" or follow.last is None:
        return None
    g, t = follow.frames.geometry, follow.last.time
    y, x = np.mgrid[0 : g.rows, 0 : g.columns] * np.reshape([g.dy, g.dx], (2, 1, 1))
    s = 0.25 / (1 + np.exp((4 * y - 4 * x - t) / (32 * float(follow.job.nu or 1))))
    return np.stack((0.75 - s, 0.75 + s))


def readings(follow: Following) -> np.ndarray | None:
    """What the sensors said in the last frame, if it is still there."""
    if follow.last is None:
        return None
    g = follow.frames.geometry
    records = follow.last.lease.numpy()
    said = np.stack([np.array(records[axis]) for axis in AXES]).reshape(2, g.rows, g.columns)
    return said if follow.last.intact() else None


def write(follow: Following, where: Path, said: dict[str, Any]) -> None:
    """The report, the estimate and the picture."""
    from ._stream_plot import stream_picture

    dump(said, where / "report.json")
    if follow.used and follow.job.rule == "nudge":
        estimate = np.asarray(follow.follower.state.estimate)
        g = follow.frames.geometry
        np.savez(where / "estimate.npz", u=estimate[0], v=estimate[1], dx=g.dx, dy=g.dy, frame=follow.used[-1])
    if follow.used:
        stream_picture(follow, said, truth(follow), readings(follow), where / "stream.png")


def summary(show: Any, said: dict[str, Any]) -> None:
    """A few lines for a person."""
    show.print(
        f"{said['frames']} frames of {said['records']} records, {said['lost']} lost, {said['torn']} torn; "
        f"{said['compiles']} compilations, {said['bytes_copied']} bytes copied",
        soft_wrap=True,
    )
    show.print(
        f"step latency p50 {said['latency_p50_us']:.0f} µs, p99 {said['latency_p99_us']:.0f} µs on {said['device']}; "
        f"{said['failing_count']} sensors failing, {said['healed']} recovered",
        soft_wrap=True,
    )
    if said["rel_l2"] is not None:
        gated = said["rel_l2_gated"]
        beside = "" if gated is None else f"; the gated readings alone {gated:.2e}"
        show.print(f"relative L2 error {said['rel_l2']:.2e}{beside}", soft_wrap=True)
    if "injected" in said:
        show.print(
            f"{said['injected']} sensors were broken on command: named within {said['named_within_frames']} frames, "
            f"{said['missed']} missed, {said['false_alarms']} falsely named",
            soft_wrap=True,
        )
    for n in said["producer"]:
        show.print(f"producer: {n['sentence']}", soft_wrap=True)
