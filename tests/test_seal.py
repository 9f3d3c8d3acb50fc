"""`poise.seal`, `verify`, `repair`, `scrub`, `Scrub`: any dtype, any shape, any sharding."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import poise
from poise import BadInput, SealReport
from poise.kernels.layout import Layout
from poise.seal import Damage
from poise.seal._host import words_of
from poise.seal._words import count, from_words, to_words

# -- helpers: a state as bytes, and blows on one device's piece of it -------------------------------------------------


def plain(x: jax.Array) -> jax.Array:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def raw(tree: Any) -> list[bytes]:
    return [np.asarray(plain(x)).tobytes() for x in jax.tree.leaves(tree)]


def strike(x: jax.Array, device: jax.Device | None = None, at: int = 0, n: int = 1) -> jax.Array:
    """`x` with n bytes complemented in the piece of one device (the first one's by default); of dtypes that use the low
    bits of a byte only, one value is changed."""
    key = jax.random.key_impl(x) if x is not plain(x) else None
    x, pieces = plain(x), []
    with jax.enable_x64(True):
        for number, shard in enumerate(x.addressable_shards):
            piece = np.array(shard.data, copy=True)
            if shard.device == device or (device is None and number == 0):
                if x.dtype in LOW_BITS:
                    piece.reshape(-1)[at] = piece.reshape(-1)[at] == 0
                else:
                    piece.reshape(-1).view(np.uint8)[at : at + n] ^= 0xFF
            pieces.append(jax.device_put(piece, shard.device))
        out = jax.make_array_from_single_device_arrays(x.shape, x.sharding, pieces)
    return out if key is None else jax.random.wrap_key_data(out, impl=key)


def strike_seal(sealed: poise.Sealed, part: str, device: jax.Device | None = None, at: int = 0) -> poise.Sealed:
    """The state with a byte of the parity, marks or guard of its first unit struck."""
    first, *rest = sealed.seals[0]
    hit = first._replace(**{part: strike(getattr(first, part), device, at)})
    return replace(sealed, seals=((hit, *rest), *sealed.seals[1:]))


def on_first(x: Any) -> jax.Array:
    """Committed to the first device, as struck arrays are: otherwise each blow would compile anew."""
    return jax.device_put(x, jax.devices()[0])


def mesh(shape: tuple[int, ...], names: tuple[str, ...], kind: AxisType = AxisType.Auto) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))


def kinds(report: SealReport) -> dict[Damage, int]:
    return {d: report.count(d) for d in Damage if report.count(d)}


DTYPES = [
    "bool", "int4", "uint4", "int2", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip
LOW_BITS = ("bool", "int4", "uint4", "int2")

RNG = np.random.default_rng(0)


def of_dtype(dtype: Any, n: int) -> jax.Array:
    """n values that use all bits of a dtype, made without compiling anything."""
    real = RNG.normal(size=n)
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        host = RNG.integers(int(info.min), int(info.max), n, np.int64, endpoint=True).astype(jnp.dtype(dtype))
    elif jnp.issubdtype(dtype, jnp.complexfloating):
        host = (real + 1j * RNG.normal(size=n)).astype(dtype)
    else:
        host = (real > 0 if dtype == "bool" else real).astype(jnp.dtype(dtype))
    with jax.enable_x64(True):
        return on_first(host)


# -- every dtype and shape --------------------------------------------------------------------------------------------


def test_words_are_the_bytes_and_come_back_bit_for_bit():
    for dtype in DTYPES:
        for n in (0, 7):
            x = of_dtype(dtype, n)
            with jax.enable_x64(True):
                words = to_words(x)
                back = from_words(words, x.shape, x.dtype)
            assert words.size == count(x.shape, x.dtype), f"{dtype}: the plan and the words disagree"
            assert back.dtype == x.dtype
            assert raw(back) == raw(x)
            if dtype not in LOW_BITS:
                assert np.array_equal(words, words_of(np.asarray(x))), f"{dtype}: host and device disagree"


def test_every_dtype_is_noticed_and_mended_bit_for_bit_in_a_32_bit_program():
    state = {dtype: of_dtype(dtype, 103) for dtype in DTYPES}
    sealed = poise.seal(state)
    assert poise.verify(sealed).ok
    for dtype, x in state.items():
        assert str(sealed.data[dtype].dtype) == dtype
        bad = replace(sealed, data={**state, dtype: strike(x, at=52, n=4)})
        assert raw(bad.data) != raw(state)
        assert not poise.verify(bad).ok, dtype
        mended, report = poise.repair(bad)
        assert [str(y.dtype) for y in jax.tree.leaves(mended.data)] == [str(y.dtype) for y in jax.tree.leaves(state)]
        assert raw(mended.data) == raw(state), dtype
        assert kinds(report) == {Damage.DATA: 1}
    assert poise.verify(mended).ok
    assert not jax.config.jax_enable_x64


def test_prng_keys_are_mended_as_keys():
    state = {impl: jax.random.split(jax.random.key(7, impl=impl), 5) for impl in ("threefry2x32", "rbg")}
    state["one"] = state["rbg"][0]
    state = jax.tree.map(on_first, state)
    sealed = poise.seal(state)
    for name, keys in state.items():
        mended, report = poise.repair(replace(sealed, data={**state, name: strike(keys, at=1)}))
        assert kinds(report) == {Damage.DATA: 1}
        assert mended.data[name].dtype == keys.dtype
        assert raw(mended.data) == raw(state)
    assert np.array_equal(jax.random.bits(mended.data["one"], (4,)), jax.random.bits(state["one"], (4,)))


def test_any_shape_keeps_its_shape():
    shapes = [(), (1,), (3, 5, 7), (0, 2), (5121,), (2, 1, 3)]
    state = [on_first(RNG.normal(size=shape).astype(np.float32)) for shape in shapes]
    sealed = poise.seal(state)
    for i, x in enumerate(state):
        if x.size:
            mended, report = poise.repair(replace(sealed, data=[*state[:i], strike(x, n=4), *state[i + 1 :]]))
            assert [y.shape for y in mended.data] == [y.shape for y in state]
            assert raw(mended.data) == raw(state)
            assert kinds(report) == {Damage.DATA: 1}


@pytest.mark.parametrize("n", [1, 21])
def test_a_tiny_leaf_is_mended_on_its_own(n):
    x = jnp.array(RNG.normal(size=n), jnp.float32)
    mended, report = poise.repair(replace(poise.seal(x), data=strike(x, at=4 * n - 4, n=4)))
    assert raw(mended.data) == raw(x)
    assert kinds(report) == {Damage.DATA: 1}


@pytest.mark.parametrize("state", [jnp.zeros((0,)), {"a": jnp.zeros((4, 0), jnp.bfloat16)}, {}, None, []])
def test_nothing_to_seal_is_sealed_and_clean(state):
    sealed = poise.seal(state)
    assert jax.tree.structure(sealed.data) == jax.tree.structure(state)
    mended, report = poise.repair(sealed)
    assert report.ok
    assert str(report) == "clean"
    assert raw(mended.data) == raw(state)


def test_numbers_and_numpy_arrays_become_jax_arrays():
    sealed = poise.seal({"f": 1.5, "i": 3, "b": True, "c": 1j, "np": np.arange(5, dtype=np.int16), "s": np.float32(2)})
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(sealed.data))
    assert sealed.data["np"].dtype == np.int16
    assert poise.verify(sealed).ok
    hit = replace(sealed, data={**sealed.data, "i": jnp.asarray(4)})
    mended, report = poise.repair(hit)
    assert int(mended.data["i"]) == 3
    assert report.count(Damage.DATA) == 1


def test_a_number_that_no_array_of_this_program_can_hold_is_refused_by_name():
    with pytest.raises(BadInput, match="'steps'"):
        poise.seal({"steps": 2**40})


# -- shardings --------------------------------------------------------------------------------------------------------


def mixed_state() -> tuple[dict[str, jax.Array], list[jax.Device]]:
    """Leaves over two meshes, replicated, partly replicated, on one device that is not the first, and small ones."""
    devices = jax.devices()
    grid, line = mesh((2, 4), ("a", "b")), jax.sharding.Mesh(np.array(devices[4:8], dtype=object), ("d",))
    x = jnp.array(RNG.normal(size=(16, 40)), jnp.float32)
    state = {
        "both": jax.device_put(x, NamedSharding(grid, P("a", "b"))),
        "turned": jax.device_put(x, NamedSharding(grid, P("b", "a"))),
        "merged": jax.device_put(x, NamedSharding(grid, P(("a", "b")))),
        "partly": jax.device_put(x, NamedSharding(grid, P(None, "b"))),
        "everywhere": jax.device_put(x[0], NamedSharding(grid, P())),
        "line": jax.device_put(x.astype(jnp.bfloat16), NamedSharding(line, P("d"))),
        "alone": jax.device_put(x[:, :3], devices[5]),
        "tiny": jax.device_put(jnp.int8(3), devices[0]),
    }
    return state, devices


def test_a_mixed_state_is_mended_where_it_was_struck_and_nowhere_else():
    state, devices = mixed_state()
    sealed = poise.seal(state)
    assert poise.verify(sealed).ok
    blows = {"turned": devices[6], "everywhere": devices[2], "line": devices[7], "alone": devices[5]}
    bad = replace(sealed, data={k: strike(x, blows[k], n=4) if k in blows else x for k, x in state.items()})
    seen = poise.verify(bad)
    assert seen.devices == (2, 5, 6, 7)
    mended, report = poise.repair(bad)
    assert report.devices == (2, 5, 6, 7)
    assert kinds(report) == {Damage.DATA: 4}
    assert poise.verify(mended).ok
    for name, x in state.items():
        got = mended.data[name]
        assert got.sharding.is_equivalent_to(x.sharding, x.ndim), name
        for a, b in zip(got.addressable_shards, x.addressable_shards, strict=True):
            assert a.device == b.device
            assert np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes(), name


def test_repair_returns_a_new_state_and_leaves_the_given_one_as_it_was():
    state, devices = mixed_state()
    sealed = poise.seal(state)
    bad = replace(sealed, data={**state, "both": strike(state["both"], devices[3])})
    before = raw(bad.data)
    poise.repair(bad)
    assert raw(bad.data) == before
    assert not poise.verify(bad).ok
    assert poise.verify(sealed).ok


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_meshes_of_either_axis_type(kind):
    grid = mesh((8,), ("d",), kind)
    x = jax.device_put(jnp.arange(64.0), NamedSharding(grid, P("d")))
    sealed = poise.seal(x)
    mended, report = poise.repair(replace(sealed, data=strike(x, jax.devices()[3])))
    assert report.devices == (3,)
    assert raw(mended.data) == raw(x)
    assert mended.data.sharding == x.sharding


def test_big_leaves_are_named_in_the_report_and_small_ones_share_a_name():
    big = jnp.arange(40_000.0)
    state = {"params": {"w": big, "v": big + 1}, "bias": jnp.ones(3), "step": jnp.int32(4)}
    sealed = poise.seal(state)
    bad = replace(sealed, data={**state, "params": {"w": big, "v": strike(big + 1)}, "bias": strike(state["bias"])})
    _, report = poise.repair(bad)
    assert sorted(f.leaf for f in report.findings) == ["2 small leaves", "params.v"]
    assert str(report) == "1 data block(s) of params.v on device 0; 1 data block(s) of 2 small leaves on device 0"


# -- what was damaged is told apart -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharded() -> poise.Sealed:
    grid = mesh((4,), ("d",))
    x = jnp.array(RNG.normal(size=4 * 30_000), jnp.float32)
    return poise.seal({"x": jax.device_put(x, NamedSharding(grid, P("d")))})


def shard_layout(sealed: poise.Sealed) -> Layout:
    return Layout(sealed.groups[0].plan.units[0].words)


@pytest.mark.parametrize(
    ("part", "damage"), [("marks", Damage.MARKS), ("guard", Damage.MARKS), ("parity", Damage.PARITY)]
)
def test_damage_of_the_seals_is_told_from_damage_of_the_data(sharded, part, damage):
    bad = strike_seal(sharded, part, jax.devices()[2])
    assert poise.verify(bad).devices == (2,)
    mended, report = poise.repair(bad)
    assert kinds(report) == {damage: 1}
    assert report.devices == (2,)
    assert raw(mended.data) == raw(sharded.data)
    assert raw(mended.seals) == raw(sharded.seals)


def test_a_whole_bank_of_every_device_is_mended(sharded):
    x = sharded.data["x"]
    bank = shard_layout(sharded).L * 4
    hit = x
    for number, device in enumerate(jax.devices()[:4]):
        hit = strike(hit, device, at=number * bank, n=bank)
    mended, report = poise.repair(replace(sharded, data={"x": hit}))
    assert raw(mended.data) == raw(x)
    assert report.devices == (0, 1, 2, 3)
    assert report.unrepairable == 0


def test_what_is_beyond_repair_is_left_alone_named_and_found_again(sharded):
    x, device = sharded.data["x"], jax.devices()[1]
    bank = shard_layout(sharded).L * 4
    hit = strike(strike(x, device, at=0, n=4), device, at=bank, n=4)
    mended, report = poise.repair(replace(sharded, data={"x": hit}))
    assert kinds(report) == {Damage.UNREPAIRABLE: 2}
    assert report.devices == (1,)
    assert raw(mended.data) == raw(hit)
    assert not poise.verify(mended).ok
    assert poise.repair(mended)[1].unrepairable == 2


def test_reports_add_up(sharded):
    _, a = poise.repair(strike_seal(sharded, "marks", jax.devices()[0]))
    _, b = poise.repair(strike_seal(sharded, "parity", jax.devices()[3]))
    both = a + b
    assert both.devices == (0, 3)
    assert kinds(both) == {Damage.MARKS: 1, Damage.PARITY: 1}
    assert (SealReport((), False) + SealReport((), False)).ok


# -- costs and choices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2**18, 2**18 + 1, 1_000_003])
def test_spare_bytes_of_arrays_over_a_mebibyte_are_at_most_seven_percent(n):
    sealed = poise.seal(jnp.zeros(n, jnp.float32))
    assert 0.05 * 4 * n < sealed.spare_bytes <= 0.07 * 4 * n


def test_without_spare_damage_is_noticed_and_left_alone():
    x = jnp.array(RNG.normal(size=300_000), jnp.float32)
    sealed = poise.seal({"x": x}, spare=0.0)
    assert sealed.spare_bytes < 0.01 * x.nbytes
    assert poise.verify(sealed).ok
    bad = replace(sealed, data={"x": strike(x)})
    assert not poise.verify(bad).ok
    mended, report = poise.repair(bad)
    assert kinds(report) == {Damage.UNREPAIRABLE: 1}
    assert raw(mended.data) == raw(bad.data)
    mended, report = poise.repair(strike_seal(sealed, "guard"))
    assert kinds(report) == {Damage.MARKS: 1}
    assert poise.verify(mended).ok


def test_a_sealed_state_is_a_pytree_and_passes_through_jit():
    sealed = poise.seal({"x": jnp.arange(100.0)})
    passed = jax.jit(lambda s: s)(sealed)
    assert poise.verify(passed).ok
    assert passed.groups == sealed.groups
    assert len(jax.tree.leaves(sealed)) == 1 + 3


def test_a_changed_state_does_not_verify_until_it_is_sealed_again():
    sealed = poise.seal({"x": jnp.arange(100.0)})
    changed = jax.tree.map(lambda x: x + 1, sealed.data)
    assert not poise.verify(replace(sealed, data=changed)).ok
    assert poise.verify(poise.seal(changed)).ok


@pytest.mark.parametrize("spare", [0.1, 1, -0.05, "0.05", None, float("nan")])
def test_an_impossible_spare_is_refused(spare):
    with pytest.raises(BadInput, match="spare"):
        poise.seal(jnp.ones(3), spare=spare)


@pytest.mark.parametrize("leaf", ["text", object(), {1, 2}, print, np.array(["a"]), np.array([None])])
def test_leaves_that_are_no_numbers_are_refused_by_name(leaf):
    with pytest.raises(BadInput, match=r"params\.w"):
        poise.seal({"params": {"w": leaf}})


def test_tracers_are_refused_with_a_sentence():
    with pytest.raises(BadInput):
        jax.jit(poise.seal)(jnp.ones(3))


# -- scrubbing --------------------------------------------------------------------------------------------------------


def test_scrub_reports_piece_by_piece():
    state, devices = mixed_state()
    sealed = poise.seal(state)
    reports = list(poise.scrub(replace(sealed, data={**state, "alone": strike(state["alone"], devices[5])})))
    assert len(reports) == len(sealed.groups) >= 3
    assert [r.devices for r in reports if not r.ok] == [(5,)]
    assert not any(r.repaired for r in reports)


def test_a_scrubbing_thread_finds_damage_that_comes_later_and_stops():
    sealed = poise.seal({"x": jnp.arange(1000.0)})
    current, reports, heard = [sealed], [], threading.Event()

    def found(report: SealReport) -> None:
        reports.append(report)
        heard.set()

    with poise.Scrub(lambda: current[0], 0.01, found) as scrub:
        while scrub.sweeps < 2:
            assert not heard.wait(0.01), "damage found in a clean state"
        current[0] = replace(sealed, data={"x": strike(sealed.data["x"])})
        assert heard.wait(30)
    assert reports[0].count(Damage.DATA) == 1
    assert not any(t.name == "poise-scrub" for t in threading.enumerate())
    swept = len(reports)
    assert not threading.Event().wait(0.05)
    assert len(reports) == swept


def test_a_scrubbing_thread_may_be_closed_by_what_it_found():
    sealed = poise.seal({"x": jnp.arange(1000.0)})
    bad = replace(sealed, data={"x": strike(sealed.data["x"])})
    done, errors = threading.Event(), []

    def found(report: SealReport) -> None:
        try:
            scrub.close()
        except RuntimeError as error:
            errors.append(error)
        done.set()

    begin = threading.Event()

    def state() -> poise.Sealed:
        begin.wait(30)
        return bad

    scrub = poise.Scrub(state, 0.01, found)
    begin.set()
    assert done.wait(30)
    scrub.close()
    assert errors == []
    assert scrub.sweeps == 0


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_an_impossible_rate_is_refused_without_starting_a_thread(seconds):
    with pytest.raises(BadInput, match="sweep"):
        poise.Scrub(lambda: poise.seal(1.0), seconds, lambda _: None)
    assert not any(t.name == "poise-scrub" for t in threading.enumerate())


def test_what_ends_a_sweep_early_is_raised_by_close():
    def gone() -> poise.Sealed:
        raise RuntimeError("the state is gone")

    sweep = poise.Scrub(gone, 0.01, lambda report: None)
    sweep._thread.join(timeout=30)
    with pytest.raises(RuntimeError, match="is gone"):
        sweep.close()
    sweep.close()
