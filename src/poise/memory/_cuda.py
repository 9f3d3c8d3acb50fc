"""What leases need of the CUDA driver: whose a pointer is, handles from other processes, order between streams."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

from ..errors import BadInput

HANDLE_BYTES = 64
_MEMORY_TYPE, _ORDINAL, _START, _SIZE = 2, 9, 11, 12  # CU_POINTER_ATTRIBUTE_*
_DEVICE = 2  # CU_MEMORYTYPE_DEVICE
_LAZY_PEER = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


@cache
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise BadInput("There is no CUDA driver here; accepted is host memory.") from None
    driver.cuInit(0)
    return driver


def _call(name: str, *args: Any) -> None:
    status = getattr(_driver(), name)(*args)
    if status != 0:
        said = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(said))
        reason = said.value.decode() if said.value else str(status)
        raise BadInput(f"The CUDA driver refuses {name}: {reason}.")


class _Context:
    """A device's primary context (the one that JAX uses), made current for a few calls."""

    def __init__(self, ordinal: int) -> None:
        self.device = ctypes.c_int()
        _call("cuDeviceGet", ctypes.byref(self.device), ordinal)

    def __enter__(self) -> None:
        context = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        _call("cuCtxPushCurrent_v2", context)

    def __exit__(self, *_: object) -> None:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        _call("cuDevicePrimaryCtxRelease_v2", self.device)


class _Where(ctypes.Structure):
    """Where the driver puts what it knows of a pointer."""

    _fields_ = [
        ("kind", ctypes.c_uint32), ("ordinal", ctypes.c_int32), ("start", ctypes.c_uint64), ("size", ctypes.c_uint64),
    ]  # fmt: skip


_ASKED = (ctypes.c_uint32 * 4)(_MEMORY_TYPE, _ORDINAL, _START, _SIZE)


def where(pointer: int) -> tuple[int, int] | None:
    """The device that a pointer belongs to, and how many bytes of its allocation lie from there on; None if the driver
    does not know it as device memory (the host's, or freed)."""
    found = _Where()
    base = ctypes.addressof(found)
    places = (ctypes.c_void_p * 4)(base, base + 4, base + 8, base + 16)
    status = _driver().cuPointerGetAttributes(4, _ASKED, places, ctypes.c_uint64(pointer))
    if status or found.kind != _DEVICE:
        return None
    return found.ordinal, found.start + found.size - pointer


def wait_for(stream: int, consumer: int | None, ordinal: int) -> None:
    """Let `consumer` (a stream, or None: the host) wait for what `stream` has been given so far."""
    with _Context(ordinal):
        if consumer is None:
            _call("cuStreamSynchronize", ctypes.c_void_p(stream))
            return
        event = ctypes.c_void_p()
        _call("cuEventCreate", ctypes.byref(event), 2)  # no timing
        _call("cuEventRecord", event, ctypes.c_void_p(stream))
        _call("cuStreamWaitEvent", ctypes.c_void_p(consumer), event, 0)
        _call("cuEventDestroy_v2", event)


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * HANDLE_BYTES)]


class IpcMemory:
    """Another process's device memory, open in this one until nobody uses it any more.

    `handle`: 64 bytes that the other process got from `cudaIpcGetMemHandle`. Raises `BadInput` if it is not a handle,
    or its process is gone, or it is this process's own.
    """

    def __init__(self, handle: bytes, ordinal: int) -> None:
        if not isinstance(handle, bytes) or len(handle) != HANDLE_BYTES:
            raise BadInput(f"A CUDA IPC handle is {HANDLE_BYTES} bytes, as cudaIpcGetMemHandle gives them.")
        raw, at = _Handle(), ctypes.c_uint64()
        ctypes.memmove(ctypes.byref(raw), handle, HANDLE_BYTES)
        with _Context(ordinal):
            open_handle = _driver().cuIpcOpenMemHandle_v2
            open_handle.argtypes = [ctypes.c_void_p, _Handle, ctypes.c_uint]
            _call("cuIpcOpenMemHandle_v2", ctypes.byref(at), raw, _LAZY_PEER)
        self.pointer, self.ordinal = at.value, ordinal
        # JAX's arrays may outlive the lease: the mapping goes when the last of them does, and never after the exit.
        weakref.finalize(self, _close, at.value, ordinal).atexit = False


def _close(pointer: int, ordinal: int) -> None:
    with _Context(ordinal):
        _driver().cuIpcCloseMemHandle(ctypes.c_uint64(pointer))


def ipc_handle(pointer: int, ordinal: int) -> bytes:
    """The handle that another process opens this process's device memory with. `pointer` must begin an allocation."""
    raw = _Handle()
    with _Context(ordinal):
        _call("cuIpcGetMemHandle", ctypes.byref(raw), ctypes.c_uint64(pointer))
    return ctypes.string_at(ctypes.byref(raw), HANDLE_BYTES)
