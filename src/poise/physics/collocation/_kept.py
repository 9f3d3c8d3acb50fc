"""A least-squares solve as a workload: each step adds one chunk of points per shard to its triangle.

The state is all that a streamed factorisation keeps, so a run of millions of points can be kept, interrupted and
resumed; the points of a step follow from its index.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from ...errors import BadInput, BadMesh
from ...gate import Gate
from ...keeper import Traits
from .._calculus import is_linear
from .._precision import double, in_double
from .._problem import Problem
from .._solution import Solution
from ._solve import Fit, estimated, finish, prepared, trial_of
from ._stream import FIT


@dataclass(frozen=True, eq=False)
class Factorisation:
    """The workload of one linear problem at one polynomial degree: `steps` steps of `shards` chunks.

    State: `r` (shards, M + 1, M + 1), one triangle a shard. Batch: `step`, its index. The number of active devices
    divides `shards`; the result does not depend on it. Raises `BadInput` for a nonlinear problem.
    """

    problem: Problem
    degree: int = 16
    steps: int = 32
    shards: int = 4

    name = "factorisation"

    def __post_init__(self) -> None:
        if not all(is_linear(block.residual) for block in self.stream[0].blocks):
            raise BadInput("A kept factorisation needs a linear problem; Newton's iterations are solves of their own.")

    @functools.cached_property
    def stream(self) -> Any:
        """The stream, its blocks' weights, and the scales of its columns."""
        with double():
            stream, weights = prepared(self.problem, trial_of(self.problem, self.degree))
            zero = np.zeros(stream.trial.count)
            squares = stream.sweep(1, zero, weights).columns
            columns = np.sqrt(np.sum(squares * weights[:, None] ** 2, axis=0))
        return stream, weights, 1.0 / np.where(columns > 0.0, columns, 1.0)

    @property
    def traits(self) -> Traits:
        """A chunk may not be left out; anything finite is good."""
        return Traits(gate=Gate(limit=math.inf), limit=None, x64=True)

    def axes(self, n: int) -> dict[str, int]:
        """One axis; n divides the shards."""
        if self.shards % n:
            raise BadMesh(f"{n} devices cannot share {self.shards} triangles equally.")
        return {"points": n}

    def state_specs(self) -> Any:
        """Each device holds some of the triangles."""
        return {"r": P("points")}

    proposal_specs = state_specs

    def batch_specs(self) -> Any:
        """Everybody sees the index."""
        return {"step": P()}

    def init(self) -> dict[str, np.ndarray]:
        """No rows yet."""
        m = self.stream[0].trial.count
        return {"r": np.zeros((self.shards, m + 1, m + 1))}

    def batch(self, index: int) -> dict[str, np.ndarray]:
        """The index."""
        return {"step": np.asarray(index, np.float64)}

    def propose(self, mesh: jax.sharding.Mesh, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Every shard's next chunk, factorised onto its triangle."""
        stream, weights, columns = self.stream
        scale = np.append(columns[stream.order], 1.0)
        zero = jnp.zeros(stream.trial.count)

        def local(r: Any, step: Any) -> Any:
            first = jax.lax.axis_index("points") * r.shape[0]
            index = step.astype(jnp.int64) * self.shards + first

            def add(k: Any, r: Any) -> Any:
                rows = stream.chunk(index + k, FIT, zero, weights) * scale
                return r.at[k].set(jnp.linalg.qr(jnp.concatenate([r[k], rows]), mode="r"))

            return jax.lax.fori_loop(0, r.shape[0], add, r)

        step = jax.shard_map(local, mesh=mesh, in_specs=(P("points"), P()), out_specs=P("points"), check_vma=False)
        return {"r": step(state["r"], batch["step"])}, {}

    def commit(self, state: Any, proposal: Any) -> Any:
        """The proposal is the next state."""
        return proposal

    @in_double
    def solution(self, state: Any, tol: float = 1e-6) -> Solution:
        """The solution that the triangles hold after `steps` steps."""
        stream, weights, columns = self.stream
        r = np.asarray(state["r"])
        whole = np.asarray(np.linalg.qr(r.reshape(-1, r.shape[-1]), mode="r")) / math.sqrt(self.steps * self.shards)
        nested, _ = stream.solve(whole, columns)
        held = stream.sweep(8, nested[:, -1], weights, thetas=nested)
        estimate, left = estimated(held, weights)
        rows = self.steps * self.shards * stream.rows
        best = Fit(stream, nested[:, -1], estimate, left, True, rows)
        return finish(self.problem, best, tol, [(stream.trial.count, estimate, left)])
