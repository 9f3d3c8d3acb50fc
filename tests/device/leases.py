"""Leases on a GPU, by value and pointer: another process's memory through CUDA IPC, and channels in the hands of CuPy,
PyTorch, Numba and Warp. Prints one JSON object; the exit status is 1 if anything is wrong.

    python tests/device/leases.py [--records N]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cupy
import jax
import jax.numpy as jnp
import numpy as np

from poise.errors import BadInput
from poise.memory import PINN, Channel, _adopt, _checks, _cuda, _dlpack, lease, lease_ipc, lease_pointer

GPU = jax.devices("gpu")[0]

CHILD = """
import sys, cupy
n = int(sys.argv[1])
memory = cupy.cuda.Memory(32 * n)                    # an allocation of its own, as CUDA IPC wants it
rows = cupy.ndarray((n, 8), cupy.uint32, cupy.cuda.MemoryPointer(memory, 0))
def fill(value):
    rows[:, 0] = (cupy.arange(n, dtype=cupy.float32) + value).view(cupy.uint32)
    rows[:, 1:] = 0
    cupy.cuda.Device().synchronize()
fill(0)
print(cupy.cuda.runtime.ipcGetMemHandle(memory.ptr).hex(), flush=True)
for line in sys.stdin:
    if line.startswith("fill"):
        fill(int(line.split()[1]))
        print("filled", flush=True)
    else:
        print(float(rows[:, 0].view(cupy.float32).sum(dtype=cupy.float64)), flush=True)
"""


def in_use() -> int:
    """Bytes that JAX's allocator has handed out."""
    return (GPU.memory_stats() or {})["bytes_in_use"]


def another_process(n: int) -> dict[str, Any]:
    """Its buffer goes into a jitted step where it lies, and gets w back where it agreed."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def ask(word: str) -> str:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(word + "\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        handle = bytes.fromhex(child.stdout.readline().strip())
        total = jax.jit(lambda rows: PINN.channel(rows, "w").sum())
        like = jax.ShapeDtypeStruct((n, 8), jnp.uint32, sharding=jax.sharding.SingleDeviceSharding(GPU))
        step = total.lower(like).compile()
        before = in_use()
        held = lease_ipc(handle, n, PINN, device=GPU, write=True)
        first = float(step(held.array))
        said = {
            "pointer_equal": held.array.unsafe_buffer_pointer() == held.pointer,
            "bytes_copied": held.bytes_copied,
            "bytes_allocated": in_use() - before,
            "argument_bytes": step.memory_analysis().argument_size_in_bytes,
            "temporary_bytes": step.memory_analysis().temp_size_in_bytes,
            "value": abs(first / (n * (n - 1) / 2) - 1) < 1e-4,
        }
        ask("fill 1000")
        said["sees_new_values"] = float(step(held.array)) - first > 900 * n
        held.put("w", jnp.full(n, 2.0))
        said["written_back_in_place"] = float(ask("sum")) == 2.0 * n and held.bytes_copied == 0
        held.close()
        child.stdin.close()
    said["ok"] = bool(
        said["pointer_equal"] and said["bytes_copied"] == 0 and said["bytes_allocated"] < 4096 and said["value"]
        and said["sees_new_values"] and said["written_back_in_place"]
    )  # fmt: skip
    return said


def with_cupy(channel: Channel) -> tuple[int, Callable[[], None]]:
    """CuPy by the CUDA array interface."""
    x = cupy.asarray(channel)
    return x.data.ptr, lambda: x.__imul__(2)


def with_cupy_dlpack(channel: Channel) -> tuple[int, Callable[[], None]]:
    """CuPy by DLPack."""
    x = cupy.from_dlpack(channel)
    return x.data.ptr, lambda: x.__imul__(2)


def with_torch(channel: Channel) -> tuple[int, Callable[[], None]]:
    """PyTorch by DLPack."""
    import torch

    x = torch.from_dlpack(channel)
    return x.data_ptr(), lambda: x.mul_(2)


def with_torch_cai(channel: Channel) -> tuple[int, Callable[[], None]]:
    """PyTorch by the CUDA array interface."""
    import torch

    x = torch.as_tensor(channel, device="cuda")
    return x.data_ptr(), lambda: x.mul_(2)


def with_numba(channel: Channel) -> tuple[int, Callable[[], None]]:
    """Numba's own kernel on the strided array."""
    vars(np).setdefault("row_stack", np.vstack)  # gone from numpy 2.5, and this release of numba-cuda asks for it
    from numba import cuda

    @cuda.jit
    def double(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= 2

    x = cuda.as_cuda_array(channel)
    return int(x.device_ctypes_pointer.value), lambda: double[(channel.shape[0] + 255) // 256, 256](x)


def with_warp(channel: Channel) -> tuple[int, Callable[[], None]]:
    """Warp by DLPack."""
    import warp

    x = warp.from_dlpack(channel)

    @warp.kernel
    def double(y: warp.array(dtype=warp.float32)):  # type: ignore[valid-type]
        i = warp.tid()
        y[i] = y[i] * 2.0

    return x.ptr, lambda: warp.launch(double, dim=channel.shape[0], inputs=[x], device=x.device)


CONSUMERS = {
    "cupy": with_cupy, "cupy-dlpack": with_cupy_dlpack, "torch-dlpack": with_torch, "torch-cai": with_torch_cai,
    "numba": with_numba, "warp": with_warp,
}  # fmt: skip


def consumers(n: int) -> dict[str, Any]:
    """Each reads and doubles v in place; the others' fields stay; JAX sees it without an import of its own."""
    said: dict[str, Any] = {}
    for name, take in CONSUMERS.items():
        if importlib.util.find_spec(name.split("-")[0]) is None:
            said[name] = "not installed"
            continue
        rows = cupy.zeros((n, 8), cupy.uint32)
        rows[:, 2] = cupy.arange(n, dtype=cupy.float32).view(cupy.uint32)
        cupy.cuda.Device().synchronize()
        try:
            held = lease(rows, PINN, write=True)
            channel = held.channel("v")
            pointer, double = take(channel)
            double()
            cupy.cuda.Device().synchronize()
            table = cupy.asnumpy(rows).view(np.float32)
            want = np.zeros((n, 8), np.float32)
            want[:, 2] = 2 * np.arange(n)
            said[name] = {
                "pointer_equal": pointer == rows.data.ptr + 8 == channel.pointer,
                "values": bool(np.array_equal(table, want)),
                "jax_sees_it": bool((np.asarray(PINN.channel(held.array, "v")) == want[:, 2]).all()),
            }
        except Exception as error:
            said[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
    return said


def donation(n: int) -> dict[str, Any]:
    """Without the producer's word a leased buffer is never given up; with it, it is written in place."""
    rows = cupy.full((n, 8), 3, cupy.uint32)
    spoil = jax.jit(lambda r: r + 1, donate_argnums=0)
    held = lease(rows, PINN)
    try:
        jax.block_until_ready(spoil(held.array))
        refused = "no error"
    except Exception as error:
        refused = f"{type(error).__name__}: {error}"[:160]
    untouched = bool((rows == 3).all())
    agreed = lease(rows, PINN, write=True)
    out = spoil(agreed.array)
    same = out.unsafe_buffer_pointer() == rows.data.ptr
    jax.block_until_ready(out)
    return {"without": refused, "producer_untouched": untouched, "agreed_in_place": same and bool((rows == 4).all())}


def refusals(n: int) -> dict[str, str]:
    """Each with its sentence."""
    rows = cupy.zeros((n, 8), cupy.uint32)
    own = cupy.cuda.Memory(1 << 22)
    stale = own.ptr
    host = np.zeros(1 << 12, np.uint8)
    short = cupy.cuda.Memory(1 << 22)
    lease_pointer(short.ptr, 1 << 17, PINN, owner=short, device=GPU)
    del own
    tries: dict[str, Callable[[], object]] = {
        "stale": lambda: lease_pointer(stale, 1 << 17, PINN, owner=rows, device=GPU),
        "host": lambda: lease_pointer(host.ctypes.data // 32 * 32, 4, PINN, owner=rows, device=GPU),
        "short": lambda: lease_pointer(short.ptr, 1 << 20, PINN, owner=short, device=GPU),
        "misaligned": lambda: lease_pointer(rows.data.ptr + 4, 4, PINN, owner=rows, device=GPU),
        "strided": lambda: lease(rows[:, 0]),
        "wrong platform": lambda: lease(rows, PINN, device=jax.devices("cpu")[0]),
        "gpu memory as host": lambda: lease_pointer(rows.data.ptr, n, PINN, owner=rows),
        "bad handle": lambda: lease_ipc(b"\0" * 64, 4, PINN, device=GPU),
        "short handle": lambda: lease_ipc(b"\0", 4, PINN, device=GPU),
        "read-only channel": lambda: lease(rows, PINN).channel("w").__dlpack__(),
    }
    said: dict[str, str] = {}
    for name, attempt in tries.items():
        try:
            attempt()
            said[name] = "NOT REFUSED"
        except BadInput as error:
            said[name] = str(error)
        except Exception as error:
            said[name] = f"WRONG: {type(error).__name__}: {error}"[:200]
    return said


def costs() -> dict[str, float]:
    """Microseconds per import: the median of 2000."""
    out: dict[str, float] = {}
    for n in (1024, 1 << 24):
        rows = cupy.zeros((n, 8), cupy.uint32)
        ways = {
            "pointer": partial(lease_pointer, rows.data.ptr, n, PINN, owner=rows, device=GPU),
            "cuda_array_interface": partial(lease, rows, PINN),
            "jax.dlpack": partial(jax.dlpack.from_dlpack, rows),
        }
        for name, way in ways.items():
            seconds = []
            for _ in range(2000):
                t0 = time.perf_counter()
                kept = way()
                seconds.append(time.perf_counter() - t0)
                del kept
            out[f"{name}_{n}_us"] = statistics.median(seconds) * 1e6
    shape, words = (1024, 8), np.dtype(np.uint32)
    rows = cupy.zeros(shape, cupy.uint32)
    at, stream = rows.data.ptr, GPU.get_stream_for_external_ready_events()
    array = lease(rows, PINN).array
    pieces = {
        "form": lambda: _checks.form(1024, PINN),
        "where": lambda: _cuda.where(at),
        "on_device": lambda: _checks.on_device(at, 32768, GPU),
        "stream": GPU.get_stream_for_external_ready_events,
        "capsule": lambda: _dlpack.capsule(at, shape, None, words, (2, 0), rows),
        "adopt": lambda: _adopt.adopt(_dlpack.capsule(at, shape, None, words, (2, 0), rows), GPU, stream),
        "adopt without a stream": lambda: _adopt.adopt(
            _dlpack.capsule(at, shape, None, words, (2, 0), rows), GPU, None
        ),
        "hold": lambda: _adopt.hold(array),
        "wait_for": lambda: _cuda.wait_for(1, stream, 0),
        "interface": lambda: _checks.interface(rows, "__cuda_array_interface__"),
    }
    for name, piece in pieces.items():
        seconds = []
        for _ in range(1000):
            t0 = time.perf_counter()
            piece()
            seconds.append(time.perf_counter() - t0)
        out[f"piece: {name}"] = round(statistics.median(seconds) * 1e6, 2)
    return out


def main() -> int:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_003)
    n = parser.parse_args().records
    said: dict[str, Any] = {"device": GPU.device_kind, "jax": jax.__version__, "records": n}
    for name, part in (
        ("ipc", lambda: another_process(n)), ("consumers", lambda: consumers(n)), ("donation", lambda: donation(n)),
        ("refusals", lambda: refusals(n)), ("costs", costs),
    ):  # fmt: skip
        try:
            said[name] = part()
        except Exception as error:
            said[name] = {"error": f"{type(error).__name__}: {error}"[:400]}
    print(json.dumps(said, indent=1))
    consumed = [v for v in said["consumers"].values() if isinstance(v, dict)]
    good = (
        said["ipc"].get("ok") is True and said["donation"].get("producer_untouched") is True
        and said["donation"].get("agreed_in_place") is True
        and all(all(v is True for v in c.values()) for c in consumed)
        and all(s.endswith(".") and not s.startswith("WRONG") for s in said["refusals"].values())
    )  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
