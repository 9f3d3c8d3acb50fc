"""burgers2d against the exact travelling wave: the error falls with the square of the spacing, in space and time
together.

    python validation/burgers2d.py [--out FILE.md]
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import jax

from poise import Keeper, Pool
from poise.physics.grid import Burgers2d

NU = 1e-3
SIZES = (64, 128, 256, 512)


def solve(n: int, dtype: str) -> tuple[float, int, float]:
    """Relative L2 error, steps and seconds of a kept run on one device."""
    # Time steps proportional to the spacing, inside the stability limit at every size shown here.
    steps = math.ceil(0.25 * (n + 1) * 6)
    workload = Burgers2d(n=n, nu=NU, dtype=dtype, steps=max(steps, math.ceil(0.25 / Burgers2d(n=n, nu=NU).stable_dt)))
    with Keeper(workload, Pool(jax.devices()[:1], 0)) as keeper:
        t0 = time.perf_counter()
        keeper.run(workload.steps)
        error = workload.error(keeper.state, workload.steps)
        return error, workload.steps, time.perf_counter() - t0


def table() -> str:
    """Markdown rows."""
    lines = ["| n | steps | relative L2, float64 | order | relative L2, float32 | seconds (float32, kept) |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    before: tuple[int, float] | None = None
    for n in SIZES:
        wide, steps, _ = solve(n, "float64")
        narrow, _, seconds = solve(n, "float32")
        order = "" if before is None else f"{math.log(before[1] / wide) / math.log((n + 1) / (before[0] + 1)):.2f}"
        lines.append(f"| {n} | {steps} | {wide:.2e} | {order} | {narrow:.2e} | {seconds:.1f} |")
        before = (n, wide)
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = table()
    print(rows)
    if args.out:
        args.out.write_text(rows + "\n")
