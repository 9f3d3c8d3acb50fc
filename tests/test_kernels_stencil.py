"""Gate scan and gated stencils against the twin, and T steps in one pass against T passes of one, bit for bit."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.errors import BadInput
from poise.kernels import ref_stencil

native = pytest.mark.skipif(not kernels.available()["cpu"], reason=kernels.available()["why"])


class Rule(NamedTuple):
    limit: float = 1e6
    markers: tuple[float, ...] = ()
    tolerance: float = 1e-3
    fill: float = 0.0


PLAIN, SENSOR, LOW = Rule(), Rule(markers=(-99.0, -999.0)), Rule(limit=2.5, fill=0.5)


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request):
    with jax.enable_x64(request.param is np.float64):
        yield request.param


def spoil(rng, x, gate: Rule, k: int):
    """A copy with up to `k` bad values of every cause."""
    x = x.copy()
    values = [np.nan, np.inf, -np.inf, gate.limit * 1.5, *gate.markers]
    if x.size:
        x.reshape(-1)[rng.integers(x.size, size=k)] = rng.choice(np.array(values, x.dtype), k)
    return x


def close(a, b, dtype):
    tol = 1e-5 if dtype is np.float32 else 1e-13
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tol, atol=tol * 10)


@native
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 2047, 2048, 2049, 300_001])
@pytest.mark.parametrize("gate", [PLAIN, SENSOR, LOW])
def test_scan_equals_the_twin(n, gate, dtype):
    rng = np.random.default_rng()
    for k in (0, 1, 9):
        x = jnp.array(spoil(rng, rng.normal(size=n).astype(dtype), gate, k))
        got, want = kernels.gate_scan(x, gate), ref_stencil.gate_scan(x, gate)
        assert np.array_equal(got[0], want[0])
        assert [int(v) for v in got[1]] == [int(v) for v in want[1]]


def test_scan_values_at_the_limit_are_not_bad():
    x = jnp.float32([1e6, -1e6, np.nextafter(np.float32(1e6), np.float32(np.inf))])
    _, found = kernels.gate_scan(x, PLAIN)
    assert [int(v) for v in found] == [0, 0, 1, 0, 2]


EDGES = [
    ("periodic", "periodic"),
    ("dirichlet", "neumann"),
    ("neumann", "dirichlet"),
    ("halo", "periodic"),
    ("neumann", "halo"),
    ("halo", "halo"),
]


def coefficients(rng, radius: int, dtype, symmetric: bool):
    c = rng.uniform(0.02, 0.08, (2, 2 * radius + 1))
    if symmetric:
        c = (c + c[:, ::-1]) / 2
    c[:, radius] = 0.5 - (c.sum(1) - c[:, radius])
    return c.astype(dtype)


@native
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("radius", [1, 2])
def test_stencil_equals_the_twin(edges, radius, dtype):
    """On one fresh shape and gate each; LOW is left out since near a limit rounding decides which values trip."""
    rng = np.random.default_rng()
    gate = [PLAIN, SENSOR][rng.integers(2)]
    size, steps = [((3, 2), 1), ((17, 40), 2), ((33, 65), 3), ((61, 129), 4)][rng.integers(4)]
    shape = [n + 2 * radius * steps * (k == "halo") for n, k in zip(size, edges, strict=True)]
    c = jnp.array(coefficients(rng, radius, dtype, bool(rng.integers(2))))
    say = {"gate": gate, "steps": steps, "edges": edges, "edge": 0.25}
    native_pass = jax.jit(lambda u, c: kernels.stencil(u, c, **say))
    twin = jax.jit(lambda u, c: ref_stencil.stencil(u, c, **say))
    for k in (0, 4):
        u = jnp.array(spoil(rng, rng.normal(size=shape).astype(dtype), gate, k))
        (got, trips), (want, expected) = native_pass(u, c), twin(u, c)
        close(got, want, dtype)
        assert [int(v) for v in trips] == [int(v) for v in expected]
        assert np.isfinite(got).all()


@native
@pytest.mark.parametrize("edges", [e for e in EDGES if "halo" not in e])
@pytest.mark.parametrize("radius", [1, 2])
def test_one_pass_is_that_many_single_steps(edges, radius, dtype):
    """Bit for bit, counts and first place too, with values born bad on the way (coefficients that amplify)."""
    rng = np.random.default_rng()
    c = coefficients(rng, radius, dtype, bool(rng.integers(2)))
    c[:, radius] += 0.3
    u = jnp.array(spoil(rng, rng.normal(size=(70, 150)).astype(dtype), LOW, 3))
    once, trips = kernels.stencil(u, jnp.array(c), LOW, steps=6, edges=edges, edge=0.25)
    count, first = 0, None
    v = u
    for step in range(6):
        v, t = kernels.stencil(v, jnp.array(c), LOW, steps=1, edges=edges, edge=0.25)
        count += int(t.bad)
        if first is None and int(t.bad):
            first = (step + int(t.step), int(t.cell))
    assert np.array_equal(once, v)
    assert (int(trips.bad), (int(trips.step), int(trips.cell))) == (count, first)


@native
def test_tiles_join_without_a_seam(monkeypatch):
    from poise.kernels import _stencil

    rng = np.random.default_rng()
    c = jnp.array(coefficients(rng, 1, np.float32, True))
    u = jnp.array(spoil(rng, rng.normal(size=(200, 300)).astype(np.float32), LOW, 40))
    whole = kernels.stencil(u, c, LOW, steps=6, edges="neumann")
    monkeypatch.setattr(_stencil, "TILE_2D", (33, 47))
    tiled = kernels.stencil(u, c, LOW, steps=6, edges="neumann")
    assert np.array_equal(whole[0], tiled[0])
    assert [int(v) for v in whole[1]] == [int(v) for v in tiled[1]]


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"edges": "open"},
        {"coefficients": np.ones((2, 7), np.float32)},
        {"u": np.ones((4, 4), np.int32)},
        {"u": np.ones(4, np.float32)},
        {"u": np.ones((4, 4), np.float32), "edges": "halo", "steps": 2},
    ],
)
def test_what_does_not_fit_is_refused(change):
    args = {
        "u": np.ones((8, 8), np.float32),
        "coefficients": np.ones((2, 3), np.float32),
        "steps": 1,
        "edges": "periodic",
    }
    args |= change
    with pytest.raises(BadInput):
        kernels.stencil(jnp.array(args["u"]), args["coefficients"], PLAIN, steps=args["steps"], edges=args["edges"])


@native
def test_trips_inside_shard_map_and_vmap():
    rng = np.random.default_rng()
    mesh = jax.make_mesh((len(jax.devices()),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    fields = jnp.array(spoil(rng, rng.normal(size=(len(jax.devices()), 20, 30)).astype(np.float32), PLAIN, 7))
    c = jnp.array(coefficients(rng, 1, np.float32, False))

    def passes(f):
        return jax.vmap(lambda u: kernels.stencil(u, c, PLAIN, steps=3)[1])(f)

    got = jax.jit(jax.shard_map(passes, mesh=mesh, in_specs=spec, out_specs=spec))(fields)
    want = [ref_stencil.stencil(u, c, PLAIN, steps=3, edges=("periodic",) * 2)[1] for u in fields]
    assert [[int(v[i]) for v in got] for i in range(len(want))] == [[int(v) for v in t] for t in want]
