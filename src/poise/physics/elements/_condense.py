"""Solve element matrices as one system: the inside of every element is eliminated first, what is left is sparse.

Static condensation (Wilson 1974; Karniadakis & Sherwin 2005, section 4.2): the unknowns inside an element touch no
other element, so batched dense algebra removes them, and a sparse LU factorisation sees only the faces' unknowns and,
where there is one, the pressure's mean per element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import splu

from ._assemble import System


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Local indices inside (eliminated) and outside, the outer ones' global numbers (E, k), and the fixed values."""

    inside: np.ndarray
    outside: np.ndarray
    number: np.ndarray
    size: int
    where: np.ndarray
    values: np.ndarray

    @staticmethod
    def of(system: System) -> Skeleton:
        space, spans = system.space, system.spans
        inside, outside, numbers = [], [], []
        start, fixed = 0, system.fixed()
        where, values = [], []
        for field in system.roles.fields:
            offset = spans[field.name].start
            inside.append(offset + space.core)
            outside.append(offset + space.rim)
            numbers.append(start + space.number[:, space.rim])
            if field.name in fixed:
                where.append(start + fixed[field.name][0])
                values.append(fixed[field.name][1])
            start += space.count
        for field in system.roles.pressures:
            span = spans[field.name]
            inside.append(np.arange(span.start + 1, span.stop))
            outside.append(np.array([span.start]))
            numbers.append(start + np.arange(len(space.mesh))[:, None])
            if not system.conditions.pressure and not _open(system):  # its constant is free: the first mean is zero
                where.append(np.array([start]))
                values.append(np.zeros(1))
            start += len(space.mesh)
        joined = lambda parts: np.concatenate(parts) if parts else np.zeros(0)  # noqa: E731
        return Skeleton(
            np.concatenate(inside).astype(int),
            np.concatenate(outside).astype(int),
            np.concatenate(numbers, axis=1),
            start,
            joined(where).astype(int),
            joined(values),
        )


def _open(system: System) -> bool:
    names = set(system.faces)
    return any((name, f.name) not in system.conditions.fixed for name in names for f in system.roles.fields)


def condensed(skeleton: Skeleton, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The local unknowns (E, N, k) that solve sum of a (E, N, N) = sum of b (E, N, k); real or complex."""
    i, o = skeleton.inside, skeleton.outside
    right = np.concatenate([a[:, i][:, :, o], b[:, i]], axis=2)
    inner = np.linalg.solve(a[:, i][:, :, i], right)
    k = len(o)
    schur = a[:, o][:, :, o] - a[:, o][:, :, i] @ inner[:, :, :k]
    load = b[:, o] - a[:, o][:, :, i] @ inner[:, :, k:]
    rows = np.broadcast_to(skeleton.number[:, :, None], schur.shape)
    columns = np.broadcast_to(skeleton.number[:, None, :], schur.shape)
    full = coo_matrix((schur.reshape(-1), (rows.reshape(-1), columns.reshape(-1))), (skeleton.size,) * 2).tocsc()
    vector = np.zeros((skeleton.size, b.shape[2]), schur.dtype)
    np.add.at(vector, skeleton.number, load)
    used = np.zeros(skeleton.size, bool)
    used[skeleton.number.reshape(-1)] = True
    used[skeleton.where] = False
    free = np.flatnonzero(used)
    known: Any = np.zeros(skeleton.size, schur.dtype)
    known[skeleton.where] = skeleton.values
    solution = np.tile(known[:, None], (1, b.shape[2]))
    vector = vector - (full @ known)[:, None]
    # the structure is symmetric: ordering for A + A^T leaves a fraction of the fill of the default ordering
    factors = splu(full[free][:, free].tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.01)
    solution[free] = factors.solve(vector[free])
    outer = solution[skeleton.number]
    theta = np.empty(b.shape, schur.dtype)
    theta[:, o] = outer
    theta[:, i] = inner[:, :, k:] - inner[:, :, :k] @ outer
    return theta
