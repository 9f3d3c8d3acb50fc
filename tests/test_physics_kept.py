"""Solves that are cut over devices, relaxed on a grid, or kept: the same answer as plain ones, faults or not."""

import jax
import numpy as np
import pytest

from kept import run
from poise.errors import BadInput
from poise.physics import Box, Problem, Status, axes, cos, div, exp, grad, initial, lap, on, scale, sin, solve, unknown
from poise.physics import workload as workload_of
from poise.physics.grid import damping

x, y, t = axes("x y t")
u = unknown("u", "x y")
square = Box(x=(0, 1), y=(0, 1.5), name="edge")
WAVE = sin(3 * x) * exp(y)


def wave(points: np.ndarray) -> np.ndarray:
    return np.sin(3 * points[:, 0]) * np.exp(points[:, 1])


def poisson() -> Problem:
    return Problem(square, lap(u) == -8 * WAVE, [on("edge", u == WAVE)])


def rough() -> Problem:
    a = 1 + 0.9 * sin(7 * x) * cos(5 * y)
    source = -div(scale((WAVE.dx, WAVE.dy), a)) + (1 + x) * WAVE
    return Problem(square, -div(scale(grad(u), a)) + (1 + x) * u == source, [on("edge", u == WAVE)])


def error(solution) -> float:
    points = np.random.default_rng(0).uniform(0, 1, (500, 2)) * [1, 1.5]
    return float(np.linalg.norm(solution(points) - wave(points)) / np.linalg.norm(wave(points)))


def test_damping_is_optimal_for_the_extreme_modes() -> None:
    low, high = 3.0, 700.0
    alpha, gamma = damping(low, high)

    def radius(value: float, alpha: float, gamma: float) -> float:
        return max(abs(np.linalg.eigvals([[1 + gamma - alpha * value, -gamma], [1.0, 0.0]])))

    best = max(radius(v, alpha, gamma) for v in np.linspace(low, high, 50))
    assert best == pytest.approx(np.sqrt(gamma), rel=1e-6)
    for da, dg in ((1.02, 1.0), (0.98, 1.0), (1.0, 1.005), (1.0, 0.995)):
        worse = max(radius(v, alpha * da, gamma * dg) for v in np.linspace(low, high, 50))
        assert worse > best


@pytest.mark.parametrize("make", [poisson, rough])
def test_relaxation_takes_iterations_like_n_and_is_second_order(make) -> None:
    problem = make()
    made = {n: solve(problem, 1e-12, method="relaxation", n=n) for n in (31, 63, 127)}
    counts = {n: dict(s.detail["iterations"])[n] for n, s in made.items()}
    assert counts[127] / counts[63] < 2.4
    errors = [error(s) for s in made.values()]
    assert errors[1] / errors[2] > 3.4
    assert 0.1 < made[127].error_estimate / errors[2] < 10
    assert solve(problem, 1e-2, method="relaxation", n=63).status is Status.CONVERGED


def test_relaxation_refuses_what_it_cannot_do() -> None:
    for problem in (
        Problem(square, lap(u) == u**2, [on("edge", u == 0)]),
        Problem(square, lap(u) == 1, [on("edge", u.dn == 0)]),
        Problem(square, lap(u) + u.dx == 1, [on("edge", u == 0)]),
    ):
        with pytest.raises(BadInput, match="Relaxation"):
            solve(problem, method="relaxation")


def test_devices_share_the_points_and_the_grid() -> None:
    shared = solve(poisson(), 1e-3, method="collocation", degree=5, steps=1, points=2000, devices=2)
    # Points come in whole turns of all devices: as many for the one.
    alone = solve(poisson(), 1e-3, method="collocation", degree=5, steps=1, points=shared.points)
    points = np.random.default_rng(1).uniform(0, 1, (200, 2))
    # The same rows in another order: nearly dependent features turn rounding into 1e-5; other points would change the
    # error by 1e-2.
    assert error(shared) == pytest.approx(error(alone), rel=2e-3)
    np.testing.assert_allclose(shared(points), alone(points), rtol=0, atol=1e-4)
    assert error(shared) < 1e-2
    one, four = (solve(rough(), 1e-12, method="relaxation", n=32, devices=k) for k in (1, 2))
    np.testing.assert_allclose(one(points), four(points), rtol=1e-9)
    with pytest.raises(BadInput, match="devices"):
        solve(poisson(), method="collocation", devices=len(jax.devices()) + 1)


def heat() -> Problem:
    w = unknown("w", "x t")
    line = Box(x=(-1, 1), name="ends")
    return Problem(
        line, w.dt + w * w.dx == 0.1 * w.dxx, [initial(w == -sin(np.pi * x)), on("ends", w == 0)], time=(0, 1)
    )


KEPT = {
    "collocation": lambda: workload_of(poisson(), method="collocation", degree=8, steps=8, shards=4),
    "relaxation": lambda: workload_of(poisson(), method="relaxation", n=32, sweeps=40, steps=8),
    "march": lambda: workload_of(heat(), nodes=64, steps=8, substeps=4),
}


@pytest.mark.parametrize("which", KEPT)
def test_a_kept_solve_survives_faults_bit_for_bit(which: str) -> None:
    work = KEPT[which]()
    clean = run(work, active=2)
    struck = run(work, [{"kind": "bitflip", "step": 3, "slot": 1}], active=2, clean=clean)
    assert struck.fingerprint == clean.fingerprint
    assert all(s.bit_exact for s in struck.strikes)
    solution = work.solution(clean.keeper.state)
    if which == "collocation":
        assert error(solution) < 1e-4
        assert 0.05 < solution.error_estimate / error(solution) < 20
    elif which == "relaxation":
        assert error(solution) < 2e-3
    else:
        plain = solve(heat(), 1e-8)
        at = np.stack([np.linspace(-1, 1, 50), np.full(50, 1.0)], axis=1)
        np.testing.assert_allclose(solution(at), plain(at), atol=1e-6)
        assert solution.error_estimate < 1e-5


def test_what_has_no_steps_is_said() -> None:
    with pytest.raises(BadInput, match="no steps"):
        workload_of(poisson(), method="direct")
    with pytest.raises(BadInput, match="cannot be made"):
        workload_of(poisson(), method="collocation", colour=3)
    with pytest.raises(BadInput, match="linear"):
        workload_of(Problem(square, lap(u) == u**2, [on("edge", u == 0)]), method="collocation")
