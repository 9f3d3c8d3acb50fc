"""The forward-only network: it solves, it knows its error, it is saved, and nothing goes backwards."""

import jax
import numpy as np
import pytest

from poise.physics import Box, Problem, axes, cube, lap, load, on, sin, solve, unknown

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
