"""A plain JAX training step as a workload.

`train_step(state, batch) -> (state, metrics)` knows nothing of devices. Its state is replicated over the active
devices, its batch is cut along the leading axis where that divides, and XLA inserts the communication (GSPMD). It is
traced once and that program is lowered for every placement: a function that draws host randomness while being traced
would otherwise bake different constants into each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec as P

from ..errors import BadInput
from ..gate import Gate
from ..seal._plan import named_leaves
from ._workload import Traits

AXIS = "data"


class TrainStep:
    """The workload behind `poise.keep`.

    Arrays and numbers of the state are kept; everything else in it (functions, strings, static settings) is put aside
    and must not change. `batch` is an example, or a function from a step's index to its batch. Raises `BadInput` if the
    step changes the structure, a shape or a dtype of its state, or returns something else than a pair.
    """

    def __init__(
        self,
        train_step: Callable[[Any, Any], tuple[Any, Any]],
        state: Any,
        batch: Any,
        *,
        name: str = "train_step",
        droppable: bool = True,
        limit: float | None = None,
        gate: Gate | None = None,
        steps: int | None = None,
    ) -> None:
        self.name = name
        self.steps = steps
        self._source = batch if callable(batch) else None
        example = batch(0) if callable(batch) else batch
        self._example = jax.tree.map(np.asarray, example)
        leaves, self._treedef = jax.tree.flatten(state)
        self._is_kept = [is_array(x) for x in leaves]
        self._aside = [None if kept else x for x, kept in zip(leaves, self._is_kept, strict=True)]
        self._names = [name for (name, _), kept in zip(named_leaves(state), self._is_kept, strict=True) if kept]
        start = [strong(x) for x, kept in zip(leaves, self._is_kept, strict=True) if kept]
        self._start = dict(zip(self._names, start, strict=True))
        wide = any(x.dtype.itemsize == 8 for x in start if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key))
        # Markers stay off: -99 is a legitimate value in training. A state may hold `best = inf`, hence `newly`.
        self.traits = Traits(
            gate=gate or Gate(limit=float(np.finfo(np.float32).max)), limit=limit, newly=True, droppable=droppable,
            heal="replica", x64=wide,
        )  # fmt: skip
        with jax.enable_x64(wide or bool(jax.config.read("jax_enable_x64"))):
            self._jaxpr, (shapes, self._metrics) = jax.make_jaxpr(self._flat(train_step), return_shape=True)(
                start, self._example
            )
        for before, after in zip(start, shapes, strict=True):
            if before.shape != after.shape or before.dtype != after.dtype:
                raise BadInput(
                    f"The training step turns a {before.dtype}{list(before.shape)} of its state into "
                    f"{after.dtype}{list(after.shape)}; it must keep shapes and dtypes."
                )

    def _flat(self, train_step: Callable[[Any, Any], Any]) -> Callable[[list[Array], Any], tuple[list[Array], Any]]:
        def flat(kept: list[Array], batch: Any) -> tuple[list[Array], Any]:
            result = train_step(self.rebuild(kept), batch)
            if not (isinstance(result, tuple) and len(result) == 2):
                raise BadInput("The training step must return (state, metrics).")
            new, metrics = result
            leaves, treedef = jax.tree.flatten(new)
            if treedef != self._treedef:
                raise BadInput(
                    "The training step changes the structure of its state; it must return what it was given."
                )
            for mine, theirs, kept_ in zip(leaves, self._aside, self._is_kept, strict=True):
                if not kept_ and mine is not theirs and mine != theirs:
                    raise BadInput(
                        f"The training step changes {theirs!r} in its state; only arrays and numbers may change."
                    )
            out = [strong(x) for x, kept_ in zip(leaves, self._is_kept, strict=True) if kept_]
            return out, metrics if isinstance(metrics, dict) else {"metrics": metrics}

        return flat

    def rebuild(self, kept: Any) -> Any:
        """The state as the user knows it, from its arrays: in order, or by name."""
        arrays = iter([kept[name] for name in self._names] if isinstance(kept, dict) else kept)
        leaves = [next(arrays) if k else x for k, x in zip(self._is_kept, self._aside, strict=True)]
        return self._treedef.unflatten(leaves)

    def axes(self, n: int) -> dict[str, int]:
        """One axis over all devices."""
        self._shared = all(x.ndim and x.shape[0] % n == 0 for x in jax.tree.leaves(self._example))
        return {AXIS: n}

    def init(self) -> dict[str, Array]:
        """The arrays of the state that was given, by their paths in it."""
        return self._start

    def state_specs(self) -> Any:
        """Replicated."""
        return P()

    def proposal_specs(self) -> Any:
        """Replicated, like the state."""
        return P()

    def batch_specs(self) -> Any:
        """Along the leading axis, if every leaf divides; else replicated."""
        return P(AXIS) if self._shared else P()

    def batch(self, index: int) -> Any:
        """The batch of a step, if a source was given."""
        if self._source is not None:
            return jax.tree.map(np.asarray, self._source(index))
        if index == 0:
            return self._example
        raise BadInput("This run has no source of batches; give each one to step(batch).")

    def propose(self, mesh: jax.sharding.Mesh, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        """The traced step."""
        flat = jaxpr_as_fun(self._jaxpr)(*(state[name] for name in self._names), *jax.tree.leaves(batch))
        n = len(self._names)
        return dict(zip(self._names, flat[:n], strict=True)), jax.tree.structure(self._metrics).unflatten(flat[n:])

    def commit(self, state: Any, proposal: Any) -> Any:
        """The proposal is the next state."""
        return proposal


def is_array(x: Any) -> bool:
    """What is kept: arrays and numbers, but no booleans of Python's own (those are settings)."""
    return isinstance(x, Array | np.ndarray | np.generic | int | float | complex) and not isinstance(x, bool)


def strong(x: Any) -> Array:
    """As an array whose dtype does not bend: weakly typed numbers would give each placement another program."""
    x = jnp.asarray(x) if not isinstance(x, Array) else x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x
    return jax.lax.convert_element_type(x, x.dtype)
