"""Llama as a workload: trained with and without backpropagation, struck, replayed, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kept import run
from poise import Keeper, Pool, errors, llama
from poise.events import Noticed
from poise.llama._history import begin, leaf_numbers, note
from poise.llama._noise import hashes, key_of, moved, signs
from poise.llama._task import Task
from poise.llama._text import Text, tokenizer

MODEL = {"vocab": 256, "width": 32, "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2}
SMALL: dict[str, Any] = {"model": MODEL, "steps": 9, "sequences": 4, "length": 24, "held": 2, "characters": 60_000}


def test_a_struck_training_run_ends_with_the_clean_one_s_bits() -> None:
    task = llama.workload("adamw", **SMALL, dtype="float32", abft="all", strikes=True, rate=1e-2, accumulate=2)
    clean = run(task, active=2, every=4)
    script = [
        {"kind": "product", "step": 2, "slot": 1},
        {"kind": "bitflip", "step": 3, "leaf": "m.layers.gate", "extent": "bank"},
        {"kind": "gradient", "step": 5},
        {"kind": "bitflip", "step": 6, "slot": 1, "leaf": "w.layers.down", "extent": "bits"},
        {"kind": "two_banks", "step": 7, "slot": 1, "leaf": "v.embed"},
    ]
    struck = run(task, script, active=2, every=4, clean=clean)
    assert struck.fingerprint == clean.fingerprint
    assert [s.noticed_step for s in struck.strikes] == [2, 3, 5, 6, 7]
    assert [s.bit_exact for s in struck.strikes] == [True] * 5
    first = next(e for e in struck.seen(Noticed) if e.fault.step == 2)
    assert first.fault.slots == (1,)  # the device that computed wrongly is named
    losses = struck.keeper
    assert losses.settled == 9


def test_training_lowers_the_loss_and_optimises_as_optax_does() -> None:
    import optax

    task = llama.AdamW(**SMALL, dtype="float32", warmup=0, rate=3e-3, last_rate=3e-3, clip=0.5, chunk=8)
    with Keeper(task, Pool(jax.devices()[:1], 0)) as keeper:
        metrics = [keeper.step() for _ in range(6)]
        losses = [float(m["loss"]) for m in metrics]
        got = jax.device_get(keeper.state)["w"]
    assert losses[-1] < losses[0] - 0.05
    masks = jax.tree.map_with_path(lambda path, _: not path[-1].key.endswith("norm"), got)
    rule = optax.chain(
        optax.clip_by_global_norm(0.5), optax.adamw(3e-3, task.b1, task.b2, task.eps, weight_decay=0.1, mask=masks)
    )
    w = jax.tree.map(jnp.asarray, task.init()["w"])
    state = rule.init(w)

    @jax.jit
    def step(w: Any, state: Any, batch: Any) -> Any:
        def loss(w: Any) -> Any:
            total = batch["weight"].sum() * task.length
            return task.mean_loss(None, w, batch["tokens"][0], batch["weight"][0], total, step=0, differentiable=False)[
                0
            ]

        updates, state = rule.update(jax.grad(loss)(w), state, w)
        return optax.apply_updates(w, updates), state

    for i in range(6):
        w, state = step(w, state, task.batch(i))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(w), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)


@pytest.mark.parametrize("options", [{"abft": "audit", "period": 2}, {"variant": "jvp", "lora": 4, "rate": 0.3}])
def test_a_forward_only_run_is_its_history(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reverse mode")

    for name in ("vjp", "grad", "value_and_grad", "linearize", "linear_transpose"):
        monkeypatch.setattr(jax, name, refuse)
    task = llama.workload("forward", **{**SMALL, "steps": 5, "rate": 1e-3, "seed": 11, **options})
    with Keeper(task, Pool(jax.devices()[: 1 if task.lora else 2], 0)) as keeper:
        keeper.run(5)
        state = jax.device_get(keeper.state)
    start = task.init()["w"]
    task.history(state, "start").save(tmp_path / "h")
    assert (tmp_path / "h").stat().st_size < 12 * 5 + 200
    history = llama.read_history(tmp_path / "h")
    assert np.count_nonzero(history.scalars) == 5
    back = llama.replay(start, history)
    moved_leaves = 0
    for a, b, c in zip(jax.tree.leaves(back), jax.tree.leaves(state["w"]), jax.tree.leaves(start), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        moved_leaves += np.asarray(a).tobytes() != np.asarray(c).tobytes()
    assert moved_leaves >= len(jax.tree.leaves(back)) - 1
    # A lost device's piece alone, from the weights of step 0.
    name, number = next((n, i) for n, i in leaf_numbers(start).items() if n.endswith(("q_b", "layers.q")))
    whole = np.asarray(jax.tree.leaves(start)[number])
    half = whole[:, whole.shape[1] // 2 :]
    piece = llama.replay_piece(half, name, number, whole.shape, (0, whole.shape[1] // 2, 0), history)
    want = np.asarray(jax.tree.leaves(state["w"])[number])[:, whole.shape[1] // 2 :]
    assert np.asarray(piece).tobytes() == want.tobytes()


def test_a_history_survives_a_torn_end_and_refuses_what_is_none(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with open(path, "wb") as file:
        begin(file, "ab", "weights")
        for step in (0, 1, 1, 2):
            note(file, step, 9, 0.5 + step)
        file.write(b"torn")
    history = llama.read_history(path)
    assert (history.seed, history.scalars.tolist(), history.start) == (9, [0.5, 1.5, 2.5], "ab")
    path.write_bytes(b"no history")
    with pytest.raises(errors.BadInput, match="no history"):
        llama.read_history(path)


def test_directions_are_balanced_and_differ_by_step_leaf_and_layer() -> None:
    draws = {}
    for key in ((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (2, 0, 0, 0)):
        words = hashes(key_of(*key), (300, 301), (300, 301), (0, 0))
        draws[key] = np.asarray(signs(words, jnp.float32))
        assert abs(draws[key].mean()) < 5 / 300
        assert np.abs(draws[key].mean(0)).max() < 6 / 300**0.5
    keys = list(draws)
    for i, a in enumerate(keys):
        for b in keys[:i]:
            assert abs((draws[a] * draws[b]).mean()) < 5 / 300
    piece = hashes(key_of(1, 0, 0, 0), (10, 301), (300, 301), (7, 0))
    assert np.array_equal(signs(piece, jnp.float32), draws[keys[0]][7:17])


def test_small_updates_of_narrow_weights_survive_on_average() -> None:
    w = jnp.full(200_000, 0.02, jnp.bfloat16)
    start = float(w[0])

    @jax.jit
    def step(w: Any, number: Any) -> Any:
        words = hashes(key_of(3, number, 0, 0), w.shape, w.shape, (0,))
        up = words | jnp.uint32(0x80000000)  # every sign is -1: the weight grows
        return moved(w, up, jnp.float32(1e-6))  # a sixtieth of half a unit in the last place

    for number in range(40):
        w = step(w, number)
    drift = float((w.astype(jnp.float32) - start).mean())
    assert drift == pytest.approx(40e-6, rel=0.05)


def test_text_is_packed_shuffled_and_the_same_whenever_asked_for(tmp_path: Path) -> None:
    words = tokenizer("bytes")
    text = Text.of(["abcdefgh" * 40, "xyz" * 50], words, 16, held=3, seed=5)
    assert text.train.shape[1] == 17
    assert (text.train[0, 1:] == text.train[0, :-1] + 1).sum() > 10
    first = text.rows(4, 6)
    assert np.array_equal(first, text.rows(4, 6))
    n = len(text.train)
    epoch = np.concatenate([text.rows(i, 1) for i in range(n)])
    assert sorted(map(bytes, epoch.astype(np.uint8))) == sorted(map(bytes, text.train.astype(np.uint8)))
    assert not np.array_equal(epoch, np.concatenate([text.rows(n + i, 1) for i in range(n)]))
    assert words.decode(words.encode("naïve ✓")) == "naïve ✓"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "sgd"}, "method is adamw, forward"),
        ({"lenght": 3}, "no parameters"),
        ({"model": "llama9"}, "no model 'llama9'"),
        ({"model": {**MODEL, "heads": 5}}, "cannot share|channels"),
        ({"model": {**MODEL, "depth": 5}}, "depth"),
        ({"dtype": "float16"}, "dtype is bfloat16, float32"),
        ({"sequences": 3, "accumulate": 2}, "equal parts"),
        ({"data": "/nowhere"}, "no text"),
        ({"tokens": "/nowhere"}, "no tokenizer"),
        ({"abft": "some"}, "abft is off, audit, all"),
        ({"rate": -1.0}, "rate"),
        ({"model": {**MODEL, "vocab": 100}}, "do not fit"),
    ],
)
def test_bad_jobs_are_refused_in_a_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.BadInput, match=words) as caught:
        llama.workload(**{**SMALL, **change}).batch(0)
    assert "\n" not in str(caught.value)


def test_meshes_that_do_not_fit_are_refused() -> None:
    task = Task(**SMALL, tensor=2)
    assert task.axes(4) == {"data": 1, "fsdp": 2, "tensor": 2}
    with pytest.raises(errors.BadMesh, match="multiples of 2"):
        task.axes(3)
    with pytest.raises(errors.BadMesh, match="spread over"):
        task.axes(6)
