"""Spectral elements: meshes that fit, known solutions, interfaces, flow, heat by the Laplace transform."""

import numpy as np
import pytest

from poise.errors import BadInput
from poise.physics import (
    Ball,
    Box,
    Disc,
    Problem,
    Status,
    across,
    axes,
    choose,
    cos,
    div,
    exp,
    grad,
    initial,
    jump,
    lap,
    load,
    log,
    on,
    piecewise,
    scale,
    sin,
    solve,
    union,
    unknown,
)
from poise.physics.elements import _rings
from poise.physics.elements._space import Space, locate

x, y, z, t = axes("x y z t")
u = unknown("u", "x y")
square = Box(x=(-1, 1), y=(-1, 1), name="edge")
RNG = np.random.default_rng(11)


def relative(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def scattered_discs(count: int) -> list[tuple[tuple[float, float], float]]:
    """Disjoint discs of random size in the square [-1, 1]^2."""
    rng = np.random.default_rng(count)
    found: list[tuple[tuple[float, float], float]] = []
    while len(found) < count:
        c, r = rng.uniform(-0.8, 0.8, 2), rng.uniform(0.03, 0.18)
        if np.all(np.abs(c) + r < 0.97) and all(np.hypot(*(c - d)) > r + s + 0.02 for d, s in found):
            found.append(((float(c[0]), float(c[1])), float(r)))
    return found


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("filled", [False, True])
def test_meshes_around_random_discs_conform_and_have_the_right_area(count: int, filled: bool) -> None:
    discs = scattered_discs(count)
    outline = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    space = Space(_rings.plane(outline, discs, [filled] * count, 0.6), 8)
    area = 4.0 - (0.0 if filled else sum(np.pi * r**2 for _, r in discs))
    assert float(space.metric[1].sum()) == pytest.approx(area, rel=1e-6)
    outer = sum(f.weight.sum() for sides in _all_faces(space) for f in sides)
    length = 8.0 + (0.0 if filled else sum(2 * np.pi * r for _, r in discs))
    assert outer == pytest.approx(length, rel=1e-6)  # a face that does not conform would count as boundary


def _all_faces(space: Space) -> list:
    return [[space.face(np.flatnonzero(outer), *side)] for side, (_, outer) in space.sides.items() if outer.any()]


def test_hexahedra_around_balls_fill_the_box() -> None:
    balls = [((0.4, 0.3, 0.6), 0.2), ((0.6, 0.7, 0.6), 0.2), ((0.2, 0.8, 0.7), 0.1)]
    space = Space(_rings.space(np.zeros(3), np.ones(3), balls, 1), 5)
    volume = 1.0 - sum(4.0 / 3.0 * np.pi * r**3 for _, r in balls)
    assert float(space.metric[1].sum()) == pytest.approx(volume, rel=1e-4)


def test_points_are_found_in_curved_elements() -> None:
    discs = scattered_discs(5)
    outline = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    space = Space(_rings.plane(outline, discs, [False] * 5, 0.6), 6)
    points = RNG.uniform(-1, 1, (500, 2))
    points = points[[all(np.hypot(*(p - c)) > r for c, r in discs) for p in points]]
    places = locate(space, points)
    for axis in range(2):
        np.testing.assert_allclose(places.value(space.nodes[..., axis]), points[:, axis], atol=1e-9)


@pytest.mark.parametrize("robin", [False, True])
def test_laplace_around_a_hole(robin: bool) -> None:
    exact = 0.5 * log((x - 0.1) ** 2 + y**2)
    hole = u.dn + 2 * u == -1 / 0.3 + 2 * float(np.log(0.3)) if robin else u == float(np.log(0.3))
    plate = square - Disc((0.1, 0), 0.3, name="hole")
    problem = Problem(plate, lap(u) == 0, [on("edge", u == exact), on("hole", hole)])
    assert choose(problem) == "elements"
    solution = solve(problem, 1e-8)
    points = RNG.uniform(-1, 1, (800, 2))
    r = np.hypot(points[:, 0] - 0.1, points[:, 1])
    points, r = points[r > 0.3], r[r > 0.3]
    assert solution.status is Status.CONVERGED
    error = relative(solution(points), np.log(r))
    assert error < 1e-7
    assert 0.1 < solution.error_estimate / error < 10 or error < 1e-11
    np.testing.assert_allclose(solution(points, dx=1), (points[:, 0] - 0.1) / r**2, atol=2e-5)


def test_a_conductivity_that_jumps_across_a_disc(tmp_path) -> None:
    disc = Disc((0, 0), 0.5)
    a = piecewise(disc, 400.0, 1.38)
    outside = (4 - x**2 - y**2) / (4 * 1.38)
    conditions = [on("edge", u == outside), across(disc, jump(u) == 0, jump(a * u.dn) == 0)]
    solution = solve(Problem(square, -div(scale(grad(u), a)) == 1, conditions), 1e-8)
    points = RNG.uniform(-1, 1, (600, 2))
    r2 = np.sum(points**2, axis=1)
    exact = np.where(r2 > 0.25, (4 - r2) / 5.52, 3.75 / 5.52 + (0.25 - r2) / 1600)
    assert relative(solution(points), exact) < 1e-8
    solution.save(tmp_path / "s.npz")
    np.testing.assert_array_equal(load(tmp_path / "s.npz")(points), solution(points))


def test_a_flux_that_jumps_and_a_box_inside() -> None:
    block = Box(x=(-0.5, 0.5), y=(-2, 2))
    a = piecewise(block, 3.0, 1.0)
    # u = |x| outside, flat in the block: the flux outward jumps from 0 to 1
    edge = piecewise(block, 0.5, 0.0) + piecewise(block, 0.0, 1.0) * (x**2) ** 0.5
    conditions = [on("edge", u == edge), across(block, jump(u) == 0, jump(a * u.dn) == 1)]
    solution = solve(Problem(square, div(scale(grad(u), a)) == 0, conditions), 1e-9)
    points = RNG.uniform(-1, 1, (300, 2))
    assert relative(solution(points), np.maximum(np.abs(points[:, 0]), 0.5)) < 1e-9


def test_channel_flow_leaves_as_it_enters() -> None:
    v, p = unknown("v", "x y"), unknown("p", "x y")
    channel = Box(x=(0, 3), y=(0, 1))
    momentum = [u * u.dx + v * u.dy + p.dx == 0.1 * lap(u), u * v.dx + v * v.dy + p.dy == 0.1 * lap(v)]
    walls = [on(side, u == 0, v == 0) for side in ("y-", "y+")]
    ends = [on("x-", u == y * (1 - y), v == 0), on("x+", p == 0, u.dn == 0, v.dn == 0)]
    solution = solve(Problem(channel, [*momentum, u.dx + v.dy == 0], [*walls, *ends]), 1e-8)
    points = RNG.uniform(0, 1, (200, 2)) * [3, 1]
    assert relative(solution.field("u", points), points[:, 1] * (1 - points[:, 1])) < 1e-9
    assert relative(solution.field("p", points), 0.2 * (3 - points[:, 0])) < 1e-7


def test_heat_between_discs_at_any_time(tmp_path) -> None:
    w = unknown("w", "x y t")
    plate = square - Disc((0.2, 0), 0.3, name="hole")
    wave = sin(2 * x) * cos(y)  # decays like exp(-5 t); held to zero is not what its boundary does, so give the source
    problem = Problem(
        plate,
        w.dt == lap(w) + 5 * wave,
        [initial(w == wave), on("edge", w == wave), on("hole", w == wave)],
        time=(0, 2),
    )
    assert choose(problem) == "elements"
    solution = solve(problem, 1e-6)
    points = np.concatenate([RNG.uniform(-1, 1, (300, 2)), RNG.uniform(0, 2, (300, 1))], axis=1)
    points = points[np.hypot(points[:, 0] - 0.2, points[:, 1]) > 0.3]
    exact = np.sin(2 * points[:, 0]) * np.cos(points[:, 1])
    assert relative(solution(points), exact) < 1e-5
    solution.save(tmp_path / "s.npz")
    np.testing.assert_array_equal(load(tmp_path / "s.npz")(points), solution(points))


def test_heat_that_decays_from_a_mode() -> None:
    w = unknown("w", "x y t")
    step = Box(x=(0, 2), y=(0, 2), name="wall") - Box(x=(1, 2), y=(1, 2), name="wall")
    mode = sin(np.pi * x) * sin(np.pi * y)
    problem = Problem(step, w.dt == 0.1 * lap(w), [initial(w == mode), on("wall", w == 0)], time=(1, 3))
    solution = solve(problem, 1e-6, cells=2)
    points = np.concatenate([RNG.uniform(0, 1, (300, 2)), RNG.uniform(1, 3, (300, 1))], axis=1)
    exact = np.prod(np.sin(np.pi * points[:, :2]), axis=1) * np.exp(-0.2 * np.pi**2 * (points[:, 2] - 1))
    assert relative(solution(points), exact) < 1e-5


def test_space_around_a_ball() -> None:
    w = unknown("w", "x y z")
    region = Box(x=(0, 1), y=(0, 1), z=(0, 1), name="cube") - Ball((0.5, 0.45, 0.5), 0.2, name="ball")
    exact = exp(x) * cos(y) * (1 + z)
    problem = Problem(region, -lap(w) + 4 * w == 4 * exact, [on("cube", w == exact), on("ball", w == exact)])
    solution = solve(problem, 1e-3, limit=8)
    points = RNG.uniform(0, 1, (400, 3))
    points = points[np.linalg.norm(points - [0.5, 0.45, 0.5], axis=1) > 0.2]
    truth = np.exp(points[:, 0]) * np.cos(points[:, 1]) * (1 + points[:, 2])
    assert relative(solution(points), truth) < 1e-3
    assert solution.status is Status.CONVERGED


def test_what_does_not_fit_is_refused_with_a_sentence() -> None:
    disc = Disc((0, 0), 0.5)
    a = piecewise(disc, 2.0, 1.0)
    equation = -div(scale(grad(u), a)) == 1
    with pytest.raises(BadInput, match="interface condition"):
        Problem(square, equation, [on("edge", u == 0)])
    with pytest.raises(BadInput, match="jumps, such as"):
        across(disc, u == 0)
    stated = Problem(square, equation, [on("edge", u == 0), across(disc, jump(u) == 0, jump(a * u.dn) == 0)])
    with pytest.raises(BadInput, match="knows no interface"):
        solve(stated, method="collocation")
    leak = Problem(square, equation, [on("edge", u == 0), across(disc, jump(u) == 1, jump(a * u.dn) == 0)])
    with pytest.raises(BadInput, match="Interface conditions"):
        solve(leak)
    touching = square - union(Disc((0, 0), 0.4), Disc((0.5, 0), 0.2), name="holes")
    assert choose(Problem(touching, lap(u) == 0, [on("edge", u == 1), on("holes", u == 0)])) == "collocation"
