"""The shape of a Llama: what `config.json` says, checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from ..errors import BadInput

_ROPE_KEYS = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: base `theta` and how its frequencies are scaled.

    `kind` is "default", "linear" (all wavelengths times `factor`), or "llama3" (long wavelengths times `factor`, short
    ones as they are, a ramp between; Llama 3.1)."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class Config:
    """Sizes and switches of a Llama (2, 3, 3.1, 3.2). Names follow `config.json`, shortened.

    `layers` decoder layers of width `width`; `heads` query heads and `kv_heads` key/value heads of `head` channels
    each; a gated MLP of `hidden` channels; `vocab` tokens. `tied`: the output head is the embedding. `eps` of the RMS
    norms. Raises `BadInput` for sizes that cannot be one."""

    vocab: int
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    eps: float = 1e-5
    rope: Rope = Rope()
    tied: bool = False
    max_position: int = 8192
    bos: int | None = None
    eos: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocab", "width", "hidden", "layers", "heads", "kv_heads", "head", "max_position"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInput(f"A Llama's {name} is a positive whole number, not {value!r}.")
        if self.heads % self.kv_heads:
            raise BadInput(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads equally.")
        if self.head % 2:
            raise BadInput(f"Rotary embedding turns pairs of channels; {self.head} channels a head are odd.")
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise BadInput(f"The norms' eps must be positive, not {self.eps!r}.")

    @property
    def parameters(self) -> int:
        """Number of weights."""
        per_layer = 2 * self.width + 3 * self.width * self.hidden
        per_layer += 2 * self.width * self.head * (self.heads + self.kv_heads)
        return self.layers * per_layer + self.width + self.vocab * self.width * (1 if self.tied else 2)

    def flops_per_token(self, seq: int) -> float:
        """Model FLOPs of one token's forward pass in a causal sequence of `seq`: two per weight of every product, and
        the scores and sums of attention over half the sequence on average (training takes three times as many)."""
        dense = self.parameters - self.width - self.layers * 2 * self.width
        if not self.tied:
            dense -= self.vocab * self.width
        return 2.0 * dense + 2.0 * self.layers * seq * self.heads * self.head


LLAMA3_8B = Config(
    vocab=128256, width=4096, hidden=14336, layers=32, heads=32, kv_heads=8, head=128, rope=Rope(theta=500000.0),
    bos=128000, eos=(128001,),
)  # fmt: skip
"""Llama-3-8B: keys and values have 8 heads of 128, so their projections are 1024 x 4096."""

LLAMA31_8B = replace(LLAMA3_8B, rope=Rope(500000.0, "llama3", 8.0), max_position=131072)
LLAMA32_1B = Config(
    vocab=128256, width=2048, hidden=8192, layers=16, heads=32, kv_heads=8, head=64, tied=True, max_position=131072,
    rope=Rope(500000.0, "llama3", 32.0), bos=128000, eos=(128001,),
)  # fmt: skip
LLAMA2_7B = Config(
    vocab=32000,
    width=4096,
    hidden=11008,
    layers=32,
    heads=32,
    kv_heads=32,
    head=128,
    max_position=4096,
    bos=1,
    eos=(2,),
)

SHAPES = {"llama2-7b": LLAMA2_7B, "llama3-8b": LLAMA3_8B, "llama3.1-8b": LLAMA31_8B, "llama3.2-1b": LLAMA32_1B}
"""Published shapes by name."""


def load_config(path: str | Path) -> Config:
    """The configuration in a model's directory, or in a `config.json`. Raises `BadInput` with one sentence."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"The configuration {path} cannot be read: {error.strerror}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"The configuration {path} is not valid JSON: {error}.") from error
    if not isinstance(data, dict):
        raise BadInput(f"The configuration {path} must be a JSON object.")
    return parse_config(data, str(path))


def parse_config(data: dict[str, Any], source: str = "config.json") -> Config:
    """The configuration that the fields of a Hugging Face `config.json` describe."""
    kind = data.get("model_type")
    if kind != "llama":
        raise BadInput(f"{source}: model_type is {kind!r}; accepted is 'llama'.")
    for key, only in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if data.get(key, only) != only:
            raise BadInput(f"{source}: {key} is {data[key]!r}; accepted is {only!r}.")
    missing = [
        k
        for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        if k not in data
    ]
    if missing:
        raise BadInput(f"{source} does not say {', '.join(missing)}.")
    heads = data["num_attention_heads"]
    head = data.get("head_dim")
    if head is None:
        if not isinstance(heads, int) or heads < 1 or data["hidden_size"] % heads:
            raise BadInput(f"{source}: {data['hidden_size']} channels cannot be cut into {heads!r} heads.")
        head = data["hidden_size"] // heads
    kv = data.get("num_key_value_heads")
    eos = data.get("eos_token_id")
    try:
        return Config(
            vocab=data["vocab_size"], width=data["hidden_size"], hidden=data["intermediate_size"],
            layers=data["num_hidden_layers"], heads=heads, kv_heads=heads if kv is None else kv, head=head,
            eps=float(data.get("rms_norm_eps", 1e-6)), rope=_rope(data, source),
            tied=bool(data.get("tie_word_embeddings", False)), max_position=data.get("max_position_embeddings", 2048),
            bos=data.get("bos_token_id"),
            eos=() if eos is None else tuple(eos) if isinstance(eos, list) else (int(eos),),
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise BadInput(f"{source}: {error}") from error


def _rope(data: dict[str, Any], source: str) -> Rope:
    # Older files have `rope_theta` and `rope_scaling`, newer ones `rope_parameters`.
    said = data.get("rope_parameters") or {}
    scaling = data.get("rope_scaling") or said
    theta = float(data.get("rope_theta", said.get("rope_theta", 10000.0)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROPE_KEYS:
        raise BadInput(f"{source}: rotary scaling {kind!r} is not known; accepted are {', '.join(_ROPE_KEYS)}.")
    missing = sorted(_ROPE_KEYS[kind] - set(scaling))
    if missing:
        raise BadInput(f"{source}: rotary scaling {kind!r} needs {', '.join(missing)}.")
    return Rope(theta, kind, **{k: scaling[k] for k in _ROPE_KEYS[kind]})


def dump_config(config: Config, dtype: Any) -> dict[str, Any]:
    """The fields of a Hugging Face `config.json` for `config`, weights in `dtype`."""
    rope = config.rope
    out: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": config.vocab,
        "hidden_size": config.width, "intermediate_size": config.hidden, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": config.head,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rms_norm_eps": config.eps,
        "rope_theta": rope.theta, "tie_word_embeddings": config.tied, "max_position_embeddings": config.max_position,
        "bos_token_id": config.bos, "torch_dtype": jnp.dtype(dtype).name,
        "eos_token_id": config.eos[0] if len(config.eos) == 1 else list(config.eos) or None,
        "rope_scaling": None,
    }  # fmt: skip
    if rope.kind != "default":
        out["rope_scaling"] = {"rope_type": rope.kind} | {k: getattr(rope, k) for k in sorted(_ROPE_KEYS[rope.kind])}
    return out
