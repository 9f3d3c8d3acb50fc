"""Loss curves side by side: a small Llama taught other text by AdamW and without backpropagation, on the same batches.

    PYTHONPATH=src python benchmarks/llama_curves.py [--first N] [--steps N] [--json FILE]

A model of 0.2 million weights first learns the standard library's sources for `--first` steps of AdamW. From that
checkpoint it is taught other text of the same library (`encodings`: tables) by AdamW, by two forward passes
("two-sided"), by forward gradients ("jvp"), and by two forward passes on low-rank additions. Prints the loss on
held-out text after so many steps, and how many bytes each holds beside the weights.
"""

from __future__ import annotations

import argparse
import encodings
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from poise import Pool, llama
from poise.cli._bench_steps import plain_step

MODEL = {"vocab": 256, "width": 64, "hidden": 176, "layers": 3, "heads": 4, "kv_heads": 2, "head": 16, "tied": True}
TABLES = str(Path(encodings.__file__).parent)


def curve(task: Any, looks: list[int]) -> tuple[dict[int, float], Any, float]:
    """Held-out loss after each of `looks` steps, the last state, and seconds for a step."""
    placement = Pool(jax.devices()[:1], 0).placement(task.axes(1))
    state = jax.tree.map(jnp.asarray, task.init())
    step = jax.jit(partial(plain_step, task, placement.mesh), donate_argnums=0)
    found = {0: task.held_loss(task.weights(state))}
    t0 = time.perf_counter()
    for i in range(max(looks)):
        state, _ = step(state, task.batch(i))
        if i + 1 in looks:
            found[i + 1] = task.held_loss(task.weights(state))
    return found, state, (time.perf_counter() - t0) / max(looks)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=400)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    base: dict[str, Any] = {"sequences": 8, "length": 96, "dtype": "float32", "held": 32}
    looks = [n for n in (30, 100, 300, 1000, 3000, 10000) if n < args.steps] + [args.steps]
    said: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        first = llama.AdamW(model=MODEL, steps=args.first, rate=3e-3, warmup=20, **base)
        _, state, _ = curve(first, [args.first])
        llama.save(first.weights(state), first.config, folder)
        same = {**base, "model": folder, "data": TABLES, "steps": args.steps}
        ways: dict[str, Any] = {
            "AdamW": llama.AdamW(rate=1e-3, last_rate=1e-4, **same),
            "two-sided": llama.Forward(variant="two-sided", rate=1e-4, last_rate=1e-5, **same),
            "jvp": llama.Forward(variant="jvp", rate=1e-4, last_rate=1e-5, **same),
            "two-sided, LoRA of rank 8": llama.Forward(variant="two-sided", lora=8, rate=1e-3, last_rate=1e-4, **same),
        }
        for name, task in ways.items():
            some = [n for n in looks if n <= 1000] if name == "AdamW" else looks
            found, state, seconds = curve(task, some)
            beside = {"m", "v", "count"} if name == "AdamW" else {"history"}
            held = sum(np.asarray(x).nbytes for k in beside for x in jax.tree.leaves(state[k]))
            said[name] = {"held_out": found, "seconds_per_step": seconds, "state_bytes_beside_weights": held}
            print(name, json.dumps(said[name]), flush=True)
    print("\n| steps | " + " | ".join(said) + " |\n|---" * 1 + "|---" * len(said) + "|")
    for n in [0, *looks]:
        row = [said[name]["held_out"].get(n) for name in said]
        print(f"| {n} | " + " | ".join("" if x is None else f"{x:.3f}" for x in row) + " |")
    if args.json:
        args.json.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
