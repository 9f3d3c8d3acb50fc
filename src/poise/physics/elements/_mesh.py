"""Curved elements: what lies between two faces, one of which may be part of a circle or a sphere.

An element of a mesh in d dimensions has an inner and an outer face with 2^(d-1) corners each, joined by straight lines.
Where `radius` is positive the inner face is projected from `centre` onto the circle or sphere of that radius. `low` and
`high` are the stretch of those lines that belongs to the element: rings around a hole are layers of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ._line import lobatto


@dataclass(frozen=True, eq=False)
class Mesh:
    """`outer`, `inner` (E, 2^(d-1), d), `centre` (E, d), `radius`, `low`, `high` (E,)."""

    outer: np.ndarray
    inner: np.ndarray
    centre: np.ndarray
    radius: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def dimension(self) -> int:
        return self.outer.shape[2]

    def __len__(self) -> int:
        return len(self.outer)

    def nodes(self, p: int) -> np.ndarray:
        """The Gauss-Lobatto nodes of every element: (E, (p + 1)^d, d), the last reference coordinate outward."""
        x, _ = lobatto(p)
        return self.at(np.stack(np.meshgrid(*[x] * self.dimension, indexing="ij"), axis=-1).reshape(-1, self.dimension))

    def at(self, reference: np.ndarray) -> np.ndarray:
        """Points of every element at the same reference coordinates (n, d) in [-1, 1]: (E, n, d)."""
        s = (reference + 1.0) / 2.0
        blend = np.ones((len(s), 1))
        for k in range(self.dimension - 1):
            blend = np.concatenate([blend * (1.0 - s[:, [k]]), blend * s[:, [k]]], axis=1)
        far = blend @ self.outer
        near = blend @ self.inner
        away = near - self.centre[:, None]
        length = np.linalg.norm(away, axis=2, keepdims=True)
        round_ = self.centre[:, None] + self.radius[:, None, None] * away / np.where(length > 0.0, length, 1.0)
        near = np.where(self.radius[:, None, None] > 0.0, round_, near)
        rho = self.low[:, None, None] + (self.high - self.low)[:, None, None] * s[None, :, -1:]
        return (1.0 - rho) * near + rho * far


def join(*meshes: Mesh) -> Mesh:
    """All elements of several meshes."""
    return Mesh(*(np.concatenate([getattr(m, f) for m in meshes]) for f in Mesh.__dataclass_fields__))


def layered(outer: np.ndarray, inner: np.ndarray, centre: np.ndarray, radius: float, breaks: np.ndarray) -> Mesh:
    """Elements over the faces `outer`, `inner` (F, 2^(d-1), d), one per face and stretch between two breaks."""
    f, layers = len(outer), len(breaks) - 1
    tile = lambda v: np.repeat(v, layers, axis=0)  # noqa: E731
    centres = np.broadcast_to(centre, (f, outer.shape[2]))
    return Mesh(
        tile(outer),
        tile(inner),
        tile(centres),
        np.full(f * layers, float(radius)),
        np.tile(breaks[:-1], f),
        np.tile(breaks[1:], f),
    )


def geometric(ratio: float) -> np.ndarray:
    """Breaks of layers around a hole, each about twice as far out as the one before; `ratio` outermost to innermost."""
    layers = max(1, round(np.log(ratio) / np.log(2.2)))
    grow = ratio ** (1.0 / layers)
    return (grow ** np.arange(layers + 1) - 1.0) / (grow**layers - 1.0) if layers > 1 else np.array([0.0, 1.0])


def boxes(lines: list[np.ndarray], keep: np.ndarray) -> Mesh:
    """The cells of a product grid that `keep` (n1, n2, …) marks."""
    d = len(lines)
    chosen = np.argwhere(keep)
    corner = lambda bits: np.stack([lines[i][chosen[:, i] + bits[i]] for i in range(d)], axis=1)  # noqa: E731
    faces = list(itertools.product((0, 1), repeat=d - 1))
    faces = [f[::-1] for f in faces]  # the first coordinate varies fastest
    inner = np.stack([corner((*f, 0)) for f in faces], axis=1)
    outer = np.stack([corner((*f, 1)) for f in faces], axis=1)
    n = len(chosen)
    return Mesh(outer, inner, np.zeros((n, d)), np.zeros(n), np.zeros(n), np.ones(n))
