r"""What checked products see, and what they say about clean ones: flipped bits and scaled errors in a small Llama.

    PYTHONPATH=src python benchmarks/llama_abft.py \
        [--trials N] [--clean N] [--dtype bfloat16|float32] [--wide] [--out FILE]

`--wide`: eight times as wide, to see that what is noticed does not depend on the size.

A trial flips one bit of one element of one forward product (layer, product, element and bit at random), and compares
the scores with those of the clean pass. It *matters* if it changes a score by more than rounding does: more than the
clean pass in this dtype differs from that of the same weights in float32. Prints shares by bit, and false alarms in
clean passes with fresh tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from poise import llama
from poise.cli._bench_steps import random_weights
from poise.llama._abft import Checked
from poise.llama._model import head, hidden, multiply
from poise.llama._rules import Blow, items, rules_for

SMALL = llama.Config(vocab=256, width=96, hidden=256, layers=2, heads=4, kv_heads=2, head=24)
WIDE = llama.Config(vocab=256, width=768, hidden=2048, layers=2, heads=12, kv_heads=4, head=64)


@partial(jax.jit, static_argnames="config")
def scores(params: Any, tokens: Any, blow: Blow, *, config: llama.Config) -> tuple[Any, Any]:
    """Scores, and rows of products that failed their check."""
    each = items(config.layers, tokens.shape[0], mode="all", period=1, step=jnp.int32(0), blow=blow)
    make = partial(Checked, rules=rules_for(1, 1, False), differentiable=False)
    x, seen = hidden(params, tokens, config, product=make, each=each)
    return multiply(x, head(params), jnp.float32), seen.failed.sum()


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(description="What checked products see.")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--clean", type=int, default=10_000)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rng = np.random.default_rng()
    config = WIDE if args.wide else SMALL
    wide = random_weights(config, jnp.float32, int(rng.integers(1 << 20)))
    # As after training: weights several times their size at the start, so that scores differ.
    wide = jax.tree.map_with_path(lambda p, x: x if p[-1].key.endswith("norm") else 5 * x, wide)
    params = jax.tree.map(lambda x: x.astype(args.dtype), wide)
    none = Blow(*(jnp.int32(v) for v in (-1, 0, 0, 0, 0, 0)))
    bits = 16 if args.dtype == "bfloat16" else 32
    table = np.zeros((bits, 4), int)  # trials, noticed, matter, matter and noticed
    for _ in range(args.trials):
        tokens = rng.integers(0, config.vocab, (1, 32)).astype(np.int32)
        clean, _ = scores(params, tokens, none, config=config)
        exact, _ = scores(wide, tokens, none, config=config)
        bit = int(rng.integers(bits))
        flip = np.int32(np.uint32(1 << bit).view(np.int32))
        numbers = (rng.integers(config.layers), rng.integers(7), 0, rng.integers(32), rng.integers(1 << 20), flip)
        struck, failed = scores(params, tokens, Blow(*(jnp.int32(v) for v in numbers)), config=config)
        change = np.abs(np.asarray(struck) - np.asarray(clean)).max()
        noise = np.abs(np.asarray(clean) - np.asarray(exact)).max() if bits == 16 else 2e-5
        matters = not change <= noise
        table[bit] += (1, int(failed) > 0, matters, matters and int(failed) > 0)
    alarms = 0
    for _ in range(args.clean):
        tokens = rng.integers(0, config.vocab, (1, 32)).astype(np.int32)
        alarms += int(scores(params, tokens, none, config=config)[1]) > 0
    said = {
        "dtype": args.dtype,
        "width": config.width,
        "trials": int(table[:, 0].sum()),
        "noticed": int(table[:, 1].sum()),
        "matter": int(table[:, 2].sum()),
        "matter_and_noticed": int(table[:, 3].sum()),
        "share_of_what_matters": float(table[:, 3].sum() / max(1, table[:, 2].sum())),
        "by_bit": {b: [int(v) for v in row] for b, row in enumerate(table)},
        "clean_passes": args.clean,
        "false_alarms": alarms,
    }
    print(json.dumps(said))
    if args.out:
        args.out.write_text(json.dumps(said, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
