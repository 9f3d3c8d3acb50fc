"""The gate scan and the gated stencils: T steps in one pass over memory, on the CPU and on CUDA."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from ..errors import BadInput
from . import _rule, ref_stencil
from ._call import call
from ._rule import Rule
from .ref_stencil import EDGES, Edge, Scan, Trips

TILE_2D = (0, 0)
"""Rows and columns that one thread streams at a time on the CPU; 0 lets the kernel choose."""

MOST_STEPS = {(2, 1): 20, (2, 2): 6, (3, 1): 4}
"""Steps that one pass can take, by dimensions and radius: a tile on the GPU loses as many cells at each side."""

FOUND_ROWS = 1024
"""Rows of what a pass finds: a CUDA block fills its own, so that no memset has to come before it."""


def gate_scan(x: Float[Array, "*n"], gate: Rule) -> tuple[Float[Array, "*n"], Scan]:
    """A clean copy of `x`, how many entries were bad by cause, and the first of them, in one pass.

    float32 and float64; other dtypes raise `BadInput`.
    """
    _check_dtype(x)
    if x.size == 0:
        return ref_stencil.gate_scan(x, gate)

    def twin(y: Array) -> list[Array]:
        clean, found = ref_stencil.gate_scan(y, gate)
        return [clean, jnp.stack([*(c - 1 for c in found[:4]), found.first])]

    clean, found = call(
        "poise_gate_scan", twin, [x], [(x.shape, x.dtype), ((5,), jnp.int32)], rule=_rule.encode(gate, x.dtype)
    )
    nan, inf, overflow, marker = (found[i] + 1 for i in range(4))
    return clean, Scan(nan, inf, overflow, marker, found[4])


def stencil(
    u: Float[Array, "*n"],
    coefficients: Float[Array, "axes k"],
    gate: Rule,
    *,
    steps: int = 1,
    edges: Edge | tuple[Edge, ...] = "periodic",
    edge: float = 0.0,
) -> tuple[Float[Array, "*m"], Trips]:
    """`steps` gated steps of a linear star stencil on a 2-D or 3-D array, in one pass over memory.

    One step is the sum over axes `a` and offsets `k` of `coefficients[a, R + k]` times `u` shifted by `k` along `a`;
    the radius `R` is 1 or 2 (1 in 3-D). The gate acts before the first step and after each: a bad value never spreads.

    - `edges`, per axis or for all: `"periodic"`; `"dirichlet"`: `edge` beyond it; `"neumann"`: mirrored at its face;
      `"halo"`: `u` carries `R * steps` of the neighbours' cells at both ends, which the result lacks.
    - Returns the new field and its `Trips`; halo cells are their owners' to count.

    Raises `BadInput` for shapes and dtypes that do not fit.
    """
    kinds = (edges,) * u.ndim if isinstance(edges, str) else tuple(edges)
    coefficients = jnp.asarray(coefficients, u.dtype)
    radius = coefficients.shape[1] // 2
    _check_stencil(u, coefficients, kinds, steps)
    shape = tuple(n - 2 * radius * steps if k == "halo" else n for n, k in zip(u.shape, kinds, strict=True))
    if min(shape) < 1:
        raise BadInput(f"A field of shape {u.shape} has no room for its halos of {radius * steps} cells.")

    def twin(v: Array, c: Array) -> list[Array]:
        out, trips = ref_stencil.stencil(v, c, gate, steps=steps, edges=kinds, edge=edge)
        row = jnp.stack([trips.bad, 0 * trips.bad, trips.cell, (trips.step << 8) | (trips.step >> 8)])
        return [out, jnp.tile(jnp.array([0, 0, -1, -1], jnp.int32), (FOUND_ROWS, 1)).at[0].set(row)]

    codes = [np.int32(EDGES.index(k)) for k in kinds]
    attributes: dict[str, Any] = {"edge_y": codes[-2], "edge_x": codes[-1], "radius": np.int32(radius)}
    if u.ndim == 3:
        attributes = {"edge_z": codes[0], "edge_y": codes[1], "edge_x": codes[2]}
    else:
        attributes |= {"tall": np.int32(TILE_2D[0]), "wide": np.int32(TILE_2D[1])}
    out, found = call(
        f"poise_stencil{u.ndim}d",
        twin,
        [u, coefficients],
        [(shape, u.dtype), ((FOUND_ROWS, 4), jnp.int32)],
        steps=np.int32(steps),
        edge=np.float64(edge),
        rule=_rule.encode(gate, u.dtype),
        **attributes,
    )
    return out, _trips(found)


def _trips(found: Array) -> Trips:
    """All rows together, in one reduction. A row is its number of trips, nothing, and the first of them:
    step << 40 | cell as two words, all ones if there was none."""

    def together(a: tuple[Array, Array, Array], b: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        earlier = (a[2] < b[2]) | ((a[2] == b[2]) & (a[1] < b[1]))
        return a[0] + b[0], jnp.where(earlier, a[1], b[1]), jnp.where(earlier, a[2], b[2])

    low, high = (lax.bitcast_convert_type(found[:, i], jnp.uint32) for i in (2, 3))
    none = np.uint32(0xFFFFFFFF)
    bad, cell, step = lax.reduce((found[:, 0], low, high), (np.int32(0), none, none), together, (0,))
    cell, step = (lax.bitcast_convert_type(x, jnp.int32) for x in (cell, step))
    return Trips(bad, step >> 8, cell)


def _check_dtype(x: Array) -> None:
    if x.dtype not in (jnp.float32, jnp.float64):
        raise BadInput(f"The compiled gate takes float32 or float64, not {x.dtype.name}.")


def _check_stencil(u: Array, coefficients: Array, kinds: tuple[Edge, ...], steps: int) -> None:
    _check_dtype(u)
    if u.ndim not in (2, 3):
        raise BadInput(f"The stencil takes 2-D or 3-D fields, not {u.ndim}-D.")
    widths = (3, 5) if u.ndim == 2 else (3,)
    if coefficients.ndim != 2 or coefficients.shape[0] != u.ndim or coefficients.shape[1] not in widths:
        raise BadInput(f"A {u.ndim}-D stencil has {u.ndim} rows of {widths} coefficients, not {coefficients.shape}.")
    if len(kinds) != u.ndim or any(k not in EDGES for k in kinds):
        raise BadInput(f"Edges are one of {', '.join(EDGES)} for each axis, not {kinds!r}.")
    most = MOST_STEPS[u.ndim, coefficients.shape[1] // 2]
    if not 1 <= steps <= most:
        raise BadInput(f"A {u.ndim}-D pass of this radius takes 1 to {most} steps, not {steps}.")
    radius = coefficients.shape[1] // 2
    if any(k == "neumann" and n < radius for n, k in zip(u.shape, kinds, strict=True)):
        raise BadInput(f"A field of shape {u.shape} is shorter than the stencil's radius {radius}.")
