"""Somebody else's array as one named weight."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadInput
from ..memory import Lease
from ._config import LLAMA3_8B, Config
from ._names import shape_of


def adapt(name: str, array: Any, config: Config | None = None) -> jax.Array:
    """One named weight of a checkpoint as a JAX array, checked against the model's shape (Llama-3-8B if none is given).

    A JAX array comes back as it is, a lease as the array that it is, anything with DLPack (a CuPy or torch tensor on a
    device of JAX's) as a view of the same memory, and a numpy array on the default device. Raises `BadInput` for an
    unknown name, a wrong shape, or what holds no floating-point numbers."""
    if isinstance(array, Lease):
        array = array.array
    want = shape_of(name, LLAMA3_8B if config is None else config)
    got = getattr(array, "shape", None)
    if got is None or tuple(got) != want:
        raise BadInput(f"{name!r} has shape {list(want)}, not {'none' if got is None else list(got)}.")
    if isinstance(array, jax.Array):
        out = array
    elif isinstance(array, np.ndarray):
        out = jnp.asarray(array)
    elif hasattr(array, "__dlpack__"):
        out = jax.dlpack.from_dlpack(array, copy=False)
    else:
        raise BadInput(f"{name!r} is {type(array).__name__}; accepted are JAX and numpy arrays and DLPack's.")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise BadInput(f"{name!r} holds {out.dtype}; accepted are floating-point numbers.")
    return out
