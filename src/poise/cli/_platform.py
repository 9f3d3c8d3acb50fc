"""This machine's devices; on a CPU, virtual ones."""

from __future__ import annotations

import jax

from ..devices import Pool
from ..devices._pool import DEFAULT_SPARES
from ..errors import BadMesh

DEFAULT_ACTIVE = 4
"""Virtual devices that are active where a job does not say."""

MOST_VIRTUAL = 4096
"""More devices than that are not made on a CPU; each costs memory and threads."""


def cpu_devices(n: int) -> None:
    """Make n virtual CPU devices, if the backend has not started yet and nobody made more. Raises `BadMesh` for a
    number that only a typing error explains."""
    if n > MOST_VIRTUAL:
        raise BadMesh(f"{n} devices are more than a machine has; accepted are {MOST_VIRTUAL} at most.")
    try:
        if int(getattr(jax.config, "jax_num_cpu_devices")) < n:  # noqa: B009 (the type stubs do not know it)
            jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:
        return  # the backend runs already: what there is must do, and `pool` says so if it does not


def wanted(active: int | None, spares: int | None) -> int:
    """How many devices a job would like to have on a CPU."""
    return (DEFAULT_ACTIVE if active is None else active) + (DEFAULT_SPARES if spares is None else spares)


def pool(active: int | None, spares: int | None) -> Pool:
    """The pool for a job. Raises `BadMesh` if the machine has too few devices."""
    if jax.default_backend() == "cpu" and active is None:
        active = DEFAULT_ACTIVE
    devices = jax.devices()
    if spares is None:
        spares = min(DEFAULT_SPARES, len(devices) - (active or 1))
    active = len(devices) - spares if active is None else active
    if active + spares > len(devices) or active < 1 or spares < 0:
        raise BadMesh(
            f"{active} active devices and {spares} spares need {active + spares}; this process has {len(devices)} "
            f"({jax.default_backend()})."
        )
    return Pool(devices[: active + spares], spares)
