"""A solution on spectral elements: values at the nodes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._mesh import Mesh
from ._space import Places, Space, locate


class _Last:
    """The places of the points that were asked for last; fields are often evaluated at the same ones."""

    def __init__(self) -> None:
        self.points: np.ndarray | None = None
        self.places: Places | None = None

    def find(self, space: Space, points: np.ndarray) -> Places:
        if self.points is None or self.places is None or not np.array_equal(self.points, points):
            self.points, self.places = points.copy(), locate(space, points)
        return self.places


@dataclass(frozen=True, eq=False)
class Nodal:
    """`values[name]` (E, n) of a steady solution."""

    mesh: Mesh
    degree: int
    values: dict[str, np.ndarray]

    @functools.cached_property
    def space(self) -> Space:
        return Space(self.mesh, self.degree)

    @functools.cached_property
    def last(self) -> _Last:
        return _Last()

    def value(self, name: str, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        places = self.last.find(self.space, points)
        return places.value(slopes(self.space, self.values[name], order))

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays = {f"mesh.{k}": getattr(self.mesh, k) for k in Mesh.__dataclass_fields__}
        return {"kind": "nodal", "degree": self.degree}, arrays | {f"value.{k}": v for k, v in self.values.items()}


def slopes(space: Space, values: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Nodal values of a space derivative, element by element."""
    for axis, times in enumerate(order):
        for _ in range(times):
            values = space.slope(values, axis)
    return values


def stored_mesh(arrays: dict[str, np.ndarray]) -> Mesh:
    return Mesh(*(arrays[f"mesh.{k}"] for k in Mesh.__dataclass_fields__))


def unpack_nodal(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Nodal:
    values = {key[6:]: value for key, value in arrays.items() if key.startswith("value.")}
    return Nodal(stored_mesh(arrays), meta["degree"], values)
