"""Waiting for a word in shared memory to change, and waking those who wait: Linux's futex, between processes."""

from __future__ import annotations

import ctypes
import platform
import threading
from functools import cache
from typing import Any

from ..errors import BadInput

_FUTEX = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "riscv64": 98}
_WAIT, _WAKE = 0, 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@cache
def _futex() -> Any:
    number = _FUTEX.get(platform.machine())
    if number is None:
        raise BadInput(f"Live streams need Linux on x86-64, AArch64 or RISC-V, not {platform.machine()}.")
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = [
        ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_uint32,
    ]  # fmt: skip
    return lambda address, operation, value, timeout: call(number, address, operation, value, timeout, None, 0)


def wait(address: int, seen: int, seconds: float) -> None:
    """Return when the word at `address` is not `seen` any more, or after `seconds`, or for no reason."""
    limit = _Timespec(int(seconds), int(seconds % 1 * 1e9))
    _futex()(address, _WAIT, seen, ctypes.addressof(limit))


def wake(address: int) -> None:
    """Wake everybody who waits at `address`, in every process."""
    _futex()(address, _WAKE, 0x7FFFFFFF, None)


_lock = threading.Lock()


def fence() -> None:
    """Nothing written or read before is seen after what follows: an uncontended lock is an atomic exchange, which is a
    full barrier on x86-64 (where loads and stores keep their own order anyway) and acquire with release elsewhere."""
    with _lock:
        pass
