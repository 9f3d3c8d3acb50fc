"""The demo's picture: the field, its error, and the fault timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import need

COLOURS = {"repair": "#2a9d8f", "retry": "#e9c46a", "drain": "#457b9d", "swap": "#1d3557", "rollback": "#e76f51"}


def demo_picture(workload: Any, said: dict[str, Any], state: Any, path: Path) -> None:
    """Write the picture as PNG. Raises `Missing` without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise need("matplotlib", "cli") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    uv = np.asarray(state["uv"], np.float64)
    error = np.abs(uv - workload.exact(workload.t_end))
    fig = plt.figure(figsize=(11, 7), layout="constrained")
    parts: Any = fig.subfigures(2, 1, height_ratios=(1.5, 1))
    top, bottom = parts
    axes = top.subplots(1, 2)
    for ax, values, title, cmap in (
        (axes[0], uv[0], f"u at t = {workload.t_end:g}, after {len(said['faults'])} faults", "viridis"),
        (axes[1], error.max(0), f"error against the exact solution (relative L2 {said['rel_l2']:.1e})", "magma"),
    ):
        image = ax.imshow(values.T, origin="lower", extent=(0, 1, 0, 1), cmap=cmap)
        ax.set(title=title, xlabel="x", ylabel="y")
        top.colorbar(image, ax=ax, shrink=0.85)
    ax = bottom.subplots()
    ax.set(xlim=(0, said["steps"]), xlabel="step", yticks=range(said["active"]), ylabel="slot",
           ylim=(-0.7, said["active"] - 0.1))  # fmt: skip
    same = "equals the clean run's, bit for bit" if said["bit_identical"] else "differs from the clean run's"
    ax.set_title(f"Faults by slot and step: noticed in the same step, mended; the final state {same}")
    used: set[str] = set()
    for i, f in enumerate(said["faults"]):
        action = f["action"] or "missed"
        ax.plot(f["step"], f["slot"], "o", color=COLOURS.get(action, "red"), markersize=9,
                label=None if action in used else action)  # fmt: skip
        used.add(action)
        ax.annotate(f["label"], (f["step"], f["slot"]), xytext=(0, 8 if i % 2 else -14), textcoords="offset points",
                    fontsize=7, ha="center")  # fmt: skip
    ax.legend(loc="center right", frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=110)
    plt.close(fig)
