"""What only two GPUs can show, in one run: checks and times, one JSON, one short table at the end.

    python benchmarks/two_gpus.py [--out FILE] [PART ...]

Parts: spine, processes, lease, fingerprints, llama, grid. It runs on
virtual CPU devices too (`--small`), to see that it works before a GPU is spent on it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

# Eight billion weights with float32 moments leave no room for JAX's usual quarter aside.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.94")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from poise import Keeper, Options, Pool
from poise.cli._engine import Unguarded, kept_run
from poise.cli._job import Job
from poise.devices import compiles
from poise.errors import BadMesh
from poise.events import Event, SnapshotKept, Swapped
from poise.faults import parse_script
from poise.faults._inject import watched_steps
from poise.memory import PINN, ShardedLease, lease_pointer
from poise.physics.grid import Burgers2d

Result = dict[str, Any]


def spine(small: bool) -> Result:
    """One active device and one spare: drain and loss on a state of 1 GiB, no compilation, same bits."""
    n = 256 if small else 11584  # two float32 components: 1.0 GiB
    steps = 24
    job = Job("burgers2d", options=Options(every=8))
    workload = replace(Burgers2d(n=n))
    out: Result = {"state_bytes": 8 * n * n}
    for kind in ("drain", "lost"):
        pool = Pool(jax.devices()[:2], 1)
        script = parse_script({"fault": [{"kind": kind, "step": 12, "slot": 0}]})
        known: dict[int, str] = {}
        events: list[Event] = []
        clean = kept_run(job, workload, pool, steps=steps, clean=known, watch=watched_steps(script))
        struck = kept_run(job, workload, pool, steps=steps, script=script, clean=known, listen=[events.append])
        (swap,) = [e for e in events if isinstance(e, Swapped)]
        out[kind] = {
            "bit_identical": struck.fingerprint == clean.fingerprint,
            "compiles": swap.compiles,
            "swap_seconds": swap.seconds - swap.waited,
            "source": swap.source,
            "mended_seconds": struck.strikes[0].seconds,
            "replayed": struck.strikes[0].replayed,
        }
    return out


def fingerprints(small: bool) -> Result:
    """A step on two devices with and without the count per device: what naming every bad device costs."""
    n = 256 if small else 8192
    steps = 20 if small else 60
    pool = Pool(jax.devices()[:2], 0)
    workload = Burgers2d(n=n)
    plain = Unguarded(workload, pool, 2)
    plain.run(4)
    kept = []
    with Keeper(workload, pool, every=10**6) as keeper:
        keeper.run(4)
        c0 = compiles()
        for _ in range(3):
            t0 = time.perf_counter()
            keeper.run(keeper.settled + steps)
            kept.append((time.perf_counter() - t0) / steps)
        compiled = compiles() - c0
    unguarded = min(plain.run(steps) / steps for _ in range(3))
    step = statistics.median(kept)
    return {"n": n, "kept_step_s": step, "unguarded_step_s": unguarded, "ratio": step / unguarded, "compiles": compiled}


def grid(small: bool) -> Result:
    """Kept burgers2d at 16384^2: cell-steps per second on two devices, on one, and unguarded."""
    n = 256 if small else 16384
    steps = 20 if small else 200
    out: Result = {"n": n}
    for devices in (1, 2):
        pool = Pool(jax.devices()[:devices], 0)
        workload = Burgers2d(n=n)
        plain = Unguarded(workload, pool, 2)
        plain.run(2)
        seconds = min(plain.run(steps) for _ in range(2))
        events: list[Event] = []
        # One snapshot in the timed stretch, as a run that takes one every few seconds would see it at most.
        with Keeper(workload, pool, every=steps, listen=[events.append]) as keeper:
            keeper.run(4)
            t0 = time.perf_counter()
            keeper.run(4 + steps)
            kept = time.perf_counter() - t0
        out[f"devices_{devices}"] = {
            "kept_cell_steps_per_s": n * n * steps / kept,
            "unguarded_cell_steps_per_s": n * n * steps / seconds,
            "ratio": kept / seconds,
            "snapshots": sum(isinstance(e, SnapshotKept) for e in events),
        }
    return out


def processes(small: bool) -> Result:
    """The peer killed and stopped; in processes of their own, since this one holds the GPUs."""
    script = Path(__file__).with_name("two_gpus_processes.py")
    command = [sys.executable, str(script), *(["--small"] if small else [])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400)
    sys.stderr.write(ran.stderr[-6000:])
    if ran.returncode != 0:
        raise RuntimeError((ran.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return json.loads(ran.stdout.strip().splitlines()[-1])


def lease(small: bool) -> Result:
    """A buffer on each device becomes one global array, and after a swap of the two another one, moving nothing."""
    n = 1000 if small else 1 << 24  # records per device: 512 MiB
    devices = jax.devices()[:2]
    owners = [
        jax.block_until_ready(jax.device_put(np.full((n, 8), k + 1, np.uint32), d)) for k, d in enumerate(devices)
    ]
    used = [(d.memory_stats() or {}).get("bytes_in_use", 0) for d in devices]
    leases = [
        lease_pointer(owner.unsafe_buffer_pointer(), n, PINN, owner=owner, device=d)
        for owner, d in zip(owners, devices, strict=True)
    ]
    sharded = ShardedLease(leases)
    sharding = NamedSharding(Mesh(np.array(devices), ("rows",)), PartitionSpec("rows"))
    total = jax.jit(lambda rows: rows.sum(dtype=jnp.uint32))
    whole = sharded.array(sharding)
    value = int(total(whole))
    seconds = []
    for _ in range(200):
        t0 = time.perf_counter()
        sharded.array(sharding)
        seconds.append(time.perf_counter() - t0)
    turned = NamedSharding(Mesh(np.array(devices[:1]), ("rows",)), PartitionSpec("rows"))
    spare = ShardedLease(leases[:1], leases[1:]).swapped(0)
    other = NamedSharding(Mesh(np.array(devices[1:]), ("rows",)), PartitionSpec("rows"))
    refused = ""
    try:
        spare.array(turned)
    except BadMesh as error:
        refused = str(error)
    grown = [(d.memory_stats() or {}).get("bytes_in_use", 0) - u for d, u in zip(devices, used, strict=True)]
    pointers = [s.data.unsafe_buffer_pointer() for s in whole.addressable_shards]
    said: Result = {
        "bytes": 2 * 32 * n,
        "pointers_equal": pointers == [x.pointer for x in leases],
        "spare_pointer_equal": spare.array(other).addressable_data(0).unsafe_buffer_pointer() == leases[1].pointer,
        "bytes_copied": sharded.bytes_copied,
        "bytes_allocated": grown,
        "value": value == 24 * n,
        "wrong_device": refused,
        "assemble_us": statistics.median(seconds) * 1e6,
    }
    right = said["pointers_equal"] and said["spare_pointer_equal"] and said["value"] and refused
    if not right or said["bytes_copied"]:
        raise RuntimeError(f"The sharded lease is wrong: {said}.")
    if max(grown) > 1 << 20:
        raise RuntimeError(f"The sharded lease allocated memory: {said}.")
    return said


def language(small: bool) -> Result:
    """Llama-3-8B shapes trained over two devices that share parameters: bfloat16 products at sequence 4096, sealed
    float32 AdamW, every guard on, against the same step without guards. State that does not fit is said, not hidden."""
    from poise import llama
    from poise.cli._bench_llama import Bench
    from poise.cli._bench_steps import TINY, table, trained

    bench = Bench(small)
    config, length = (TINY, 64) if small else (llama.SHAPES["llama3-8b"], 4096)
    out: Result = {"layers": config.layers, "length": length}
    bench.ceilings()
    sequences = 4
    for name, abft in (("plain", "off"), ("kept", "audit")):
        task = llama.AdamW(
            model=table(config), sequences=sequences, length=length, chunk=length // 8, remat="full", abft=abft,
            held=1, characters=200_000,
        )  # fmt: skip
        try:
            now = trained(task, kept=name == "kept", devices=2)
        except jax.errors.JaxRuntimeError as error:  # most likely memory: the other half is still worth its time
            out[name] = {"gave_up": str(error).splitlines()[0][:300]}
            continue
        flops = 3 * sequences * length * config.flops_per_token(length)
        out[name] = now | {
            "of_matrix_ceiling": flops / now["seconds"] / (2 * bench.flops),
            "tokens_per_s": sequences * length / now["seconds"],
        }
    if "seconds" in out["plain"] and "seconds" in out["kept"]:
        out["kept_over_plain"] = out["kept"]["seconds"] / out["plain"]["seconds"]
    return out


PARTS: dict[str, Callable[[bool], Result]] = {
    "spine": spine,
    "processes": processes,
    "lease": lease,
    "fingerprints": fingerprints,
    "llama": language,
    "grid": grid,
}


def main() -> int:
    """Run the named parts, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true", help="small sizes, on virtual CPU devices if there is no GPU")
    args = parser.parse_args()
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown:
        print(f"There are no parts {unknown}; accepted are {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    if args.small:
        jax.config.update("jax_num_cpu_devices", 2)
    if len(jax.devices()) < 2:
        print(f"Two devices are needed; this process has {len(jax.devices())}.", file=sys.stderr)
        return 2
    said: Result = {
        "date": time.strftime("%Y-%m-%d"),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "parts": {},
    }
    for name in args.parts or PARTS:
        t0 = time.perf_counter()
        try:
            result = PARTS[name](args.small)
        except Exception as error:  # a part that fails must not cost the others their machine time
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {error}"[:300]}
        said["parts"][name] = result | {"part_seconds": time.perf_counter() - t0}
        print(name, json.dumps(result), flush=True)
    if args.out:
        args.out.write_text(json.dumps(said, indent=2) + "\n")
    print(f"\n{said['device']}, JAX {said['jax']}, {said['date']}")
    for name, result in said["parts"].items():
        print(f"{name:<14}", result.get("failed") or f"done in {result['part_seconds']:.0f} s")
    return 1 if any("failed" in r for r in said["parts"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
