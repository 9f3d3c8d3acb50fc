"""The live line of a stream, on standard error where that is a terminal."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from ._stream import Following

WINDOW = 500
"""Frames that the shown percentiles are of."""


class Line:
    """Rewrites one line a few times a second."""

    def __init__(self, follow: Following) -> None:
        self._follow, self._console = follow, Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._due, self._then, self._frames = 0.0, perf_counter(), 0

    def __enter__(self) -> Line:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def show(self) -> None:
        """Draw it, if it is time to."""
        now = perf_counter()
        if now < self._due or not self._console.is_terminal:
            return
        f = self._follow
        rate = (f.count - self._frames) / max(1e-9, now - self._then)
        self._due, self._then, self._frames = now + 0.25, now, f.count
        p50, p99 = np.percentile(np.array(list(f.latency)[-WINDOW:] or [np.nan]) * 1e6, (50, 99))
        age = f.ages[-1] * 1e3 if f.ages else float("nan")
        notice = f" | {f.notices[-1].kind}" if f.notices else ""
        self._live.update(
            Text(
                f"frame {f.used[-1] if f.used else 0} | {rate:.0f}/s | age {age:.1f} ms | "
                f"{int((f.code != 0).sum())} failing | p50 {p50:.0f} µs p99 {p99:.0f} µs | "
                f"lost {f.frames.lost} torn {f.frames.torn}{notice}"
            ),
            refresh=True,
        )
