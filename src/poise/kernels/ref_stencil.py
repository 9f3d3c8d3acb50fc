"""The jnp twins of the gate scan and of the gated stencils: what they compute, step by step."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int32

from . import _rule
from ._rule import Rule

Edge = Literal["periodic", "dirichlet", "neumann", "halo"]
EDGES: tuple[Edge, ...] = ("periodic", "dirichlet", "neumann", "halo")


class Scan(NamedTuple):
    """How many entries were bad, by cause, and the smallest flat index of one (-1: none)."""

    nan: Int32[Array, ""]
    inf: Int32[Array, ""]
    overflow: Int32[Array, ""]
    marker: Int32[Array, ""]
    first: Int32[Array, ""]


class Trips(NamedTuple):
    """How many (cell, step) were bad, and the first by (step, flat index); step 0 is the input, -1 means none."""

    bad: Int32[Array, ""]
    step: Int32[Array, ""]
    cell: Int32[Array, ""]


def gate_scan(x: Float[Array, "*n"], gate: Rule) -> tuple[Float[Array, "*n"], Scan]:
    """A clean copy, the counts and the first index."""
    masks = _rule.causes(gate, x)
    bad = masks[0] | masks[1] | masks[2] | masks[3]
    counts = [m.sum().astype(jnp.int32) for m in masks]
    flat = bad.reshape(-1)
    first = jnp.where(flat.any(), jnp.argmax(flat), -1).astype(jnp.int32) if flat.size else jnp.int32(-1)
    nan, inf, overflow, marker = counts
    return jnp.where(bad, jnp.asarray(gate.fill, x.dtype), x), Scan(nan, inf, overflow, marker, first)


def _extend(u: Array, axis: int, radius: int, kind: Edge, edge: float) -> Array:
    """`u` with `radius` ghost cells at both ends of an axis, by the edge's rule (none for halos: they are there)."""
    if kind == "halo":
        return u
    pad = [(0, 0)] * u.ndim
    pad[axis] = (radius, radius)
    if kind == "periodic":
        return jnp.pad(u, pad, mode="wrap")
    if kind == "neumann":
        return jnp.pad(u, pad, mode="symmetric")
    return jnp.pad(u, pad, constant_values=jnp.asarray(edge, u.dtype))


def one_step(u: Array, coefficients: Float[Array, "axes k"], edges: tuple[Edge, ...], edge: float) -> Array:
    """One linear step: the sum over axes `a` and offsets `k` of `coefficients[a, R + k]` times shifted `u`."""
    radius = coefficients.shape[1] // 2
    shape = [n - 2 * radius if kind == "halo" else n for n, kind in zip(u.shape, edges, strict=True)]

    def shifted(axis: int, k: int) -> Array:
        v = _extend(u, axis, radius, edges[axis], edge)
        start = [radius if kind == "halo" else 0 for kind in edges]
        start[axis] = radius + k
        return lax.dynamic_slice(v, start, shape)

    out = coefficients[:, radius].sum() * shifted(0, 0)
    for axis in range(u.ndim):
        for k in range(1, radius + 1):
            before, after = coefficients[axis, radius - k], coefficients[axis, radius + k]
            out = out + before * shifted(axis, -k) + after * shifted(axis, k)
    return out


def stencil(
    u: Float[Array, "*n"],
    coefficients: Float[Array, "axes k"],
    gate: Rule,
    *,
    steps: int,
    edges: tuple[Edge, ...],
    edge: float = 0.0,
) -> tuple[Float[Array, "*m"], Trips]:
    """`steps` linear steps with the gate before the first and after each; an axis with halos shrinks by `2 R` a step.

    Only cells of the result's own extent are counted: a halo cell is its owner's to count.
    """
    radius = coefficients.shape[1] // 2
    size = [n - 2 * radius * steps if kind == "halo" else n for n, kind in zip(u.shape, edges, strict=True)]
    big = jnp.int32(2**31 - 1)
    count, step, index = jnp.int32(0), jnp.int32(-1), jnp.int32(-1)

    for t in range(steps + 1):
        if t:
            u = one_step(u, coefficients, edges, edge)
        bad = _rule.bad(gate, u)
        u = jnp.where(bad, jnp.asarray(gate.fill, u.dtype), u)
        rest = [radius * (steps - t) if kind == "halo" else 0 for kind in edges]
        own = lax.dynamic_slice(bad, rest, size).reshape(-1)
        place = jnp.where(own, jnp.arange(own.size, dtype=jnp.int32), big).min() if own.size else big
        first = (step < 0) & (place < big)
        count = count + own.sum().astype(jnp.int32)
        step, index = jnp.where(first, t, step), jnp.where(first, place, index)
    return u, Trips(count, step, index)
