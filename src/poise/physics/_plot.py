"""Small pictures of solutions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ._solution import Solution


def draw(solution: Solution, plt: Any, path: str | Path | None, name: str, t: float | None) -> Any:
    """A line over one axis or a colour map over two; returns the figure, and writes it where `path` says."""
    axes = list(solution.axes)
    middle = [(lo + hi) / 2.0 for lo, hi in zip(solution.low, solution.high, strict=True)]
    space = [axis for axis in axes if axis != "t"]
    if "t" in axes:
        middle[axes.index("t")] = solution.high[axes.index("t")] if t is None else t
    shown = space[:2] if len(space) > 1 else ([*space, "t"] if "t" in axes and t is None else space)
    lines = [np.linspace(solution.low[axes.index(a)], solution.high[axes.index(a)], 161) for a in shown]
    grid = np.meshgrid(*lines, indexing="ij")
    points = np.tile(np.array(middle), (grid[0].size, 1))
    for axis, values in zip(shown, grid, strict=True):
        points[:, axes.index(axis)] = values.reshape(-1)
    values = solution.field(name, points).reshape(grid[0].shape)
    if solution.inside is not None:
        values = np.where(solution.inside(points).reshape(values.shape), values, np.nan)
    figure, axis = plt.subplots(figsize=(3.6, 2.9), layout="constrained")
    if len(shown) == 1:
        axis.plot(lines[0], values)
        axis.set_ylabel(name)
    else:
        image = axis.pcolormesh(lines[0], lines[1], values.T, shading="gouraud", rasterized=True)
        figure.colorbar(image, ax=axis, label=name)
        axis.set_ylabel(shown[1])
    axis.set_xlabel(shown[0])
    if path is not None:
        figure.savefig(path, dpi=75)
        plt.close(figure)
    return figure
