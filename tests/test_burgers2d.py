"""The grid workload against the exact travelling wave."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np
import pytest

from kept import run
from poise import Keeper, Pool, Traits, kernels
from poise.errors import BadInput, BadMesh, Stopped
from poise.events import Noticed
from poise.physics.grid import Burgers2d

native = pytest.mark.skipif(not kernels.available()["cpu"], reason="the compiled kernels are not built here")


def final_error(workload: Burgers2d, devices: int = 1) -> float:
    with Keeper(workload, Pool(jax.devices()[:devices], 0)) as keeper:
        keeper.run(workload.steps)
        return workload.error(keeper.state, workload.steps)


def test_second_order_in_space_and_time() -> None:
    errors = [
        final_error(Burgers2d(n=n, nu=0.01, dtype="float64", steps=s)) for n, s in ((31, 42), (63, 84), (127, 168))
    ]
    orders = [np.log2(a / b) for a, b in pairwise(errors)]
    assert all(1.85 < order < 2.2 for order in orders), (errors, orders)


def test_the_error_at_256_is_what_the_readme_says() -> None:
    assert final_error(Burgers2d(n=256), 4) <= 1e-3


def test_the_decomposition_does_not_matter() -> None:
    workload = Burgers2d(n=24, dtype="float64")
    one, four, six = (final_error(workload, d) for d in (1, 4, 6))
    assert one == pytest.approx(four, rel=1e-10)
    assert one == pytest.approx(six, rel=1e-10)


@native
def test_the_compiled_stage_agrees_and_is_kept_alike() -> None:
    workload = Burgers2d(n=32, kernel="native")
    assert final_error(workload, 4) == pytest.approx(final_error(Burgers2d(n=32), 4), rel=1e-3)
    script = [{"kind": "bitflip", "step": 4, "slot": 2, "extent": "bank"}, {"kind": "two_banks", "step": 9}]
    clean = run(workload, steps=14, every=4)
    struck = run(workload, script, steps=14, every=4, clean=clean)
    assert struck.fingerprint == clean.fingerprint
    assert all(s.bit_exact and s.compiles == 0 for s in struck.strikes)


class SealedAfterwards(Burgers2d):
    """The same kernels, sealed and checked by the keeper."""

    @property
    def traits(self) -> Traits:
        return replace(super().traits, sealed=False)


EVERY_KIND = [
    {"kind": "bitflip", "step": 2, "slot": 1, "extent": "block"},
    {"kind": "bitflip", "step": 4, "slot": 3, "extent": "bank"},
    {"kind": "bitflip", "step": 6, "slot": 0, "where": "parity"},
    {"kind": "bitflip", "step": 8, "slot": 2, "where": "marks"},
    {"kind": "bitflip", "step": 10, "slot": 1, "where": "guard"},
    {"kind": "nan", "step": 12, "slot": 2},
]


@native
@pytest.mark.parametrize("n", [64, 128])
def test_a_stage_that_seals_itself_is_kept_like_one_that_is_sealed_afterwards(n: int) -> None:
    """The same bits, and the same notice of all damage. Shards of 64 x 64 are sealed by the compiled stage, those of 32
    x 32 by the calls that it takes the place of."""
    apart, workload = (kind(n=n, kernel="native", steps=400) for kind in (SealedAfterwards, Burgers2d))
    assert workload.traits.sealed
    clean = run(apart, steps=14)
    struck, other = (run(w, EVERY_KIND, steps=14, clean=clean) for w in (workload, apart))
    assert struck.fingerprint == other.fingerprint == clean.fingerprint
    assert all(s.bit_exact for s in struck.strikes)
    found = [[(e.fault.step, e.fault.kind, e.fault.slots) for e in r.seen(Noticed)] for r in (struck, other)]
    assert found[0] == found[1]
    assert len(found[0]) == len(EVERY_KIND)


@native
def test_a_stage_that_seals_itself_counts_what_is_too_loud() -> None:
    start = np.full((2, 128, 128), 0.5, np.float32)
    start[1, 100, 70] = 3e6
    for kind in (SealedAfterwards, Burgers2d):
        workload = kind(n=128, kernel="native", steps=400, initial=start)
        says = pytest.raises(Stopped, match=r"Step 0 .* state in overflow in uv\[6405\] recurs")
        with Keeper(workload, Pool(jax.devices()[:4], 0)) as keeper, says:
            keeper.run(3)


def test_the_forcing_accelerates_everything_alike() -> None:
    class Pushed(Burgers2d):
        def batch(self, index: int) -> dict[str, np.ndarray]:
            batch = super().batch(index)
            return {k: np.zeros_like(v) for k, v in batch.items()} | {"forcing": np.ones((2, 2), np.float32)}

    still = Pushed(n=16, initial=np.zeros((2, 16, 16)), t_end=0.01)
    with Keeper(still, Pool(jax.devices()[:1], 0)) as keeper:
        keeper.run(still.steps)
        centre = np.asarray(keeper.state["uv"])[:, 8, 8]
    np.testing.assert_allclose(centre, 0.01, rtol=1e-3)


def test_a_users_initial_state_is_used() -> None:
    start = np.random.default_rng(0).normal(size=(2, 8, 8))
    assert (Burgers2d(n=8, initial=start).init()["uv"] == start.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"n": 1}, "n >= 2"),
        ({"nu": 0.0}, "nu > 0"),
        ({"dtype": "float16"}, "float32 or float64"),
        ({"steps": 3}, "stable"),
        ({"initial": np.zeros((2, 3, 3))}, "shape"),
        ({"kernel": "cuda"}, "'xla' or 'native'"),
    ],
)
def test_values_that_cannot_work_are_refused(params: dict, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Burgers2d(**params)


def test_meshes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadMesh, match="cannot share"):
        Burgers2d(n=16).axes(3)
    assert Burgers2d(n=24).axes(6) == {"x": 2, "y": 3}


def test_no_reverse_mode_autodiff(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reverse mode")

    for name in ("vjp", "grad", "value_and_grad", "linearize", "linear_transpose"):
        monkeypatch.setattr(jax, name, refuse)
    with Keeper(Burgers2d(n=16), Pool(jax.devices()[:2], 0)) as keeper:
        keeper.run(4)
