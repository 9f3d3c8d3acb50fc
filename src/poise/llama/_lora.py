"""Low-rank additions (Hu et al. 2021): small weights beside frozen ones."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from ..errors import BadInput
from ._config import Config

TARGETS = ("q", "v")
"""The products that get an addition."""


def lora_shapes(config: Config, rank: int) -> dict[str, tuple[int, ...]]:
    """`q_a` (layers, rank, in), `q_b` (layers, out, rank), and so on."""
    if rank > config.width:
        raise BadInput(f"A low-rank addition of rank {rank} is not low in a model of width {config.width}.")
    outs = {"q": config.heads * config.head, "v": config.kv_heads * config.head}
    out: dict[str, tuple[int, ...]] = {}
    for name in TARGETS:
        out[f"{name}_a"] = (config.layers, rank, config.width)
        out[f"{name}_b"] = (config.layers, outs[name], rank)
    return out


def lora_specs() -> dict[str, Any]:
    """On every device; they are small."""
    return {f"{name}_{side}": P() for name in TARGETS for side in "ab"}


def lora_start(shapes: dict[str, tuple[int, ...]], seed: int, dtype: Any) -> dict[str, np.ndarray]:
    """`a` normal with deviation 1 / sqrt(in), `b` zero: at first nothing is added."""
    rng = np.random.default_rng((seed, 1))
    kind = jnp.dtype(dtype)
    out = {}
    for name, shape in shapes.items():
        scale = 0.0 if name.endswith("_b") else shape[-1] ** -0.5
        out[name] = (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(kind)
    return out


def with_lora(params: dict[str, Any], additions: dict[str, Any]) -> dict[str, Any]:
    """The parameters with their additions among the layers' weights."""
    return {**params, "layers": {**params["layers"], **additions}} if additions else params
