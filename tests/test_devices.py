"""Pools, placements, swaps and what counts as a compilation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from poise import Placement, Pool
from poise.devices import Warm, compiles, move, shards_by_slot
from poise.errors import BadMesh, Exhausted

AXES = {"x": 2, "y": 2}


def test_a_pool_that_does_not_say_has_five_spares() -> None:
    assert len(Pool(jax.devices()).spares) == 5
    assert Pool(jax.devices()[:3]).spares == tuple(jax.devices()[1:3])
    assert Pool(jax.devices()[:1]).spares == ()


def test_swaps_use_each_spare_once_and_keep_the_order() -> None:
    devices = jax.devices()
    pool = Pool(devices[:6], 2)
    twice = pool.swap(1).swap(3)
    assert twice.active == (devices[0], devices[4], devices[2], devices[5])
    assert twice.gone == (devices[1], devices[3])
    assert twice.spares == ()
    with pytest.raises(Exhausted, match="none is left"):
        twice.swap(0)
    assert pool.active == tuple(devices[:4])


@pytest.mark.parametrize("bad", [{"spares": 8}, {"spares": -1}])
def test_impossible_pools_are_refused(bad: dict) -> None:
    with pytest.raises(BadMesh):
        Pool(jax.devices(), **bad)


def test_impossible_placements_are_refused() -> None:
    d = tuple(jax.devices()[:2])
    with pytest.raises(BadMesh, match="needs 4"):
        Placement(d, (("x", 4),))
    with pytest.raises(BadMesh, match="twice"):
        Placement((d[0], d[0]), (("x", 2),))
    with pytest.raises(BadMesh, match="no slot"):
        Placement(d, (("x", 2),)).swapped(2, jax.devices()[3])


def test_successors_are_every_single_loss() -> None:
    pool = Pool(jax.devices()[:6], 2)
    assert [p.ids for p in pool.successors(AXES)] == [(4, 1, 2, 3), (0, 4, 2, 3), (0, 1, 4, 3), (0, 1, 2, 4)]


def test_moving_keeps_bits_compiles_nothing_and_does_not_touch_the_lost_device() -> None:
    pool = Pool(jax.devices()[:5], 1)
    old = pool.placement(AXES)
    new = pool.swap(2).placement(AXES)
    x = jax.device_put(np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32), old.sharding(P("x", "y")))
    want = np.array(x)
    lost = np.array(shards_by_slot(x, old)[2])
    before = compiles()
    moved = move({"x": x}, old, new)["x"]
    # A deleted shard cannot be read: touching it would raise.
    shards_by_slot(x, old)[2].delete()
    rebuilt = move({"x": x}, old, new, lambda number, slot: lost)["x"]
    assert compiles() == before
    for y in (moved, rebuilt):
        assert y.sharding == new.sharding(P("x", "y"))
        assert (np.asarray(y) == want).all()


def test_compilations_are_counted_by_thread() -> None:
    before = compiles()
    jax.jit(lambda x: x * 3 + len("a program that nobody compiled before"))(jnp.ones(7)).block_until_ready()
    assert compiles() > before


def test_warm_builds_ahead_in_the_background_and_says_what_it_compiled() -> None:
    built: list[tuple[int, ...]] = []

    def build(placement: Placement) -> str:
        built.append(placement.ids)
        return f"for {placement.ids}"

    pool = Pool(jax.devices()[:5], 1)
    warm: Warm[str] = Warm(build)
    warm.warm([pool.placement(AXES)])
    warm.rewarm(pool.successors(AXES))
    assert warm.settle() > 0  # the tiny programs that make communicators
    assert warm.settle() == 0
    assert len(warm) == 5
    count = len(built)
    assert warm.get(pool.swap(3).placement(AXES)) == "for (0, 1, 2, 4)"
    assert len(built) == count
    warm.keep_only([pool.placement(AXES)])
    assert len(warm) == 1


def test_a_failed_background_build_is_raised_where_the_run_can_hear_it() -> None:
    def build(placement: Placement) -> str:
        raise RuntimeError("no room for it")

    warm: Warm[str] = Warm(build)
    warm.rewarm([Pool(jax.devices()[:4], 0).placement(AXES)])
    with pytest.raises(RuntimeError, match="no room"):
        warm.settle()
