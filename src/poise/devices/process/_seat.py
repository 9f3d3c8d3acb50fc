"""A process's seat in JAX's distributed runtime, and the few private names that this needs.

The coordinator lives in a process of its own (`_coordinator.py`), since all abort within 0.2 s where it dies with a
worker. Public `jax.distributed.initialize` starts it inside process 0; hence the private names, all in `_private`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...errors import BadInput, PoiseError


class Dropped(PoiseError):
    """This version of JAX lacks a private name that runs over several processes need."""


def _private() -> tuple[Any, Any]:
    """The runtime module of jaxlib and JAX's record of the distributed state. Raises `Dropped` in one sentence."""
    import jax

    try:
        from jax._src import distributed
        from jax._src.lib import _jax

        if not hasattr(distributed.global_state, "client"):
            raise AttributeError("global_state.client")
        for name in ("get_distributed_runtime_service", "get_distributed_runtime_client"):
            getattr(_jax, name)
    except (ImportError, AttributeError) as error:
        raise Dropped(
            f"JAX {jax.__version__} no longer has {error.name or error} of its distributed runtime, which runs over "
            "several processes need; tested are 0.10.2 and 0.11.2."
        ) from error
    return _jax, distributed.global_state


def serve(address: str, seats: int, patience: float) -> Any:
    """Start the coordination service at `host:port`; keep the returned object. `patience`: heartbeat seconds."""
    runtime, _ = _private()
    return runtime.get_distributed_runtime_service(
        address, seats, heartbeat_timeout=int(patience), shutdown_timeout=5, recoverable=True
    )


def connect(address: str, seat: int, patience: float) -> Any:
    """A connected client in `seat`; whoever sat there before is stale from now on."""
    runtime, _ = _private()
    client = runtime.get_distributed_runtime_client(
        address, seat, init_timeout=120, heartbeat_timeout=int(patience), shutdown_timeout=5,
        shutdown_on_destruction=False, use_compression=False,
    )  # fmt: skip
    client.connect()
    return client


def join(address: str, seat: int, seats: int, patience: float, incarnation: Callable[[Any], int]) -> Any:
    """Take `seat` of `seats` before the backend starts, and make JAX use it; returns the client.

    `incarnation(client)` says how many have sat here before. Seat 0 puts the topology of all together, and would find
    its predecessor's.
    """
    import jax

    _, state = _private()
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    state.process_id, state.num_processes, state.coordinator_address = seat, seats, address
    state.client = connect(address, seat, patience)
    if incarnation(state.client) > 0 and seat == 0:
        for name in ("cpu", "gpu", "cuda"):
            state.client.key_value_delete(f"{name}:global_topology/{name}")
    return state.client


def find_cluster() -> tuple[str, int, int]:
    """Coordinator's address, number of processes and this one's id, from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
    JAX_PROCESS_ID, or as JAX's cluster detection has them. Raises `BadInput` where nobody says."""
    from jax._src.clusters import ClusterEnv

    address, count, number = (
        os.environ.get(f"JAX_{name}") for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
    )
    if address is None or count is None or number is None:
        address, count, number, _ = ClusterEnv.auto_detect_unset_distributed_params(
            address, None if count is None else int(count), None if number is None else int(number), None, None, 300
        )
    if address is None or count is None or number is None:
        raise BadInput(
            "poise worker needs a scheduler that JAX knows (SLURM, Kubernetes, Open MPI), or JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES and JAX_PROCESS_ID; on one machine use poise launch."
        )
    return address, int(count), int(number)


def learn_incarnations(devices: list[Any]) -> None:
    """Tell this process the incarnations of the others: without it, a survivor on a GPU hangs for good (barrier-like:
    every process with one of `devices` calls it)."""
    _, state = _private()
    from jax.experimental import multihost_utils

    multihost_utils._live_devices(state.client, devices)
