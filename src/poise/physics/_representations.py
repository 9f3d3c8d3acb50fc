"""The solvers' ways of holding a solution, and how each is written to a file and read back."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np

from poise.errors import BadInput

from . import features
from ._precision import in_double
from ._solution import Orders
from .collocation._rows import Trial
from .elements._heat import unpack_transformed
from .elements._nodal import unpack_nodal
from .evolve._layer import unpack_drawn
from .evolve._snapshots import unpack_snapshots
from .galerkin._tensor import unpack_tensor
from .grid._solve import unpack_gridded

CHUNK = 4096
"""Points evaluated at a time, so that evaluation needs no more memory than a solve."""


@dataclass(frozen=True, eq=False)
class Collocated:
    """Features and coefficients."""

    trial: Trial
    theta: np.ndarray
    axes: tuple[str, ...]

    @in_double
    def value(self, name: str, points: np.ndarray, order: Orders) -> np.ndarray:
        made = [np.zeros(0)]
        own = self.trial.families[name][0].axes
        mine = tuple(k for axis, k in zip(self.axes, order, strict=True) if axis in own)
        if sum(mine) != sum(order):
            return np.zeros(len(points))
        for start in range(0, len(points), CHUNK):
            part = points[start : start + CHUNK]
            env = {axis: jnp.asarray(part[:, i]) for i, axis in enumerate(self.axes)}
            made.append(np.asarray(self.trial.value((name, mine), env, jnp.asarray(self.theta))))
        return np.concatenate(made)

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays: dict[str, np.ndarray] = {"theta": self.theta}
        described: dict[str, list[dict[str, Any]]] = {}
        for name, group in self.trial.families.items():
            described[name] = []
            for i, family in enumerate(group):
                entry: dict[str, Any] = {"family": type(family).__name__}
                for part in fields(family):  # type: ignore[arg-type]
                    value = getattr(family, part.name)
                    if isinstance(value, np.ndarray):
                        arrays[f"{name}.{i}.{part.name}"] = value
                    else:
                        entry[part.name] = value
                described[name].append(entry)
        return {"kind": "collocated", "axes": list(self.axes), "families": described}, arrays


def _collocated(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Collocated:
    groups: dict[str, tuple[Any, ...]] = {}
    for name, entries in meta["families"].items():
        made = []
        for i, entry in enumerate(entries):
            plain = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items() if k != "family"}
            prefix = f"{name}.{i}."
            stored = {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}
            made.append(getattr(features, entry["family"])(**plain, **stored))
        groups[name] = tuple(made)
    return Collocated(Trial(groups), arrays["theta"], tuple(meta["axes"]))


def unpack(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The representation that `pack` described."""
    makers: dict[str, Any] = {
        "collocated": _collocated,
        "snapshots": unpack_snapshots,
        "drawn": unpack_drawn,
        "tensor": unpack_tensor,
        "gridded": unpack_gridded,
        "nodal": unpack_nodal,
        "transformed": unpack_transformed,
    }
    if meta.get("kind") not in makers:
        raise BadInput(f"This file holds a solution of the kind {meta.get('kind')!r}, which this version cannot read.")
    return makers[meta["kind"]](meta, arrays)
