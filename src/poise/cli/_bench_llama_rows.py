"""`poise bench llama8b` as rows: the peer is what the hardware could do at the rates measured first in the same run."""

from __future__ import annotations

import sys
from typing import Any

import jax

from ._bench_llama import PARTS, measure

MATRIX = "the bf16 matrix rate measured here"
MEMORY = "reading the weights once, at the copy rate measured here"


def rows() -> list[dict[str, Any]]:
    """Measure and tell. On a CPU the shapes are tiny ones."""
    small = jax.default_backend() == "cpu"
    device = jax.devices()[0].device_kind
    large, one = ("tiny", "tiny") if small else ("Llama-3-8B", "Llama-3.2-1B")
    out: list[dict[str, Any]] = []

    def row(
        name: str, shape: str, seconds: float, peer: str, ratio: float, ceiling: bool, more: dict[str, Any]
    ) -> None:
        share = ratio if ceiling else None
        known = {"name": f"llama8b-{name}", "shape": [shape], "ours_s": seconds, "peer": peer}
        out.append(more | known | {"peer_s": seconds * ratio, "ratio": ratio, "of_ceiling": share, "device": device})

    for name, said in measure(PARTS, small=small):
        if "failed" in said:
            print(f"poise: {name}: {said['failed']}", file=sys.stderr)
        elif name == "prefill":
            row(name, large, said["seconds"], MATRIX, said["of_matrix_ceiling"], True, said)
        elif name == "decode":
            for kind in ("plain", "cache_checked", "products_audited", "products_checked", "sealed_sweep_16"):
                now = said[kind]
                row(f"decode-{kind}", large, now["seconds_per_token"], MEMORY, now["of_bandwidth_bound"], True, now)
        elif name == "train":
            for kind in ("plain", "audit", "all"):
                now = said[kind]
                row(f"train-{kind}", one, now["seconds"], MATRIX, now["of_matrix_ceiling"], True, now)
        elif name == "forward":
            now, plain = said["forward_only"], said["inference"]["seconds"]
            more = now | {"memory_ratio": said["memory_ratio"]}
            row("forward-only", large, now["seconds"], "one inference pass", plain / now["seconds"], False, more)
        elif name == "abft":
            for kind in ("audit", "all"):
                now = said[kind]["seconds"]
                more = {"false_alarms": said["false_alarms"], "clean_steps": said["clean_steps"]}
                row(f"abft-{kind}", large, now, "unchecked layers", said["off"]["seconds"] / now, False, more)
    return out
