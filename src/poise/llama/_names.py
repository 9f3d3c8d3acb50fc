"""Which weight is called what, how large it is, and how it is cut over a mesh.

The parameters are a dict: `embed` (vocab, width), `norm` (width), `head` (vocab, width) unless tied, and `layers`, a
dict of weights stacked over layers, each as in the checkpoint: (layers, out, in). So nothing is transposed between file
and device, and saving gives back the same bytes."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec as P

from ..errors import BadInput
from ._config import Config

MODULES = {
    "attn_norm": "input_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}  # fmt: skip
"""Our names of a layer's weights, and the checkpoint's modules."""

DENSE = ("q", "k", "v", "o", "gate", "up", "down")
"""The matrix products of a layer, in the order in which they run."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.weight")


class Place(NamedTuple):
    """Where a named weight belongs: `path` in the parameters, `layer` along the stack or None."""

    path: tuple[str, ...]
    layer: int | None


def shapes(config: Config) -> dict[str, Any]:
    """The parameters' shapes, as a tree of tuples."""
    d, f, n = config.width, config.hidden, config.layers
    q, kv = config.heads * config.head, config.kv_heads * config.head
    layers = {
        "attn_norm": (n, d), "q": (n, q, d), "k": (n, kv, d), "v": (n, kv, d), "o": (n, d, q), "mlp_norm": (n, d),
        "gate": (n, f, d), "up": (n, f, d), "down": (n, d, f),
    }  # fmt: skip
    out: dict[str, Any] = {"embed": (config.vocab, d), "layers": layers, "norm": (d,)}
    if not config.tied:
        out["head"] = (config.vocab, d)
    return out


def specs(config: Config) -> dict[str, Any]:
    """How the parameters are cut over a mesh with axes `fsdp` and `tensor` (either may have one device).

    `tensor` cuts heads, hidden channels and the vocabulary, `fsdp` the other dimension. Norms are on every device.
    """
    wide, narrow = P(None, "tensor", "fsdp"), P(None, "fsdp", "tensor")
    layers = dict.fromkeys(("q", "k", "v", "gate", "up"), wide) | dict.fromkeys(("o", "down"), narrow)
    layers |= {"attn_norm": P(), "mlp_norm": P()}
    out: dict[str, Any] = {"embed": P("tensor", "fsdp"), "layers": layers, "norm": P()}
    if not config.tied:
        out["head"] = P("tensor", "fsdp")
    return out


def names(config: Config) -> dict[str, Place]:
    """Every weight of a checkpoint in its usual order, and where it belongs."""
    out = {"model.embed_tokens.weight": Place(("embed",), None)}
    for i in range(config.layers):
        for ours, theirs in MODULES.items():
            out[f"model.layers.{i}.{theirs}.weight"] = Place(("layers", ours), i)
    out["model.norm.weight"] = Place(("norm",), None)
    if not config.tied:
        out["lm_head.weight"] = Place(("head",), None)
    return out


def place_of(name: str, config: Config) -> Place:
    """Where the weight `name` of a checkpoint belongs. Raises `BadInput` for a name that the model does not have."""
    found = names(config).get(name)
    if found is not None:
        return found
    layer = _LAYER.fullmatch(name)
    if layer and layer[2] in MODULES.values():
        raise BadInput(f"There is no layer {layer[1]}; this model has layers 0 to {config.layers - 1}.")
    if name == "lm_head.weight" and config.tied:
        raise BadInput("This model's output head is its embedding; it has no weight 'lm_head.weight'.")
    some = ", ".join(f"model.layers.N.{m}" for m in MODULES.values())
    raise BadInput(f"There is no weight {name!r}; accepted are model.embed_tokens, {some}, model.norm and lm_head, "
                   "each with '.weight'.")  # fmt: skip


def shape_of(name: str, config: Config) -> tuple[int, ...]:
    """The shape of one weight of a checkpoint."""
    place = place_of(name, config)
    shape = shapes(config)
    for key in place.path:
        shape = shape[key]
    return shape[1:] if place.layer is not None else shape  # type: ignore[return-value]
