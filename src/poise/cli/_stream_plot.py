"""A stream's picture: the truth, what the sensors said, the estimate, and how long a step took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import need

if TYPE_CHECKING:
    from ._stream import Following


def stream_picture(
    follow: Following, said: dict[str, Any], exact: np.ndarray | None, readings: np.ndarray | None, path: Path
) -> None:
    """Write the picture as PNG. Raises `Missing` without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise need("matplotlib", "cli") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    state: Any = follow.follower.state
    shown = state.estimate[0] if hasattr(state, "estimate") else state.output
    estimate = np.asarray(shown)
    panels: list[tuple[str, np.ndarray]] = []
    if exact is not None:
        panels.append(("truth: u", exact[0]))
    if readings is not None:
        count = int((follow.code[0] != 0).sum())
        panels.append((f"what the sensors said ({count} of {follow.code[0].size} fail)", readings[0]))
    error = said["rel_l2"]
    title = "estimate" if hasattr(state, "estimate") else "output of the curl inversion"
    panels.append((title + ("" if error is None else f" (relative L2 error {error:.1e})"), estimate))
    fig = plt.figure(figsize=(4 * len(panels), 6.2), layout="constrained")
    parts: Any = fig.subfigures(2, 1, height_ratios=(2, 1))
    axes = np.atleast_1d(parts[0].subplots(1, len(panels)))
    base = exact[0] if exact is not None else estimate
    low, high = float(np.nanmin(base)) - 0.03, float(np.nanmax(base)) + 0.03
    colours = plt.get_cmap("viridis").with_extremes(bad="black", under="#d62828", over="#f77f00")
    image = None
    for ax, (name, values) in zip(axes, panels, strict=True):
        image = ax.imshow(
            np.ma.masked_invalid(values), origin="lower", cmap=colours, vmin=low, vmax=high, aspect="auto"
        )
        ax.set(title=name, xlabel="column", ylabel="row")
        ax.title.set_fontsize(9)
    if image is not None:
        parts[0].colorbar(image, ax=list(axes), shrink=0.8, extend="both", label="black: NaN")
    ax = parts[1].subplots()
    ax.plot(follow.used, np.array(follow.latency) * 1e6, linewidth=0.6)
    ax.set(xlabel="frame", ylabel="step latency (µs)", yscale="log")
    ax.set_title(
        f"{said['frames']} frames, {said['lost']} lost, {said['torn']} torn, {said['bytes_copied']} bytes copied; p50 "
        f"{said['latency_p50_us']:.0f} µs, p99 {said['latency_p99_us']:.0f} µs", fontsize=9,
    )  # fmt: skip
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=110)
    plt.close(fig)
