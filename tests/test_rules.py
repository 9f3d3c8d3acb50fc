"""Relaxation rules over records: the formulas, the sensors, and no reverse-mode differentiation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poise import memory
from poise.devices import compiles
from poise.errors import BadInput
from poise.memory import PINN, Frame, Geometry, Publisher, Subscriber
from poise.physics.rules import (
    KINDS,
    CurlInversion,
    Follower,
    Nudge,
    Sensors,
    advection_diffusion,
    burgers,
    curl_inversion,
    fill_gradient,
    fixed_point,
    median,
    persistence,
)  # fmt: skip

N = 24
NU = 0.04
GRID = Geometry(rows=N, columns=N, dx=1 / (N - 1), dy=1 / (N - 1), dt=2e-3)
NOISE = 0.01
FAILURES = ("marker", "nan", "stuck", "spike")


def truth(t: float) -> np.ndarray:
    """The travelling wave of viscous Burgers."""
    y, x = np.mgrid[0:N, 0:N] / (N - 1)
    s = 0.25 / (1 + np.exp((4 * y - 4 * x - t) / (32 * NU)))
    return np.stack((0.75 - s, 0.75 + s))


class World:
    """A field and its noisy sensors; `broken[axis, row, column]` is 0, or one more than the number of its failure."""

    def __init__(self, seed: int, broken: np.ndarray | None = None, fail_at: int = 30) -> None:
        self.rng = np.random.default_rng(seed)
        self.broken = np.zeros((2, N, N), int) if broken is None else broken
        self.fail_at, self.k, self.last = fail_at, 0, np.zeros((2, N, N), np.float32)

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """The next frame's truth and readings."""
        field = truth(self.k * GRID.dt - 0.5)
        said = (field + NOISE * self.rng.normal(size=field.shape)).astype(np.float32)
        if self.k >= self.fail_at:
            sign = self.rng.choice([-1, 1], field.shape) * self.rng.uniform(0.2, 2, field.shape)
            how = {1: np.float32(-99), 2: np.float32(np.nan), 3: self.last, 4: (said + sign).astype(np.float32)}
            for number, value in how.items():
                said = np.where(self.broken == number, value, said)
        self.k += 1
        self.last = said
        return field, said


def records_of(said: np.ndarray, records: np.ndarray) -> None:
    records["u"], records["v"] = said.reshape(2, -1)
    records["w"], records["gain"], records["status"] = 0.75, 0.1, 0


def frame_of(records: np.ndarray, k: int) -> Frame:
    return Frame(k, 0.0, 0, memory.lease(records), (2 * k,), 0)


def always(_: Frame) -> bool:
    return True


def some_broken(seed: int, share: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random((2, N, N)) < share, rng.integers(1, 5, (2, N, N)), 0)


def burgers_nudge(**options: object) -> Nudge:
    return Nudge(burgers(nu=NU, dx=GRID.dx, dy=GRID.dy, dt=GRID.dt), **options)  # type: ignore[arg-type]


def rel(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def run(world: World, frames: int, follower: Follower) -> dict[str, float]:
    """Mean errors over the last third: of the estimate, and of what the gate alone lets through."""
    records = memory.empty(N * N)
    mine, gated = [], []
    for k in range(frames):
        field, said = world.read()
        records_of(said, records)
        assert follower.take(frame_of(records, k + 1), always)
        if k >= 2 * frames // 3:
            mine.append(rel(np.asarray(follower.state.estimate), field))
            broken = ~(np.abs(said) < 1e6) | (np.abs(said + 99) < 1e-3)
            gated.append(rel(np.where(broken, 0, said), field))
    return {"estimate": float(np.mean(mine)), "gated": float(np.mean(gated))}


def test_failing_sensors_neither_spoil_the_estimate_nor_stay_unnamed():
    broken = some_broken(3)
    healthy = run(World(5), 120, Follower(burgers_nudge(), GRID))
    follower = Follower(burgers_nudge(), GRID)
    struck = run(World(5, broken), 120, follower)
    assert struck["estimate"] <= 2 * healthy["estimate"]
    assert struck["gated"] >= 10 * struck["estimate"]
    assert set(follower.failing()) == {(int(r * N + c), "uv"[a]) for a, r, c in np.argwhere(broken)}
    assert follower.failing() == {
        (int(r * N + c), "uv"[a]): FAILURES[broken[a, r, c] - 1] for a, r, c in np.argwhere(broken)
    }


def test_every_failing_sensor_is_named_within_three_frames_and_forgiven_after_three_good_ones():
    broken = some_broken(7)
    world, follower = World(11, broken, fail_at=20), Follower(burgers_nudge(), GRID)
    records = memory.empty(N * N)
    want = {(int(r * N + c), "uv"[a]) for a, r, c in np.argwhere(broken)}
    for k in range(40):
        _, said = world.read()
        records_of(said, records)
        follower.take(frame_of(records, k + 1), always)
        if k < 20:
            assert follower.failing() == {}
        if k >= 22:  # frames 20, 21, 22 are the first three
            assert set(follower.failing()) == want
    world.broken = np.zeros_like(broken)
    for k in range(40, 43):
        _, said = world.read()
        records_of(said, records)
        follower.take(frame_of(records, k + 1), always)
    assert follower.failing() == {}


def test_sensors_that_are_broken_from_the_first_frame_are_named():
    broken = some_broken(13)
    world, follower = World(17, broken, fail_at=0), Follower(burgers_nudge(), GRID)
    records = memory.empty(N * N)
    for k in range(4):
        _, said = world.read()
        records_of(said, records)
        follower.take(frame_of(records, k + 1), always)
    assert set(follower.failing()) == {(int(r * N + c), "uv"[a]) for a, r, c in np.argwhere(broken)}


def test_a_field_that_jumps_is_followed_and_no_sensor_blamed():
    follower = Follower(burgers_nudge(), GRID)
    rng = np.random.default_rng()
    records = memory.empty(N * N)
    for k in range(12):
        field = truth(0.0) + (0.4 if k >= 6 else 0.0)
        records_of((field + NOISE * rng.normal(size=field.shape)).astype(np.float32), records)
        follower.take(frame_of(records, k + 1), always)
    assert follower.restarts == 2  # the first frame, and the jump
    assert follower.failing() == {}
    assert rel(np.asarray(follower.state.estimate), field) < 0.02


def test_records_that_the_producer_calls_broken_are_left_out():
    follower = Follower(burgers_nudge(), GRID)
    records = memory.empty(N * N)
    for k in range(5):
        _, said = World(k).read()
        records_of(said, records)
        records["status"][7] = 2
        follower.take(frame_of(records, k + 1), always)
    assert follower.failing() == {(7, "u"): "status", (7, "v"): "status"}


@pytest.mark.parametrize("rule", [burgers_nudge(), CurlInversion()], ids=["nudge", "curl"])
def test_nothing_is_compiled_allocated_or_kept_of_a_torn_frame(rule):
    follower = Follower(rule, GRID)
    world, records = World(19), memory.empty(N * N)
    places: set[int] = set()
    start = compiles()
    for k in range(12):
        records_of(world.read()[1], records)
        before = jax.tree.map(np.asarray, follower.state)
        kept = jax.tree.map(np.copy, before)
        whole = k % 3 != 2
        assert follower.take(frame_of(records, k + 1), lambda _, whole=whole: whole) == whole
        if not whole:
            assert all(map(np.array_equal, jax.tree.leaves(follower.state), jax.tree.leaves(kept)))
        places |= {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(follower.state)}
    assert compiles() == start
    assert follower.bytes_copied == 0
    # Two states that take turns. (A scalar may lie anywhere.)
    assert len(places) <= 2 * len(jax.tree.leaves(follower.state)) + 12


def test_a_follower_over_a_live_stream(tmp_path):
    with Publisher(tmp_path / "s", GRID) as out, Subscriber(tmp_path / "s") as frames:
        follower = Follower(burgers_nudge(), frames.geometry)
        world = World(23, some_broken(29), fail_at=3)
        for _ in range(12):
            records = out.begin()
            assert records is not None
            field, said = world.read()
            records_of(said, records)
            out.publish()
            frame = frames.next(5)
            assert isinstance(frame, Frame)
            assert follower.take(frame, frames.accept)
        assert (frames.lost, frames.torn, follower.bytes_copied) == (0, 0, 0)
        assert rel(np.asarray(follower.state.estimate), field) < 0.02


@pytest.mark.parametrize("rule", [burgers_nudge(), CurlInversion()], ids=["nudge", "curl"])
def test_where_the_producer_agreed_the_relaxed_field_is_written_in_place(tmp_path, rule):
    agreed = replace(GRID, slots=2, write_back=True)
    with Publisher(tmp_path / "s", agreed) as out, Subscriber(tmp_path / "s") as frames:
        follower = Follower(rule, frames.geometry)
        world = World(31)
        for _ in range(4):
            records = out.begin()
            assert records is not None  # the last answer is there
            records_of(world.read()[1], records)
            out.publish()
            frame = frames.next(5)
            assert isinstance(frame, Frame)
            assert follower.take(frame, frames.accept)
            assert np.array_equal(records["w"], np.asarray(follower.relaxed).reshape(-1))
        assert out.dropped == 0


def plain_curl(w, u, v, gain, a, b, sigma=3.125e-5, alpha=0.005, target=1.0):
    """The rule as it is written down, in float64."""
    gamma = 1 - sigma
    g_u, g_v = w - u, w - v
    a1 = gamma * a + alpha * (-g_v * gain)
    b1 = gamma * b + alpha * (g_u * gain)
    return a1, b1, gain + alpha * (abs(a1 - a) - sigma * gain), (g_u * a1 + g_v * b1) * target


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 37]))
def test_the_curl_inversion_is_the_formula(seed, n):
    x = np.random.default_rng(seed).normal(size=(6, n))
    want = plain_curl(*x, sigma=0.01, alpha=0.2, target=0.5)
    got = curl_inversion(*map(jnp.float32, x), sigma=0.01, alpha=0.2, target=0.5)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_the_curl_inversion_over_records_starts_and_steps_as_the_blueprint_says():
    rng = np.random.default_rng()
    records = memory.empty(N * N)
    follower = Follower(CurlInversion(), GRID)
    a = b = np.ones(N * N)
    gain = np.full(N * N, 0.1)
    for k in range(4):
        for name in "wuv":
            records[name] = rng.normal(size=N * N)
        a, b, gain, output = plain_curl(*(records[x].astype(float) for x in "wuv"), gain, a, b)
        follower.take(frame_of(records, k + 1), always)
    got = follower.state
    for have, want in ((got.rule.w_u, a), (got.rule.w_v, b), (got.rule.gain, gain), (got.output, output)):
        np.testing.assert_allclose(np.asarray(have).reshape(-1), want, rtol=1e-5, atol=1e-6)


def test_where_the_curl_inversion_goes():
    g_u, g_v, gain, sigma, alpha = 0.3, -0.2, 0.1, 0.01, 0.005
    step = partial(curl_inversion, jnp.float32(0), jnp.float32(-g_u), jnp.float32(-g_v), jnp.float32(gain))
    a = b = jnp.float32(1)
    for k in range(1, 1500):
        a, b, _, output = step(a, b, sigma=sigma, alpha=alpha)
        if k == round(1 / sigma):  # one time constant: the distance from the fixed point has shrunk by e
            at = fixed_point(g_u, g_v, gain, sigma=sigma, alpha=alpha)
            assert (a - at[0]) / (1 - at[0]) == pytest.approx(np.exp(-1), rel=0.01)
    at = fixed_point(jnp.float32(g_u), jnp.float32(g_v), gain, sigma=sigma, alpha=alpha)
    np.testing.assert_allclose([a, b], at, rtol=1e-4)
    assert abs(float(output)) < 1e-6  # the rotated deviation is orthogonal to the deviation


def test_a_broken_reading_drives_no_weight():
    records = memory.empty(N * N)
    records["w"], records["u"], records["v"] = 0.5, -99, np.nan
    follower = Follower(CurlInversion(), GRID)
    for k in range(3):
        follower.take(frame_of(records, k + 1), always)
    np.testing.assert_allclose(follower.state.rule.w_u, (1 - 3.125e-5) ** 3, rtol=1e-6)
    assert (np.asarray(follower.state.output) == 0).all()
    assert set(follower.failing().values()) == {"marker", "nan"}


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 9), (4, 7), (3, 2)])
@pytest.mark.parametrize("raw", [False, True])
def test_the_gradient_that_fills_u(rows, columns, raw):
    rng = np.random.default_rng()
    records = memory.empty(rows * columns)
    w = rng.normal(size=(rows, columns)).astype(np.float32)
    bad = rng.random((rows, columns)) < 0.15
    records["w"] = np.where(bad, rng.choice([np.nan, np.inf, -99.0, 1e9], bad.shape), w).reshape(-1)
    records["v"], records["status"], records["id"] = 7, 5, np.arange(rows * columns)
    out, broken = fill_gradient(memory.lease(records).array, rows, columns, 0.25, raw=raw)
    want = np.array(records.reshape(rows, columns))
    for r in range(rows):
        for c in range(columns):
            west, east = max(c - 1, 0), min(c + 1, columns - 1)
            if bad[r, [west, c, east]].any():
                want[r, c]["u"], want[r, c]["status"] = -99, 2
            else:
                want[r, c]["u"] = (w[r, east] - w[r, west]) * np.float32(1 if raw else 2)
    got = np.asarray(out).view(PINN.dtype).reshape(rows, columns)
    assert int(broken) == (want["status"] == 2).sum()
    for name in ("u", "v", "status", "id"):
        assert np.array_equal(got[name], want[name])


def test_models_follow_the_exact_solutions():
    step = jax.jit(burgers(nu=NU, dx=GRID.dx, dy=GRID.dy, dt=GRID.dt))
    x = jnp.float32(truth(0.0))
    for _ in range(50):
        x = step(x)
    inside = np.s_[:, 4:-4, 4:-4]
    assert rel(np.asarray(x)[inside], truth(50 * GRID.dt)[inside]) < 2e-3
    _, c = np.mgrid[0:N, 0:N] / (N - 1)

    def wave(t: float) -> np.ndarray:
        return np.exp(-0.02 * np.pi**2 * t) * np.sin(np.pi * (c - 0.3 * t))[None]

    moved = jax.jit(advection_diffusion(velocity=(0.3, 0.0), nu=0.02, dx=GRID.dx, dy=GRID.dy, dt=0.05))
    z = jnp.float32(wave(0.0))
    for _ in range(4):
        z = moved(z)
    assert rel(np.asarray(z)[inside], wave(0.2)[inside]) < 0.02


def test_the_median_is_unmoved_by_a_few_broken_entries():
    rng = np.random.default_rng()
    x = rng.normal(size=(2, 9, 8)).astype(np.float32)
    padded = np.pad(x, [(0, 0), (1, 1), (1, 1)], mode="edge")
    want = np.median([padded[:, i : i + 9, j : j + 8] for i in range(3) for j in range(3)], axis=0)
    np.testing.assert_allclose(median(jnp.array(x), jnp.ones(x.shape, bool)), want)
    flat = np.ones((2, 9, 8), np.float32)
    good = rng.random(flat.shape) > 0.1
    assert (np.asarray(median(jnp.where(good, flat, 1e9), jnp.array(good))) == 1).all()


def test_a_models_step_may_be_the_users_own_function():
    follower = Follower(Nudge(lambda x: 0.5 * x, gain=0.0), GRID)
    records = memory.empty(N * N)
    records_of(np.full((2, N, N), 0.8, np.float32), records)
    follower.take(frame_of(records, 1), always)
    records["u"] = records["v"] = 0.401
    follower.take(frame_of(records, 2), always)
    np.testing.assert_allclose(follower.state.estimate, 0.4, rtol=1e-6)


def test_nothing_here_differentiates_in_reverse(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reverse mode")

    for name in ("vjp", "grad", "value_and_grad", "linearize", "linear_transpose", "jacrev", "hessian"):
        monkeypatch.setattr(jax, name, refuse)
    monkeypatch.setattr("jax._src.api._vjp", refuse, raising=False)  # what the public ones call, in this JAX
    records = memory.empty(N * N)
    for rule in (burgers_nudge(), CurlInversion(), Nudge(persistence)):
        follower = Follower(rule, GRID)
        for k in range(3):
            records_of(World(k).read()[1], records)
            assert follower.take(frame_of(records, k + 1), always)
    fill_gradient(memory.lease(records).array, N, N, GRID.dx)


def test_repeats_are_counted_against_chance():
    fine = Sensors(noise=0.01)
    assert fine.repeats(2048) == 2
    assert fine.repeats(2_000_000) == 3
    assert Sensors(noise=0.01, resolution=0.01).repeats(2048) > 8  # a coarse converter repeats itself
    assert Sensors(noise=0.0, spike=0.1).repeats(2048) == 255  # without noise a repeat means nothing


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sensors(noise=0.0), "spike must be given"),
        (lambda: Sensors(noise=-1.0), "not negative"),
        (lambda: Sensors(spike=0.0), "positive"),
        (lambda: Sensors(recover=0), "between 1 and 255"),
        (lambda: Nudge(gain=2.0), "between 0 and 1"),
        (lambda: CurlInversion(sigma=0.0), "between 0 and 1"),
        (lambda: burgers(nu=1.0, dx=1e-4, dy=1e-4, dt=1.0), "inner steps"),
        (lambda: burgers(nu=1.0, dx=0.0, dy=1.0, dt=1.0), "above 0"),
        (lambda: fill_gradient(jnp.zeros((6, 8), jnp.uint32), 2, 4, 1.0), "no grid"),
        (lambda: fill_gradient(jnp.zeros((8, 8), jnp.uint32), 2, 4, 0.0), "positive"),
        (lambda: Follower(Nudge(), Geometry(layout=memory.PIM)), "no field 'u'"),
    ],
)
def test_what_makes_no_sense_is_refused(make, said):
    with pytest.raises(BadInput, match=said):
        make()


def test_kinds_are_words():
    assert KINDS[0] == "healthy"
    assert set(FAILURES) < set(KINDS)
