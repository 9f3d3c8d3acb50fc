"""A mesh at one polynomial degree: nodes with their numbers, metric terms, faces with their names, values anywhere."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from scipy.spatial import KDTree

from .._points import kronecker
from .._shapes import Shape
from ._line import derivative, interpolation, lobatto
from ._mesh import Mesh


@dataclass(frozen=True, eq=False)
class Face:
    """A side of elements: which ones, the local nodes (count,) of that side, outward normals and weights."""

    elements: np.ndarray  # (f,)
    local: np.ndarray  # (f, count)
    normal: np.ndarray  # (f, count, d)
    weight: np.ndarray  # (f, count)


@dataclass(frozen=True, eq=False)
class Space:
    """Continuous functions that are polynomials of degree `degree` per axis on every element of the mesh."""

    mesh: Mesh
    degree: int

    @property
    def dimension(self) -> int:
        return self.mesh.dimension

    @functools.cached_property
    def nodes(self) -> np.ndarray:
        """(E, n, d)."""
        return self.mesh.nodes(self.degree)

    @functools.cached_property
    def number(self) -> np.ndarray:
        """(E, n): the same number for nodes at the same place."""
        flat = self.nodes.reshape(-1, self.dimension)
        scale = np.max(np.abs(flat)) + 1.0
        tree = KDTree(flat)
        pairs = tree.query_pairs(1e-9 * scale, output_type="ndarray")
        first = np.arange(len(flat))
        while True:  # the smallest index of each cluster, by passing it along
            before = first.copy()
            np.minimum.at(first, pairs[:, 0], first[pairs[:, 1]])
            np.minimum.at(first, pairs[:, 1], first[pairs[:, 0]])
            if np.array_equal(first, before):
                break
        _, numbers = np.unique(first, return_inverse=True)
        return numbers.reshape(self.nodes.shape[:2])

    @functools.cached_property
    def count(self) -> int:
        return int(self.number.max()) + 1

    @functools.cached_property
    def reference_gradients(self) -> list[np.ndarray]:
        """Per reference axis the (n, n) matrix of its derivative."""
        d, one = derivative(self.degree), np.eye(self.degree + 1)
        made = []
        for axis in range(self.dimension):
            full = np.ones((1, 1))
            for j in range(self.dimension):
                full = np.kron(full, d if j == axis else one)
            made.append(full)
        return made

    @functools.cached_property
    def metric(self) -> tuple[np.ndarray, np.ndarray]:
        """d(reference k)/d(x_i) (E, n, k, i), and quadrature weights times the Jacobian determinant (E, n)."""
        jacobian = np.stack([self.along(self.nodes, k) for k in range(self.dimension)], axis=-1)  # (E, n, i, k)
        _, w = lobatto(self.degree)
        weights = functools.reduce(np.multiply.outer, [w] * self.dimension).reshape(-1)
        return np.linalg.inv(jacobian), np.abs(np.linalg.det(jacobian)) * weights

    def along(self, values: np.ndarray, axis: int) -> np.ndarray:
        """The derivative along a reference axis of nodal values (E, n, …)."""
        side = self.degree + 1
        shaped = values.reshape(len(values), *[side] * self.dimension, -1)
        made = np.moveaxis(np.tensordot(derivative(self.degree), shaped, axes=(1, axis + 1)), 0, axis + 1)
        return made.reshape(values.shape)

    def slope(self, values: np.ndarray, i: int) -> np.ndarray:
        """d/dx_i of nodal values (E, n), element by element."""
        metric = self.metric[0]
        return sum((metric[:, :, k, i] * self.along(values, k) for k in range(self.dimension)), np.zeros(values.shape))

    @functools.cached_property
    def gradients(self) -> list[np.ndarray]:
        """Per axis x_i the dense matrices (E, n, n) of d/dx_i; only for planes, where they are small."""
        metric = self.metric[0]
        made = []
        for i in range(self.dimension):
            parts = [metric[:, :, k, i, None] * g[None] for k, g in enumerate(self.reference_gradients)]
            made.append(functools.reduce(np.add, parts))
        return made

    @functools.cached_property
    def shrunk(self) -> np.ndarray:
        """The nodes moved a hair inward, so that what jumps between elements has one value in each: (E, n, d)."""
        centre = self.mesh.at(np.zeros((1, self.dimension)))
        return centre + (self.nodes - centre) * (1.0 - 1e-9)

    @functools.cached_property
    def rim(self) -> np.ndarray:
        """Local indices of the nodes on an element's boundary."""
        side = np.arange((self.degree + 1) ** self.dimension).reshape([self.degree + 1] * self.dimension)
        inner = side[(slice(1, -1),) * self.dimension].reshape(-1)
        return np.setdiff1d(side.reshape(-1), inner)

    @functools.cached_property
    def core(self) -> np.ndarray:
        """Local indices of the others."""
        return np.setdiff1d(np.arange((self.degree + 1) ** self.dimension), self.rim)

    def side(self, axis: int, end: int) -> np.ndarray:
        """Local indices of one side's nodes."""
        index = np.arange((self.degree + 1) ** self.dimension).reshape([self.degree + 1] * self.dimension)
        return np.take(index, -1 if end else 0, axis=axis).reshape(-1)

    def face(self, elements: np.ndarray, axis: int, end: int) -> Face:
        """One side of the given elements, with normals and surface weights."""
        local = self.side(axis, end)
        inverse, volume = self.metric
        gradient = inverse[elements][:, local, axis, :] * (1.0 if end else -1.0)
        length = np.linalg.norm(gradient, axis=2)
        _, w = lobatto(self.degree)
        # surface element = |J| |grad of the fixed coordinate|; |J| carries the weight of the axis that has no extent
        weight = volume[elements][:, local] * length / w[-1]
        return Face(elements, np.tile(local, (len(elements), 1)), gradient / length[..., None], weight)

    @functools.cached_property
    def sides(self) -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]:
        """Per side (axis, end): a number that the two elements at a face share, and whether it is on the boundary."""
        made = {}
        keys = []
        for axis, end in itertools.product(range(self.dimension), (0, 1)):
            numbers = np.sort(self.number[:, self.side(axis, end)], axis=1)
            keys.append(numbers[:, [0, numbers.shape[1] // 2, -1]])
        stacked = np.concatenate(keys)
        _, which, times = np.unique(stacked, axis=0, return_inverse=True, return_counts=True)
        which = which.reshape(-1, len(self.mesh))
        for row, (axis, end) in zip(which, itertools.product(range(self.dimension), (0, 1)), strict=True):
            made[axis, end] = (row, times[row] == 1)
        return made

    def boundary(self, shape: Shape) -> dict[str, list[Face]]:
        """The outer faces by the name of the patch that lies nearest to their middle."""
        points, names = [], []
        for patch in shape.patches:
            p, _ = patch.at(kronecker(np.arange(400 if self.dimension == 2 else 3000), max(shape.dimension - 1, 1)))
            p = np.asarray(p)
            kept = p[np.asarray(patch.keep(p))]
            points.append(kept)
            names += [patch.name] * len(kept)
        tree, labels = KDTree(np.concatenate(points)), np.array(names)
        found: dict[str, list[Face]] = {}
        for (axis, end), (_, outer) in self.sides.items():
            elements = np.flatnonzero(outer)
            if not len(elements):
                continue
            reference = np.zeros((1, self.dimension))
            reference[0, axis] = 1.0 if end else -1.0
            nearest = labels[tree.query(self.mesh.at(reference)[elements, 0])[1]]
            for name in np.unique(nearest):
                found.setdefault(str(name), []).append(self.face(elements[nearest == name], axis, end))
        return found

    def refine(self, values: np.ndarray, degree: int) -> np.ndarray:
        """Nodal values (E, n) at another degree's nodes."""
        table = interpolation(self.degree, lobatto(degree)[0])
        side = self.degree + 1
        shaped = values.reshape(len(values), *[side] * self.dimension)
        for axis in range(self.dimension):
            shaped = np.moveaxis(np.tensordot(table, shaped, axes=(1, axis + 1)), 0, axis + 1)
        return shaped.reshape(len(values), -1)


@dataclass(frozen=True, eq=False)
class Places:
    """Points located in elements: which one, and the interpolation from its nodes (n, nodes) per point."""

    element: np.ndarray
    tables: list[np.ndarray]

    def value(self, nodal: np.ndarray) -> np.ndarray:
        """Values at the points of nodal values (E, n)."""
        side = self.tables[0].shape[1]
        value = nodal[self.element].reshape(len(self.element), *[side] * len(self.tables))
        for table in self.tables:
            value = np.einsum("pk,pk...->p...", table, value)
        return value


def locate(space: Space, points: np.ndarray) -> Places:
    """Elements and reference coordinates of points by Newton's method, the candidates those of the nearest nodes."""
    d = space.dimension
    flat = space.nodes.reshape(-1, d)
    near = KDTree(flat).query(points, k=min(24, len(flat)))[1]
    candidates = near // space.nodes.shape[1]
    best = np.full(len(points), np.inf)
    element = candidates[:, 0].copy()
    reference = np.zeros((len(points), d))
    tried = np.full(candidates.shape, -1)
    for k in range(candidates.shape[1]):
        mine = candidates[:, k]
        fresh = (best > 1e-9) & ~np.any(tried[:, :k] == mine[:, None], axis=1)
        tried[:, k] = mine
        rows = np.flatnonzero(fresh)
        if not len(rows):
            continue
        r = _invert(space, mine[rows], points[rows])
        outside = np.max(np.abs(r), axis=1) - 1.0
        better = outside < best[rows]
        rows, r, outside = rows[better], r[better], outside[better]
        best[rows], element[rows], reference[rows] = outside, mine[rows], r
    reference = np.clip(reference, -1.0, 1.0)
    return Places(element, [interpolation(space.degree, reference[:, k]) for k in range(d)])


def _invert(space: Space, element: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Reference coordinates of points in given elements; far outside where there are none."""
    d, side = space.dimension, space.degree + 1
    r = np.zeros((len(points), d))
    nodal = space.nodes[element].reshape(len(points), *[side] * d, d)
    slopes = derivative(space.degree)
    for _ in range(12):
        tables = [interpolation(space.degree, r[:, k]) for k in range(d)]
        columns = []
        for derived in (*range(d), None):
            value = nodal
            for k in range(d):
                table = tables[k] @ slopes if k == derived else tables[k]
                value = np.einsum("pk,pk...->p...", table, value)
            columns.append(value)
        gap = columns[-1] - points
        if np.max(np.abs(gap)) < 1e-13 * (1.0 + np.max(np.abs(points))):
            break
        jacobian = np.stack(columns[:-1], axis=-1)
        good = np.abs(np.linalg.det(jacobian)) > 1e-300
        step = np.zeros_like(r)
        step[good] = np.linalg.solve(jacobian[good], gap[good][..., None])[..., 0]
        r = np.clip(r - step, -1.5, 1.5)
    return r
