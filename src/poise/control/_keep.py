"""`poise.keep`: a plain training step, kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..devices import Pool
from ..errors import BadInput
from ..gate import Gate
from ..keeper import OptimizedStep, TrainStep
from ..optim import AdamW
from ._keeper import Keeper


def keep(
    train_step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    batch: Any,
    *,
    pool: Pool | None = None,
    journal: str | Path | None = None,
    name: str = "train_step",
    droppable: bool = True,
    limit: float | None = None,
    gate: Gate | None = None,
    steps: int | None = None,
    optimizer: AdamW | None = None,
    **options: Any,
) -> Keeper:
    """Keep `train_step(state, batch) -> (state, metrics)`, with any optimizer and any pytree as state.

        keeper = poise.keep(train_step, state, first_batch, journal="run.db")
        for batch in data:
            metrics = keeper.step(batch)
        state = keeper.state

    - `state`: any pytree; its arrays and numbers are sealed, other leaves (functions, strings) are put aside.
    - `batch`: an example batch, or a function from a step's index to its batch (then `step()` needs no argument).
    - `droppable`: whether a batch that is itself bad may be left out (else the run stops).
    - `limit`: largest magnitude allowed in the state; None: anything finite, and infinities that were there before.
    - `gate`: what is bad in a batch; left out: NaN and Inf.
    - `optimizer`: a `poise.optim.adamw(...)`. Then the first argument is `grad_step(params, batch) -> (grads, metrics)`
      and `state` the parameters (float32 or bfloat16); poise holds the float32 master copy and the moments, and mends,
      moves and seals them in one pass. `keeper.state` has `params`, `m`, `v` and `count`.
    - `options`: those of `poise.Options` (`every`, `depth`, `source`, `directory`, ...) and of `poise.Keeper`.

    On several devices the state is replicated: replicas carry marks only and heal from each other, and a lost device
    costs no step. On one device it carries parity. The function is traced once; callbacks in it also run in withheld
    steps. Raises `BadInput` if it changes the structure, shapes or dtypes of its state.
    """
    more: dict[str, Any] = {"name": name, "droppable": droppable, "gate": gate, "steps": steps}
    if optimizer is not None:
        if limit is not None:
            raise BadInput("limit bounds a next state; with optimizer= the gradients are looked at instead.")
        workload: TrainStep = OptimizedStep(train_step, state, batch, optimizer, **more)
    else:
        workload = TrainStep(train_step, state, batch, limit=limit, **more)
    return Keeper(workload, pool, journal=journal, **options)
