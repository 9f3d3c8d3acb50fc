"""A small kept run with faults, shared by the keeper's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from poise import Gate, Keeper, Pool, Traits
from poise.events import Event
from poise.faults import Injector, Strike, parse_script


class Momentum:
    """A workload that commits in place: w and m sharded over the devices, one global gradient per step."""

    name = "momentum"
    steps = 24

    def __init__(self, n: int = 4096, droppable: bool = True) -> None:
        self.n = n
        self.traits = Traits(gate=Gate(), in_place=True, droppable=droppable)

    def axes(self, n: int) -> dict[str, int]:
        return {"d": n}

    def init(self) -> Any:
        w = np.linspace(-1.0, 1.0, self.n, dtype=np.float32)
        return {"w": w, "m": np.zeros_like(w)}

    def state_specs(self) -> Any:
        return P("d")

    def batch_specs(self) -> Any:
        return P("d")

    def proposal_specs(self) -> Any:
        return P("d")

    def batch(self, index: int) -> Any:
        return {"target": np.random.default_rng(index).normal(size=self.n).astype(np.float32)}

    def propose(self, mesh: Any, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        def local(w: Any, target: Any) -> tuple[Any, Any]:
            g = w - target
            return g, lax.psum((g * g).sum(), "d")

        g, loss = jax.shard_map(local, mesh=mesh, in_specs=(P("d"), P("d")), out_specs=(P("d"), P()))(
            state["w"], batch["target"]
        )
        return {"g": g}, {"loss": loss}

    def commit(self, state: Any, proposal: Any) -> Any:
        m = 0.9 * state["m"] + proposal["g"]
        return {"w": state["w"] - 0.05 * m, "m": m}


class Run:
    """What a run left behind."""

    def __init__(
        self, strikes: Sequence[Strike], events: Sequence[Event], known: dict[int, str], keeper: Keeper
    ) -> None:
        self.strikes, self.events, self.known = list(strikes), list(events), known
        self.fingerprint = known[max(known)]
        self.keeper = keeper

    def seen(self, kind: type[Event]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


def run(
    workload: Any,
    script: Sequence[dict[str, Any]] = (),
    *,
    active: int = 4,
    spares: int = 0,
    steps: int | None = None,
    clean: Run | None = None,
    seed: int = 0,
    **options: Any,
) -> Run:
    """Keep `workload`, struck by `script`; a run without one records the fingerprint of every step."""
    events: list[Event] = []
    pool = Pool(jax.devices()[: active + spares], spares)
    known: dict[int, str] = {} if clean is None else clean.known
    mine: dict[int, str] = {}
    last = workload.steps if steps is None else steps
    with Keeper(workload, pool, listen=[events.append], **options) as keeper:
        injector = Injector(keeper.loop, parse_script({"fault": list(script)}), known.get, seed)
        keeper.listeners.append(injector.hear)
        for index in range(keeper.settled, last):
            if not script and clean is None:
                keeper.flush()
                mine[index] = keeper.fingerprint()
            injector.before(index)
            keeper.step(injector.batch(index))
            injector.after(index)
        mine[last] = keeper.fingerprint()
    return Run(injector.strikes, events, mine, keeper)
