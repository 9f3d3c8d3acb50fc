"""The forward-only network: it solves, it knows its error, it is saved, and nothing goes backwards."""

import jax
import numpy as np
import pytest

from poise.errors import BadInput
from poise.physics import Box, Disc, Problem, Status, axes, cube, initial, lap, load, log, on, sin, solve, tanh, unknown

x, y = axes("x y")
u = unknown("u", "x y")
square = Box(x=(0, 1), y=(0, 1), name="edge")


@pytest.fixture
def forward_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reverse-mode differentiation was called")

    for name in ("vjp", "grad", "value_and_grad", "jacrev", "linear_transpose", "hessian"):
        monkeypatch.setattr(jax, name, refuse)


def test_a_sampled_layer_solves_a_nonlinear_problem(forward_only: None, tmp_path) -> None:
    exact = sin(2 * x + y)
    problem = Problem(square, lap(u) - u**3 == -5 * exact - exact**3, [on("edge", u == exact)])
    solution = solve(problem, 1e-3, method="network", width=150, iterations=0, steepness=(0.25, 0.5))
    points = np.random.default_rng(0).uniform(0, 1, (300, 2))
    truth = np.sin(2 * points[:, 0] + points[:, 1])
    assert np.linalg.norm(solution(points) - truth) / np.linalg.norm(truth) < 1e-3
    solution.save(tmp_path / "n.npz")
    np.testing.assert_array_equal(load(tmp_path / "n.npz")(points), solution(points))


def test_forward_training_lowers_the_error_in_six_dimensions(forward_only: None) -> None:
    w = unknown("w", " ".join(f"x{i + 1}" for i in range(6)))
    total = sum((sin(c) for c in axes(" ".join(w.axes))), 0.0 * axes("x1")[0])
    problem = Problem(cube(6), lap(w) == -total, [on("faces", w == total)])
    points = np.random.default_rng(0).uniform(0, 1, (300, 6))
    truth = np.sin(points).sum(axis=1)
    errors = []
    for iterations in (0, 8):
        solution = solve(problem, 1e-6, method="network", width=12, iterations=iterations, steepness=(0.25,))
        errors.append(np.linalg.norm(solution(points) - truth) / np.linalg.norm(truth))
    assert errors[1] < 0.5 * errors[0]


def test_a_layer_that_marches_solves_a_viscous_shock(forward_only: None, tmp_path) -> None:
    s, _ = axes("x t")
    w = unknown("w", "x t")
    nu = 0.01
    # a front that travels at speed 1/2 (Whitham 1974): its values at the ends are not zero
    front = 0.5 - 0.5 * tanh((s + 0.3 - 0.5 * axes("t")[0]) / (4 * nu))
    problem = Problem(
        Box(x=(-1, 1), name="ends"),
        w.dt + w * w.dx == nu * w.dxx,
        [initial(w == front), on("ends", w == front)],
        time=(0, 0.5),
    )
    solution = solve(problem, 1e-5, method="network", width=110, draws=4, time_steps=10)
    rng = np.random.default_rng(0)
    points = np.stack([rng.uniform(-1, 1, 500), rng.uniform(0, 0.5, 500)], axis=1)
    truth = 0.5 - 0.5 * np.tanh((points[:, 0] + 0.3 - 0.5 * points[:, 1]) / (4 * nu))
    error = np.linalg.norm(solution(points) - truth) / np.linalg.norm(truth)
    assert error < 1e-5
    assert 0.1 < solution.error_estimate / error < 10
    assert solution.status is Status.CONVERGED
    slope = np.linalg.norm(solution(points, dt=1) + 0.5 * solution(points, dx=1)) / np.linalg.norm(
        solution(points, dt=1)
    )
    assert slope < 1e-3
    solution.save(tmp_path / "n.npz")
    np.testing.assert_array_equal(load(tmp_path / "n.npz")(points), solution(points))
    with pytest.raises(BadInput, match="not points"):
        solve(problem, method="network", points=100)


def test_units_gather_around_a_hole(forward_only: None) -> None:
    plate = Box(x=(-1, 1), y=(-1, 1), name="edge") - Disc((0, 0), 0.3, name="hole")
    on_edge = 0.5 * log(x**2 + y**2)
    problem = Problem(plate, lap(u) == 0, [on("edge", u == on_edge), on("hole", u == float(np.log(0.3)))])
    solution = solve(problem, 1e-2, method="network", width=300, iterations=0, steepness=(0.5,))
    points = np.random.default_rng(0).uniform(-1, 1, (600, 2))
    points = points[np.hypot(*points.T) > 0.3]
    truth = np.log(np.hypot(*points.T))
    error = np.linalg.norm(solution(points) - truth) / np.linalg.norm(truth)
    assert error < 1e-2
    assert 0.1 < solution.error_estimate / error < 10
