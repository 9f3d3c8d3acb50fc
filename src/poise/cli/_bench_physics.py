"""Physics beside peers: `poise bench memory` and `poise bench physics`.

Reverse mode lives in this file's peers only, to be compared with: XLA says how much temporary memory a compiled
gradient needs, nothing is run. The large ratio is against the documented full batch; a gradient accumulated over chunks
needs constant memory too, and that row stands beside it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..physics import solve
from ..physics._precision import in_double
from ..physics.tasks import get
from ..physics.tasks._task import peak_mb
from ._bench_peers import backprop, periodic

POINTS = (10_000, 100_000, 1_000_000, 10_000_000)
PEER_POINTS = 524_288
PINN_SECONDS = 60.0
"""What a backprop PINN is given; its error at that time is printed."""


def _network(parameters: Any, point: Any) -> Any:
    for weights, bias in parameters[:-1]:
        point = jnp.tanh(weights @ point + bias)
    weights, bias = parameters[-1]
    return (weights @ point + bias)[0]


def _loss(parameters: Any, points: Any) -> Any:
    def residual(point: Any) -> Any:
        return jnp.trace(jax.hessian(lambda p: _network(parameters, p))(point)) + 1.0

    return jnp.mean(jax.vmap(residual)(points) ** 2)


@in_double
def gradient_mb(points: int, *, width: int = 100, depth: int = 5, chunk: int | None = None) -> float:
    """XLA's temporary memory, in MiB, of one gradient of a depth x width tanh PINN with its Hessian trace, in float64.

    The documented full batch, or accumulated over chunks of the given size, whose memory is constant too.
    """
    sizes = [2, *[width] * depth, 1]
    real = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float64)  # noqa: E731
    parameters = [(real(m, n), real(m)) for m, n in zip(sizes[1:], sizes[:-1], strict=True)]
    gradient = jax.grad(_loss)

    def accumulated(parameters: Any, batches: Any) -> Any:
        zero = jax.tree.map(jnp.zeros_like, parameters)
        add = lambda total, batch: (jax.tree.map(jnp.add, total, gradient(parameters, batch)), None)  # noqa: E731
        return jax.lax.scan(add, zero, batches)[0]

    if chunk is None:
        lowered = jax.jit(gradient).lower(parameters, real(points, 2))
    else:
        lowered = jax.jit(accumulated).lower(parameters, real(points // chunk, chunk, 2))
    analysis = lowered.compile().memory_analysis()
    return analysis.temp_size_in_bytes / 2**20 if analysis is not None else float("nan")


def streamed(points: int) -> dict[str, Any]:
    """Poisson2d-C by streamed QR with about this many points: what it took, for a process of its own."""
    start = time.perf_counter()
    solution = solve(get("poisson2d-c").built, 1e-6, points=points, degree=16, steps=1)
    return {
        "shape": [solution.points, solution.features],
        "ours_s": time.perf_counter() - start,
        "device": jax.devices()[0].device_kind,
        "xla_temp_mb": solution.detail["xla_temp_bytes"] / 2**20,
        "peak_mb": peak_mb(),
    }


def memory(points: Sequence[int] = POINTS, peer_points: int = PEER_POINTS) -> list[dict[str, Any]]:
    """Rows: Poisson2d-C by streamed QR at each number of points, beside the two gradients; `ratio` is of memory.

    `peak_mb` is the peak resident set of a process that does this one solve and nothing else; `spread` is the relative
    difference of the largest and smallest one of all rows.
    """
    peers = [("PINN gradient, full batch", None), ("PINN gradient in chunks of 256", 256)]
    measured = [(name, gradient_mb(peer_points, chunk=chunk)) for name, chunk in peers]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh:
        solved = list(fresh.map(streamed, points))
    peaks = [row["peak_mb"] for row in solved]
    for row in solved:
        for name, peer in measured:
            rows.append(
                {
                    "name": "memory",
                    **row,
                    "peer": f"{name}, {peer_points} points",
                    "peer_s": None,
                    "ratio": peer / row["xla_temp_mb"],
                    "of_ceiling": None,
                    "peer_xla_temp_mb": peer,
                    "spread": max(peaks) / min(peaks) - 1.0,
                }
            )
    return rows


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """The second of two runs, and what it returned."""
    run()
    start = time.perf_counter()
    made = run()
    return time.perf_counter() - start, made


def dense_least_squares(points: np.ndarray, count: int, scale: float, seed: int = 0) -> tuple[float, float]:
    """Poisson2d-C with random sines and one dense least-squares problem, as FastLSQ-style solvers do: error, seconds.

    `scale` is the bandwidth tuned by hand on the true error; `points` (n, 3) are places and true values.
    """
    rng = np.random.default_rng(seed)
    w, b = rng.normal(size=(count, 2)) * scale, rng.uniform(0, 2 * np.pi, count)

    def run() -> np.ndarray:
        inner = rng.uniform(-0.5, 0.5, (6 * count, 2))
        holes = np.array([[a, c] for a in (-0.3, 0.3) for c in (-0.3, 0.3)])
        inner = inner[np.min(np.linalg.norm(inner[:, None] - holes, axis=2), axis=1) > 0.1]
        s = rng.uniform(-0.5, 0.5, count)
        side = np.concatenate([np.stack([s, np.full_like(s, e)], 1) for e in (-0.5, 0.5)])
        edge = np.concatenate([side, side[:, ::-1]])
        angle = rng.uniform(0, 2 * np.pi, count)
        ring = np.concatenate([h + 0.1 * np.stack([np.cos(angle), np.sin(angle)], 1) for h in holes])
        phase = lambda p: p @ w.T + b  # noqa: E731
        laplacian = -np.sin(phase(inner)) * np.sum(w**2, axis=1) / scale**2
        rows = np.concatenate([laplacian, 10 * np.sin(phase(edge)), 10 * np.sin(phase(ring))])
        right = np.concatenate([np.zeros(len(inner)), np.full(len(edge), 10.0), np.zeros(len(ring))])
        return np.linalg.lstsq(rows, right, rcond=1e-13)[0]

    seconds, theta = _timed(run)
    found = np.sin(points[:, :2] @ w.T + b) @ theta
    return float(np.linalg.norm(found - points[:, 2]) / np.linalg.norm(points[:, 2])), seconds


def finite_elements(refinements: int) -> tuple[Callable[[np.ndarray], np.ndarray], float] | None:
    """The L-shape by scikit-fem with quadratic triangles: the solution, seconds; None where it is not installed."""
    try:
        from skfem import Basis, BilinearForm, ElementTriP2, LinearForm, MeshTri, condense
        from skfem import solve as linear_solve
        from skfem.helpers import dot, grad
    except ImportError:
        return None
    # scikit-fem's L lacks the lower right quadrant; ours lacks the upper right one
    mesh = MeshTri.init_lshaped().refined(refinements)
    stiffness = BilinearForm(lambda u, v, _: dot(grad(u), grad(v)))  # type: ignore[arg-type]
    load = LinearForm(lambda v, _: 1.0 * v)

    def run() -> Any:
        basis = Basis(mesh, ElementTriP2())
        return basis, linear_solve(*condense(stiffness.assemble(basis), load.assemble(basis), D=basis.get_dofs()))

    seconds, (basis, x) = _timed(run)
    missing = mesh.p[:, (mesh.p[0] > 0)]
    turned = bool(np.min(missing[1]) >= -1e-12) if missing.size else False
    place = lambda p: np.stack([p[:, 0], -p[:, 1]]) if turned else p.T  # noqa: E731
    return lambda p: basis.probes(place(p)) @ x, seconds


def physics() -> list[dict[str, Any]]:
    """Rows: a task beside a peer, with both errors; `ratio` is the peer's time over ours."""
    rows: list[dict[str, Any]] = []

    def row(
        task: str, ours: float, error: float, features: int, peer: str, theirs: float | None, other: float | None
    ) -> None:
        against = f", error {other:.1e}" if other is not None else ""
        rows.append(
            {
                "name": f"physics {task}",
                "shape": [features],
                "ours_s": ours,
                "peer": f"{peer}{against} (ours {error:.1e})",
                "peer_s": theirs,
                "ratio": theirs / ours if theirs is not None else float("nan"),
                "of_ceiling": None,
                "device": jax.devices()[0].device_kind,
                "rel_l2": error,
                "peer_rel_l2": other,
            }
        )

    task = get("poisson2d-c")
    seconds, solution = _timed(lambda: task.solve(task.tol, None))
    region = task.scatter(2000)
    # our own solution at a tighter tolerance is the truth for both: the data folder may be absent
    truth = solve(task.built, 1e-9)(region)
    error = float(np.linalg.norm(solution(region) - truth) / np.linalg.norm(truth))
    other, theirs = dense_least_squares(np.column_stack([region, truth]), 1200, 12.0)
    row("poisson2d-c", seconds, error, solution.features, "dense least squares, 1200 random sines", theirs, other)

    task = get("l-shape")
    for refinements in (4, 6):
        made = finite_elements(refinements)
        if made is None:
            break
        points = task.scatter(2000)
        truth = task.solve(1e-11, None)(points)
        tol = 1e-3 if refinements == 4 else 1e-4
        seconds, solution = _timed(lambda tol=tol: task.solve(tol, None))
        error = float(np.linalg.norm(solution(points) - truth) / np.linalg.norm(truth))
        other = float(np.linalg.norm(made[0](points) - truth) / np.linalg.norm(truth))
        row("l-shape", seconds, error, solution.features, f"scikit-fem P2, {refinements} refinements", made[1], other)
    for name in ("ks", "allen-cahn-periodic"):
        periodic(name, _timed, row)
    backprop(PINN_SECONDS, _timed, row)
    return rows
