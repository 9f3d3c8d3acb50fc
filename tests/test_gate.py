"""The gate: what it catches, what it leaves alone, and that nothing leaks through it."""

from __future__ import annotations

from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import PartitionSpec as P

from poise import BadInput, Gate, Health
from poise.gate._health import describe

NARROW = ["float16", "bfloat16"]
DTYPES = [*NARROW, "float32"]
SENSOR = (-99.0, -999.0)


def counts(health: Health) -> list[int]:
    return np.asarray(health.counts).tolist()


def place(health: Health) -> tuple[int, int]:
    return int(health.leaf), int(health.index)


# -- what is caught ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_cause_is_replaced_counted_and_located(dtype):
    x = jnp.array([1.0, -2.5, np.nan, np.inf, -np.inf, 3e4, -99.0, 0.0], dtype)
    clean, health = Gate(limit=1e4, markers=SENSOR, fill=7.0)(x)
    assert clean.dtype == x.dtype
    assert np.asarray(clean, np.float32).tolist() == [1.0, -2.5, 7, 7, 7, 7, 7, 0]
    assert counts(health) == [1, 2, 1, 1]
    assert place(health) == (0, 2)
    assert not bool(health.ok)
    assert int(health.total) == 5


def test_float64_is_judged_in_float64():
    with jax.enable_x64(True):
        x = jnp.array([1e300, -999.0 + 1e-9, 1e308 * 10, np.nan, 2.0], jnp.float64)
        clean, health = Gate(limit=1e301, markers=SENSOR)(x)
        assert clean.dtype == jnp.float64
        assert np.asarray(clean).tolist() == [1e300, 0, 0, 0, 2]
        assert counts(health) == [1, 1, 0, 1]
    assert not jax.config.jax_enable_x64


def test_good_values_keep_their_bits():
    x = np.array([0.0, -0.0, 1e-45, -1e6, 1e6, 3.14], np.float32)
    clean, health = Gate()(x)
    assert np.asarray(clean).tobytes() == x.tobytes()
    assert bool(health.ok)
    assert place(health) == (-1, -1)


@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("limit", [1e6, float("inf")])
def test_a_limit_beyond_the_dtype_is_clamped_to_its_largest_value(dtype, limit):
    top = jnp.finfo(dtype).max
    x = jnp.array([top, -top, np.nan, 1.0], dtype)
    clean, health = Gate(limit=limit)(x)
    over = 2 if float(top) > limit else 0
    assert counts(health) == [1, 0, over, 0]
    assert np.asarray(clean[3], np.float32) == 1
    assert (np.asarray(clean[:2], np.float32) == 0).all() == bool(over)


def test_the_limit_itself_passes_and_its_neighbour_does_not():
    limit = np.float32(1e6)
    _, health = Gate(limit=1e6)(np.array([limit, -limit, np.nextafter(limit, np.float32(np.inf))], np.float32))
    assert counts(health) == [0, 0, 1, 0]
    assert place(health) == (0, 2)


@pytest.mark.parametrize("dtype", [*DTYPES, "float64"])
@pytest.mark.parametrize("marker", [-99.0, -999.0, 0.1, -9999.0, 1e-3])
def test_a_marker_is_found_after_rounding_to_the_dtype_and_its_neighbours_are_not(dtype, marker):
    with jax.enable_x64(dtype == "float64"):
        here = np.asarray(jnp.array(marker, dtype), np.float64)
        info = jnp.finfo(dtype)
        ulp = float(info.eps) * 2.0 ** np.floor(np.log2(abs(marker)))
        width = max(1e-9, 0.5 * ulp)
        step = max(2 * ulp, 4 * width)
        x = jnp.array([here, here + step, here - step], dtype)
        _, health = Gate(markers=(marker,), tolerance=1e-9, fill=500.0)(x)
        assert counts(health) == [0, 0, 0, 1]
        assert place(health) == (0, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tolerance_widens_a_marker(dtype):
    x = jnp.array([-99.25, -99.0, -98.5, -97.0, 99.0], dtype)
    _, health = Gate(markers=(-99,), tolerance=0.5)(x)
    assert counts(health) == [0, 0, 0, 3]


def test_zero_may_be_a_marker_when_it_is_not_the_fill():
    clean, health = Gate(markers=(0,), fill=-1.0)(jnp.array([0.0, -0.0, 1.0]))
    assert np.asarray(clean).tolist() == [-1, -1, 1]
    assert counts(health) == [0, 0, 0, 2]


def test_a_marker_beyond_the_limit_is_counted_once():
    _, health = Gate(limit=50.0, markers=SENSOR)(jnp.array([-99.0, -999.0, 1.0]))
    assert counts(health) == [0, 0, 2, 0]


def test_markers_are_off_by_default():
    clean, health = Gate()(jnp.array([-99.0, -999.0]))
    assert np.asarray(clean).tolist() == [-99, -999]
    assert bool(health.ok)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_marker_that_the_dtype_cannot_hold_finds_nothing_and_harms_nothing(dtype):
    x = jnp.array([1.0, np.nan, np.inf, -np.inf], dtype)
    _, health = Gate(limit=1e5, markers=(-1e39,), tolerance=0.0)(x)
    assert counts(health) == [1, 2, 0, 0]


def test_complex_parts_are_judged_one_by_one():
    x = jnp.array([1 + 2j, complex(np.nan, 3), complex(4, -np.inf), 5], jnp.complex64)
    clean, health = Gate()(x)
    assert clean.dtype == jnp.complex64
    assert np.asarray(clean).tolist() == [1 + 2j, 3j, 4, 5]
    assert counts(health) == [1, 1, 0, 0]


def test_what_is_not_inexact_passes_untouched():
    tree = {
        "int": jnp.array([-99, 2**31 - 1], jnp.int32),
        "bool": jnp.array([True, False]),
        "key": jax.random.key(3),
        "count": 7,
        "none": None,
    }
    clean, health = Gate(limit=1.0, markers=SENSOR)(tree)
    assert clean["int"] is tree["int"]
    assert clean["bool"] is tree["bool"]
    assert clean["key"] is tree["key"]
    assert clean["count"] == 7
    assert clean["none"] is None
    assert bool(health.ok)


def test_a_tree_keeps_its_structure_and_the_first_bad_leaf_is_named():
    tree = {"a": jnp.zeros((2, 3)), "b": [jnp.array([[0.0, 1.0], [np.inf, np.nan]]), 2.5], "c": (np.float32(np.nan),)}
    clean, health = Gate()(tree)
    assert jax.tree.structure(clean) == jax.tree.structure(tree)
    assert place(health) == (1, 2)
    assert counts(health) == [2, 1, 0, 0]
    assert describe(health.row(), ("a", "b.0", "b.1", "c.0")) == "2 nan, 1 inf, first in 'b.0' at 2"


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (3, 0, 2)])
def test_scalars_and_empty_arrays(shape):
    clean, health = Gate()(jnp.full(shape, np.nan))
    assert clean.shape == shape
    assert counts(health)[0] == clean.size
    assert not np.isnan(np.asarray(clean)).any()


def test_an_empty_tree_is_clean():
    clean, health = Gate()({})
    assert clean == {}
    assert bool(health.ok)


# -- inside transformations -------------------------------------------------------------------------------------------


def test_jit_equals_eager():
    x = jnp.array([1.0, np.nan, 3e7])
    gate = Gate()
    for a, b in zip(jax.tree.leaves(gate(x)), jax.tree.leaves(jax.jit(gate)(x)), strict=True):
        assert np.array_equal(a, b)


def test_vmap_counts_row_by_row():
    x = jnp.array([[1.0, 2.0, 3.0], [np.nan, 2.0, np.nan], [1.0, np.inf, 3.0]])
    clean, health = jax.jit(jax.vmap(Gate()))(x)
    assert np.isfinite(np.asarray(clean)).all()
    assert np.asarray(health.counts)[:, 0].tolist() == [0, 2, 0]
    assert np.asarray(health.index).tolist() == [-1, 0, 1]


def test_scan_adds_up_over_steps():
    x = jnp.array([[1.0, 2.0], [np.nan, 2.0], [np.inf, np.nan]])

    def step(seen, row):
        clean, health = Gate()(row)
        return seen + health, clean

    seen, clean = jax.jit(lambda x: jax.lax.scan(step, Health.clean(), x))(x)
    assert counts(seen) == [2, 1, 0, 0]
    assert place(seen) == (0, 0)
    assert np.asarray(clean).tolist() == [[1, 2], [0, 2], [0, 0]]


@pytest.mark.parametrize("check_vma", [True, False])
def test_every_bad_device_is_named_on_every_device(check_vma):
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = np.zeros((8, 5), np.float32)
    x[3, 1] = np.nan
    x[6, 4] = x[6, 2] = np.inf

    @jax.jit
    @partial(
        jax.shard_map, mesh=mesh, in_specs=P(("a", "b")), out_specs=(P(("a", "b")), P(("a", "b"))), check_vma=check_vma
    )
    def guarded(x):
        clean, health = Gate()(x)
        return clean, health.per_device(("a", "b"))[None]

    clean, tables = guarded(x)
    assert np.array_equal(clean, np.zeros_like(x))
    for table in np.asarray(tables):
        assert np.flatnonzero(table[:, :4].sum(1)).tolist() == [3, 6]
        assert table[3].tolist() == [1, 0, 0, 0, 0, 1]
        assert table[6].tolist() == [0, 2, 0, 0, 0, 2]
        assert table[0].tolist() == [0, 0, 0, 0, -1, -1]


# -- gradients --------------------------------------------------------------------------------------------------------

X = np.array([1.0, np.nan, np.inf, -np.inf, 2e6, -99.0, 3.0], np.float32)
GOOD = np.array([1, 0, 0, 0, 0, 0, 1], bool)


def guarded(insulate):
    return Gate(markers=SENSOR, fill=0.5, insulate=insulate)


PASSES = {"bad": GOOD, "all": np.zeros(7, bool), "none": np.ones(7, bool)}


@pytest.mark.parametrize("insulate", PASSES)
def test_no_nan_leaks_backwards(insulate):
    def loss(x):
        clean, _ = guarded(insulate)(x)
        return jnp.sum(jnp.sqrt(clean) * clean)

    value, grad = jax.jit(jax.value_and_grad(loss))(X)
    assert np.isfinite(value)
    want = np.where(PASSES[insulate], 1.5 * np.sqrt(np.where(GOOD, X, 0.5)), 0)
    np.testing.assert_allclose(grad, want, rtol=1e-6)


@pytest.mark.parametrize("insulate", PASSES)
def test_no_nan_leaks_backwards_from_the_cotangent_of_a_bad_entry(insulate):
    _, back = jax.vjp(lambda x: guarded(insulate)(x)[0], jnp.asarray(X))
    (grad,) = back(jnp.where(jnp.asarray(GOOD), 2.0, jnp.nan))
    if insulate != "none":
        assert np.asarray(grad).tolist() == np.where(PASSES[insulate], 2.0, 0.0).tolist()
    else:
        assert np.array_equal(np.isnan(grad), ~GOOD), "'none' is the identity on cotangents"


@pytest.mark.parametrize("insulate", PASSES)
def test_no_nan_leaks_forwards(insulate):
    tangent = np.where(GOOD, 3.0, 5.0).astype(np.float32)
    out, dout = jax.jvp(lambda x: guarded(insulate)(x)[0], (X,), (tangent,))
    assert np.isfinite(np.asarray(out)).all()
    assert np.asarray(dout).tolist() == np.where(PASSES[insulate], tangent, 0.0).tolist()


@pytest.mark.parametrize("insulate", PASSES)
def test_the_gradient_of_what_follows_the_gate_is_finite(insulate):
    """The double-where of jax#5798 in one call: the gate stands before the dangerous operation."""

    def loss(x):
        return jnp.sum(1.0 / guarded(insulate)(x)[0])

    assert np.isfinite(np.asarray(jax.grad(loss)(X))).all()


def test_health_is_not_differentiated_and_second_derivatives_are_finite():
    def loss(x):
        clean, health = guarded("bad")(x)
        return jnp.sum(clean**3) + 0.0 * health.total.astype(jnp.float32)

    hessian = jax.jit(jax.hessian(loss))(X)
    np.testing.assert_allclose(np.diag(hessian), np.where(GOOD, 6 * np.where(GOOD, X, 0), 0), rtol=1e-6)


def test_gradients_through_vmap_scan_and_complex_parts():
    def loss(x):
        def step(total, row):
            clean, _ = Gate()(row)
            return total + jnp.sum(clean**2), None

        return jax.lax.scan(step, 0.0, x)[0]

    x = np.array([[[1.0, np.nan]], [[np.inf, 4.0]]], np.float32)
    grad = jax.jit(jax.vmap(jax.grad(loss)))(x)
    assert np.asarray(grad).tolist() == [[[2, 0]], [[0, 8]]]
    z = jnp.array([1 + 2j, complex(np.nan, 3)], jnp.complex64)
    grad = jax.grad(lambda z: jnp.sum(jnp.abs(Gate()(z)[0]) ** 2))(z)
    assert np.isfinite(np.asarray(grad)).all()


# -- laws -------------------------------------------------------------------------------------------------------------

FLOATS = st.floats(width=32) | st.sampled_from([np.nan, np.inf, -np.inf, -99.0, -999.0, 1e6, -1e6, 2e6, -98.9995])


@settings(max_examples=40, deadline=None)
@given(st.lists(FLOATS, min_size=8, max_size=8), st.sampled_from(DTYPES))
def test_the_gate_is_idempotent_and_agrees_with_numpy(values, dtype):
    gate = Gate(markers=SENSOR)
    with np.errstate(over="ignore"):
        x = np.asarray(values, np.float32).astype(jnp.dtype(dtype))
    once, seen = jax.jit(gate)(x)
    twice, again = jax.jit(gate)(once)
    assert np.asarray(once).tobytes() == np.asarray(twice).tobytes()
    assert bool(again.ok)
    wide = x.astype(np.float32)
    limit = float(jnp.asarray(min(1e6, float(jnp.finfo(dtype).max)), dtype))
    over = np.isfinite(wide) & (np.abs(wide) > limit)
    assert counts(seen)[:3] == [np.isnan(wide).sum(), np.isinf(wide).sum(), over.sum()]
    changed = np.asarray(once, np.float32) != wide
    assert int(seen.total) == changed.sum()
    assert not np.asarray(once, np.float32)[changed].any()


def test_a_fill_that_a_narrow_dtype_cannot_tell_from_a_marker_is_refused():
    gate = Gate(markers=(-999.0,), fill=-998.0)
    gate(jnp.array([1.0, np.nan], jnp.float32))
    with pytest.raises(BadInput, match="marker"):
        gate(jnp.array([1.0, np.nan], jnp.bfloat16))


HEALTHS = st.builds(
    lambda counts, leaf, index: Health(
        jnp.array(counts, jnp.uint32),
        jnp.int32(leaf if sum(counts) else -1),
        jnp.int32(index if sum(counts) else -1),
    ),
    st.lists(st.integers(0, 2**20), min_size=4, max_size=4),
    st.integers(0, 9),
    st.integers(0, 2**31 - 1),
)


def equal(a: Health, b: Health) -> bool:
    return counts(a) == counts(b) and place(a) == place(b)


@settings(max_examples=25, deadline=None)
@given(HEALTHS, HEALTHS, HEALTHS)
def test_health_is_a_monoid(a, b, c):
    assert equal((a + b) + c, a + (b + c))
    assert equal(Health.clean() + a, a)
    assert equal(a + Health.clean(), a)
    joined = a + b
    assert counts(joined) == [x + y for x, y in zip(counts(a), counts(b), strict=True)]
    assert place(joined) == (place(b) if a.ok else place(a))


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0.0},
        {"limit": -1.0},
        {"limit": float("nan")},
        {"tolerance": -1e-3},
        {"tolerance": float("nan")},
        {"tolerance": float("inf")},
        {"markers": (float("nan"),)},
        {"markers": (float("inf"),)},
        {"fill": 2e6},
        {"fill": float("nan")},
        {"limit": float("inf"), "fill": float("inf")},
        {"fill": -99.0, "markers": SENSOR},
        {"fill": -98.9999, "markers": SENSOR},
        {"insulate": "some"},
    ],
)
def test_a_gate_that_cannot_work_is_refused_in_one_sentence(wrong):
    with pytest.raises(BadInput) as info:
        Gate(**wrong)
    assert str(info.value).endswith(".")
    assert "\n" not in str(info.value)


def test_a_fill_that_a_leaf_cannot_hold_is_refused_when_it_meets_the_leaf():
    gate = Gate(fill=1e5)
    gate(jnp.ones(3, jnp.float32))
    with pytest.raises(BadInput, match="float16"):
        gate(jnp.ones(3, jnp.float16))


def test_equal_gates_are_one_static_argument():
    assert Gate(markers=[-99, -999]) == Gate(markers=SENSOR)  # type: ignore[arg-type]
    assert hash(Gate(markers=[-99])) == hash(Gate(markers=(-99.0,)))  # type: ignore[arg-type]
