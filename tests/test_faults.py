"""Scripted faults: what a script means, and that each blow is of the size that it says."""

from __future__ import annotations

from functools import cache

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import PartitionSpec as P

from poise import Gate, Traits
from poise.errors import BadJob
from poise.faults import ScriptedFault, load_script, parse_script
from poise.faults._inject import check, watched_steps
from poise.faults._strike import damage
from poise.keeper._form import Form
from poise.kernels import ref

SIZES = [1, 2, 21, 81, 5121]

repair = jax.jit(ref.repair)


@cache
def sealed(n: int) -> tuple[np.ndarray, ref.Seal]:
    words = np.random.default_rng(n).integers(0, 2**32, n, np.uint32)
    return words, ref.seal(jnp.asarray(words))


BLOWS = [("bitflip", e) for e in ("bit", "bits", "block", "bank")] + [("two_banks", "bit")]


@settings(max_examples=80, deadline=None)
@given(n=st.sampled_from(SIZES), blow=st.sampled_from(BLOWS), ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
       seed=st.integers(0, 2**32 - 1))  # fmt: skip
def test_a_blow_does_damage_of_the_extent_that_it_says(n, blow, ends, seed):
    kind, extent = blow
    if kind == "two_banks" and n < 2:
        return
    start = min(n - 1, int(min(ends) * n))
    part = slice(start, max(start + 1, int(max(ends) * n)))
    words, kept = sealed(n)
    hit = words.copy()
    damage(hit, part, ScriptedFault(kind, 1, extent=extent), np.random.default_rng(seed))
    changed = np.flatnonzero(hit != words)
    assert changed.size, "nothing was struck"
    assert any(part.start <= i < part.stop for i in changed), "another leaf was struck"
    if extent == "bit" and kind == "bitflip":
        assert sum(int(x).bit_count() for x in hit ^ words) == 1
    mended, _, found = repair(hit, kept)
    if kind == "two_banks":
        assert int(found.unrepairable) > 0
        assert np.array_equal(mended, hit)
    else:
        assert int(found.unrepairable) == 0
        assert np.array_equal(mended, words)


def test_a_script_is_read_in_order_of_steps_with_its_defaults(tmp_path):
    path = tmp_path / "f.toml"
    path.write_text('[[fault]]\nkind = "lost"\nstep = 9\nslot = 2\n[[fault]]\nkind = "nan"\nstep = 4\n')
    assert load_script(path) == [ScriptedFault("nan", 4), ScriptedFault("lost", 9, 2)]
    assert watched_steps(load_script(path)) == {5, 9}, "a swap leaves its own step's state, the others the next one's"
    assert parse_script({}) == []


@pytest.mark.parametrize("name", ["faults", "exhaust"])
def test_the_packaged_scripts_say_what_they_mean(name):
    from poise.cli._job import packaged

    path = packaged(name)
    assert path is not None
    script = load_script(path)
    assert len({(f.label, f.step, f.slot) for f in script}) == len(script) > 0


class Small:
    """As much of a workload as the check of a script looks at."""

    name = "small"

    def __init__(self, markers: tuple[float, ...] = ()) -> None:
        self.traits = Traits(gate=Gate(markers=markers))


STATE = {"big": np.zeros(400, np.float32), "empty": np.zeros((0,), np.float32)}
BATCH = {"tokens": np.zeros((4, 3), np.int32), "x": jnp.zeros((4,), jnp.bfloat16)}
FORM = Form.of(STATE, P(), {"d": 4})


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (ScriptedFault("nan", 1), "tokens"),
        (ScriptedFault("nan", 1, leaf="y"), "no leaf 'y'"),
        (ScriptedFault("marker", 1, leaf="x"), "-99"),
        (ScriptedFault("lost", 1, slot=4), "0 to 3"),
        (ScriptedFault("bitflip", 1, leaf="empty"), "empty"),
        (ScriptedFault("bitflip", 1, leaf="x"), "no leaf 'x'"),
    ],
)
def test_a_fault_that_cannot_strike_this_run_is_refused(fault, word):
    with pytest.raises(BadJob, match=word):
        check([fault], Small(), FORM, BATCH)


def test_faults_that_can_strike_are_accepted():
    check([ScriptedFault("nan", 1, 3, leaf="x"), ScriptedFault("two_banks", 2)], Small(), FORM, BATCH)
    check([ScriptedFault("marker", 1, leaf="x")], Small(markers=(-99.0,)), FORM, BATCH)


def test_a_single_word_has_no_two_banks():
    form = Form.of({"n": np.float32(0)}, P(), {"d": 1})
    with pytest.raises(BadJob, match="two banks"):
        check([ScriptedFault("two_banks", 1)], Small(), form, BATCH)
    replicas = Form.of({"n": np.float32(0)}, P(), {"d": 2}, "replica")
    with pytest.raises(BadJob, match="no parity"):
        check([ScriptedFault("bitflip", 1, where="parity")], Small(), replicas, BATCH)
