"""What poise keeps: anything that can propose and commit a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
from jax import Array
from jaxtyping import Int32

from ..gate import Gate
from ..kernels import Check

State = Any
Batch = Any
Proposal = Any


@dataclass(frozen=True)
class Traits:
    """How a workload wants to be guarded.

    - `gate`: what is bad in a batch.
    - `limit`: largest magnitude allowed in the next state; None: anything finite.
    - `newly`: count only values of the next state that were good before (a state may hold `best = inf`).
    - `droppable`: whether a batch may be left out; a time step of a simulation may not.
    - `tolerant`: the batch may hold bad values; they are filled, counted and committed (a dead sensor in a stream).
    - `in_place`: `commit` reads the old state (an optimizer), so it verifies what it reads once more.
    - `adamw`: names of the state's parts (parameters, first and second moments) that `commit` moves by AdamW; the
      workload then has `moves` (`keeper.Moves`), and where there are compiled kernels one pass mends, moves and seals.
    - `sealed`: the workload has `propose_sealed` (see `SealedWorkload`), for kernels that seal what they write.
    - `heal`: "parity", or "replica" for leaves that lie on several devices: these carry marks only and heal from a
      peer.
    - `x64`: whether the workload computes in 64 bits; scoped to its own calls, never a global setting.
    """

    gate: Gate = field(default_factory=Gate)
    limit: float | None = 1e6
    newly: bool = False
    droppable: bool = False
    tolerant: bool = False
    in_place: bool = False
    adamw: tuple[str, str, str] | None = None
    sealed: bool = False
    heal: str = "parity"
    x64: bool = False


class Workload(Protocol):
    """A run, cut into steps; it does not know who keeps it.

    The state, the batch and the proposal are pytrees of arrays of fixed structure, shape and dtype.
    """

    @property
    def name(self) -> str:
        """What reports and snapshot files call it."""
        ...

    @property
    def traits(self) -> Traits:
        """How it wants to be guarded."""
        ...

    def axes(self, n: int) -> dict[str, int]:
        """The mesh for n devices: axis names and sizes. Raises `BadMesh` if n does not suit the workload."""
        ...

    def init(self) -> State:
        """The state of step 0: numpy or JAX arrays of global shape."""
        ...

    def state_specs(self) -> Any:
        """A pytree of `PartitionSpec`, a prefix of the state."""
        ...

    def batch_specs(self) -> Any:
        """A pytree of `PartitionSpec`, a prefix of a batch."""
        ...

    def proposal_specs(self) -> Any:
        """A pytree of `PartitionSpec`, a prefix of the proposal."""
        ...

    def batch(self, index: int) -> Batch:
        """The batch of step `index`, the same one whenever it is asked for."""
        ...

    def propose(self, mesh: jax.sharding.Mesh, state: State, batch: Batch) -> tuple[Proposal, dict[str, Any]]:
        """What to commit, and metrics. Traced on global arrays over `mesh`; may communicate; sees only gated
        batches."""
        ...

    def commit(self, state: State, proposal: Proposal) -> State:
        """The next state. Traced on one device's shards; must not communicate."""
        ...


class SealedWorkload(Workload, Protocol):
    """The optional part of the protocol, for a workload with `Traits.sealed` that does not commit in place.

    It is asked in place of `propose` where every leaf is float32, large enough to be sealed by itself, and has parity;
    `propose` must then make the same state.
    """

    def propose_sealed(
        self, mesh: jax.sharding.Mesh, state: State, batch: Batch, seals: Any, bits: int
    ) -> tuple[State, dict[str, Any], Any, Int32[Array, " devices"], Check]:
        """The next state, metrics, the next state's seals, and per device how many values of the next state have
        magnitude bits of at least `bits` (`kernels.seal_counting`) and how many blocks of the old state are off
        (`kernels.check`, each field one number per device).

        Seals come and go as the state's tree with a `kernels.Seal` for each leaf, stacked over the devices along their
        first axis, that is with the spec `P(mesh.axis_names)`. A block must be checked when or after it is read for the
        last time, and what other devices are sent of it counts as read.
        """
        ...
