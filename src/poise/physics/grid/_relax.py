"""Accelerated pseudo-transient relaxation of -div(a grad u) + k u = f with fixed boundary values, on a plane's grid.

    W <- gamma W + alpha r(u),   u <- u + W,   r(u) = f + div(a grad u) - k u

A damped wave in pseudo-time that comes to rest at the solution (Frankel 1950; Räss et al. 2022). With the operator's
eigenvalues between m and M the best numbers are alpha = 4 / (sqrt M + sqrt m)^2 and gamma = ((sqrt M - sqrt m) /
(sqrt M + sqrt m))^2 (Polyak 1964), and the error falls by sqrt gamma = 1 - 2 sqrt(m / M) per step: about n / pi steps
per factor e on n x n nodes, where plain relaxation takes n^2 (`design/physics-relaxation.md`). A constant `a` without k
goes through the gated stencil kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from ... import kernels
from ...errors import BadInput
from ...gate import Gate
from ...keeper import Traits
from ._mesh import halo, two_axes


def damping(low: float, high: float) -> tuple[float, float]:
    """The best (alpha, gamma) for eigenvalues between `low` and `high`."""
    a, b = math.sqrt(low), math.sqrt(high)
    return 4.0 / (a + b) ** 2, ((b - a) / (b + a)) ** 2


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A workload that relaxes towards the solution, `sweeps` iterations a step.

    `source` (n, n) at the interior nodes (i h, j h) of a rectangle with sides `lengths`; `frame` holds the boundary
    values: west, east along y and south, north along x, (4, n). `a` is a number, or face values (2, n + 1, n + 1):
    along x at [0, i, :n] between nodes i - 1 and i, along y at [1, :n, j]. `reaction` is k, a number or (n, n).
    State: `u`, `w`. The metric `residual` is |r| / |f| (root mean squares, with the boundary's part of f).
    """

    source: np.ndarray
    frame: np.ndarray
    lengths: tuple[float, float] = (1.0, 1.0)
    a: float | np.ndarray = 1.0
    reaction: float | np.ndarray = 0.0
    sweeps: int = 16
    steps: int = 1000
    dtype: str = "float64"
    start: np.ndarray | None = None
    problem: Any = None

    name = "relaxation"

    def __post_init__(self) -> None:
        n = len(self.source)
        if self.source.shape != (n, n) or self.frame.shape != (4, n) or n < 2:
            raise BadInput(f"A relaxation needs a source (n, n) and a frame (4, n), not {self.source.shape}.")
        if not (np.min(self.a) > 0.0 and np.min(self.reaction) >= 0.0):
            raise BadInput("A relaxation needs a > 0 and a reaction that is not negative.")
        if self.sweeps < 1 or self.dtype not in ("float32", "float64"):
            raise BadInput("A relaxation needs sweeps >= 1, and float32 or float64.")

    @property
    def n(self) -> int:
        """Interior nodes per side."""
        return len(self.source)

    @property
    def spacing(self) -> tuple[float, float]:
        """Distances of neighbouring nodes along x and y."""
        return self.lengths[0] / (self.n + 1), self.lengths[1] / (self.n + 1)

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the operator's eigenvalues, exact for constant coefficients."""
        h = self.spacing
        low = sum(4.0 / s**2 * math.sin(math.pi / (2 * (self.n + 1))) ** 2 for s in h)
        high = sum(4.0 / s**2 * math.cos(math.pi / (2 * (self.n + 1))) ** 2 for s in h)
        a = np.asarray(self.a)
        return float(a.min() * low + np.min(self.reaction)), float(a.max() * high + np.max(self.reaction))

    @property
    def plain(self) -> bool:
        """Whether the gated stencil kernel does the work."""
        return np.ndim(self.a) == 0 and np.ndim(self.reaction) == 0

    @property
    def traits(self) -> Traits:
        """A sweep cannot be left out; anything finite below 1e12 is good."""
        return Traits(gate=Gate(limit=1e12), limit=1e12, x64=self.dtype == "float64")

    def axes(self, n: int) -> dict[str, int]:
        """The most nearly square mesh, x by y."""
        return two_axes(n, self.n)

    def state_specs(self) -> Any:
        """Each device holds a rectangle of the grid."""
        return {"u": P("x", "y"), "w": P("x", "y")}

    def proposal_specs(self) -> Any:
        """The proposal is the next state."""
        return self.state_specs()

    def batch_specs(self) -> Any:
        """The source is cut like the state, the frame along its side."""
        specs = {"f": P("x", "y"), "west_east": P(None, "y"), "south_north": P(None, "x")}
        return specs if self.plain else specs | {"ax": P("x", "y"), "bx": P("x", "y"), "ay": P("x", "y"),
                                                 "by": P("x", "y"), "k": P("x", "y")}  # fmt: skip

    def init(self) -> dict[str, np.ndarray]:
        """At rest, from `start` or from zero."""
        u = np.zeros((self.n, self.n)) if self.start is None else self.start
        return {"u": np.asarray(u, self.dtype), "w": np.zeros((self.n, self.n), self.dtype)}

    def batch(self, index: int) -> dict[str, np.ndarray]:
        """The problem's data, the same for every step."""
        made: dict[str, Any] = {"f": self.source, "west_east": self.frame[:2], "south_north": self.frame[2:]}
        if not self.plain:
            n = self.n
            a = np.broadcast_to(self.a, (2, n + 1, n + 1))
            made |= {"ax": a[0, :n, :n], "bx": a[0, 1:, :n], "ay": a[1, :n, :n], "by": a[1, :n, 1:]}
            made["k"] = np.broadcast_to(self.reaction, (n, n))
        return {key: np.asarray(value, self.dtype) for key, value in made.items()}

    def propose(self, mesh: jax.sharding.Mesh, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """`sweeps` iterations over the mesh, neighbours exchanging one row of nodes each time."""
        run = jax.shard_map(
            self._sweeps,
            mesh=mesh,
            in_specs=(self.state_specs(), self.batch_specs()),
            out_specs=(self.state_specs(), P()),
            check_vma=False,
        )
        proposal, residual = run(state, batch)
        return proposal, {"residual": residual}

    def commit(self, state: Any, proposal: Any) -> Any:
        """The proposal is the next state."""
        return proposal

    def solution(self, state: Any) -> Any:
        """The solution on this grid, where the workload was made from a problem; the grid's error is not known."""
        from .._status import Status
        from ._solve import framed, solution_of

        if self.problem is None:
            raise BadInput("This relaxation was made from arrays, not from a problem; its state holds the values.")
        full = framed(np.asarray(state["u"]), self.frame)
        finite = bool(np.all(np.isfinite(full)))
        return solution_of(self.problem, full, Status.TOLERANCE_MISSED if finite else Status.NOT_FINITE, math.inf, {})

    def _sweeps(self, state: Any, batch: Any) -> tuple[Any, Any]:
        alpha, gamma = damping(*self.bounds)

        def one(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            u, w = carry
            w = gamma * w + alpha * self._residual(u, batch)
            return u + w, w

        u, w = lax.fori_loop(0, self.sweeps, one, (state["u"], state["w"]))
        left = lax.psum(jnp.sum(self._residual(u, batch) ** 2), ("x", "y"))
        size = lax.psum(jnp.sum(self._residual(jnp.zeros_like(u), batch) ** 2), ("x", "y"))
        tiny = jnp.finfo(u.dtype).tiny
        return {"u": u, "w": w}, jnp.sqrt(left / jnp.maximum(size, tiny))

    def _residual(self, u: Any, batch: Any) -> Any:
        """f + div(a grad u) - k u on this device's nodes."""
        west, east = halo(u, 0, "x", batch["west_east"][0], batch["west_east"][1])
        south, north = halo(u, 1, "y", batch["south_north"][0], batch["south_north"][1])
        hx, hy = self.spacing
        if self.plain:
            body = jnp.concatenate([west, u, east], axis=0)
            ends = [jnp.pad(side, ((1, 1), (0, 0))) for side in (south, north)]  # a star reads no corners
            body = jnp.concatenate([ends[0], body, ends[1]], axis=1)
            a, k = float(self.a), float(self.reaction)
            rows = np.array([[1.0, -2.0, 1.0]]) * a / np.array([[hx**2], [hy**2]])
            rows[:, 1] -= k / 2.0
            made, _ = kernels.stencil(body, jnp.asarray(rows, u.dtype), self.traits.gate, steps=1, edges="halo")
            return batch["f"] + made
        left = jnp.concatenate([west, u[:-1]], axis=0)
        right = jnp.concatenate([u[1:], east], axis=0)
        down = jnp.concatenate([south, u[:, :-1]], axis=1)
        up = jnp.concatenate([u[:, 1:], north], axis=1)
        flux = (batch["bx"] * (right - u) - batch["ax"] * (u - left)) / hx**2
        flux = flux + (batch["by"] * (up - u) - batch["ay"] * (u - down)) / hy**2
        return batch["f"] + flux - batch["k"] * u
