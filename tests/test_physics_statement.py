"""Stating a problem: operators on symbols, geometry, and the sentences that refuse wrong statements."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

from poise.errors import BadInput
from poise.physics import (
    Box,
    Disc,
    Polygon,
    Problem,
    axes,
    cos,
    cube,
    div,
    exp,
    given,
    grad,
    initial,
    lap,
    measured,
    on,
    sampled,
    scale,
    sin,
    solve,
    tanh,
    union,
    unknown,
)
from poise.physics._calculus import evaluate, linearise
from poise.physics._points import Cloud
from poise.physics.tasks import _elliptic

x, y, t = axes("x y t")
u = unknown("u", "x y")
square = Box(x=(0, 1), y=(0, 1), name="edge")


def test_poisson2d_c_takes_at_most_twelve_lines() -> None:
    source = inspect.getsource(_elliptic.poisson2d_c).strip().splitlines()
    assert len([line for line in source if line.strip() and '"""' not in line]) <= 12


def test_linearisation_is_the_derivative_of_the_expression() -> None:
    w = unknown("w", "x t")
    residual = w.dt + w * w.dx - 0.1 * w.dxx + sin(w) * exp(x) + w**3 / (1 + w**2)
    keys = linearise(residual)
    rng = np.random.default_rng(0)
    env = {"x": rng.normal(size=5), "t": rng.normal(size=5)} | {key: rng.normal(size=5) for key in keys}
    for key in keys:
        up, down = ({**env, key: env[key] + s * 1e-6} for s in (1, -1))
        slope = (evaluate(residual, up) - evaluate(residual, down)) / 2e-6
        np.testing.assert_allclose(evaluate(keys[key], env), slope, rtol=1e-6, atol=1e-7)


@settings(max_examples=20, deadline=None)
@forall(st.floats(-2, 2), st.floats(-2, 2))
def test_derivatives_of_coordinate_expressions_are_exact(a: float, b: float) -> None:
    node = sin(x * y) * exp(-(x**2)) + tanh(y) * cos(3 * x)
    at = {"x": np.array([a]), "y": np.array([b])}
    exact = (b * np.cos(a * b) - 2 * a * np.sin(a * b)) * np.exp(-(a**2)) - 3 * np.tanh(b) * np.sin(3 * a)
    np.testing.assert_allclose(evaluate(node.dx, at), [exact], rtol=1e-12, atol=1e-12)


def test_coefficients_may_be_functions_or_arrays() -> None:
    f = given(lambda a, b: jnp.sin(a) * b)
    at = {"x": np.array([0.3, 0.5]), "y": np.array([2.0, 1.0])}
    np.testing.assert_allclose(evaluate(f.dx, at), np.cos(at["x"]) * at["y"], rtol=1e-6)
    table = sampled(np.outer(np.linspace(0, 1, 11), np.ones(5)), x=(0, 1), y=(0, 1))
    np.testing.assert_allclose(evaluate(table, {"x": np.array([0.25]), "y": np.array([0.5])}), [0.25], rtol=1e-6)


def test_boundary_points_are_spread_by_length() -> None:
    holes = union(*(Disc((a, b), 0.1) for a in (-0.3, 0.3) for b in (-0.3, 0.3)), name="circles")
    plate = Box(x=(-0.5, 0.5), y=(-0.5, 0.5), name="square") - holes
    assert plate.boundaries == ("square", "circles")
    env, keep = Cloud(plate, plate.patches, None).at(jnp.arange(4000), 0.5)
    assert bool(keep.all())
    on_square = np.isclose(np.maximum(np.abs(env["x"]), np.abs(env["y"])), 0.5, atol=1e-6).mean()
    assert on_square == pytest.approx(4 / (4 + 8 * np.pi * 0.1), abs=0.01)
    radius = np.hypot(np.abs(env["x"]) - 0.3, np.abs(env["y"]) - 0.3)
    hole = np.isclose(radius, 0.1, atol=1e-6)
    outward = env["n", "x"] * (np.abs(env["x"]) - 0.3) * np.sign(env["x"]) + env["n", "y"] * (
        np.abs(env["y"]) - 0.3
    ) * np.sign(env["y"])
    assert (np.asarray(outward)[hole] < 0).all()  # out of the plate is into the hole


def test_polygon_and_cube_patches_lie_on_the_boundary() -> None:
    ell = Polygon((-1, -1), (1, -1), (1, 0), (0, 0), (0, 1), (-1, 1))
    assert ell.measure == pytest.approx(3.0)
    many = cube(20)
    with jax.enable_x64(True):
        env, _ = Cloud(many, many.patches, None).at(jnp.arange(500), 0.5)
    points = np.stack([env[a] for a in many.axes], axis=1)
    assert np.isclose(np.minimum(points, 1 - points).min(axis=1), 0, atol=1e-6).all()


WRONG = {
    "no condition": lambda: Problem(square, lap(u) == 0, []),
    "no boundary is called": lambda: Problem(square, lap(u) == 0, [on("edges", u == 0)]),
    "2 equations for 1 unknown": lambda: Problem(square, [lap(u) == 0, u.dx == 0], [on("edge", u == 0)]),
    "1 equation for 2 unknowns": lambda: Problem(square, lap(u) + unknown("v", "x y") == 0, [on("edge", u == 0)]),
    "has no time": lambda: Problem(square, unknown("w", "x y t").dt == 0, [on("edge", u == 0)]),
    "initial condition": lambda: Problem(Box(x=(0, 1), name="e"), unknown("w", "x t").dt == 0, [], time=(0, 1)),
    "only means something on a boundary": lambda: Problem(square, u.dn == 0, [on("edge", u == 0)]),
    "coordinate 'z'": lambda: Problem(square, lap(u) == axes("z")[0], [on("edge", u == 0)]),
    "wholly outside": lambda: square - Disc((5, 5), 0.1),
    "anticlockwise": lambda: Polygon((0, 0), (0, 1), (1, 0)),
    "low < high": lambda: Box(x=(1, 0)),
    "positive radius": lambda: Disc((0, 0), 0.0),
    "no truth value": lambda: bool(u == 0),
    "same axes": lambda: square | Box(x=(0, 1)),
    "contains no unknown": lambda: Problem(square, lap(u) == 0, [on("edge", x == 0)]),
    "finite points": lambda: measured(u, [[0.0, np.nan]], [1.0]),
    "admits 0": lambda: Problem(
        Box(x=(0, 1), name="e"),
        unknown("w", "x t").dxx == 0,
        [on("e", x * 0 + _w == 0), initial(_w == 0), initial(_w == 1)],
        time=(0, 1),
    ),
    "positive number": lambda: solve(Problem(square, lap(u) == 0, [on("edge", u == 0)]), tol=0.0),
    "has no option": lambda: solve(Problem(square, lap(u) == 0, [on("edge", u == 0)]), colour="red"),
    "No method is called": lambda: solve(Problem(square, lap(u) == 0, [on("edge", u == 0)]), method="magic"),
}
_w = unknown("w", "x t")


@pytest.mark.parametrize("words", [w for w in WRONG if w != "admits 0"])
def test_wrong_statements_are_refused_with_a_sentence(words: str) -> None:
    with pytest.raises(BadInput, match=f"(?i){words}") as caught:
        WRONG[words]()
    assert str(caught.value).endswith(".")


def test_divergence_form_expands_by_the_product_rule() -> None:
    a = 1 + x * y
    node = div(scale(grad(u), a))
    keys = {key[1]: c for key, c in linearise(node).items()}
    at = {"x": np.array([2.0]), "y": np.array([3.0])}
    assert evaluate(keys[(1, 0)], at) == pytest.approx(3.0)
    assert evaluate(keys[(2, 0)], at) == pytest.approx(7.0)
