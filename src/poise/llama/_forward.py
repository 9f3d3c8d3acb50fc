"""Learning without backpropagation, at the memory of inference.

With a direction z of signs (`_noise`), made again wherever it is needed:

    "two-sided":  g = (loss(w + e z) - loss(w - e z)) / 2 e     (SPSA, Spall 1992; MeZO, Malladi et al. 2023)
    "jvp":        g = d/de loss(w + e z) at e = 0               (forward gradient, Baydin et al. 2022)
    w <- w - r(t) g z

Weights stay in `dtype`, layers are perturbed as the scan passes them, and the update is rounded by chance. The seed and
r g of every step are the run's whole history (`_history`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ..errors import BadInput
from ._adamw import guards_of
from ._history import History, is_stacked, leaf_numbers, step_leaf
from ._lora import with_lora
from ._model import Seen
from ._noise import hashes, key_of, signs
from ._rules import Blow
from ._task import AXES, Task


@dataclass(frozen=True)
class Forward(Task):
    """The workload `llama` with `method = "forward"`.

    State: `w` (what is trained, in `dtype`), `frozen` (what is not), `history` (float32, one scalar per step).
    Proposal: `scalar`, `step`, and `guards`, a number per device that is NaN where a guard saw something. `variant`:
    "two-sided" or "jvp"; `epsilon` of the former; `bound` on |g|."""

    variant: str = "two-sided"
    epsilon: float = 1e-3
    rate: float = 1e-5
    last_rate: float = 1e-6
    bound: float = 1e4

    name = "llama"
    method = "forward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant not in ("two-sided", "jvp"):
            raise BadInput(f"llama's variant is 'two-sided' or 'jvp', not {self.variant!r}.")
        if not (self.epsilon > 0 and self.rate > 0 and self.last_rate >= 0 and self.bound > 0):
            raise BadInput("llama's epsilon, rate and bound are positive, its last_rate not negative.")

    def init(self) -> dict[str, Any]:
        """The state of step 0."""
        weights = self.start(self.dtype)
        trained, frozen = (self.lora_start(self.dtype), weights) if self.lora else (weights, {})
        return {"w": trained, "frozen": frozen, "history": np.zeros(self.steps, np.float32)}

    def state_specs(self) -> dict[str, Any]:
        """As the weights; the history is everywhere."""
        return {"w": self.trained_specs, "frozen": self.weight_specs if self.lora else {}, "history": P()}

    def proposal_specs(self) -> dict[str, Any]:
        """Numbers that everybody has, and one of each device's own."""
        return {"scalar": P(), "step": P(), "guards": P(AXES)}

    def batch(self, index: int) -> dict[str, np.ndarray]:
        """The batch of a step."""
        return self.batch_of(index)

    def weights(self, state: Any) -> dict[str, Any]:
        """The parameters of a state, as `_names` has them."""
        return with_lora(state["frozen"], state["w"]) if self.lora else state["w"]

    def history(self, state: Any, start: str) -> History:
        """What moved the weights so far."""
        return History(self.seed, np.asarray(state["history"]), start, "lora" if self.lora else "weights")

    def propose(self, mesh: Mesh, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """The scalar by which this step's direction is to be taken. Nothing here has a reverse mode."""
        numbers = leaf_numbers(state["w"])
        step, total = batch["step"], batch["weight"].sum() * self.length
        blow = Blow(*batch["strike"]) if self.strikes else None

        def shifted(name: str, w: Array, layer: Any, size: Array) -> Array:
            words = hashes(key_of(self.seed, step, numbers[name], layer), w.shape, w.shape, (0,) * w.ndim)
            return w + size.astype(w.dtype) * signs(words, w.dtype)

        def loss_at(size: Array) -> tuple[Array, Seen]:
            prefix = "" if self.lora else "layers."

            def change(weights: dict[str, Array], layer: Array) -> dict[str, Array]:
                return {
                    k: shifted(prefix + k, w, layer, size) if prefix + k in numbers else w for k, w in weights.items()
                }

            params = with_lora(state["frozen"], state["w"]) if self.lora else state["w"]
            if not self.lora:
                top = {k: shifted(k, w, 0, size) for k, w in params.items() if not is_stacked(k) and k != "layers"}
                params = {**params, **top}
            rows = jnp.zeros(self.sequences // self.accumulate, jnp.int32)

            def more(carry: Any, item: tuple[Array, Array]) -> tuple[Any, None]:
                made = self.mean_loss(
                    mesh, params, *item, total, step=step, blow=blow, change=change, differentiable=False
                )
                return jax.tree.map(jnp.add, carry, made), None

            made, _ = lax.scan(more, (jnp.float32(0), Seen(rows, rows)), (batch["tokens"], batch["weight"]))
            return made

        if self.variant == "two-sided":
            sizes = jnp.array([self.epsilon, -self.epsilon], jnp.float32)
            losses, seen = lax.map(loss_at, sizes)
            seen = jax.tree.map(lambda x: x.sum(0), seen)
            loss, g = losses.mean(), (losses[0] - losses[1]) / (2 * self.epsilon)
        else:
            loss, g, seen = jax.jvp(loss_at, (jnp.float32(0),), (jnp.float32(1),), has_aux=True)
        g = jnp.clip(g, -self.bound, self.bound)
        along = step.astype(jnp.float32) / max(1, self.steps)
        scalar = (self.rate + (self.last_rate - self.rate) * along) * g
        guards = guards_of(mesh, seen.bad + seen.failed)
        metrics = {"loss": loss, "slope": g, "scalar": scalar, "gate": seen.bad.sum(), "products": seen.failed.sum()}
        return {"scalar": scalar, "step": step, "guards": guards}, metrics

    def commit(self, state: Any, proposal: Any) -> Any:
        """One step along the direction, on this device's shards."""
        numbers = leaf_numbers(state["w"])
        leaves, treedef = jax.tree.flatten(state["w"])
        cuts = treedef.flatten_up_to(self.trained_specs)
        step, scalar = proposal["step"], proposal["scalar"]
        moved = []
        for w, spec, (name, number) in zip(leaves, cuts, numbers.items(), strict=True):
            whole, offset = list(w.shape), [jnp.int32(0)] * w.ndim
            for d, axis in enumerate(spec):
                if axis is not None:
                    whole[d] = w.shape[d] * lax.axis_size(axis)
                    offset[d] = lax.axis_index(axis) * w.shape[d]
            moved.append(step_leaf(w, name, number, self.seed, step, scalar, tuple(whole), tuple(offset)))
        history = state["history"].at[step].set(scalar)
        return {"w": treedef.unflatten(moved), "frozen": state["frozen"], "history": history}
