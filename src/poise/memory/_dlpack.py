"""DLPack capsules over a bare address that let go of the owner when the last user does."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ._adopt import CPU, Address

BFLOAT = 4
"""DLPack's code for bfloat16, which numpy has no name for."""


class _DLTensor(ctypes.Structure):
    """The start of `DLTensor` and of `DLManagedTensor` in dlpack.h, unchanged in all versions before 1.0."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def capsule(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype,
    device: tuple[int, int],
    owner: Any,
) -> Any:
    """A `dltensor` capsule; `strides` in bytes, None for compact; `device` is DLPack's kind and ordinal.

    numpy makes it, from an array that it never reads, and this changes where it says the memory is. So the deleter is
    compiled: safe in any thread, after the interpreter is gone, and while an exception is on its way (a deleter written
    in Python would swallow that).
    """
    bits16 = dtype.kind == "V"
    address = Address(pointer, shape, np.dtype(np.uint16) if bits16 else dtype, owner, False, strides)
    made = np.asarray(address).__dlpack__()
    if bits16 or device[0] != CPU:
        tensor = _DLTensor.from_address(_pointer(made, b"dltensor"))
        tensor.device_type, tensor.device_id = device
        if bits16:
            tensor.code = BFLOAT
    return made
