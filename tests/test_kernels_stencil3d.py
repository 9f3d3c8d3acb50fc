"""The gated 7-point stencil against the twin, and T steps in one pass against T passes of one, bit for bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from poise import kernels
from poise.kernels import ref_stencil
from test_kernels_stencil import LOW, PLAIN, SENSOR, close, dtype, spoil  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(not kernels.available()["cpu"], reason=kernels.available()["why"])

EDGES = [  # every kind on every axis, those of even places alone too
    ("periodic", "dirichlet", "halo"),
    ("periodic", "periodic", "periodic"),
    ("dirichlet", "halo", "neumann"),
    ("dirichlet", "neumann", "periodic"),
    ("neumann", "periodic", "dirichlet"),
    ("halo", "periodic", "dirichlet"),
    ("halo", "neumann", "periodic"),
    ("neumann", "dirichlet", "halo"),
]


def coefficients(rng, dtype, more: float = 0.0):  # noqa: F811
    c = rng.uniform(0.02, 0.08, (3, 3))
    c[:, 1] = (1 - (c.sum() - c[:, 1].sum())) / 3 + more
    return c.astype(dtype)


@pytest.mark.parametrize("edges", [e for i, e in enumerate(EDGES) if i % 2 == 0])
def test_it_equals_the_twin(edges, dtype):  # noqa: F811
    """On fresh shapes, thinner and wider than a task's column; clean, and with bad values of every cause."""
    rng = np.random.default_rng()
    size, steps = [((1, 1, 1), 1), ((5, 2, 9), 2), ((23, 40, 70), 2), ((12, 33, 261), 3)][rng.integers(4)]
    shape = [n + 2 * steps * (k == "halo") for n, k in zip(size, edges, strict=True)]
    c, gate = jnp.array(coefficients(rng, dtype)), [PLAIN, SENSOR][rng.integers(2)]
    say = {"gate": gate, "steps": steps, "edges": edges, "edge": 0.25}
    native_pass = jax.jit(lambda u, c: kernels.stencil(u, c, **say))
    twin = jax.jit(lambda u, c: ref_stencil.stencil(u, c, **say))
    for k in (0, 5):
        u = jnp.array(spoil(rng, rng.normal(size=shape).astype(dtype), gate, k))
        (got, trips), (want, expected) = native_pass(u, c), twin(u, c)
        close(got, want, dtype)
        assert [int(v) for v in trips] == [int(v) for v in expected]
        assert np.isfinite(got).all()


@pytest.mark.parametrize("edges", [e for e in EDGES if "halo" not in e])
def test_one_pass_is_that_many_single_steps(edges, dtype):  # noqa: F811
    """Bit for bit, counts and first place too, with values born bad on the way (coefficients that amplify)."""
    rng = np.random.default_rng()
    c = jnp.array(coefficients(rng, dtype, 0.15))
    u = jnp.array(spoil(rng, rng.normal(size=(30, 37, 300)).astype(dtype), LOW, 3))
    once, trips = kernels.stencil(u, c, LOW, steps=4, edges=edges, edge=0.25)
    count, first, v = 0, None, u
    for step in range(4):
        v, t = kernels.stencil(v, c, LOW, steps=1, edges=edges, edge=0.25)
        count += int(t.bad)
        if first is None and int(t.bad):
            first = (step + int(t.step), int(t.cell))
    assert np.array_equal(once, v)
    assert (int(trips.step), int(trips.cell)) == first
    # A value that is bad after a step is filled there: the next step's input does not count it again.
    assert int(trips.bad) == count


def test_a_field_cut_along_z_joins_without_a_seam():
    """Halos from the neighbours: two halves with their ghosts give the whole's bits."""
    rng = np.random.default_rng()
    c = jnp.array(coefficients(rng, np.float32))
    u = rng.normal(size=(64, 33, 50)).astype(np.float32)
    whole, _ = kernels.stencil(jnp.array(u), c, PLAIN, steps=4)
    for a in (0, 32):
        part = jnp.array(np.take(u, range(a - 4, a + 36), axis=0, mode="wrap"))
        half, _ = kernels.stencil(part, c, PLAIN, steps=4, edges=("halo", "periodic", "periodic"))
        assert np.array_equal(half, whole[a : a + 32])
