"""Least squares by a QR factorisation that sees each row once.

`R <- qr([R; chunk])`: the triangle of all rows so far is all that is kept, so memory is that of one chunk and one
triangle whatever the number of points. Orthogonal factorisation keeps the full accuracy of float64, which normal
equations halve. Features are ordered coarse to fine, so the leading part of the triangle is the triangle of the coarse
problem: the coarse solution, needed for the error estimate, is free.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._rows import Block, Trial

FIT, HELD_OUT = 0.5, 0.1370405
"""Offsets of the point sequences for fitting and for residuals on points that took no part in the fit."""
CUTS = (0.64, 0.8, 1.0)
LEVELS = len(CUTS)
"""Nested problems: the features up to these levels."""
DAMPING = 2e-14
"""Tikhonov term relative to unit columns: keeps the coefficients of a nearly dependent frame bounded."""
QUICK, THOROUGH = 0, 1
MANY = 300
"""XLA's optimisation level below and above this many chunks: few cost less than optimising the loop that makes them."""


@functools.cache
def compiler_options(level: int) -> dict[str, Any]:
    """XLA's options at an optimisation level. The emitters, which take seconds to compile such a loop, can be switched
    off up to JAX 0.10; an option that this XLA does not know is left out."""

    def known(name: str, value: Any) -> bool:
        try:
            jax.jit(lambda: jnp.float32(0)).lower().compile(compiler_options={name: value})
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            return False
        return True

    wanted = {"xla_backend_optimization_level": level, "xla_cpu_use_fusion_emitters": False}
    return {name: value for name, value in wanted.items() if known(name, value)}


@dataclass(frozen=True, eq=False)
class Sums:
    """What one pass over the points leaves.

    `triangle` (M+1, M+1) of the weighted rows [A | b]; per block the mean squares of the residuals of the nested
    solutions, coarse to fine (blocks, LEVELS), and of every column (blocks, M); per field the mean square of the fine
    solution and of the differences of neighbours (fields, LEVELS - 1), over the interior.
    """

    triangle: np.ndarray
    residuals: np.ndarray
    columns: np.ndarray
    size: np.ndarray
    gaps: np.ndarray


@dataclass(frozen=True, eq=False)
class Stream:
    """One system with its compiled pass; shapes are fixed, the number of chunks is not."""

    trial: Trial
    blocks: tuple[Block, ...]
    order: np.ndarray
    sizes: tuple[int, ...]
    shapes: tuple[tuple[Any, tuple[int, ...]], ...] = ()
    """What the features read besides the points, by key and shape: arguments of the pass, so that other values of them
    compile nothing."""
    devices: int = 1
    """How many share the points; their triangles are joined by one more factorisation (TSQR, Demmel et al. 2012)."""

    @staticmethod
    def build(trial: Trial, blocks: tuple[Block, ...], shapes: tuple[Any, ...] = (), devices: int = 1) -> Stream:
        """Columns are ordered by level, so that those below each cut come first and make the nested problems."""
        band = np.searchsorted(np.array(CUTS), trial.level - 1e-9)
        return Stream(
            trial,
            blocks,
            np.argsort(band, kind="stable"),
            tuple(int(np.sum(band <= i)) for i in range(LEVELS)),
            shapes,
            devices,
        )

    def chunk(self, start: Any, offset: float, theta: Any, weights: Any) -> Any:
        """One chunk's weighted rows [A | b], columns permuted: (rows, M + 1)."""
        made = []
        for i, block in enumerate(self.blocks):
            env, keep, values = block.at(start * block.rows, offset)
            a, b = block.linear(self.trial, env, theta, values)
            row = jnp.where(keep[:, None], jnp.concatenate([a, b[:, None]], axis=1), 0.0)
            made.append(row * (weights[i] / np.sqrt(block.rows)))
        return jnp.concatenate(made)[:, np.append(self.order, self.trial.count)]

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def fields(self) -> list[str]:
        return [name for name, group in self.trial.families.items() if group[0].axes]

    def _pass(
        self, chunks: Any, fit: Any, offset: Any, theta: Any, weights: Any, scale: Any, thetas: Any, data: Any
    ) -> Any:
        """One pass of `chunks` chunks per device: triangle, residuals, column squares, field sizes and gaps. Columns
        are permuted."""
        m, nb = self.trial.count, len(self.blocks)
        shared = self.devices > 1
        rank = jax.lax.axis_index("points") if shared else 0

        def body(turn: Any, carry: Any) -> Any:
            r, squares, columns, counts, size, gaps = carry
            step = turn * self.devices + rank
            made = []
            for i, block in enumerate(self.blocks):
                env, keep, values = block.at(step * block.rows, offset)
                env = {**env, **data}
                a, b = block.linear(self.trial, env, theta, values)
                row = jnp.where(keep[:, None], jnp.concatenate([a, b[:, None]], axis=1), 0.0)
                left = row[:, :m] @ thetas - row[:, m:]
                squares = squares.at[i].add(jnp.sum(left**2, axis=0))
                columns = columns.at[i].add(jnp.sum(row[:, :m] ** 2, axis=0))
                counts = counts.at[i].add(jnp.sum(keep))
                made.append(row * (weights[i] / np.sqrt(block.rows)))
                if i == 0:
                    for k, name in enumerate(self.fields):
                        key = (name, (0,) * len(self.trial.families[name][0].axes))
                        values = jnp.where(keep[:, None], self.trial.value(key, env, thetas), 0.0)
                        size = size.at[k].add(jnp.sum(values[:, -1] ** 2))
                        gaps = gaps.at[k].add(jnp.sum(jnp.diff(values, axis=1) ** 2, axis=0))
            rows = jnp.concatenate(made)[:, np.append(self.order, m)] * scale
            add = lambda r: jnp.linalg.qr(jnp.concatenate([r, rows]), mode="r")  # noqa: E731
            return jax.lax.cond(fit, add, lambda r: r, r), squares, columns, counts, size, gaps

        zeros, f = jnp.zeros, len(self.fields)
        start = (
            zeros((m + 1, m + 1)),
            zeros((nb, LEVELS)),
            zeros((nb, m)),
            zeros(nb),
            zeros(f),
            zeros((f, LEVELS - 1)),
        )
        r, squares, columns, counts, size, gaps = jax.lax.fori_loop(0, chunks, body, start)
        if shared:
            parts = jax.lax.all_gather(r, "points").reshape(-1, m + 1)
            r = jax.lax.cond(fit, lambda v: jnp.linalg.qr(v, mode="r"), lambda v: v[: m + 1], parts)
            squares, columns, counts, size, gaps = jax.lax.psum((squares, columns, counts, size, gaps), "points")
        n = jnp.maximum(counts, 1.0)
        return r, squares / n[:, None], columns / n[:, None], size / n[0], gaps / n[0]

    @functools.cached_property
    def compiled(self) -> Any:
        """The pass as an executable, quickly compiled."""
        return self._compile(QUICK)

    @functools.cached_property
    def compiled_for_many(self) -> Any:
        """The pass as an executable that runs faster and needs no more memory."""
        return self._compile(THOROUGH)

    def _compile(self, level: int) -> Any:
        m = self.trial.count
        real = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float64)  # noqa: E731
        arguments = (
            jax.ShapeDtypeStruct((), jnp.int64),
            jax.ShapeDtypeStruct((), jnp.bool_),
            real(),
            real(m),
            real(len(self.blocks)),
            real(m + 1),
            real(m, LEVELS),
            {key: real(*shape) for key, shape in self.shapes},
        )
        run = self._pass
        if self.devices > 1:
            mesh = jax.sharding.Mesh(np.array(jax.devices()[: self.devices]), ("points",))
            specs = tuple(jax.sharding.PartitionSpec() for _ in arguments)
            run = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=jax.sharding.PartitionSpec(), check_vma=False)
        return jax.jit(run).lower(*arguments).compile(compiler_options=compiler_options(level))

    def sweep(
        self,
        chunks: int,
        theta: np.ndarray,
        weights: np.ndarray,
        columns: np.ndarray | None = None,
        thetas: np.ndarray | None = None,
        data: dict[Any, np.ndarray] | None = None,
    ) -> Sums:
        """Fit (with column scales) or measure residuals on held-out points (without)."""
        m = self.trial.count
        fit = columns is not None
        scale = np.ones(m + 1) if columns is None else np.append(columns[self.order], 1.0)
        both = np.zeros((m, LEVELS)) if thetas is None else thetas
        offset = FIT if fit else HELD_OUT
        each = -(-chunks // self.devices)
        arguments = (np.int64(each), np.bool_(fit), np.float64(offset), theta, weights, scale, both)
        executable = self.compiled if chunks < MANY else self.compiled_for_many
        extra = {key: jnp.asarray(value) for key, value in (data or {}).items()}
        out = executable(*(jnp.asarray(argument) for argument in arguments), extra)
        r, residuals, squares, size, gaps = (np.asarray(part) for part in out)
        return Sums(r / np.sqrt(each * self.devices), residuals, squares, size, gaps)

    def solve(self, triangle: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, float]:
        """The nested solutions, coarse to fine, as columns (M, LEVELS), and the ratio of the triangle's extreme
        pivots."""
        m = self.trial.count
        damp = np.concatenate([np.eye(m) * DAMPING, np.zeros((m, 1))], axis=1)
        r = np.asarray(np.linalg.qr(np.concatenate([triangle, damp]), mode="r"))
        nested = np.zeros((m, LEVELS))
        for i, k in enumerate(self.sizes):
            nested[self.order[:k], i] = np.linalg.solve(r[:k, :k], r[:k, m])
        pivots = np.abs(np.diagonal(r)[:m])
        return nested * columns[:, None], float(pivots.min() / max(pivots.max(), 1e-300))

    def temporary_bytes(self) -> int:
        """XLA's temporary memory of the pass, the same for any number of chunks."""
        analysis = self.compiled.memory_analysis()
        return int(analysis.temp_size_in_bytes) if analysis is not None else 0
