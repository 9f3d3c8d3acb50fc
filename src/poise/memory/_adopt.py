"""The one place that hands foreign memory to JAX: a DLPack capsule becomes an array on a device, and nothing moves."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
from jax import Array
from jax._src.lib import jaxlib_extension_version
from jaxlib import _jax  # type: ignore[reportAttributeAccessIssue]

from ..errors import BadInput

CPU, CUDA = 1, 2
"""DLPack's numbers for kinds of device."""

# JAX's own from_dlpack asks the same.
_TAKES_KIND = jaxlib_extension_version >= 467


def adopt(capsule: Any, device: jax.Device, stream: int | None = None) -> Array:
    """An array over the capsule's memory. The public `jax.dlpack.from_dlpack` takes two to six times as long, and on a
    CPU cannot name a device; both call this function of jaxlib, whose arguments grew by one after 0.10.

    Raises `BadInput` if JAX would have to copy or cannot represent it.
    """
    kind = (CPU if device.platform == "cpu" else CUDA,) if _TAKES_KIND else ()
    try:
        return _jax.dlpack_managed_tensor_to_buffer(capsule, device, stream, False, *kind)
    except Exception as error:
        raise BadInput(f"JAX cannot use this memory where it lies: {str(error).splitlines()[0]}") from error


@cache
def first_cpu() -> jax.Device:
    """The device of host memory whose user named none."""
    return jax.devices("cpu")[0]


@cache
def gpus() -> list[jax.Device]:
    """This process's GPUs."""
    return jax.devices("gpu")


def hold(array: Array) -> Any:
    """Something that, while it lives, keeps `array` from being donated: PJRT refuses to give up a buffer that somebody
    outside may look at. (What `array.__dlpack__()` returns, without its questions.)"""
    return _jax.buffer_to_dlpack_managed_tensor(array, stream=None)


class Address:
    """Host memory by address, as numpy takes it: the array that numpy makes of this keeps it, and it keeps the
    owner."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        owner: Any,
        readonly: bool,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (pointer, readonly),
            "strides": strides,
        }
        self.owner = owner


def host_array(pointer: int, shape: tuple[int, ...], dtype: np.dtype, owner: Any, *, readonly: bool) -> np.ndarray:
    """A numpy array over host memory at `pointer`, which keeps `owner` alive."""
    if dtype.kind != "V":
        return np.asarray(Address(pointer, shape, dtype, owner, readonly))
    raw = np.asarray(Address(pointer, (*shape, dtype.itemsize), np.dtype(np.uint8), owner, readonly))
    return raw.view(dtype)[..., 0]
