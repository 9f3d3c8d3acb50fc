"""Generation: batches, sampling, and texts that equal the clean run's whatever is struck while they are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llama_models
from poise import errors, llama
from poise.llama._cache import append, filled, repaired, room, truncated
from poise.llama._rules import Blow

CONFIG = llama_models.config_of("llama3", num_hidden_layers=2)
PARAMS = jax.tree.map(jnp.asarray, llama_models.tree(CONFIG, llama_models.tensors(CONFIG, 7)))
PROMPTS = [[5, 17, 3, 88], [9], [1, 2, 3, 4, 5, 6, 7, 8, 9]]
SAMPLING = llama.Sampling(0.8, 0.9, 3)


@pytest.fixture(scope="module")
def clean() -> list[list[int]]:
    texts, report = llama.generate(PARAMS, CONFIG, PROMPTS, 24, sampling=SAMPLING)
    assert (report.weights_found, report.cache_rows, report.rewound) == (0, 0, 0)
    return texts


def test_a_batch_writes_what_each_prompt_alone_would(clean: list[list[int]]) -> None:
    greedy, _ = llama.generate(PARAMS, CONFIG, PROMPTS, 12)
    assert llama.generate(PARAMS, CONFIG, PROMPTS[:1], 12, protect=False)[0] == greedy[:1]
    again, _ = llama.generate(PARAMS, CONFIG, PROMPTS, 24, sampling=SAMPLING, protect=False)
    assert again == clean
    other, _ = llama.generate(PARAMS, CONFIG, PROMPTS, 24, sampling=replace(SAMPLING, seed=4))
    assert other != clean
    # A nucleus of almost nothing is the likeliest token.
    tight, _ = llama.generate(PARAMS, CONFIG, PROMPTS, 12, sampling=llama.Sampling(1.3, 1e-6, 9))
    assert tight == greedy


def test_a_sequence_ends_at_its_own_end(clean: list[list[int]]) -> None:
    ends = replace(CONFIG, eos=(clean[1][5],))
    texts, _ = llama.generate(PARAMS, ends, PROMPTS, 24, sampling=SAMPLING)
    for text, whole in zip(texts, clean, strict=True):
        cut = whole.index(clean[1][5]) if clean[1][5] in whole else len(whole)
        assert text == whole[:cut]


def strike(session: llama.Session, what: str, rng: Any) -> None:
    assert session.cache is not None
    assert session.sealed is not None
    k = np.array(session.cache.k)
    if what in ("row", "rows"):
        words = k[1, 2, 4].view(np.uint32)
        words[rng.integers(2), rng.integers(words.shape[1])] ^= np.uint32(1 << rng.integers(32))
        if what == "rows":
            k[1, 2, 6, 0, 3] += 1.0
        session.cache = session.cache._replace(k=jnp.asarray(k))
    elif what == "mark":
        marks = np.array(session.cache.marks)
        marks[0, 0, 2, rng.integers(2)] ^= np.uint32(1 << rng.integers(32))
        session.cache = session.cache._replace(marks=jnp.asarray(marks))
    else:
        down = np.array(session.sealed.data["layers"]["down"])
        down[1, :20, 5] = np.nan if what == "nan" else 3.0
        layers = {**session.sealed.data["layers"], "down": jnp.asarray(down)}
        session.sealed = replace(session.sealed, data={**session.sealed.data, "layers": layers})


@pytest.mark.parametrize("sweep", [1, 6])
@pytest.mark.parametrize("what", ["row", "rows", "mark", "weights", "nan"])
def test_the_text_is_the_clean_one_whatever_is_struck(clean: list[list[int]], what: str, sweep: int) -> None:
    rng = np.random.default_rng()
    session = llama.Session(PARAMS, CONFIG, PROMPTS, 24, sampling=SAMPLING, sweep=sweep)
    for _ in range(9):
        session.step()
    strike(session, what, rng)
    assert session.finish() == clean
    report = session.report
    assert report.cache_rows == (what in ("row", "mark"))
    assert report.weights_found == (what in ("weights", "nan"))
    if sweep == 1 and what in ("row", "mark"):
        assert report.rewound == 0


def test_weights_beyond_repair_stop_it() -> None:
    session = llama.Session(PARAMS, CONFIG, PROMPTS, 8)
    session.step()
    assert session.sealed is not None
    data = jax.tree.map(lambda x: x + 1, session.sealed.data)
    session.sealed = replace(session.sealed, data=data)
    with pytest.raises(errors.Stopped, match="beyond parity"):
        session.finish()


def test_what_cannot_be_continued_is_refused() -> None:
    for prompts, words in (
        ([], "at least one"),
        ([[]], "at least one"),
        ([[101]], "token 101"),
        ([[1] * 250], "positions"),
    ):
        with pytest.raises(errors.BadInput, match=words):
            llama.generate(PARAMS, CONFIG, prompts, 10)
    with pytest.raises(errors.BadInput, match="temperature"):
        llama.Sampling(-1.0)
    with pytest.raises(errors.BadInput, match="top_p"):
        llama.Sampling(1.0, 0.0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_cache_mends_one_row_of_a_group_and_says_when_it_cannot(dtype: Any) -> None:
    rng = np.random.default_rng()
    shape = (2, 3, 20, 2, 12)
    k, v = (jnp.asarray(rng.normal(size=shape), dtype) for _ in range(2))
    cache = filled(room(CONFIG, 3, 40, dtype), k, v, jnp.array([20, 7, 13]))
    live = jnp.array([True, False, True])
    for _ in range(9):
        for layer in range(2):
            cache = append(cache, jnp.int32(layer), k[layer, :, 0] * 2, v[layer, :, 1] * 3, live)
        cache = cache._replace(length=cache.length + live)
    clean = jax.tree.map(np.asarray, cache)
    mend = jax.jit(repaired)
    assert [int(x) for x in mend(cache)[1]] == [0, 0]
    for name in ("k", "v"):
        struck = np.array(getattr(cache, name))
        struck[1, 2, 21] = 7  # an appended row, all of it
        back, found = mend(cache._replace(**{name: jnp.asarray(struck)}))
        assert [int(x) for x in found] == [1, 0]
        assert np.array_equal(np.asarray(getattr(back, name)), getattr(clean, name))
        struck[1, 2, 17] = 9
        assert [int(x) for x in mend(cache._replace(**{name: jnp.asarray(struck)}))[1]] == [0, 2]
    # What lies behind the length is nobody's, and a shorter cache is as if the rest had never been written.
    short = truncated(cache, jnp.array([20, 7, 13]))
    first = filled(room(CONFIG, 3, 40, dtype), k, v, jnp.array([20, 7, 13]))
    assert np.array_equal(short.parity, first.parity)
    assert [int(x) for x in mend(short)[1]] == [0, 0]


SIGN = -(1 << 31)


def blow(layer: int, product: int, row: int, bits: int) -> Blow:
    return Blow(*(jnp.int32(v) for v in (layer, product, 0, row, 11, bits)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_wrong_product_is_computed_again_before_its_token_counts(dtype: Any) -> None:
    params = jax.tree.map(lambda x: x.astype(dtype), PARAMS)
    clean, report = llama.generate(params, CONFIG, PROMPTS, 24, sampling=SAMPLING, abft="all")
    assert report.products == 0
    session = llama.Session(params, CONFIG, PROMPTS, 24, sampling=SAMPLING, abft="all")
    # A sign, in the products of the prompts (their second row), then in those of tokens: each once, and the scores.
    session.blow = blow(0, 2, 1, 0x8000 if dtype == jnp.bfloat16 else SIGN)
    session.step()
    for layer, product, row in [*((p % 2, p, p % 3) for p in range(7)), (CONFIG.layers, 7, 2)]:
        session.blow = blow(layer, product, row, SIGN)
        session.step()
    assert session.finish() == clean
    assert session.report.products == 9
    assert session.report.notes[0] == "token 0 computed again: matrix products of layer 0 failed their check"
    assert "of the scores failed" in session.report.notes[-1]


def test_an_audit_looks_at_each_layer_in_its_turn() -> None:
    config = llama_models.config_of("llama3", num_hidden_layers=3)
    params = jax.tree.map(jnp.asarray, llama_models.tree(config, llama_models.tensors(config, 7)))
    session = llama.Session(params, config, PROMPTS, 24, abft="audit")
    found = []
    for token in range(18):
        session.blow = blow(1, 5, 0, SIGN)
        before = session.report.products
        session.step()
        found += [token] * (session.report.products - before)
    assert found == [7, 15]


@pytest.mark.parametrize("protect", [True, False])
def test_a_device_that_goes_on_computing_wrongly_ends_it(protect: bool) -> None:
    session = llama.Session(PARAMS, CONFIG, PROMPTS, 24, abft="all", protect=protect)
    for _ in range(3):
        session.step()
    session.blow, session.persistent = blow(1, 4, 0, 0x40000000), True
    blame = "this device" if protect else "the weights or this device"
    with pytest.raises(errors.Stopped, match=f"Token 3: matrix products of layer 1 failed.* in each of 3.*{blame}"):
        session.step()


def test_sums_of_weights_that_rot_are_made_again() -> None:
    session = llama.Session(PARAMS, CONFIG, PROMPTS, 12, abft="all")
    clean = llama.generate(PARAMS, CONFIG, PROMPTS, 12)[0]
    session.step()
    assert session._sides is not None
    gate = session._sides["gate"]
    session._sides["gate"] = gate._replace(sums=gate.sums.at[0, 0, 3].add(1.0))
    assert session.finish() == clean
    assert (session.report.products, session.report.weights_found) == (2, 0)
    assert "sums of the weights made again" in session.report.notes
