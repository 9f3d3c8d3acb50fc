"""The model against what transformers computed (recorded), checkpoints, configurations, names."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llama_models
from poise import errors, llama
from poise.llama._model import cross_entropy, head, hidden
from poise.llama._names import names
from poise.memory import lease

GOLDEN = np.load(Path(__file__).parent / "golden" / "llama.npz")
KINDS = list(llama_models.KINDS)


def loss_of(params, tokens, config, remat="none", chunk=0):
    x, _ = hidden(params, tokens[:, :-1], config, remat=remat)
    total, _ = cross_entropy(x, head(params), tokens[:, 1:], jnp.ones(len(tokens)), chunk)
    return total / tokens[:, 1:].size


@pytest.mark.parametrize("kind", KINDS)
def test_logits_loss_and_gradients_equal_those_of_transformers(kind: str) -> None:
    seed, config = KINDS.index(kind), llama_models.config_of(kind)
    params = llama_models.tree(config, llama_models.tensors(config, seed))
    tokens = llama_models.prompt(config, seed)
    got = jax.jit(llama.logits, static_argnums=2)(params, tokens, config)
    np.testing.assert_allclose(got[:, ::7], GOLDEN[f"{kind}/logits"], atol=1e-4, rtol=0)
    loss, grads = jax.jit(jax.value_and_grad(loss_of), static_argnums=(2, 3, 4))(params, tokens, config, "full", 13)
    assert float(loss) == pytest.approx(float(GOLDEN[f"{kind}/loss"]), rel=1e-5)
    for name, place in names(config).items():
        g = grads[place.path[0]] if place.layer is None else np.asarray(grads["layers"][place.path[1]])[place.layer]
        g, want = np.asarray(g), GOLDEN[f"{kind}/grad.{name}"]
        assert np.linalg.norm(g) == pytest.approx(want[0], rel=1e-4)
        np.testing.assert_allclose(g.reshape(-1)[:: max(1, g.size // 8)][:8], want[1:], atol=1e-4 * np.abs(g).max())


@pytest.mark.parametrize("kind", ["llama3.1", "llama3.2"])
def test_greedy_text_equals_that_of_transformers(kind: str) -> None:
    seed, config = KINDS.index(kind), llama_models.config_of(kind)
    params = llama_models.tree(config, llama_models.tensors(config, seed))
    want = GOLDEN[f"{kind}/greedy"]
    texts, report = llama.generate(params, config, llama_models.prompt(config, seed).tolist(), want.shape[1])
    assert texts == want.tolist()
    assert report.sweeps >= want.shape[1]


def checkpoint(directory: Path, kind: str = "llama3", dtype=jnp.bfloat16, vocab: int = 101, **options):
    config = llama_models.config_of(kind, vocab_size=vocab)
    named = llama_models.tensors(config, int(np.random.default_rng().integers(1000)))
    params = jax.tree.map(lambda x: jnp.asarray(x, dtype), llama_models.tree(config, named))
    llama.save(params, config, directory, **options)
    return params, config


def same(a, b) -> bool:
    return all(
        x.dtype == y.dtype and np.array_equal(np.asarray(x).view(np.uint8), np.asarray(y).view(np.uint8))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.mark.parametrize(("kind", "shard"), [("llama2", 1 << 30), ("llama3.2", 20_000), ("llama3.1", 60_000)])
def test_a_checkpoint_comes_back_bit_for_bit_and_saves_to_the_same_bytes(tmp_path: Path, kind: str, shard: int) -> None:
    from safetensors.numpy import load_file

    params, config = checkpoint(tmp_path / "a", kind, shard_bytes=shard)
    (tmp_path / "a" / "tokenizer_config.json").write_text("{}")
    back, seen = llama.load(tmp_path / "a")
    assert seen == config
    assert same(params, back)
    # What the library reads is the same thing.
    named = {k: v for f in (tmp_path / "a").glob("*.safetensors") for k, v in load_file(f).items()}
    assert set(named) == set(names(config))
    assert np.array_equal(named["model.layers.1.mlp.up_proj.weight"], np.asarray(params["layers"]["up"][1]))
    llama.save(back, config, tmp_path / "b", like=tmp_path / "a")
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    assert len(files) > 4 or shard == 1 << 30


def test_a_checkpoint_is_placed_over_a_mesh(tmp_path: Path) -> None:
    params, _ = checkpoint(tmp_path, vocab=102)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(1, 2, 2), ("data", "fsdp", "tensor"))
    back, _ = llama.load(tmp_path, mesh=mesh)
    assert same(params, back)
    assert {s.data.shape for s in back["layers"]["gate"].addressable_shards} == {(3, 44, 24)}
    wide, _ = llama.load(tmp_path, dtype=jnp.float32)
    assert wide["embed"].dtype == jnp.float32
    three = jax.sharding.Mesh(np.array(jax.devices()[:5]).reshape(1, 5, 1), ("data", "fsdp", "tensor"))
    with pytest.raises(errors.BadMesh, match="cannot share equally"):
        llama.load(tmp_path, mesh=three)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    with pytest.raises(errors.BadInput, match="no checkpoint in"):
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
        llama.load(tmp_path / "empty")
    data = json.loads((tmp_path / "config.json").read_text())
    for change, words in (
        ({"num_hidden_layers": 4}, "lacks model.layers.3"),
        ({"num_hidden_layers": 2}, "no layer 2"),
        ({"intermediate_size": 90}, "the configuration says"),
        ({"model_type": "gpt2"}, "accepted is 'llama'"),
        ({"hidden_act": "gelu"}, "accepted is 'silu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rotary scaling 'yarn'"),
        ({"num_key_value_heads": 3}, "cannot share"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**data, **change}))
        with pytest.raises(errors.BadInput, match=words):
            llama.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(data))
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(errors.BadInput, match="damaged"):
        llama.load(tmp_path)


def test_a_named_weight_is_adapted_where_it_lies() -> None:
    config = llama_models.config_of("llama3")
    given = jnp.ones((24, 48), jnp.bfloat16)
    assert llama.adapt("model.layers.2.self_attn.k_proj.weight", given, config) is given
    room = np.zeros(101 * 48 + 16, np.float32)
    begin = -room.ctypes.data % 64 // 4  # where XLA can use it: at a multiple of 64 bytes
    foreign = room[begin : begin + 101 * 48].reshape(101, 48)
    with lease(foreign) as held:
        got = llama.adapt("lm_head.weight", held, config)
        assert got.unsafe_buffer_pointer() == held.pointer
    # The true shape of Llama-3-8B's keys: 8 heads of 128.
    with pytest.raises(errors.BadInput, match=r"\[1024, 4096\]"):
        llama.adapt("model.layers.0.self_attn.k_proj.weight", np.zeros((4096, 4096), np.float16))
    for name, array, words in (
        ("model.layers.9.mlp.up_proj.weight", given, "layers 0 to 2"),
        ("transformer.wte.weight", given, "no weight 'transformer.wte.weight'"),
        ("model.norm.weight", np.zeros(48, np.int32), "floating-point"),
        ("model.norm.weight", [0.0] * 48, "shape"),
    ):
        with pytest.raises(errors.BadInput, match=words):
            llama.adapt(name, array, config)
