"""Steps of Llama workloads on the devices, with the keeper around them and bare, for benchmarks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import llama
from ..devices import Pool
from ..keeper._form import Form
from ..keeper._step import Builder
from ..llama._names import shapes

Result = dict[str, Any]
TINY = llama.Config(vocab=256, width=64, hidden=128, layers=2, heads=4, kv_heads=2, head=16)


def timed(f: Callable[[], Any], repeat: int = 5) -> float:
    """Median seconds of `f`, which returns arrays to wait for; the first call does not count."""
    jax.block_until_ready(f())
    seconds = []
    for _ in range(repeat):
        t0 = time.perf_counter()
        jax.block_until_ready(f())
        seconds.append(time.perf_counter() - t0)
    return statistics.median(seconds)


def random_weights(config: llama.Config, dtype: Any, seed: int = 0, shards: Any = None) -> dict[str, Any]:
    """Weights made where they stay: on one device, or as a tree of shardings says."""

    def drawn(path: Any, shape: tuple[int, ...], shard: Any) -> Any:
        name = path[-1].key
        key = jax.random.key(seed + sum(map(ord, name)))
        if name.endswith("norm"):
            return jax.jit(partial(jnp.ones, shape, dtype), out_shardings=shard)()

        @partial(jax.jit, out_shardings=shard)
        def make(key: Any) -> Any:
            if len(shape) == 2:
                return (0.02 * jax.random.normal(key, shape, jnp.bfloat16)).astype(dtype)
            keys = jax.random.split(key, shape[0])
            return lax.map(lambda k: (0.02 * jax.random.normal(k, shape[1:], jnp.bfloat16)).astype(dtype), keys)

        return make(key)

    sizes = shapes(config)
    if shards is None:
        shards = jax.tree.map(lambda _: None, sizes, is_leaf=lambda x: isinstance(x, tuple))
    return jax.tree.map_with_path(drawn, sizes, shards, is_leaf=lambda x: isinstance(x, tuple))


def table(config: llama.Config) -> dict[str, Any]:
    return {
        k: getattr(config, k)
        for k in ("vocab", "width", "hidden", "layers", "heads", "kv_heads", "head", "tied", "rope")
    }


def plain_step(task: Any, mesh: Any, state: Any, batch: Any) -> Any:
    """The workload's own step, without any guard around it."""
    proposal, metrics = task.propose(mesh, state, batch)
    return jax.shard_map(
        task.commit, mesh=mesh, in_specs=(task.state_specs(), task.proposal_specs()), out_specs=task.state_specs(),
        check_vma=False,
    )(state, proposal), metrics["loss"]  # fmt: skip


def kept_step(exe: Any, batch: Any, kept: Any, index: int) -> Any:
    batch = {**batch, "step": jax.device_put(np.int32(index), batch["step"].sharding)}
    kept, report, metrics = exe.step(kept, np.array([index, 0], np.int32), batch)
    code = int(report.table[0, 0])
    assert code == 0, f"step {index} was withheld with code {code}: {np.asarray(report.table).tolist()}"
    return kept, metrics["loss"]


def bare_step(compiled: Any, batch: Any, state: Any, index: int) -> Any:
    return compiled(state, {**batch, "step": jax.device_put(np.int32(index), batch["step"].sharding)})


def fresh_state(task: Any, placement: Any) -> Any:
    """A state of step 0, made where it stays: random weights, zero moments."""
    shards = jax.tree.map(placement.sharding, task.state_specs()["w"])
    w = random_weights(task.config, jnp.float32, shards=shards)

    def zeros(x: Any, shard: Any) -> Any:
        return jax.jit(partial(jnp.zeros, x.shape, x.dtype), out_shardings=shard)()

    m, v = (jax.tree.map(zeros, w, shards) for _ in range(2))
    return {"w": w, "m": m, "v": v, "frozen": {}, "count": jnp.int32(0)}


def times(step: Callable[[Any, int], Any], state: Any, rounds: int) -> tuple[float, list[float]]:
    """Median seconds of a step, the first apart; and the losses."""
    seconds, losses = [], []
    for i in range(rounds + 1):
        t0 = time.perf_counter()
        state, loss = step(state, i)
        losses.append(float(loss))
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - t0)
    return statistics.median(seconds[1:]), losses


def trained(task: Any, *, kept: bool, devices: int = 1, rounds: int = 3) -> Result:
    """A few steps of `task`, with the keeper's two halves around it or plain; the batch stays on the devices."""
    placement = Pool(jax.devices()[:devices], 0).placement(task.axes(devices))
    state = fresh_state(task, placement)
    batch = jax.device_put(task.batch(0), jax.tree.map(placement.sharding, task.batch_specs()))
    form = Form.of(state, task.state_specs(), dict(placement.axes), task.traits.heal)
    leaves = tuple(
        jax.device_put(x, placement.sharding(s)) for x, s in zip(form.flatten(state), form.specs, strict=True)
    )
    del state
    t0 = time.perf_counter()
    if kept:
        builder = Builder(task, form, task.batch(0))
        exe = builder(placement)
        sealed = builder.sealer(placement)(leaves, np.int32(0))
        del leaves
        run, compiled = partial(kept_step, exe, batch), exe.step
    else:
        sealed = form.unflatten(leaves)
        del leaves
        plain = jax.jit(partial(plain_step, task, placement.mesh), donate_argnums=0)
        compiled = plain.lower(sealed, batch).compile()
        run = partial(bare_step, compiled, batch)
    ready = time.perf_counter() - t0
    memory: Any = compiled.memory_analysis()  # type: ignore[union-attr]
    seconds, losses = times(run, sealed, rounds)
    return {
        "seconds": seconds, "losses": losses, "compile_seconds": ready, "temp_bytes": memory.temp_size_in_bytes,
        "state_bytes": form.state_bytes, "spare_bytes": form.spare_bytes if kept else 0,
    }  # fmt: skip
