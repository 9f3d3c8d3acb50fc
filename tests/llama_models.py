"""Small random Llamas of each kind, shared by the tests and by the script that records golden values."""

from __future__ import annotations

from typing import Any

import numpy as np

from poise import llama
from poise.llama._names import names

KINDS: dict[str, dict[str, Any]] = {
    "llama2": {"num_key_value_heads": 4, "rope_theta": 10000.0, "rms_norm_eps": 1e-5},
    "llama3": {"num_key_value_heads": 2, "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    "llama3.1": {
        "num_key_value_heads": 2, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32},
    },
    "llama3.2": {
        "num_key_value_heads": 1, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32},
    },
}  # fmt: skip

SIZES = {
    "model_type": "llama", "vocab_size": 101, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3,
    "num_attention_heads": 4, "head_dim": 12, "hidden_act": "silu", "max_position_embeddings": 256, "bos_token_id": 1,
    "eos_token_id": None,
}  # fmt: skip


def config_of(kind: str, **changes: Any) -> llama.Config:
    """The configuration of a small model of that kind."""
    return llama.parse_config({**SIZES, **KINDS[kind], **changes})


def tensors(config: llama.Config, seed: int) -> dict[str, np.ndarray]:
    """Weights by their names in a checkpoint, float32; norms around 1."""
    rng = np.random.default_rng(seed)
    out = {}
    for name in names(config):
        shape = llama.shape_of(name, config)
        drawn = rng.standard_normal(shape).astype(np.float32)
        out[name] = 1 + 0.1 * drawn if name.endswith("norm.weight") else 0.12 * drawn
    return out


def tree(config: llama.Config, named: dict[str, np.ndarray]) -> dict[str, Any]:
    """The same weights as the parameters that poise computes with."""
    out: dict[str, Any] = {"layers": {}}
    for name, place in names(config).items():
        if place.layer is None:
            out[place.path[0]] = named[name]
        else:
            out["layers"].setdefault(place.path[1], []).append(named[name])
    out["layers"] = {k: np.stack(v) for k, v in out["layers"].items()}
    return out


def prompt(config: llama.Config, seed: int, batch: int = 2, length: int = 40) -> np.ndarray:
    """Random tokens."""
    return np.random.default_rng(seed + 1000).integers(0, config.vocab, (batch, length)).astype(np.int32)
