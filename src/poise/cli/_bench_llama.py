"""What Llama reaches on one accelerator: `poise bench llama8b`. On a CPU the same with tiny shapes."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import llama
from ..devices import Pool
from ..keeper._form import broadcast_specs
from ..llama._abft import Checked
from ..llama._decode import Sampling, read, write
from ..llama._model import Product, hidden
from ..llama._rules import items, no_probe, rules_for
from ..llama._watched import PERIOD, Audit, sides_of
from ._bench_steps import TINY, Result, bare_step, plain_step, random_weights, table, timed, times, trained


@jax.jit
def words_of(tree: Any) -> Any:
    """Two sums over the bits of each leaf: equal for equal weights."""

    def one(x: Any) -> Any:
        w = lax.bitcast_convert_type(x, jnp.uint16 if x.dtype.itemsize == 2 else jnp.uint32).astype(jnp.uint32)
        return jnp.stack((w.sum(dtype=jnp.uint32), (w * w * jnp.uint32(0x9E3779B1)).sum(dtype=jnp.uint32)))

    return jax.tree.map(one, tree)


class Bench:
    """What the parts share: shapes, ceilings, the weights of the large model."""

    def __init__(self, small: bool) -> None:
        self.small = small
        self.large = TINY if small else llama.SHAPES["llama3-8b"]
        self.one = replace(TINY, tied=True) if small else llama.SHAPES["llama3.2-1b"]
        self.length = 64 if small else 4096
        self.flops = self.bytes = float("nan")
        self.weights: dict[str, Any] | None = None

    def large_weights(self) -> dict[str, Any]:
        if self.weights is None:
            self.weights = random_weights(self.large, jnp.bfloat16)
        return self.weights

    def ceilings(self) -> Result:
        n, m = (256, 1 << 16) if self.small else (8192, 1 << 30)
        a, b = (jax.random.normal(jax.random.key(i), (n, n), jnp.bfloat16) for i in (0, 1))
        s = timed(partial(jax.jit(lambda x, y: x @ y), a, b), 20)
        x = jax.random.normal(jax.random.key(2), (m,), jnp.float32)
        copy = timed(partial(jax.jit(lambda x: x * 1.5), x), 20)
        self.flops, self.bytes = 2 * n**3 / s, 8 * m / copy
        return {"matrix_flops": self.flops, "copy_bytes_per_s": self.bytes}

    def checkpoint(self) -> Result:
        config = self.large
        folder = Path(tempfile.mkdtemp())
        try:
            free = shutil.disk_usage(folder).free
            layers = config.layers
            if free < 2.5 * config.parameters * 2:
                layers = 8
            some = replace(config, layers=layers)
            params = self.large_weights()
            part = (
                {**params, "layers": {k: v[:layers] for k, v in params["layers"].items()}}
                if layers < config.layers
                else params
            )
            want = jax.tree.map(np.asarray, words_of(part))
            t0 = time.perf_counter()
            llama.save(part, some, folder / "a")
            wrote = time.perf_counter() - t0
            del part, params
            self.weights = None
            t0 = time.perf_counter()
            back, _ = llama.load(folder / "a")
            jax.block_until_ready(back)
            loaded = time.perf_counter() - t0
            got = jax.tree.map(np.asarray, words_of(back))
            same = all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True))
            if layers == config.layers:
                self.weights = back
            nbytes = 2 * some.parameters
            return {"layers": layers, "bytes": nbytes, "save_seconds": wrote, "load_seconds": loaded,
                    "load_gb_per_s": nbytes / loaded / 1e9, "bit_identical": same}  # fmt: skip
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def prefill(self) -> Result:
        config, params = self.large, self.large_weights()
        tokens = jax.random.randint(jax.random.key(3), (2, self.length), 0, config.vocab)
        length = jnp.full(2, self.length, jnp.int32)
        f = partial(
            read, params, tokens, length, config=config, positions=self.length + 16, sampling=Sampling(), limit=1e6
        )
        s = timed(f, 3)
        head = 2 * config.vocab * config.width
        flops = 2 * self.length * (config.flops_per_token(self.length) - head) + 2 * head
        return {
            "tokens": 2 * self.length,
            "seconds": s,
            "tokens_per_s": 2 * self.length / s,
            "of_matrix_ceiling": flops / s / self.flops,
        }

    def decode(self) -> Result:
        config, params = self.large, self.large_weights()
        prompt, new = (8, 8) if self.small else (512, 48)
        tokens = jax.random.randint(jax.random.key(4), (1, prompt), 0, config.vocab)
        options = {"config": config, "sampling": Sampling(), "limit": 1e6}
        out: Result = {}
        bound = 2 * (config.parameters - config.vocab * config.width) / self.bytes
        sides, live = sides_of(params), jnp.array([True])
        for name, check, alone, every in (
            ("products", False, False, 0), ("plain", False, True, 0), ("cache_checked", True, True, 0),
            ("products_audited", False, True, PERIOD), ("products_checked", False, True, 1),
        ):  # fmt: skip
            cache, made = read(params, tokens, jnp.array([prompt]), positions=prompt + 3 * new, **options)

            def once(cache: Any, made: Any, step: int, c: bool = check, a: bool = alone, e: int = every) -> Any:
                audit = Audit(sides, jnp.int32(step)) if e else None
                more = {"check": c, "alone": a, "audit": audit, "every": max(1, e)}
                return write(params, cache, made.token, live, **more, **options)

            for i in range(4):
                cache, made = once(cache, made, i)
            jax.block_until_ready(cache)
            t0 = time.perf_counter()
            for i in range(new):
                cache, made = once(cache, made, i)
            jax.block_until_ready(made)
            s = (time.perf_counter() - t0) / new
            out[name] = {"seconds_per_token": s, "tokens_per_s": 1 / s, "of_bandwidth_bound": bound / s}
        for sweep in (16,):
            session = llama.Session(params, config, [tokens[0].tolist()], 2 * new, sweep=sweep)
            for _ in range(sweep + 2):
                session.step()
            t0, n0 = time.perf_counter(), len(session.written)
            for _ in range(new):
                session.step()
            s = (time.perf_counter() - t0) / (len(session.written) - n0)
            assert session.sealed is not None
            out[f"sealed_sweep_{sweep}"] = {
                "seconds_per_token": s,
                "of_bandwidth_bound": bound / s,
                "spare_bytes": session.sealed.spare_bytes,
            }
        return out

    def forward(self) -> Result:
        """Forward-only fine-tuning of the large shapes: its memory beside inference's, and its speed."""
        config = self.large
        rows, length = (2, 64) if self.small else (4, 2048)
        out: Result = {}
        weights = self.large_weights()
        self.weights = None
        task = llama.Forward(model=table(config), tokens="bytes", sequences=rows, length=length, steps=100, held=1,
                             dtype="bfloat16", chunk=length // 4, characters=200_000)  # fmt: skip
        pool = Pool(jax.devices()[:1], 0)
        placement = pool.placement(task.axes(1))
        mesh = placement.mesh
        batch = jax.device_put(task.batch(0), jax.tree.map(placement.sharding, task.batch_specs()))
        state = {"w": weights, "frozen": {}, "history": jnp.zeros(100, jnp.float32)}
        shards = [placement.sharding(s) for s in broadcast_specs(task.state_specs(), state)]
        state = jax.device_put(state, jax.tree.structure(state).unflatten(shards))
        del weights
        total = jnp.float32(rows * length)

        def infer(w: Any, b: Any) -> Any:
            return task.mean_loss(mesh, w, b["tokens"][0], b["weight"][0], total, step=b["step"], differentiable=False)[
                0
            ]

        inference = jax.jit(infer).lower(state["w"], batch).compile()
        step = jax.jit(lambda s, b: plain_step(task, mesh, s, b), donate_argnums=0).lower(state, batch).compile()
        for name, compiled in (("inference", inference), ("forward_only", step)):
            m: Any = compiled.memory_analysis()
            out[name] = {
                "peak_bytes": m.argument_size_in_bytes
                + m.temp_size_in_bytes
                + m.output_size_in_bytes
                - m.alias_size_in_bytes
            }
        out["inference"]["seconds"] = timed(lambda: inference(state["w"], batch), 3)
        seconds, losses = times(partial(bare_step, step, batch), state, 3)
        out["forward_only"] |= {"seconds": seconds, "tokens_per_s": rows * length / seconds, "losses": losses}
        out["memory_ratio"] = out["forward_only"]["peak_bytes"] / out["inference"]["peak_bytes"]
        return out

    def abft(self) -> Result:
        """Layers of the large model, forward and backward, with products unchecked, audited and all checked; false
        alarms."""
        layers, rows = (2, 1) if self.small else (4, 2)
        config = replace(self.large, layers=layers)
        self.weights = None
        params = random_weights(config, jnp.bfloat16)
        tokens = jax.random.randint(jax.random.key(5), (rows, self.length), 0, config.vocab)
        rules = rules_for(1, 1, False)
        out: Result = {}
        for mode in ("off", "audit", "all"):

            def loss(params: Any, probe: Any, step: Any, mode: str = mode) -> Any:
                each = items(layers, rows, mode=mode, period=8, step=step, probe=probe)
                make = (
                    (lambda w, _: Product(w)) if mode == "off" else partial(Checked, rules=rules, differentiable=True)
                )
                x, seen = hidden(params, tokens, config, product=make, each=each)
                return jnp.square(x.astype(jnp.float32)).mean(), seen

            f = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
            steps = iter(range(10**6))
            found = 0

            def once(f: Any = f, steps: Any = steps) -> Any:
                (_, seen), (grads, probe) = f(params, no_probe(layers, rows), jnp.int32(next(steps)))
                return seen.failed.sum(), probe.rows.sum() + probe.weight.sum(), grads["layers"]["q"][0, 0, 0]

            seconds = timed(once, 16)
            found = sum(float(x) for x in once()[:2])
            out[mode] = {"seconds": seconds, "failed": found}
        for mode in ("audit", "all"):
            out[mode]["cost"] = out[mode]["seconds"] / out["off"]["seconds"] - 1
        # False alarms: fresh inputs through one full-size layer, every product checked.
        one = replace(config, layers=1)
        first = {**params, "layers": {k: v[:1] for k, v in params["layers"].items()}}
        checks = 20 if self.small else 1000

        @jax.jit
        def alarms(params: Any, key: Any) -> Any:
            t = jax.random.randint(key, (1, min(1024, self.length)), 0, config.vocab)
            each = items(1, 1, mode="all", period=1, step=jnp.int32(0))
            make = partial(Checked, rules=rules, differentiable=False)
            return hidden(params, t, one, product=make, each=each)[1].failed.sum()

        total = sum((alarms(first, jax.random.key(i)) for i in range(checks)), jnp.int32(0))
        return out | {"clean_steps": checks, "false_alarms": int(total)}

    def train(self) -> Result:
        """The 1B shapes at sequence 4096: guarded with sealed float32 AdamW against the same step with nothing."""
        out: Result = {}
        self.weights = None
        sequences, parts = (2, 1) if self.small else (16, 4)
        base: dict[str, Any] = {
            "model": table(self.one), "tokens": "bytes", "sequences": sequences, "accumulate": parts,
            "length": self.length, "chunk": self.length // 4, "steps": 100, "held": 1, "dtype": "bfloat16",
            "characters": 3_000_000,
        }  # fmt: skip
        for abft in ("audit", "all", None):
            now = out[abft or "plain"] = trained(
                llama.AdamW(**base, abft=abft or "off"), kept=abft is not None, rounds=2 if self.small else 3
            )
            per_step = 3 * sequences * self.length * self.one.flops_per_token(self.length)
            now["of_matrix_ceiling"] = per_step / now["seconds"] / self.flops
            now["tokens_per_s"] = sequences * self.length / now["seconds"]
            print("train", abft, json.dumps(now), flush=True)
        for abft in ("audit", "all"):
            out[abft]["kept_over_plain"] = out[abft]["seconds"] / out["plain"]["seconds"]
        return out


PARTS = ("ceilings", "checkpoint", "prefill", "decode", "train", "forward", "abft")


def measure(parts: Sequence[str], *, small: bool, seconds: float = 1e9) -> Iterator[tuple[str, Result]]:
    """Each part's name and numbers as it ends; the ceilings come first. No part begins after `seconds`."""
    bench, t0 = Bench(small), time.perf_counter()
    for name in dict.fromkeys(("ceilings", *parts)):
        begun = time.perf_counter()
        if begun - t0 > seconds:
            yield name, {"not_run": f"{seconds:.0f} s were over"}
            continue
        try:
            result = getattr(bench, name)()
        except Exception as error:  # one part must not cost the others their machine time
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {error}"[:400]}
        yield name, result | {"part_seconds": time.perf_counter() - begun}
