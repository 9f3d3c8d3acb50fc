"""What a family of features is: columns with closed-form derivatives, ordered by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .._expr import Order


class Family(Protocol):
    """`count` features over `axes`; `level` (count,) in (0, 1] says how fine each is, for nested solves."""

    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def count(self) -> int: ...
    @property
    def level(self) -> np.ndarray: ...

    def columns(self, env: Mapping[Any, Any], order: Order) -> Any:
        """The derivative of every feature at the points of `env`: (n, count), float64."""
        ...


def compound(family: Family, env: Mapping[Any, Any], order: str) -> Any:
    """The Laplacian or the normal derivative, summed over the space axes; families with a shortcut do not call this."""
    total = 0.0
    for i, axis in enumerate(family.axes):
        if axis == "t":
            continue
        times = 2 if order == "lap" else 1
        part = family.columns(env, tuple(times if j == i else 0 for j in range(len(family.axes))))
        total = total + (part if order == "lap" else env["n", axis][:, None] * part)
    return total


def all_orders(dimension: int, index: Sequence[int]) -> tuple[int, ...]:
    """A tuple of derivative orders from a list of axis positions."""
    return tuple(list(index).count(i) for i in range(dimension))
