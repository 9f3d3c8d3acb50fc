"""Gradients by the user, the update by poise: the workload behind `poise.keep(..., optimizer=poise.optim.adamw(...))`.

Where there are compiled kernels, the commit is one pass over parameters and moments that mends, moves and seals them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from .. import kernels
from ..errors import BadInput
from ..gate import Gate
from ..optim import AdamW
from ._fused import Moved, names_in
from ._train import TrainStep


class OptimizedStep(TrainStep):
    """`grad_step(params, batch) -> (grads, metrics)` and an optimizer.

    State: `params` (float32, as master copy), `m`, `v` (trees like it), `count` of updates. `grad_step` sees each
    parameter in the dtype in which it was given (bfloat16 or float32). On several devices the state is replicated, and
    each copy carries its own parity. Raises `BadInput` for parameters that are not floating-point arrays and for
    gradients of another structure or shape.
    """

    def __init__(
        self,
        grad_step: Callable[[Any, Any], tuple[Any, Any]],
        params: Any,
        batch: Any,
        optimizer: AdamW,
        *,
        name: str = "grad_step",
        droppable: bool = True,
        gate: Gate | None = None,
        steps: int | None = None,
    ) -> None:
        leaves = [jnp.asarray(x) for x in jax.tree.leaves(params)]
        if not leaves or not all(x.dtype in (jnp.float32, jnp.bfloat16) for x in leaves):
            raise BadInput("The parameters must be float32 or bfloat16 arrays where poise's optimizer moves them.")
        self.optimizer = optimizer
        self._params = jax.tree.structure(params)
        self._dtypes = [x.dtype for x in leaves]
        self._decays = jax.tree.leaves(optimizer.decays(params))
        wide = self._params.unflatten([x.astype(jnp.float32) for x in leaves])
        zeros = jax.tree.map(jnp.zeros_like, wide)
        state = {"params": wide, "m": zeros, "v": zeros, "count": jnp.int32(0)}

        def step(state: Any, batch: Any) -> tuple[Any, Any]:
            grads, metrics = self._checked(grad_step(self.narrow(state["params"]), batch), leaves)
            return {**state, "params": grads}, metrics

        super().__init__(step, state, batch, name=name, droppable=droppable, gate=gate, steps=steps)
        self.traits = replace(self.traits, newly=False, heal="parity", in_place=True, adamw=("params", "m", "v"))

    def _checked(self, result: Any, leaves: list[jax.Array]) -> tuple[Any, Any]:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise BadInput("The gradient step must return (grads, metrics).")
        grads, metrics = result
        if jax.tree.structure(grads) != self._params:
            raise BadInput("The gradients have another structure than the parameters.")
        for g, x in zip(jax.tree.leaves(grads), leaves, strict=True):
            if g.shape != x.shape:
                raise BadInput(f"A gradient has shape {g.shape} where the parameter has {x.shape}.")
        return jax.tree.map(lambda g: g.astype(jnp.float32), grads), metrics

    def narrow(self, params: Any) -> Any:
        """The master copy in the dtypes in which the parameters were given."""
        leaves = [x.astype(kind) for x, kind in zip(jax.tree.leaves(params), self._dtypes, strict=True)]
        return self._params.unflatten(leaves)

    def propose(self, mesh: jax.sharding.Mesh, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """The gradients, and the factor that clips them."""
        made, metrics = super().propose(mesh, state, batch)
        grads = {name: made[name] for name in names_in(self._names, "params")}
        return {"grads": grads, "clip": self.optimizer.clip(grads), "count": state["count"]}, metrics

    def moves(self, proposal: Any) -> Any:
        """What moves each parameter, in the order of their names."""
        hyper = {d: self.optimizer.hyper(proposal["count"], proposal["clip"], decay=d) for d in set(self._decays)}
        both = zip(names_in(self._names, "params"), self._decays, strict=True)
        return {name: Moved(proposal["grads"][name], hyper[d]) for name, d in both}

    def commit(self, state: Any, proposal: Any) -> Any:
        """AdamW on every parameter; the same arithmetic as the compiled pass."""
        new = {"count": state["count"] + 1}
        for name, (grad, hyper) in self.moves(proposal).items():
            three = [part + name.removeprefix("params") for part in ("params", "m", "v")]
            w, m, v = (state[n] for n in three)
            new |= dict(zip(three, kernels.adamw_step(w, m, v, grad, hyper), strict=True))
        return {name: new[name] for name in state}
