"""Counting compilations: a swap's promise is that there are none."""

from __future__ import annotations

import threading
from collections import Counter
from functools import cache

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_by_thread: Counter[int] = Counter()


@cache
def _listen() -> None:
    def on_duration(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _EVENT:
            _by_thread[threading.get_ident()] += 1

    # JAX calls listeners in the thread that compiles, so re-warming in its own thread is counted apart.
    jax.monitoring.register_event_duration_secs_listener(on_duration)


def compiles() -> int:
    """How many programs the calling thread has compiled since the first call of this function in the process."""
    _listen()
    return _by_thread[threading.get_ident()]
