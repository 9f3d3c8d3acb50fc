"""A low-rate sweep over idle or frozen state: memory that no step reads is verified by nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from ..errors import BadInput
from ._report import SealReport
from ._sealed import Sealed, scrub


class Scrub:
    """Sweeps in a thread of its own and calls `found` with every report that is not clean.

    A sweep takes about `seconds`: the pieces are spread over it. `sealed` is asked for anew before each sweep, so that
    a state that was replaced meanwhile is not held. Use as a context manager, or call `close`, which raises what ended
    the sweeps early: an exception of `sealed` or `found`, or a state that was donated while it was being read.
    """

    def __init__(self, sealed: Callable[[], Sealed], seconds: float, found: Callable[[SealReport], None]) -> None:
        if not 0 < seconds <= threading.TIMEOUT_MAX:
            raise BadInput(f"A sweep every {seconds} seconds is impossible; accepted is a positive, finite number.")
        self._sealed, self._seconds, self._found = sealed, seconds, found
        self._stop = threading.Event()
        self.sweeps = 0
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="poise-scrub", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._sweep()
        except Exception as error:  # a thread has nobody to raise to; `close` has
            self._failure = error

    def _sweep(self) -> None:
        while not self._stop.is_set():
            state = self._sealed()
            pause = self._seconds / max(1, len(state.groups))
            for report in scrub(state):
                if not report.ok:
                    self._found(report)
                if self._stop.wait(pause):
                    return
            self.sweeps += 1

    def close(self) -> None:
        """Stop after the piece that is being verified; `found` may call this too."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure

    def __enter__(self) -> Scrub:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
