"""What `step` returns: a step's metrics, right whatever happened to its first attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Metrics(Mapping[str, Any]):
    """The metrics of one step. Looking at them waits until the step is committed, replays included; not looking costs
    nothing, so that the host can run ahead."""

    def __init__(self, step: int, wait: Callable[[], None]) -> None:
        self.step = step
        self._wait = wait
        self._values: dict[str, Any] | None = None

    def fill(self, values: dict[str, Any]) -> None:
        """The values of the committed attempt."""
        self._values = values

    def moved(self, wait: Callable[[], None]) -> None:
        """Another loop will commit the step."""
        self._wait = wait

    def _get(self) -> dict[str, Any]:
        if self._values is None:
            self._wait()
        return self._values or {}

    def __getitem__(self, key: str) -> Any:
        return self._get()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._get())

    def __len__(self) -> int:
        return len(self._get())

    def __repr__(self) -> str:
        return f"Metrics(step={self.step}, {'in flight' if self._values is None else self._values})"
