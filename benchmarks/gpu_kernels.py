"""One call on a GPU machine: check every kernel on fresh inputs against the CPU kernels, then time them against peers.

    POISE_NATIVE=build/gpu PYTHONPATH=src python benchmarks/gpu_kernels.py [check] [tune] [ideas] [NAME ...]

`build/gpu` holds libpoise_cpu.so, libpoise_cuda.so, gpu_check, ideas and libbridge.so (see native/README.md).
Writes rows as JSON to $OUT.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

from poise import kernels
from poise.kernels import _bench, _bench_adamw, _timing, ref_adamw

GRAPHS = "--xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1"
RULES = [_timing.Rule(), _timing.Rule(markers=(-99.0, -999.0)), _timing.Rule(limit=2.5, fill=0.5)]


def both(f, *args):
    """`f` on the CPU's kernels and on the GPU's, as numpy."""
    out = []
    for device in (jax.devices("cpu")[0], jax.devices("gpu")[0]):
        placed = jax.tree.map(lambda a, d=device: jax.device_put(a, d), args)
        with jax.default_device(device):
            out.append(jax.tree.map(np.asarray, jax.jit(f)(*placed)))
    return out


def same(what, a, b, tolerance=None):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if tolerance is None or x.dtype.kind in "iub":
            assert np.array_equal(x, y), f"{what}: not equal"
        else:
            scale = np.abs(x).max() + 1e-30 if x.size else 1.0
            worst = np.abs(x.astype(np.float64) - y).max() / scale if x.size else 0.0
            assert worst <= tolerance, f"{what}: {worst:.1e}"
    print(f"  ok {what}", flush=True)


def spoil(rng, x, rule, k):
    x = x.copy()
    values = np.array([np.nan, np.inf, -np.inf, rule.limit * 1.5, *rule.markers], x.dtype)
    x.reshape(-1)[rng.integers(x.size, size=k)] = rng.choice(values, k)
    return x


def check_words(rng):
    for n in (1, 31, 2560, 2561, 5121, 5120 * 33 + 5):
        words = rng.integers(0, 2**32, n, np.uint32)
        a, b = both(lambda w: (s := kernels.seal(w), kernels.check(w, s), kernels.seal_counting(w, 0x49742400)), words)
        same(f"seal, check, count {n}", a, b)


def check_stencils(rng):
    edges = [
        ("periodic",) * 3,
        ("dirichlet", "neumann", "periodic"),
        ("neumann", "dirichlet", "neumann"),
        ("halo",) * 3,
    ]
    for dtype in (np.float32, np.float64):
        tolerance = 2e-6 if dtype is np.float32 else 1e-14
        with jax.enable_x64(dtype is np.float64):
            for n in (1, 7, 4097, 1_000_003):
                for rule in RULES[:2]:
                    x = spoil(rng, rng.normal(size=n).astype(dtype), rule, 3)
                    same(f"gate scan {n} {dtype.__name__}", *both(lambda x, r=rule: kernels.gate_scan(x, r), x))
            for i, (shape, steps, radius) in enumerate(
                [((61, 130), 5, 1), ((300, 257), 8, 1), ((5, 3), 2, 1), ((129, 400), 4, 2), ((260, 256), 20, 1)]
            ):
                for kinds in edges:
                    rule = RULES[i % 2]
                    full = [s + 2 * steps * radius * (k == "halo") for s, k in zip(shape, kinds[:2], strict=True)]
                    k = rng.uniform(0.02, 0.06, (2, 2 * radius + 1)).astype(dtype)
                    for bad in (0, 6):
                        u = spoil(rng, rng.normal(size=full).astype(dtype), rule, bad)

                        def run(u, k, steps=steps, kinds=kinds, rule=rule):
                            return kernels.stencil(u, k, rule, steps=steps, edges=kinds[:2], edge=0.25)

                        same(f"stencil2d {shape} {steps} r{radius} {kinds[:2]} bad {bad}", *both(run, u, k), tolerance)
            for steps in (1, 2, 3, 4):
                shape = (19 + steps, 45, 131)
                for kinds in edges:
                    full = [s + 2 * steps * (k == "halo") for s, k in zip(shape, kinds, strict=True)]
                    k = rng.uniform(0.02, 0.08, (3, 3)).astype(dtype)
                    for bad in (0, 6):
                        u = spoil(rng, rng.normal(size=full).astype(dtype), RULES[0], bad)

                        def run3(u, k, steps=steps, kinds=kinds):
                            return kernels.stencil(u, k, RULES[0], steps=steps, edges=kinds, edge=0.25)

                        same(f"stencil3d {shape} {steps} {kinds} bad {bad}", *both(run3, u, k), tolerance)


def check_adamw(rng):
    for n in (1, 300, 2561, 5121, 5120 * 300 + 77):
        arrays = rng.normal(size=n), rng.normal(size=n) * 0.1, rng.random(n) * 0.01
        words = [a.astype(np.float32).view(np.uint32) for a in arrays]
        g = rng.normal(size=n).astype(np.float32)
        masks = [rng.integers(0, 2, n).astype(np.float32) for _ in range(2)]
        hurt = [w.copy() for w in words]
        hurt[n % 3][n // 2 : n // 2 + max(1, n // 25)] ^= np.uint32(0x00400000)

        def run(words, hurt, g, masks, ok):
            seals = [kernels.seal(w) for w in words]
            state = kernels.State(*(kernels.Sealed(w, s) for w, s in zip(hurt, seals, strict=True)))
            new, reports, low = kernels.adamw(state, g, _bench_adamw.adamw_hyper(), ok, *masks, low=True)
            checks = [kernels.check(s.words, s.seal) for s in new]
            return [ref_adamw.floats(s.words) for s in new], reports, checks, low.astype(jnp.float32)

        for ok in (True, False):
            for which in (words, hurt):
                a, b = both(run, words, which, g, masks, np.bool_(ok))
                same(f"adamw {n} ok={ok} hurt={which is hurt}", a[:3], b[:3], 2e-6)
                same("  in bfloat16", a[3], b[3], 1e-2)


def check_records(rng):
    for n in (1, 255, 257, 100_003):
        words = rng.integers(0, 2**32, (8, n), np.uint32)
        a, b = both(lambda w: (kernels.pack(w), kernels.unpack(w.T)), words)
        same(f"pack, unpack {n}", a, b)
        rows = np.abs(rng.normal(size=(n, 8))).astype(np.float32).view(np.uint32).copy()
        rows[:, 4:6] = rng.integers(0, 9, (n, 2)) == 0
        g = spoil(rng, rng.normal(size=n).astype(np.float32), RULES[0], 3)
        for cell in ("pim", "pinn"):

            def run(r, g, cell=cell):
                out, bad = kernels.update_records(r, g, jnp.stack(_bench_adamw.adamw_hyper()), cell, RULES[0])
                return ref_adamw.floats(out[:, :4]), out[:, 4:], bad

            same(f"record update {cell} {n}", *both(run, rows, g), 2e-6)


def check_gradient(rng):
    rule = RULES[1]
    for n, columns in ((1, 1), (255, 255), (257, 257), (100_000, 250), (100_003, 100_003)):
        rows = np.abs(rng.normal(size=(n, 8))).astype(np.float32).view(np.uint32).copy()
        flux = spoil(rng, rng.normal(size=n).astype(np.float32), rule, 3)
        ends = rng.normal(size=(2, n // columns)).astype(np.float32)
        for given in (True, False):

            def run(r, f, e, given=given, columns=columns):
                f = f if given else None
                halo = (e[0], e[1]) if given else None
                out, bad = kernels.record_gradient(r, 0.3, rule, flux=f, columns=columns, ends=halo)
                return ref_adamw.floats(out[:, :4]), out[:, 4:], bad

            same(f"record gradient {n} lines of {columns} {given}", *both(run, rows, flux, ends), 1e-6)


def check_burgers(rng):
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype is np.float64):
            for nx, ny in ((1, 1), (3, 17), (17, 128), (64, 129), (301, 130)):
                shapes = (2, nx, ny), (2, nx, ny), (2, 1, ny), (2, 1, ny), (2, nx, 1), (2, nx, 1), (2,)
                args = [rng.normal(size=s).astype(dtype) for s in shapes]

                def run(*a):
                    return kernels.burgers_stage(*a, h=0.01, nu=1e-3, weights=(0.5, 0.25, 1e-3))

                tolerance = 1e-5 if dtype is np.float32 else 1e-13
                same(f"burgers stage {nx} x {ny} {dtype.__name__}", *both(run, *args), tolerance)
                if dtype is np.float32:
                    check_burgers_sealed(rng, args)


def check_burgers_sealed(rng, args):
    """On the GPU, bit for bit: the sealed stage and the three calls it takes the place of; base sound and hurt."""
    options = {"h": 0.01, "nu": 1e-3, "weights": (0.5, 0.25, 1e-3)}
    bits = kernels.limit_bits(1.25)

    @jax.jit
    def together(kept, *a):
        return kernels.burgers_stage_sealed(*a, kept, **options, bits=bits)

    @jax.jit
    def apart(kept, *a):
        out = kernels.burgers_stage(*a, **options)
        return out, *kernels.seal_counting(out, bits), kernels.check(a[1], kept)

    kept = jax.jit(kernels.seal)(args[1])
    hurt = args[1].copy()
    hurt.view(np.uint32).reshape(-1)[rng.integers(hurt.size)] ^= np.uint32(1) << np.uint32(rng.integers(32))
    for base in (args[1], hurt):
        given = [args[0], base, *args[2:]]
        a, b = (jax.tree.map(np.asarray, f(kept, *given)) for f in (apart, together))
        assert (int(a[3].data) > 0) == (base is hurt)
        # A flipped bit can make a NaN, which is equal to itself here.
        same(f"  sealed {args[0].shape[1]} x {args[0].shape[2]} hurt={base is hurt}", *(_bits(x) for x in (a, b)))


def _bits(tree):
    return jax.tree.map(lambda x: x.view(np.uint32), tree)


def bridge():
    """A pass over 16 MiB: as an FFI call inside a graph, and as a host call outside it with a synchronisation."""
    import ctypes

    library = ctypes.CDLL(str(Path(os.environ["POISE_NATIVE"]) / "libbridge.so"))
    x, n, calls = _timing.noise((1 << 22,)), 1 << 22, 50
    rows = jax.lax.bitcast_convert_type(x.reshape(-1, 8), jnp.uint32)

    @jax.jit
    def inside(r):
        for _ in range(calls):
            r = kernels.pack(kernels.unpack(r))
        return r

    y = jnp.zeros_like(x)
    a, b = (ctypes.c_void_p(v.unsafe_buffer_pointer()) for v in (x, y))

    def outside():
        for _ in range(2 * calls):
            jax.block_until_ready(x)
            assert library.poise_bridge_scale(a, b, ctypes.c_int64(n)) == 0
        return y

    for name, f in (("FFI, 100 calls in a graph", lambda: inside(rows)), ("host calls, synchronised", outside)):
        print(f"bridge  {name:28} {_timing.seconds(f) / (2 * calls) * 1e6:.1f} us a call", flush=True)


def graphs():
    """Under CUDA graphs (the caller sets XLA_FLAGS to GRAPHS): the same results, run after run."""
    rng = np.random.default_rng()
    check_words(rng)
    check_adamw(rng)
    u = _timing.noise((300, 260))
    k = jnp.full((2, 3), 0.15).at[:, 1].set(0.2)

    def many(u):
        return jax.lax.fori_loop(0, 50, lambda i, v: kernels.stencil(v, k, RULES[0], steps=4, edges="neumann")[0], u)

    first = jax.jit(many)(u)
    for _ in range(5):
        assert np.array_equal(jax.jit(many)(u), first)
    same("stencil in a loop under graphs", *both(many, np.asarray(u)), 2e-6)
    print("graphs ok")


def tune():
    """Effective throughput by steps per pass and, in 2-D, by the height of a tile (four or eight warps)."""
    from poise.kernels import _stencil

    copy = _timing.copy_bandwidth()
    print(f"copy {copy / 1e12:.3f} TB/s", flush=True)
    jobs = [((8192, 8192), jnp.float32, t, h) for t, h in ((8, 64), (8, 128), (12, 128))]
    small = (7, 128), (8, 64), (12, 64), (12, 128), (15, 64), (16, 128)
    jobs += [((2048, 2048), jnp.float32, t, h) for t, h in small]
    jobs += [((8192, 8192), jnp.float64, t, h) for t in (6, 8) for h in (32, 64)]
    jobs += [((512, 512, 512), jnp.float32, t, 0) for t in (2, 3, 4)]
    for shape, dtype, steps, height in jobs:
        _stencil.TILE_2D = (height, 0)
        with jax.enable_x64(dtype == jnp.float64):
            u = _timing.noise(shape, dtype)
            k = np.full((len(shape), 3), 0.05)
            k[:, 1] = (1 - 0.1 * len(shape)) / len(shape)
            k = jnp.array(k, dtype)

            @jax.jit
            def ours(u, steps=steps, k=k):
                for _ in range(10):
                    u = kernels.stencil(u, k, RULES[0], steps=steps)[0]
                return u

            s = _timing.seconds(lambda u=u, f=ours: f(u)) / (10 * steps)
        moved = 2 * u.nbytes / s
        name = f"{shape} {np.dtype(dtype).name} T={steps} tile {height or 'low'}"
        print(f"{name}: {moved / 1e12:.2f} TB/s, {moved / copy:.3f} of copy", flush=True)
    _stencil.TILE_2D = (0, 0)


def main() -> int:
    start = time.time()
    print(jax.devices(), kernels.available(), flush=True)
    failures = 0
    names = sys.argv[1:]
    if names == ["graphs"]:
        graphs()
        return 0
    if "check" in names or not names:
        rng = np.random.default_rng()
        for check in (check_words, check_adamw, check_records, check_gradient, check_burgers, check_stencils):
            try:
                check(rng)
            except Exception:
                failures += 1
                traceback.print_exc()
            print(f"-- {check.__name__} {time.time() - start:.0f} s", flush=True)
        tool = Path(os.environ["POISE_NATIVE"]) / "gpu_check"
        for command in (
            [tool, "10000"],
            ["compute-sanitizer", "--tool", "memcheck", tool, "60"],
            ["compute-sanitizer", "--tool", "racecheck", tool, "12"],
            ["env", f"XLA_FLAGS={GRAPHS}", sys.executable, __file__, "graphs"],
        ):
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=200, check=False)
            failures += done.returncode != 0
            said = done.stdout.strip()
            said = said[-700:] if done.returncode == 0 else said[:2500] + "\n...\n" + said[-300:]
            print(" ".join(map(str, command)), "->", done.returncode, said, done.stderr[-300:], flush=True)
        print(f"-- sanitizers {time.time() - start:.0f} s", flush=True)
    if "tune" in names:
        tune()
    if "ideas" in names:
        subprocess.run([str(Path(os.environ["POISE_NATIVE"]) / "ideas")], check=True)
        bridge()
    rows = []
    for name in [n for n in names if n not in ("check", "tune", "ideas")] or [
        "stencil2d",
        "stencil3d",
        "adamw",
        "burgers",
        "gate-scan",
        "record",
        "seal",
    ]:
        try:
            rows += [r for r in _bench.bench([name]) if r not in rows]
        except Exception:
            failures += 1
            traceback.print_exc()
        print(f"-- bench {name} {time.time() - start:.0f} s", flush=True)
    if out := os.environ.get("OUT"):
        Path(out, "kernels.json").write_text(json.dumps(rows, indent=1))
    for r in rows:
        print(
            f"{r['name']:18} {'x'.join(map(str, r['shape'])):12} ours {r['ours_s'] * 1e3:9.4f} ms  of ceiling "
            f"{r['of_ceiling']:6.3f}  peer {r['peer_s'] * 1e3:9.4f} ms  ratio {r['ratio']:6.2f}  {r['peer']}"
        )
    print(f"failures: {failures}; {time.time() - start:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
