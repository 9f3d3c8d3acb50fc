"""Memory against the number of points: the streamed factorisation, and reverse-mode gradients of a PINN beside it.

    python benchmarks/physics_memory.py            prints JSON rows

The peers are measured, not run: XLA says how much temporary memory a compiled step needs. Reverse mode lives in this
file's peers only, to be compared with. The ratio to the full batch is the documented way of training; accumulating over
chunks makes a PINN's memory constant too, and that row stands beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from poise.physics import solve
from poise.physics._precision import in_double
from poise.physics.tasks import get
from poise.physics.tasks._task import peak_mb


def _network(parameters: Any, point: Any) -> Any:
    for weights, bias in parameters[:-1]:
        point = jnp.tanh(weights @ point + bias)
    weights, bias = parameters[-1]
    return (weights @ point + bias)[0]


def _parameters(width: int, depth: int) -> list[tuple[Any, Any]]:
    sizes = [2, *[width] * depth, 1]
    shapes = zip(sizes[1:], sizes[:-1], strict=True)
    real = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float64)  # noqa: E731
    return [(real(m, n), real(m)) for m, n in shapes]


def _loss(parameters: Any, points: Any) -> Any:
    def residual(point: Any) -> Any:
        return jnp.trace(jax.hessian(lambda p: _network(parameters, p))(point)) + 1.0

    return jnp.mean(jax.vmap(residual)(points) ** 2)


def _temporary(function: Any, *arguments: Any) -> float:
    analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
    return analysis.temp_size_in_bytes / 2**20 if analysis is not None else float("nan")


@in_double
def gradient_mb(points: int, *, width: int = 100, depth: int = 5, chunk: int | None = None) -> float:
    """XLA's temporary memory, in MiB, of one gradient of a depth x width tanh PINN with its Hessian trace, in float64.

    The documented full batch, or accumulated over chunks of the given size, whose memory is constant too.
    """
    gradient = jax.grad(_loss)
    parameters = _parameters(width, depth)
    if chunk is None:
        return _temporary(gradient, parameters, jax.ShapeDtypeStruct((points, 2), jnp.float64))

    def accumulated(parameters: Any, batches: Any) -> Any:
        zero = jax.tree.map(jnp.zeros_like, parameters)
        add = lambda total, batch: (jax.tree.map(jnp.add, total, gradient(parameters, batch)), None)  # noqa: E731
        return jax.lax.scan(add, zero, batches)[0]

    return _temporary(accumulated, parameters, jax.ShapeDtypeStruct((points // chunk, chunk, 2), jnp.float64))


def bench_memory(
    points: Sequence[int] = (10_000, 100_000, 1_000_000), peer_points: int = 524_288
) -> list[dict[str, Any]]:
    """Rows for `poise bench memory`: our solve of Poisson2d-C at each number of points, then the two peers."""
    problem = get("poisson2d-c").built
    rows: list[dict[str, Any]] = []
    for count in points:
        solution = solve(problem, 1e-6, points=count, degree=16, steps=1)
        rows.append(
            {
                "name": "streamed QR (poisson2d-c)",
                "points": int(np.rint(solution.points)),
                "features": solution.features,
                "xla_temp_mb": solution.detail["xla_temp_bytes"] / 2**20,
                "peak_mb": peak_mb(),
            }
        )
    ours = rows[-1]["xla_temp_mb"]
    for name, chunk in (("PINN gradient, full batch", None), ("PINN gradient, chunks of 256", 256)):
        mb = gradient_mb(peer_points, chunk=chunk)
        rows.append({"name": name, "points": peer_points, "xla_temp_mb": mb, "ratio": mb / ours})
    return rows


if __name__ == "__main__":
    print(json.dumps(bench_memory(), indent=2))
