"""The model against transformers, live, on fresh random models: `make test-oracle`."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import llama_models
from poise import llama
from poise.llama._names import names
from test_llama_model import loss_of

torch = pytest.importorskip("torch", reason="make test-oracle brings torch and transformers")
transformers = pytest.importorskip("transformers")
record_llama = pytest.importorskip("record_llama")


@pytest.mark.parametrize("kind", list(llama_models.KINDS))
def test_everything_equals_transformers(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng()
    seed, heads = int(rng.integers(1 << 20)), 4 * int(rng.integers(1, 3))
    changes = {
        "vocab_size": int(rng.integers(50, 200)), "hidden_size": 8 * int(rng.integers(3, 9)),
        "num_attention_heads": heads,
        "intermediate_size": int(rng.integers(30, 120)), "num_hidden_layers": int(rng.integers(1, 5)),
        "head_dim": 2 * int(rng.integers(3, 9)),
    }  # fmt: skip
    if kind == "llama2":
        changes["num_key_value_heads"] = heads
    config = llama_models.config_of(kind, **changes)
    named = llama_models.tensors(config, seed)
    params, tokens = llama_models.tree(config, named), llama_models.prompt(config, seed)
    want = record_llama.facts(kind, seed, **changes)
    got = np.asarray(jax.jit(llama.logits, static_argnums=2)(params, tokens, config))
    assert np.abs(got - want["logits"]).max() <= 1e-4
    texts, _ = llama.generate(params, config, tokens.tolist(), want["greedy"].shape[1])
    assert texts == want["greedy"].tolist()
    grads = jax.jit(jax.grad(loss_of), static_argnums=2)(params, tokens, config)
    for name, place in names(config).items():
        g = grads[place.path[0]] if place.layer is None else grads["layers"][place.path[1]][place.layer]
        off = np.linalg.norm(np.asarray(g) - want[f"grad.{name}"]) / np.linalg.norm(want[f"grad.{name}"])
        assert off <= 1e-4, name
    # A checkpoint that we save loads there and gives the same logits; theirs loads here and comes back in the same
    # bytes.
    llama.save(jax.tree.map(jax.numpy.asarray, params), config, tmp_path / "ours", shard_bytes=50_000)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    with torch.no_grad():
        assert np.abs(again(torch.tensor(tokens).long()).logits.numpy() - want["logits"]).max() <= 1e-6
    record_llama.theirs(kind, seed, **changes).save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    back, seen = llama.load(tmp_path / "theirs")
    assert (seen.vocab, seen.rope, seen.tied) == (config.vocab, config.rope, config.tied)
    llama.save(back, seen, tmp_path / "copy", like=tmp_path / "theirs")
    for path in (tmp_path / "theirs").iterdir():
        assert path.read_bytes() == (tmp_path / "copy" / path.name).read_bytes()
