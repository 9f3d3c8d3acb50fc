"""AdamW with a sealed state: `optax.adamw`'s arithmetic on one flat shard, marks checked and remade in the same pass.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
    w <- w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay w)

(Loshchilov and Hutter, 2019.) The parameters are the float32 master copy. What is damaged is rebuilt from parity before
it is used, also in a step that is withheld; a group beyond repair is left as it was and reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, Int32

from .. import kernels
from ..errors import BadInput
from ..kernels import Hyper, Mended, Sealed

Schedule = float | Callable[[Any], Any]


class Report(NamedTuple):
    """What a step found damaged and did about it, in the parameters and the two moments."""

    w: Mended
    m: Mended
    v: Mended

    @property
    def unrepairable(self) -> Int32[Array, ""]:
        """Blocks that could not be mended; their groups were not updated."""
        return self.w.unrepairable + self.m.unrepairable + self.v.unrepairable


class State(NamedTuple):
    """`steps` taken; the sealed arrays."""

    steps: Int32[Array, ""]
    sealed: kernels.State


@dataclass(frozen=True)
class AdamW:
    """The fast path of a kept training step; see `adamw`."""

    learning_rate: Schedule
    b1: float
    b2: float
    eps: float
    weight_decay: float
    max_norm: float | None = None
    mask: Any = None

    def init(self, params: Any) -> State:
        """The sealed state of a pytree of float32 arrays."""
        flat = self._flat(params)

        def sealed(x: Array) -> Sealed:
            words = lax.bitcast_convert_type(x, jnp.uint32)
            return Sealed(words, kernels.seal(words))

        zeros = jnp.zeros_like(flat)
        return State(jnp.int32(0), kernels.State(sealed(flat), sealed(zeros), sealed(zeros)))

    def update(
        self,
        grads: Any,
        state: State,
        *,
        ok: Bool[Array, ""] | bool = True,
        clip: Float[Array, ""] | float = 1.0,
        lr_mask: Any | None = None,
        wd_mask: Any | None = None,
    ) -> tuple[State, Report]:
        """One step; give the old state up (`donate_argnums`) and it is made in place.

        - `grads`: a pytree like the parameters. `clip`: a factor for all of them (`min(1, limit / global_norm)`).
        - `ok` false withholds the update and the count, not the repair.
        - `lr_mask`, `wd_mask`: pytrees like the parameters, factors of rate and decay.
        """
        g = self._flat(grads)
        if g.shape != state.sealed.w.words.shape:
            raise BadInput(f"The gradients have {g.size} numbers, the state {state.sealed.w.words.size}.")
        ok = jnp.asarray(ok)
        hyper = self.hyper(state.steps, clip)
        lr_flat, wd_flat = (None if m is None else self._flat(m) for m in (lr_mask, wd_mask))
        sealed, reports, _ = kernels.adamw(state.sealed, g, hyper, ok, lr_flat, wd_flat)
        return State(jnp.where(ok, state.steps + 1, state.steps), sealed), Report(*reports)

    def hyper(self, steps: Int32[Array, ""], clip: Float[Array, ""] | float = 1.0, *, decay: bool = True) -> Hyper:
        """The scalars of the update that follows `steps` of them; without `decay`, no weight decay."""
        f, t = jnp.float32, (steps + 1).astype(jnp.float32)
        lr = self.learning_rate(steps) if callable(self.learning_rate) else self.learning_rate
        return Hyper(
            jnp.asarray(lr, f), f(self.b1), f(1 - self.b1), f(self.b2), f(1 - self.b2), f(self.eps),
            f(self.weight_decay if decay else 0.0), 1 / (1 - f(self.b1) ** t), 1 / (1 - f(self.b2) ** t),
            jnp.asarray(clip, f),
        )  # fmt: skip

    def clip(self, grads: Any) -> Float[Array, ""]:
        """The factor that brings the gradients' global norm to `max_norm` at most; 1 without one."""
        if self.max_norm is None:
            return jnp.float32(1.0)
        squares = [jnp.square(g.astype(jnp.float32)).sum() for g in jax.tree.leaves(grads)]
        norm = jnp.sqrt(sum(squares, jnp.float32(0.0)))
        return jnp.minimum(jnp.float32(1.0), self.max_norm / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))

    def decays(self, params: Any) -> Any:
        """Whether the weights decay, leaf by leaf of `params`."""
        if self.mask is None:
            return jax.tree.map(lambda _: True, params)
        mask = self.mask(params) if callable(self.mask) else self.mask
        return jax.tree.map(lambda m, sub: jax.tree.map(lambda _: bool(m), sub), mask, params)

    def params(self, state: State, like: Any) -> Any:
        """The parameters as a pytree like `like`, each leaf in the dtype it has there (bfloat16 or float32)."""
        flat = lax.bitcast_convert_type(state.sealed.w.words, jnp.float32)
        wide = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
        tree = ravel_pytree(wide)[1](flat)
        return jax.tree.map(lambda x, y: x.astype(y.dtype), tree, like)

    @staticmethod
    def _flat(tree: Any) -> Float[Array, " n"]:
        leaves = jax.tree.leaves(tree)
        if not all(jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in leaves):
            raise BadInput("AdamW takes floating-point leaves only.")
        parts = [jnp.ravel(jnp.asarray(x)).astype(jnp.float32) for x in leaves]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, jnp.float32)


def adamw(
    learning_rate: Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
    *,
    max_norm: float | None = None,
    mask: Any = None,
) -> AdamW:
    """AdamW over a sealed state: optax.adamw's defaults and, on clean data, its results to rounding.

    - `learning_rate`: a number, or a schedule of the step count (any optax schedule).
    - `max_norm`, `mask`: for `poise.keep(..., optimizer=)`. The limit of the gradients' global norm, and which leaves
      decay: a tree of bools (a prefix of the parameters) or a function from the parameters to one.

    Raises `BadInput` for numbers outside their range.
    """
    if not (0 <= b1 < 1 and 0 <= b2 < 1):
        raise BadInput(f"b1 and b2 must lie in [0, 1), not {b1!r} and {b2!r}.")
    if not eps > 0:
        raise BadInput(f"eps must be positive, not {eps!r}.")
    if max_norm is not None and not max_norm > 0:
        raise BadInput(f"max_norm must be positive, not {max_norm!r}.")
    return AdamW(learning_rate, b1, b2, eps, weight_decay, max_norm, mask)
