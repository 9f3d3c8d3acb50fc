"""Memory that this process frees stays with it: what XLA allocates anew in every step is then no fresh pages."""

from __future__ import annotations

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Numbers of glibc's `mallopt(3)`."""


def retain_freed() -> bool:
    """From now on, what this process frees is used again and not given back to the system. False: not with this C
    library.

    XLA's CPU backend allocates every result and temporary of a step. glibc maps blocks of megabytes from the system and
    unmaps them when they are freed, so that each step pays for fresh pages, several times what writing them takes.
    There is one arena from now on, since those of other threads are unmapped whenever they are empty. The process keeps
    the most that it ever used.

    The `poise` command does this for itself, a program of one's own calls it before its first computation. The
    environment can say the same: `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1000000000000 MALLOC_ARENA_MAX=1`.
    """
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return False
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, ValueError):  # no such name: musl, macOS
        return False
    return all([mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1), mallopt(M_ARENA_MAX, 1)])
