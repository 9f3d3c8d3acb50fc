r"""Llama on one GPU, in one call: ceilings, loading, prefill, decode, training with and without protection,
forward-only learning. The same measurements as `poise bench llama8b`, part by part, within a time limit.

    POISE_NATIVE=build/gpu PYTHONPATH=src python benchmarks/llama_h200.py \
        [--out FILE] [--seconds N] [--small] [PART ...]

`--small` runs tiny shapes on whatever there is, to see that it works. No part begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.94")

from poise.cli._bench_llama import PARTS, measure


def main() -> int:
    """Run the parts in order."""
    parser = argparse.ArgumentParser(description="Llama on one GPU.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown:
        print(f"There are no parts {unknown}; accepted are {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    said = {}
    for name, result in measure(args.parts or PARTS, small=args.small, seconds=args.seconds):
        said[name] = result
        print(name, json.dumps(result), flush=True)
        if args.out:
            args.out.write_text(json.dumps(said, indent=2) + "\n")
    return 1 if any("failed" in v for v in said.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
