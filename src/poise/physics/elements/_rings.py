"""Meshes around round holes: the power diagram gives each its own cell, and a cell is a ring of curved elements.

The separating line (plane) of two disjoint discs (balls) is where their powers |x - c|^2 - r^2 agree, and lies between
them (Aurenhammer 1987); cells meet face to face, so the elements conform, for any number and arrangement of holes. A
disc that is filled (another material, not a hole) gets a core of kites besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ._mesh import Mesh, geometric, join, layered

Round = tuple[tuple[float, ...], float]
"""Centre and radius."""
WIDEST = math.radians(50.0)
"""The largest angle that one element takes up around a hole."""


def _halfspaces(rounds: Sequence[Round], i: int) -> list[tuple[np.ndarray, float]]:
    """The cell of hole i as n . x <= c."""
    (ci, ri) = rounds[i]
    here = np.array(ci)
    made = []
    for j, (cj, rj) in enumerate(rounds):
        if j != i:
            there = np.array(cj)
            offset = (there @ there - rj**2 - here @ here + ri**2) / 2.0
            made.append((there - here, float(offset)))
    return made


def _clip_polygon(points: np.ndarray, n: np.ndarray, c: float) -> np.ndarray:
    side = points @ n - c
    tiny = 1e-11 * (1.0 + abs(c))
    made = []
    for k in range(len(points)):
        a, b = points[k], points[(k + 1) % len(points)]
        sa, sb = side[k], side[(k + 1) % len(points)]
        if sa <= tiny:
            made.append(a)
        if (sa < -tiny and sb > tiny) or (sa > tiny and sb < -tiny):
            made.append(a + (b - a) * sa / (sa - sb))
    return np.array(made)


def _tidy(points: np.ndarray) -> np.ndarray:
    """Without repeated corners."""
    scale = float(np.max(np.abs(points))) + 1.0
    far = np.linalg.norm(points - np.roll(points, 1, axis=0), axis=1) > 1e-9 * scale
    return points[far]


def plane(outline: np.ndarray, discs: Sequence[Round], filled: Sequence[bool], size: float) -> Mesh:
    """Quadrilaterals of at most about `size` in a convex polygon (k, 2) around discs, inside those that are filled."""
    cells = []
    for i in range(len(discs)):
        cell = outline
        for n, c in _halfspaces(discs, i):
            cell = _clip_polygon(cell, n, c)
        cells.append(_tidy(cell))
    pieces: dict[tuple[float, ...], int] = {}
    for (c, _), cell, full in zip(discs, cells, filled, strict=True):
        for a, b in zip(cell, np.roll(cell, -1, axis=0), strict=True):
            pa, pb = a - c, b - c
            angle = math.acos(max(-1.0, min(1.0, float(pa @ pb) / float(np.linalg.norm(pa) * np.linalg.norm(pb)))))
            need = max(1, math.ceil(angle / WIDEST - 1e-9), math.ceil(float(np.linalg.norm(b - a)) / size - 1e-9))
            key = _key(a, b)
            pieces[key] = max(pieces.get(key, 1), 2 * math.ceil(need / 2) if full else need)
            if full and pieces[key] % 2:
                pieces[key] += 1
    made = []
    for (c, r), cell, full in zip(discs, cells, filled, strict=True):
        centre = np.array(c)
        edges = []
        for a, b in zip(cell, np.roll(cell, -1, axis=0), strict=True):
            count = pieces[_key(a, b)]
            s = np.arange(count + 1)[:, None] / count
            line = a + s * (b - a)
            edges.append(np.stack([line[:-1], line[1:]], axis=1))
        faces = np.concatenate(edges)
        ratio = float(np.median(np.linalg.norm(faces[:, 0] - centre, axis=1))) / r
        made.append(layered(faces, faces, centre, r, geometric(ratio)))
        if full:
            made.append(_filling(faces, centre, r))
    return join(*made)


def _key(a: np.ndarray, b: np.ndarray) -> tuple[float, ...]:
    low, high = sorted([tuple(np.round(a, 8) + 0.0), tuple(np.round(b, 8) + 0.0)])
    return (*low, *high)


def _filling(faces: np.ndarray, centre: np.ndarray, r: float) -> Mesh:
    """A disc under the arcs of its ring: a ring down to a polygon of half the radius, and kites in the polygon.

    Every second corner of the arcs is a corner of the polygon, the others are the middles of its sides.
    """
    away = faces[:, 0] - centre
    on = centre + 0.5 * r * away / np.linalg.norm(away, axis=1, keepdims=True)
    corners = on[::2]
    middles = (corners + np.roll(corners, -1, axis=0)) / 2.0
    ring = np.empty_like(on)
    ring[::2], ring[1::2] = corners, middles
    inner = np.stack([ring, np.roll(ring, -1, axis=0)], axis=1)
    band = layered(inner, faces, centre, r, np.array([0.0, 1.0]))
    before = np.roll(middles, 1, axis=0)
    heart = np.broadcast_to(centre, corners.shape)
    low, high = np.stack([heart, before], axis=1), np.stack([middles, corners], axis=1)
    return join(band, layered(high, low, centre, 0.0, np.array([0.0, 1.0])))


def _clip_polyhedron(faces: list[np.ndarray], n: np.ndarray, c: float) -> list[np.ndarray]:
    """A convex polyhedron, a list of polygons (k, 3), cut by n . x <= c."""
    made, rim = [], []
    tiny = 1e-10 * (1.0 + abs(c))
    for face in faces:
        kept = _clip_polygon(face, n, c)
        if len(kept) >= 3:
            kept = _tidy(kept)
        if len(kept) >= 3:
            if np.all(np.abs(kept @ n - c) <= 10 * tiny):
                continue  # the cut's own face comes from its rim
            made.append(kept)
            rim += [v for v in kept if abs(v @ n - c) <= 10 * tiny]
    if len(rim) >= 3:
        ring = np.unique(np.round(np.array(rim), 10), axis=0)
        middle = ring.mean(axis=0)
        unit = n / np.linalg.norm(n)
        first = ring[0] - middle
        first /= np.linalg.norm(first)
        second = np.cross(unit, first)
        angle = np.arctan2((ring - middle) @ second, (ring - middle) @ first)
        made.append(_tidy(ring[np.argsort(angle)]))
    return made


def space(low: np.ndarray, high: np.ndarray, balls: Sequence[Round], splits: int) -> Mesh:
    """Hexahedra in a box around balls; a cell's faces are cut at their middle into quadrilaterals, these `splits`²."""
    made = []
    for i, (c, r) in enumerate(balls):
        faces = _box_faces(low, high)
        for n, offset in _halfspaces(balls, i):
            faces = _clip_polyhedron(faces, n, offset)
        quads = np.concatenate([_quads(face) for face in faces])
        quads = np.concatenate([_split(q, splits) for q in quads])
        ratio = float(np.median(np.linalg.norm(quads.mean(axis=1) - np.array(c), axis=1))) / r
        made.append(layered(quads, quads, np.array(c), r, geometric(ratio)))
    return join(*made)


def _box_faces(low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    faces = []
    for axis in range(3):
        u, v = (axis + 1) % 3, (axis + 2) % 3
        for value in (low[axis], high[axis]):
            face = np.zeros((4, 3))
            face[:, axis] = value
            face[:, u] = [low[u], high[u], high[u], low[u]]
            face[:, v] = [low[v], low[v], high[v], high[v]]
            faces.append(face)
    return faces


def _quads(face: np.ndarray) -> np.ndarray:
    """A polygon as quadrilaterals corner, middle of side, middle of face, middle of side: (k, 4, 3), x fastest."""
    after, before = np.roll(face, -1, axis=0), np.roll(face, 1, axis=0)
    middle = np.broadcast_to(face.mean(axis=0), face.shape)
    return np.stack([face, (face + after) / 2.0, (face + before) / 2.0, middle], axis=1)


def _split(quad: np.ndarray, n: int) -> np.ndarray:
    s = np.arange(n + 1) / n
    a, b = np.meshgrid(s, s, indexing="ij")
    grid = ((1 - a) * (1 - b))[..., None] * quad[0] + (a * (1 - b))[..., None] * quad[1]
    grid = grid + ((1 - a) * b)[..., None] * quad[2] + (a * b)[..., None] * quad[3]
    corners = [grid[:-1, :-1], grid[1:, :-1], grid[:-1, 1:], grid[1:, 1:]]
    return np.stack([part.reshape(-1, 3) for part in corners], axis=1)
