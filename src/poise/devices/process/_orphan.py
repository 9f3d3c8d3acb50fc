"""No process outlives the one that started it, however that one ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux); a stopped process dies too."""
    if not sys.platform.startswith("linux"):
        return
    before = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != before:  # it died in between
        os.kill(os.getpid(), signal.SIGKILL)
