"""What a solve returns: the solution as a function, its error estimate, how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from poise.errors import BadInput, need

from ._status import Status

Orders = tuple[int, ...]


class Representation(Protocol):
    """Coefficients that can be evaluated: one of the solvers' bases."""

    def value(self, name: str, points: np.ndarray, order: Orders) -> np.ndarray:
        """A derivative of a field at points (n, d), columns by the problem's axes: (n,)."""
        ...

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What `load` needs to make it again: JSON values and arrays."""
        ...


@dataclass(frozen=True, eq=False)
class Solution:
    """A solved problem.

    Call it with points (n, d), columns by `axes` (t last), or with one array per axis: `solution(x, y)`. The answer
    is the
    first field's values; `solution.field("v", points)` gives any field's, and `dx=1, dy=2, …` ask for derivatives.
    `error_estimate` is the estimated relative L2 error over the region (a-posteriori, without a reference solution).
    """

    axes: tuple[str, ...]
    fields: tuple[str, ...]
    representation: Representation
    status: Status
    error_estimate: float
    method: str
    points: int
    features: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    detail: dict[str, Any] = field(default_factory=dict)
    inside: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, *where: Any, **derivatives: int) -> np.ndarray:
        return self.field(self.fields[0], *where, **derivatives)

    def field(self, name: str, *where: Any, **derivatives: int) -> np.ndarray:
        """A field or its derivative: `solution.field("u", points, dx=1)`; shaped like the coordinates given."""
        if name not in self.fields:
            raise BadInput(f"The solution has the fields {', '.join(self.fields)}, not {name!r}.")
        points, shape = self._points(where)
        order = [0] * len(self.axes)
        for key, times in derivatives.items():
            axis = key[1:]
            if not key.startswith("d") or axis not in self.axes:
                known = ", ".join(f"d{axis}" for axis in self.axes)
                raise BadInput(f"{key}= is not a derivative of this solution; it has {known}.")
            order[self.axes.index(axis)] = times
        return self.representation.value(name, points, tuple(order)).reshape(shape)

    def _points(self, where: tuple[Any, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
        d = len(self.axes)
        if len(where) == 1 and d != 1:
            points = np.asarray(where[0], dtype=np.float64)
            if points.ndim != 2 or points.shape[1] != d:
                raise BadInput(f"Points need the shape (n, {d}), columns {' '.join(self.axes)}, not {points.shape}.")
            return points, points.shape[:1]
        if len(where) != d:
            raise BadInput(
                f"The solution takes points (n, {d}) or {d} arrays {', '.join(self.axes)}, not {len(where)}."
            )
        arrays = np.broadcast_arrays(*(np.asarray(w, dtype=np.float64) for w in where))
        return np.stack([a.reshape(-1) for a in arrays], axis=1), arrays[0].shape

    def save(self, path: str | Path) -> None:
        """Write the solution to one .npz file; `load` reads it back."""
        meta, arrays = self.representation.pack()
        head = {
            "axes": self.axes,
            "fields": self.fields,
            "status": self.status.value,
            "error_estimate": self.error_estimate,
            "method": self.method,
            "points": self.points,
            "features": self.features,
            "low": [float(v) for v in self.low],
            "high": [float(v) for v in self.high],
            "representation": meta,
        }
        with Path(path).open("wb") as stream:
            np.savez_compressed(stream, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)  # type: ignore[arg-type]

    def plot(self, path: str | Path | None = None, name: str | None = None, t: float | None = None) -> Any:
        """A picture of a field over the first one or two space axes (the others at their middle), at time t or the
        end."""
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise need("matplotlib", "cli") from error
        from ._plot import draw

        return draw(self, plt, path, name or self.fields[0], t)


def load(path: str | Path) -> Solution:
    """Read a solution that `Solution.save` wrote; raises `BadInput` if the file is not one."""
    from ._representations import unpack

    try:
        with np.load(path) as stored:
            arrays = {key: stored[key] for key in stored.files}
        head = json.loads(arrays.pop("head").tobytes().decode())
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{path} is not a solution saved by poise: {error}.") from error
    return Solution(
        tuple(head["axes"]),
        tuple(head["fields"]),
        unpack(head["representation"], arrays),
        Status(head["status"]),
        head["error_estimate"],
        head["method"],
        head["points"],
        head["features"],
        tuple(head["low"]),
        tuple(head["high"]),
    )
