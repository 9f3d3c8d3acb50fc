"""Batches on their way to the devices: one packet or leaf by leaf, the same bits on the same devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from poise import Pool
from poise.keeper._feed import SMALL, Feed

SPECS = {"a": P("x", "y"), "b": P(), "c": P("y"), "d": P(("x", "y")), "e": P(None, "x"), "f": P()}


def batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "a": rng.normal(size=(4, 6)).astype(np.float32),
        "b": np.float32(rng.normal()),
        "c": rng.integers(0, 2, (10, 3)).astype(bool),
        "d": rng.normal(size=(8, 5)).astype(jnp.bfloat16),
        "e": rng.integers(0, 256, (3, 6)).astype(np.uint8).T.copy().T,  # not contiguous
        "f": np.array([np.nan, -0.0, np.inf], np.float32),
    }


def feed_of(values: dict[str, np.ndarray]) -> Feed:
    placement = Pool(jax.devices()[:4], 0).placement({"x": 2, "y": 2})
    leaves, treedef = jax.tree.flatten(values)
    shapes = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in leaves]
    return Feed(placement, shapes, [SPECS[k] for k in sorted(values)], treedef)


def test_a_packet_is_what_leaf_by_leaf_transfers_are():
    rng = np.random.default_rng()
    values = batch(rng)
    feed = feed_of(values)
    assert feed.packs
    for _ in range(3):
        values = batch(rng)
        order, got = feed(np.array([7, 2], np.int32), values)
        want = feed.put(values)
        assert order.tolist() == [7, 2]
        for k in values:
            assert got[k].sharding.is_equivalent_to(want[k].sharding, got[k].ndim), k
            pairs = zip(got[k].addressable_shards, want[k].addressable_shards, strict=True)
            for a, b in pairs:
                assert (a.device, a.index) == (b.device, b.index)
                assert np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes(), k


def test_what_is_on_the_devices_stays_there():
    values = batch(np.random.default_rng())
    feed = feed_of(values)
    there = feed.put(values)
    _, got = feed(np.array([0, 0], np.int32), there)
    assert all(got[k] is there[k] for k in values)


@pytest.mark.parametrize("wide", [False, True])
def test_large_and_wide_batches_go_leaf_by_leaf(wide):
    values = {"b": np.zeros(3)} if wide else {"b": np.zeros(SMALL + 1, np.float32)}
    feed = feed_of(values)
    assert not feed.packs
    order, got = feed(np.array([1, 0], np.int32), values)
    assert order.tolist() == [1, 0]
    assert np.array_equal(got["b"], values["b"])


def test_float64_travels_whole_where_it_is_allowed():
    with jax.enable_x64(True):
        values = {"b": np.random.default_rng().normal(size=5)}
        feed = feed_of(values)
        assert feed.packs
        _, got = feed(np.array([1, 0], np.int32), values)
        assert np.asarray(got["b"]).tobytes() == values["b"].tobytes()
