"""Training with AdamW, kept: float32 master weights and moments sealed, a step withheld for whatever its guards see.

    m <- b1 m + (1 - b1) c g        v <- b2 v + (1 - b2) (c g)^2
    w <- w - r(t) (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w)

(Loshchilov and Hutter 2019), c = min(1, clip / |g|) over all gradients, r(t) linear to `rate` in `warmup` steps, then
half a cosine to `last_rate`; norms do not decay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ..errors import BadInput
from ..keeper import Moved, Traits
from ..kernels import adamw_step
from ..optim import adamw
from ._lora import with_lora
from ._model import Seen
from ._rules import Blow, no_probe
from ._task import AXES, Task, _constrained


@dataclass(frozen=True)
class AdamW(Task):
    """The workload `llama` with `method = "adamw"`.

    State: `w`, `m`, `v` (float32 trees of what is trained), `frozen` (what is not, in `dtype`), `count` of updates.
    Proposal: `grads`, the factor `clip`, the `count` before, and `guards`, a number per device that is NaN where a
    guard saw something.
    """

    rate: float = 1e-3
    last_rate: float = 1e-4
    warmup: int = 10
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0

    name = "llama"
    method = "adamw"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.b1 < 1 and 0 <= self.b2 < 1):
            raise BadInput(f"b1 and b2 must lie in [0, 1), not {self.b1!r} and {self.b2!r}.")
        if not (self.rate > 0 and self.last_rate >= 0 and self.eps > 0 and self.decay >= 0 and self.clip > 0):
            raise BadInput("llama's rate, eps and clip are positive, its last_rate and decay not negative.")
        if type(self.warmup) is not int or self.warmup < 0:
            raise BadInput(f"llama's warmup is a number of steps, not {self.warmup!r}.")

    def init(self) -> dict[str, Any]:
        """The state of step 0."""
        if self.lora:
            w, frozen = self.lora_start(jnp.float32), self.start(self.dtype)
        else:
            w, frozen = self.start(jnp.float32), {}
        zeros = jax.tree.map(np.zeros_like, w)
        return {"w": w, "m": zeros, "v": jax.tree.map(np.copy, zeros), "frozen": frozen, "count": np.int32(0)}

    def state_specs(self) -> dict[str, Any]:
        """Moments lie with their weights."""
        trained = self.trained_specs
        frozen = self.weight_specs if self.lora else {}
        return {"w": trained, "m": trained, "v": trained, "frozen": frozen, "count": P()}

    def proposal_specs(self) -> dict[str, Any]:
        """Gradients lie with their weights."""
        return {"grads": self.trained_specs, "clip": P(), "count": P(), "guards": P(AXES)}

    @property
    def traits(self) -> Traits:
        """Weights and moments are moved by AdamW."""
        return replace(super().traits, adamw=("w", "m", "v"))

    def batch(self, index: int) -> dict[str, np.ndarray]:
        """The batch of a step."""
        return self.batch_of(index)

    def weights(self, state: Any) -> dict[str, Any]:
        """The parameters of a state in `dtype`, as `_names` has them."""
        trained = jax.tree.map(lambda x: jnp.asarray(x).astype(self.dtype), state["w"])
        return with_lora(state["frozen"], trained) if self.lora else trained

    def propose(self, mesh: Mesh, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Gradients of the mean loss, and what the guards saw."""
        narrow = jax.tree.map(lambda x: x.astype(self.dtype), state["w"])
        total = batch["weight"].sum() * self.length
        blow = Blow(*batch["strike"]) if self.strikes else None
        part = self.sequences // self.accumulate

        def loss_of(wanted: Any, tokens: Array, weight: Array) -> tuple[Array, Seen]:
            trained, probe = wanted
            params = with_lora(state["frozen"], trained) if self.lora else trained
            return self.mean_loss(mesh, params, tokens, weight, total, step=batch["step"], probe=probe, blow=blow)

        probe = (no_probe(self.config.layers, part), jax.tree.map(lambda x: x[0], no_probe(1, part)))
        both = jax.value_and_grad(loss_of, has_aux=True)

        def one(tokens: Array, weight: Array) -> tuple[Any, Array, Seen, Array]:
            (loss, seen), (grads, found) = both((narrow, probe), tokens, weight)
            rows = seen.bad + seen.failed + (found[0].rows.sum(0) + found[1].rows).astype(jnp.int32)
            grads = jax.tree.map(lambda g, s: _constrained(mesh, s, g), grads, self.trained_specs)
            return grads, loss, Seen(seen.bad, rows), found[0].weight.sum() + found[1].weight

        if self.accumulate == 1:
            grads, loss, seen, weights_off = one(batch["tokens"][0], batch["weight"][0])
        else:

            def more(carry: Any, item: tuple[Array, Array]) -> tuple[Any, None]:
                made = one(*item)
                return jax.tree.map(lambda a, b: a + b.astype(a.dtype), carry, made), None

            rows = jnp.zeros(part, jnp.int32)
            wide = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), narrow)
            wide = jax.tree.map(lambda g, s: _constrained(mesh, s, g), wide, self.trained_specs)
            start = (wide, jnp.float32(0), Seen(rows, rows), jnp.float32(0))
            (grads, loss, seen, weights_off), _ = lax.scan(more, start, (batch["tokens"], batch["weight"]))
        norm = jnp.sqrt(sum(jnp.square(g.astype(jnp.float32)).sum() for g in jax.tree.leaves(grads)))
        # A failed check of a weight's gradient, which devices sum together, belongs to nobody in particular.
        guards = guards_of(mesh, seen.failed) + jnp.where(weights_off > 0, jnp.nan, 0.0)
        metrics = {
            "loss": loss, "norm": norm, "rate": self.rate_at(state["count"]), "gate": seen.bad.sum(),
            "products": seen.failed.sum() - seen.bad.sum() + weights_off.astype(jnp.int32),
        }  # fmt: skip
        clip = jnp.minimum(1.0, self.clip / (norm + 1e-12))
        return {"grads": grads, "clip": clip, "count": state["count"], "guards": guards}, metrics

    def rate_at(self, count: Array) -> Array:
        """The learning rate after `count` updates."""
        t = count.astype(jnp.float32)
        up = (t + 1) / max(1, self.warmup)
        along = jnp.clip((t - self.warmup) / max(1, self.steps - self.warmup), 0.0, 1.0)
        down = self.last_rate + (self.rate - self.last_rate) * 0.5 * (1 + jnp.cos(jnp.pi * along))
        return jnp.where(t < self.warmup, self.rate * up, down)

    def moves(self, proposal: Any) -> Any:
        """What moves each weight."""
        optimizer = adamw(self.rate_at, self.b1, self.b2, self.eps, self.decay)
        hyper = {d: optimizer.hyper(proposal["count"], proposal["clip"], decay=d) for d in (False, True)}
        return jax.tree.map_with_path(
            lambda path, g: Moved(g, hyper[not path[-1].key.endswith("norm")]), proposal["grads"]
        )

    def commit(self, state: Any, proposal: Any) -> Any:
        """One update of this device's shards; the same arithmetic as the compiled pass."""

        def one(w: Array, m: Array, v: Array, moved: Moved) -> tuple[Array, Array, Array]:
            return adamw_step(w, m, v, moved.grad.astype(jnp.float32), moved.hyper)

        moves = self.moves(proposal)
        made = jax.tree.map(one, state["w"], state["m"], state["v"], moves)
        w, m, v = (jax.tree.map(lambda x, i=i: x[i], made, is_leaf=lambda x: isinstance(x, tuple)) for i in range(3))
        return {"w": w, "m": m, "v": v, "frozen": state["frozen"], "count": state["count"] + 1}


def guards_of(mesh: Mesh, rows: Array) -> Array:
    """A number per device, NaN where a guard saw something in one of its sequences: then the step is withheld, and the
    device is named."""
    sizes = dict(zip(mesh.axis_names, mesh.devices.shape, strict=True))
    spread = sizes["data"] * sizes["fsdp"]
    mine = (rows.reshape(spread, -1).sum(1) > 0).repeat(sizes["tensor"])
    return _constrained(mesh, P(AXES), jnp.where(mine, jnp.nan, 0.0))
