"""Solving: each class of problem by its method, honest estimates, results that can be kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise.errors import BadInput
from poise.physics import (
    Box,
    Disc,
    Problem,
    Status,
    axes,
    choose,
    initial,
    lap,
    load,
    on,
    parameter,
    sin,
    solve,
    union,
    unknown,
)
from poise.physics.features import Harmonics, Radial, Screened, corner, multipoles, ridges, sparse, tensor

PI = np.pi
x, y, t = axes("x y t")
u = unknown("u", "x y")


def ring() -> Problem:
    """Laplace between a square's edge and a disc, with an exact solution: log r."""
    r2 = x**2 + y**2
    from poise.physics import log

    plate = Box(x=(-1, 1), y=(-1, 1), name="edge") - Disc((0, 0), 0.3, name="hole")
    return Problem(plate, lap(u) == 0, [on("edge", u == 0.5 * log(r2)), on("hole", u == float(np.log(0.3)))])


def test_collocation_meets_its_tolerance_and_estimates_its_error() -> None:
    solution = solve(ring(), 1e-8, method="collocation")
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (2000, 2))
    points = points[np.hypot(*points.T) > 0.3]
    exact = np.log(np.hypot(*points.T))
    error = np.linalg.norm(solution(points) - exact) / np.linalg.norm(exact)
    assert solution.status is Status.CONVERGED
    assert error < 1e-8
    np.testing.assert_allclose(solution(points, dx=1), points[:, 0] / np.sum(points**2, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["polynomials", "sparse", "multipoles", "corner", "screened", "ridges", "radial"])
def test_features_have_closed_form_derivatives(name: str) -> None:
    low, high = (-1.0, -1.0), (1.0, 1.0)
    family = {
        "polynomials": lambda: tensor(("x", "y"), low, high, (4, 5)),
        "sparse": lambda: sparse(("x", "y"), low, high, (5, 3)),
        "multipoles": lambda: multipoles([(2.0, 0.1), (-2.0, 0.0)], [0.5, 0.4], 3),
        "corner": lambda: corner((-1.2, -1.2), PI / 4, PI * 1.5, 2.0, 3),
        "screened": lambda: Screened(("x", "y"), (2.0, 0.1), 0.5, 3.0, 3),
        "ridges": lambda: ridges(("x", "y"), low, high, 6, 2.0),
        "radial": lambda: Radial(("x", "y"), np.zeros(2), 2.0, 4, (), 0),
    }[name]()
    assert isinstance(family, object)
    rng = np.random.default_rng(1)
    p = rng.uniform(-0.9, 0.9, (7, 2))
    with jax.enable_x64(True):

        def at(shift: tuple[float, float], order: tuple[int, int]) -> np.ndarray:
            env = {"x": jnp.asarray(p[:, 0] + shift[0]), "y": jnp.asarray(p[:, 1] + shift[1])}
            return np.asarray(columns[order](env))

        # one program per derivative: operation by operation they would be compiled a hundred times
        columns = {
            order: jax.jit(lambda env, order=order: family.columns(env, order))
            for order in ((0, 0), (1, 0), (0, 1), (2, 0), (0, 2), "lap")
        }
        h = 1e-5
        for i, order in (((h, 0.0), (1, 0)), ((0.0, h), (0, 1))):
            slope = (at(i, (0, 0)) - at((-i[0], -i[1]), (0, 0))) / (2 * h)
            np.testing.assert_allclose(at((0, 0), order), slope, rtol=1e-5, atol=1e-6)
        second = (at((h, 0.0), (1, 0)) - at((-h, 0.0), (1, 0))) / (2 * h)
        np.testing.assert_allclose(at((0, 0), (2, 0)), second, rtol=1e-5, atol=1e-5)
        total = at((0, 0), (2, 0)) + at((0, 0), (0, 2))
        env = {"x": jnp.asarray(p[:, 0]), "y": jnp.asarray(p[:, 1])}
        np.testing.assert_allclose(np.asarray(columns["lap"](env)), total, rtol=1e-8, atol=1e-8)
    if isinstance(family, Harmonics):
        np.testing.assert_allclose(total, 0.0, atol=1e-8)


def test_method_follows_from_the_class_of_problem() -> None:
    square = Box(x=(0, 1), y=(0, 1), name="e")
    w = unknown("w", "x t")
    line = Box(x=(0, 1), name="e")
    assert choose(ring()) == "elements"
    assert choose(Problem(square, lap(u) == 1, [on("e", u == 0)])) == "direct"
    assert choose(Problem(square, lap(u) == u**3 - 1, [on("e", u == 0)])) == "galerkin"
    heat = Problem(line, w.dt == w.dxx, [initial(w == sin(PI * x)), on("e", w == 0)], time=(0, 1))
    assert choose(heat) == "march"


def test_nonlinear_steady_problem_by_newton() -> None:
    square = Box(x=(0, 1), y=(0, 1), name="e")
    exact = sin(PI * x) * sin(PI * y)
    problem = Problem(square, -lap(u) + u**3 == 2 * PI**2 * exact + exact**3, [on("e", u == 0)])
    solution = solve(problem, 1e-8)
    g = np.linspace(0, 1, 17)
    xx, yy = np.meshgrid(g, g)
    np.testing.assert_allclose(solution(xx, yy), np.sin(PI * xx) * np.sin(PI * yy), atol=1e-8)
    assert solution.status is Status.CONVERGED


def test_a_resonant_problem_is_not_called_converged() -> None:
    k = 10 * PI  # 6^2 + 8^2 = 10^2: an eigenvalue of the unit square
    square = Box(x=(0, 1), y=(0, 1), name="e")
    problem = Problem(square, -lap(u) - k**2 * u == sin(6 * PI * x) * sin(8 * PI * y), [on("e", u == 0)])
    assert solve(problem, 1e-6).status is not Status.CONVERGED


def test_contradicting_conditions_are_not_called_converged() -> None:
    plate = Box(x=(-1, 1), y=(-1, 1), name="edge") - Disc((0, 0), 0.3, name="hole")
    problem = Problem(plate, lap(u) == 0, [on("edge", u == 0), on("edge", u.dn == 1), on("hole", u == 1)])
    assert solve(problem, 1e-6, degree=4, steps=3, method="collocation").status is not Status.CONVERGED


def test_too_few_features_are_not_called_converged() -> None:
    plate = Box(x=(-1, 1), y=(-1, 1), name="edge") - Disc((0.2, 0), 0.3, name="hole")
    problem = Problem(plate, lap(u) == 0, [on("edge", u == x**2), on("hole", u == 1)])
    solution = solve(problem, 1e-12, degree=6, steps=1, method="collocation")
    assert solution.status is Status.TOLERANCE_MISSED
    assert "max_features" in solution.status.advice


@pytest.mark.parametrize("which", ["collocated", "snapshots", "galerkin"])
def test_solutions_survive_a_file(which: str, tmp_path) -> None:
    w = unknown("w", "x t")
    line = Box(x=(0, 1), name="e")
    square = Box(x=(0, 1), y=(0, 1), name="e")
    problem = {
        "collocated": ring,
        "snapshots": lambda: Problem(
            line, w.dt == 0.1 * w.dxx + w * 0.1, [initial(w == 1 + sin(PI * x)), on("e", w == 1)], time=(0, 1)
        ),
        "galerkin": lambda: Problem(square, lap(u) == u**3 - 1, [on("e", u == 0)]),
    }[which]()
    solution = solve(problem, 1e-4, method="collocation" if which == "collocated" else None)
    solution.save(tmp_path / "s.npz")
    back = load(tmp_path / "s.npz")
    points = np.random.default_rng(0).uniform(0.3, 0.9, (20, 2))
    np.testing.assert_array_equal(back(points), solution(points))
    assert back.status is solution.status
    (tmp_path / "bad.npz").write_bytes(b"no")
    with pytest.raises(BadInput):
        load(tmp_path / "bad.npz")


def test_importing_and_solving_leave_the_programs_dtypes_alone() -> None:
    solve(ring(), 1e-3)
    solve(ring(), 1e-2, points=3000, degree=6, steps=1)
    assert jnp.ones(2).dtype == jnp.float32
    assert jnp.asarray(np.ones(2)).dtype == jnp.float32


def test_wrong_questions_to_a_solution_are_refused() -> None:
    solution = solve(ring(), 1e-3)
    with pytest.raises(BadInput, match="fields"):
        solution.field("v", np.zeros((1, 2)))
    with pytest.raises(BadInput, match="shape"):
        solution(np.zeros((1, 3)))
    with pytest.raises(BadInput, match="derivative"):
        solution(np.zeros((1, 2)), dz=1)


def test_memory_of_the_streamed_factorisation_is_independent_of_the_points() -> None:
    few = solve(ring(), 1e-3, degree=8, steps=1, points=2_000)
    many = solve(ring(), 1e-3, degree=8, steps=1, points=60_000)
    assert few.detail["xla_temp_bytes"] == many.detail["xla_temp_bytes"]
    assert 50_000 < many.points < 70_000


def test_union_and_parameter_are_public() -> None:
    assert union(Disc((0, 0), 1.0), Disc((3, 0), 1.0)).boundaries == ("circle",)
    assert parameter("nu").axes == ()


def test_a_compiler_option_that_xla_does_not_know_is_left_out(monkeypatch):
    from poise.physics.collocation import _stream

    assert _stream.compiler_options(1)["xla_backend_optimization_level"] == 1
    lower = jax.stages.Lowered.compile

    def younger(self, compiler_options=None):
        if "xla_cpu_use_fusion_emitters" in (compiler_options or {}):
            raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: No such compile option: 'xla_cpu_use_fusion_emitters'")
        return lower(self, compiler_options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", younger)
    _stream.compiler_options.cache_clear()
    try:
        assert _stream.compiler_options(0) == {"xla_backend_optimization_level": 0}
    finally:
        _stream.compiler_options.cache_clear()
