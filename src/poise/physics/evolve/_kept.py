"""A march in time as a workload: each step goes from one kept instant to the next, with one step size and its half.

Both runs are in the state, so the error of the time steps is measured in the run itself; the kept instants are too, so
the solution can be read off the final state. Every device holds the whole state and heals from a peer.
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

from ...errors import BadInput
from ...gate import Gate
from ...keeper import Traits
from .._precision import double, in_double
from .._problem import Problem
from .._solution import Solution
from ._estimate import exact_in_time, relative, rounding, space_error
from ._etdrk4 import coefficients
from ._refine import Run
from ._solve import applies, finish, fourier_of, modal_of


@dataclass(frozen=True, eq=False)
class March:
    """The workload of one evolution: `nodes` per axis, `steps` kept instants, `substeps` time steps between them.

    State: `coarse` and `fine`, the two runs, and `instants` (steps + 1, …) of the fine one; complex numbers as pairs.
    Batch: `step`. Raises `BadInput` for a problem that no marching method takes.
    """

    problem: Problem
    nodes: int = 128
    steps: int = 100
    substeps: int = 4

    name = "march"

    def __post_init__(self) -> None:
        if self.problem.time is None or applies(self.problem) is None:
            raise BadInput("A kept march needs an evolution on a box that `solve` would march.")

    @functools.cached_property
    def schemes(self) -> tuple[Any, Any]:
        """The scheme for one stretch between instants, and the one for all of them."""
        make = fourier_of if applies(self.problem) == "fourier" else modal_of
        sizes = (self.nodes,) * self.problem.domain.dimension
        return make(self.problem, sizes, 1), make(self.problem, sizes, self.steps)

    @functools.cached_property
    def begun(self) -> np.ndarray:
        with double():
            return np.asarray(self.schemes[0].start())

    @property
    def traits(self) -> Traits:
        """A time step cannot be left out."""
        return Traits(gate=Gate(limit=math.inf), limit=None, x64=True, heal="replica")

    def axes(self, n: int) -> dict[str, int]:
        """Copies."""
        return {"copies": n}

    def state_specs(self) -> Any:
        """Everything everywhere."""
        return P()

    proposal_specs = state_specs
    batch_specs = state_specs

    def init(self) -> dict[str, np.ndarray]:
        """The initial state, twice, and room for the instants."""
        pair = _pair(self.begun)
        instants = np.zeros((self.steps + 1, *pair.shape))
        instants[0] = pair
        return {"coarse": pair, "fine": pair.copy(), "instants": instants}

    def batch(self, index: int) -> dict[str, np.ndarray]:
        """The index."""
        return {"step": np.asarray(index, np.float64)}

    def propose(self, mesh: jax.sharding.Mesh, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Both runs, to the next instant."""
        one, _ = self.schemes
        assert self.problem.time is not None
        begin, end = self.problem.time
        linear = one.split[0] if hasattr(one, "split") else one.linear()
        data = {a: jnp.asarray(v) for a, v in one.grid.items()} if hasattr(one, "split") else None
        made = {}
        for key, count in (("coarse", self.substeps), ("fine", 2 * self.substeps)):
            h = (end - begin) / self.steps / count
            factors = tuple(jnp.asarray(part) for part in coefficients(linear, h))
            start = _join(state[key], np.iscomplexobj(self.begun))
            t = begin + batch["step"] * (end - begin) / self.steps
            made[key] = _split(one.run(start, t, h, count, factors, data)[1])
        index = batch["step"].astype(jnp.int32) + 1
        made["instants"] = jax.lax.dynamic_update_index_in_dim(state["instants"], made["fine"], index, 0)
        return made, {}

    def commit(self, state: Any, proposal: Any) -> Any:
        """The proposal is the next state."""
        return proposal

    @in_double
    def solution(self, state: Any, tol: float = 1e-6) -> Solution:
        """The solution after `steps` steps, its time error by Richardson (fourth order) from the two runs."""
        scheme = self.schemes[1]
        complex_ = np.iscomplexobj(self.begun)
        states = np.asarray(_join(np.asarray(state["instants"]), complex_))
        fine, coarse = (np.asarray(_join(np.asarray(state[key]), complex_)) for key in ("fine", "coarse"))
        gap = relative(fine - coarse, float(np.linalg.norm(fine)))
        in_time = 0.0 if exact_in_time(scheme) else gap / 15.0
        run = Run(states, 2 * self.substeps * self.steps, in_time, *space_error(scheme, states),
                  rounding(self.problem, scheme))  # fmt: skip
        return finish(self.problem, scheme, run, 0.0, tol, [])


def _pair(values: np.ndarray) -> np.ndarray:
    return np.stack([np.real(values), np.imag(values)], axis=-1) if np.iscomplexobj(values) else values[..., None]


def _split(values: Any) -> Any:
    return jnp.stack([np.real(values), np.imag(values)], axis=-1) if jnp.iscomplexobj(values) else values[..., None]


def _join(values: Any, complex_: bool) -> Any:
    return values[..., 0] + 1j * values[..., 1] if complex_ else values[..., 0]
