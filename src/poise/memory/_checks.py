"""What is looked at before a foreign pointer becomes an array; each refusal is one sentence."""

from __future__ import annotations

import ctypes
import errno
import operator
import platform
from functools import cache
from math import prod
from typing import Any

import jax
import ml_dtypes
import numpy as np

from ..errors import BadInput
from . import _cuda
from ._adopt import first_cpu, gpus
from ._layout import Layout

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DEVICE_ALIGN = 32
"""Bytes to which device memory must be aligned: a record, two 16-byte loads."""


def form(count: Any, of: Layout | Any) -> tuple[tuple[int, ...], np.dtype, Layout | None]:
    """Shape and dtype of the JAX array: rows of words for `count` records, or an array of shape `count` as it is."""
    if isinstance(of, Layout):
        n = whole(count, "The number of records")
        return (n, of.words), np.dtype(np.uint32), of
    try:
        dtype = np.dtype(of)
    except TypeError:
        raise BadInput(f"{of!r} is neither a Layout nor a dtype.") from None
    plain = dtype.kind in "biufc" or dtype == BFLOAT16
    if not plain or dtype.fields is not None or not dtype.isnative:
        raise BadInput(f"A lease holds booleans, integers, floats and complex numbers or records, not {dtype}.")
    if dtype.itemsize > (8 if dtype.kind == "c" else 4) and not jax.config.read("jax_enable_x64"):
        raise BadInput(f"JAX would not keep {dtype} as it is; accepted are 32-bit types, or jax_enable_x64.")
    sizes = count if isinstance(count, tuple | list) else (count,)
    return tuple(whole(n, "A size") for n in sizes), dtype, None


def whole(value: Any, what: str) -> int:
    """A size as an int. Raises `BadInput`."""
    try:
        n = operator.index(value)
    except TypeError:
        raise BadInput(f"{what} must be a whole number, not {value!r}.") from None
    if isinstance(value, bool | np.bool_) or n < 1 or n > 1 << 48:
        raise BadInput(f"{what} must be between 1 and 2^48, not {value!r}.")
    return n


def address(pointer: Any, align: int) -> int:
    """A pointer that is a number, not null, aligned. Raises `BadInput`."""
    try:
        p = operator.index(pointer)
    except TypeError:
        raise BadInput(f"A pointer must be a whole number, not {pointer!r}.") from None
    if p == 0:
        raise BadInput("The pointer is null.")
    if not 0 < p < 1 << 64:
        raise BadInput(f"The pointer {p:#x} is no address.")
    if p % align:
        raise BadInput(f"The pointer {p:#x} is misaligned: accepted are multiples of {align} bytes.")
    return p


_SIGPROCMASK = {"x86_64": 14, "AMD64": 14, "aarch64": 135, "riscv64": 135}


@cache
def _probe() -> Any:
    """Asks the kernel to read eight bytes: rt_sigprocmask refuses a wrong `how` only after it has read the set."""
    number = _SIGPROCMASK.get(platform.machine())
    if number is None:
        return lambda at: True
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]

    def readable(at: int) -> bool:
        call(number, -1, at, None, 8)
        return ctypes.get_errno() != errno.EFAULT

    return readable


def readable(pointer: int, nbytes: int) -> None:
    """Raises `BadInput` if the first or the last bytes of host memory cannot be read: a stale or a made-up pointer, or
    device memory, whose addresses the process holds but cannot read."""
    probe, last = _probe(), (pointer + nbytes - 1) // 8 * 8
    if last >= 1 << 64 or not probe(pointer) or not probe(last):
        raise BadInput(f"The {nbytes} bytes at {pointer:#x} are not (or no longer) this process's memory.")


def on_device(pointer: int, nbytes: int, device: jax.Device) -> None:
    """Raises `BadInput` if device memory is not the driver's, not on `device`, or shorter than said."""
    found = _cuda.where(pointer)
    if found is None:
        raise BadInput(f"The pointer {pointer:#x} is not (or no longer) device memory of this process.")
    ordinal, left = found
    if ordinal != device.local_hardware_id:
        raise BadInput(f"The pointer {pointer:#x} is on GPU {ordinal}, not on {device}.")
    if left < nbytes:
        raise BadInput(f"The memory at {pointer:#x} is too short: {left} bytes where {nbytes} are needed.")


def device_of(device: jax.Device | None, platform: str, pointer: int = 0) -> jax.Device:
    """The device that an array will be on: the one asked for, if it can be, or the one the memory is on."""
    if device is not None and device.platform != ("cpu" if platform == "cpu" else "gpu"):
        raise BadInput(
            f"This is {'host' if platform == 'cpu' else 'GPU'} memory; {device} cannot use it where it lies."
        )
    if device is not None:
        return device
    if platform == "cpu":
        return first_cpu()
    found = _cuda.where(pointer)
    for candidate in gpus() if found else ():
        if candidate.local_hardware_id == found[0]:  # type: ignore[index]
            return candidate
    raise BadInput(f"The pointer {pointer:#x} is not (or no longer) device memory that this process can use.")


def nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes of an array. Raises `BadInput` for more than an address space holds."""
    n = prod(shape) * dtype.itemsize
    if n > 1 << 48:
        raise BadInput(f"{n} bytes are more than an address space holds.")
    return n


def numpy_array(source: np.ndarray) -> tuple[int, tuple[int, ...], np.dtype, bool]:
    """Pointer, shape, dtype and read-only of a numpy array (its `__array_interface__` takes 30 µs for records)."""
    if not source.flags.c_contiguous:
        raise BadInput(f"The array's strides are {source.strides}; JAX takes compact ones only.")
    return source.ctypes.data, tuple(whole(n, "A size") for n in source.shape), source.dtype, not source.flags.writeable


def interface(source: Any, which: str) -> tuple[int, tuple[int, ...], np.dtype, bool, Any]:
    """Pointer, shape, dtype, read-only and stream of an `__array_interface__` or `__cuda_array_interface__`.

    Raises `BadInput` for one that is incomplete, or whose strides are not those of a compact array.
    """
    told = getattr(source, which)
    try:
        pointer, readonly = told["data"]
        shape, dtype = tuple(told["shape"]), np.dtype(told["typestr"])
        descr = told.get("descr")
        mask, stream = told.get("mask"), told.get("stream")
        strides = None if told.get("strides") is None else tuple(told["strides"])
    except Exception as error:
        raise BadInput(f"The {which} is incomplete: {type(error).__name__}: {error}.") from None
    if dtype.kind == "V" and descr:
        try:
            dtype = np.dtype([tuple(d) for d in descr])
        except Exception as error:
            raise BadInput(f"The {which} describes no record: {error}.") from None
    if mask is not None:
        raise BadInput(f"The {which} has a mask; accepted are plain arrays.")
    shape = tuple(whole(n, "A size") for n in shape)
    if strides is not None:
        compact = tuple(dtype.itemsize * prod(shape[i + 1 :]) for i in range(len(shape)))
        # Along an axis of length 1 the stride means nothing.
        if len(strides) != len(shape) or any(s != c for s, c, n in zip(strides, compact, shape, strict=True) if n != 1):
            raise BadInput(f"The array's strides are {strides}; JAX takes compact ones only, {compact}.")
    return pointer, shape, dtype, bool(readonly), stream
