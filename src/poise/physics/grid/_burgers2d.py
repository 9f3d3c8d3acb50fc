"""Two-dimensional viscous Burgers on the unit square, against its exact travelling wave.

    u_t + u u_x + v u_y = nu (u_xx + u_yy) + f_u
    v_t + u v_x + v v_y = nu (v_xx + v_yy) + f_v

Central differences in space on the n x n interior nodes (i h, j h), h = 1 / (n + 1), Heun's method in time: second
order in both. The values on the boundary and a spatially uniform forcing come with each step's batch. With f = 0 the
coupled equations have the exact solution (Fletcher 1983, Int. J. Numer. Meth. Fluids 3:213; Bahadir 2003, Appl. Math.
Comput. 137:131)

    u = 3/4 - 1 / (4 (1 + exp(z))),   v = 3/4 + 1 / (4 (1 + exp(z))),   z = (-4 x + 4 y - t) / (32 nu).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Float

from ... import kernels
from ...errors import BadInput
from ...gate import Gate
from ...keeper import Traits
from ...kernels import Check, Seal, burgers_stage, burgers_stage_sealed
from ._mesh import halo, two_axes

Field = Float[Array, "2 nx ny"]


def exact(x: np.ndarray, y: np.ndarray, t: float, nu: float) -> np.ndarray:
    """The travelling wave at nodes `x`, `y` (broadcast together) and time `t`: float64, `(2, *shape)`."""
    z = np.clip((-4.0 * x + 4.0 * y - t) / (32.0 * nu), -700.0, 700.0)
    wave = 0.25 / (1.0 + np.exp(z))
    return np.stack((0.75 - wave, 0.75 + wave))


@dataclass(frozen=True)
class Burgers2d:
    """The workload `burgers2d`: `n` interior nodes per side, from t = 0 to `t_end` in `steps` steps.

    `steps` left out is the smallest number that keeps half of Heun's stability limits. `initial` is a `(2, n, n)`
    array, else the exact solution at t = 0. State: `uv`, shape (2, n, n). Batch: `west_east` (2 sides, 2 stages, 2
    components, n) along y, `south_north` likewise along x, `forcing` (2 stages, 2 components).

    `kernel` is "xla", or "native" for the compiled stages, on a CPU three to four times faster; in float32 the second
    one seals and checks in its own pass. Raises `BadInput` for values that cannot work.
    """

    n: int = 256
    nu: float = 1e-3
    t_end: float = 0.25
    dtype: str = "float32"
    steps: int = 0
    kernel: str = "xla"
    initial: np.ndarray | None = field(default=None, compare=False)

    name = "burgers2d"

    def __post_init__(self) -> None:
        if self.n < 2:
            raise BadInput(f"burgers2d needs n >= 2 nodes per side, not {self.n}.")
        if not (self.nu > 0 and self.t_end > 0):
            raise BadInput(f"burgers2d needs nu > 0 and t_end > 0, not nu = {self.nu}, t_end = {self.t_end}.")
        if self.dtype not in ("float32", "float64"):
            raise BadInput(f"burgers2d computes in float32 or float64, not {self.dtype!r}.")
        if self.kernel not in ("xla", "native"):
            raise BadInput(f"burgers2d's kernel is 'xla' or 'native', not {self.kernel!r}.")
        platform = "cpu" if jax.default_backend() == "cpu" else "cuda"
        if self.kernel == "native" and not kernels.available()[platform]:
            raise BadInput("burgers2d's native kernel needs the compiled kernels for this backend; see poise doctor.")
        stable = math.ceil(self.t_end / self.stable_dt)
        if self.steps == 0:
            object.__setattr__(self, "steps", 2 * stable)
        if self.steps < stable:
            raise BadInput(f"burgers2d with n = {self.n} is stable with {stable} steps or more, not {self.steps}.")
        if self.initial is not None and self.initial.shape != (2, self.n, self.n):
            raise BadInput(f"The initial state has shape {self.initial.shape}, accepted is (2, {self.n}, {self.n}).")

    @property
    def h(self) -> float:
        """Distance of neighbouring nodes."""
        return 1.0 / (self.n + 1)

    @property
    def stable_dt(self) -> float:
        """Largest time step: diffusion h^2 / (4 nu), and advection h / (|u| + |v|) with |u| + |v| <= 1.5 in the
        wave."""
        return min(self.h**2 / (4.0 * self.nu), self.h / 1.5)

    @property
    def dt(self) -> float:
        """The time step."""
        return self.t_end / self.steps

    @property
    def traits(self) -> Traits:
        """A sensor's markers count as bad in a boundary frame; a time step cannot be left out."""
        gate, sealed = Gate(limit=1e6, markers=(-99.0, -999.0)), self.kernel == "native" and self.dtype == "float32"
        return Traits(gate=gate, limit=1e6, sealed=sealed, x64=self.dtype == "float64")

    def axes(self, n: int) -> dict[str, int]:
        """The most nearly square mesh, x by y."""
        return two_axes(n, self.n)

    def state_specs(self) -> Any:
        """Each device holds a rectangle of the grid."""
        return {"uv": P(None, "x", "y")}

    def batch_specs(self) -> Any:
        """Boundary frames are cut along their side."""
        return {"west_east": P(None, None, None, "y"), "south_north": P(None, None, None, "x"), "forcing": P()}

    def proposal_specs(self) -> Any:
        """The proposal is the next state."""
        return self.state_specs()

    def nodes(self) -> np.ndarray:
        """Coordinates of the interior nodes along one side, float64."""
        return np.arange(1, self.n + 1) * self.h

    def exact(self, t: float) -> np.ndarray:
        """The exact solution on the nodes at time `t`, float64 (2, n, n)."""
        x = self.nodes()
        return exact(x[:, None], x[None, :], t, self.nu)

    def init(self) -> dict[str, np.ndarray]:
        """The state of step 0."""
        start = self.exact(0.0) if self.initial is None else self.initial
        return {"uv": np.asarray(start, self.dtype)}

    def batch(self, index: int) -> dict[str, np.ndarray]:
        """Boundary values at the beginning and the end of step `index`, and the forcing."""
        x, zero, one = self.nodes(), np.zeros(1), np.ones(1)
        ts = (index * self.dt, (index + 1) * self.dt)
        west_east = np.stack([np.stack([exact(s, x, t, self.nu) for t in ts]) for s in (zero, one)])
        south_north = np.stack([np.stack([exact(x, s, t, self.nu) for t in ts]) for s in (zero, one)])
        frames = {"west_east": west_east, "south_north": south_north, "forcing": np.zeros((2, 2))}
        return {k: np.asarray(v, self.dtype) for k, v in frames.items()}

    def propose(self, mesh: jax.sharding.Mesh, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """One step of Heun's method over the mesh."""
        step = jax.shard_map(
            self._heun, mesh=mesh, in_specs=(self.state_specs(), self.batch_specs()), out_specs=self.state_specs()
        )
        return step(state, batch), {}

    def propose_sealed(
        self, mesh: jax.sharding.Mesh, state: Any, batch: Any, seals: Any, bits: int
    ) -> tuple[Any, dict[str, Any], Any, Array, Check]:
        """The same step by the compiled kernels, the second stage sealing what it writes and checking the old state."""
        stacked = P(mesh.axis_names)

        def local(state: Any, batch: Any, seals: Any) -> Any:
            q, weights = self._middle(state, batch), (0.5, 0.5, 0.5 * self.dt)
            new, made, bad, seen = self._stage(q, state["uv"], batch, 1, weights, sealed=(seals["uv"], bits))
            return {"uv": new}, {"uv": made}, bad.reshape(1), Check(*(x.reshape(1) for x in seen))

        specs = self.state_specs()
        ins, outs = (specs, self.batch_specs(), stacked), (specs, stacked, stacked, stacked)
        step = jax.shard_map(local, mesh=mesh, in_specs=ins, out_specs=outs)
        new, made, bad, seen = step(state, batch, seals)
        return new, {}, made, bad, seen

    def commit(self, state: Any, proposal: Any) -> Any:
        """The proposal is the next state."""
        return proposal

    def _heun(self, state: Any, batch: Any) -> Any:
        """Heun's method as two stages of one kernel: q = u + dt f(u), then u/2 + (q + dt f(q))/2."""
        q = self._middle(state, batch)
        return {"uv": self._stage(q, state["uv"], batch, 1, (0.5, 0.5, 0.5 * self.dt))}

    def _middle(self, state: Any, batch: Any) -> Field:
        uv = state["uv"]
        # The barrier keeps XLA from computing the first stage anew for each neighbour that the second one reads.
        return lax.optimization_barrier(self._stage(uv, uv, batch, 0, (0.0, 1.0, self.dt)))

    def _stage(
        self,
        q: Field,
        base: Field,
        batch: Any,
        stage: int,
        weights: tuple[float, float, float],
        sealed: tuple[Seal, int] | None = None,
    ) -> Any:
        """One stage at `q`, its ghosts from the neighbours or from the boundary frame of `stage`; sealed, with the seal
        of `base` and the bits of the limit, as `kernels.burgers_stage_sealed` returns it."""
        west, east = halo(q, 1, "x", batch["west_east"][0, stage], batch["west_east"][1, stage])
        south, north = halo(q, 2, "y", batch["south_north"][0, stage], batch["south_north"][1, stage])
        args = (q, base, west, east, south, north, batch["forcing"][stage])
        numbers: Any = {"h": self.h, "nu": self.nu, "weights": weights}
        with kernels.use("native" if self.kernel == "native" else "jnp"):
            if sealed is not None:
                return burgers_stage_sealed(*args, sealed[0], bits=sealed[1], **numbers)
            return burgers_stage(*args, **numbers)

    def error(self, state: Any, step: int) -> float:
        """Relative L2 error of both components together against the exact solution after `step` steps."""
        truth = self.exact(step * self.dt)
        return float(np.linalg.norm(np.asarray(state["uv"], np.float64) - truth) / np.linalg.norm(truth))
