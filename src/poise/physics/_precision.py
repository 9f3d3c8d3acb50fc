"""float64 for one computation, never for the user's program.

JAX's default precision is a process-wide switch; a solver that flips it on import changes what every other module
computes. Everything in `poise.physics` that needs double precision runs inside `double()`, and what it hands back
across the edge is a NumPy array, so no float64 JAX array leaks into a float32 program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import jax

P = ParamSpec("P")
T = TypeVar("T")


def double() -> AbstractContextManager[Any]:
    """A context in which new JAX arrays are float64 by default (thread-local; restored on exit)."""
    return jax.enable_x64(True)


def in_double(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run inside `double()`."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with double():
            return function(*args, **kwargs)

    return wrapped
