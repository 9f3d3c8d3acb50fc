"""A governor beside a loop: in a thread of its own, so that it hears while the loop computes.

The loop's thread gives its events and questions to the governor and waits for the answers (about a tenth of a
millisecond, and only when something happened; progress is not waited for). Orders come back through a queue that the
loop's thread looks at between two steps.
"""

from __future__ import annotations

import queue
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

from ..errors import need
from ..events import Decision, DeviceChanged, Event, Fault, Ordered, Progress
from ._journal import Journal
from ._policy import Limits
from ._registry import Registry


class Office:
    """Starts a governor for `journal` and its socket, and a hardware watcher if there is NVML.

    Not for several threads: the loop's own uses it. Raises `Missing` without anyio, `BadInput` if the journal is
    governed already.
    """

    def __init__(self, journal: Journal, limits: Limits, devices: dict[str, int] | None = None) -> None:
        try:
            import anyio
            import anyio.from_thread
        except ImportError as error:
            raise need("anyio", "serve") from error
        from ._governor import Governor
        from ._socket import bind

        self._anyio: Any = anyio
        self._journal = journal
        self._orders: queue.SimpleQueue[Ordered] = queue.SimpleQueue()
        self.attention = False
        self._raw = bind(journal.path)
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal())
        try:
            self._governor: Governor = self._portal.call(partial(Governor, journal, limits=limits, attend=self._attend))
            self._task, self._stop = self._portal.start_task(self._work, devices or {})
        except BaseException:
            self._stack.close()
            raise

    @property
    def registry(self) -> Registry:
        """As it is now."""
        return self._governor.summary.registry

    def tell(self, event: Event) -> Registry:
        """Journal an event of the loop; returns once it is durable, `Progress` apart."""
        if isinstance(event, Progress):
            self._portal.start_task_soon(self._governor.tell, event)
        else:
            self._portal.call(self._governor.tell, event)
        return self.registry

    def decide(self, fault: Fault) -> Decision:
        """What to do about a fault."""
        return self._portal.call(self._governor.decide, fault)

    def next_order(self, *, wait: bool = False) -> Ordered | None:
        """An order for the loop, or None; answer it with `tell(Done(...))`."""
        self.attention = False
        try:
            return self._orders.get(block=wait)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the governor; the journal stays open."""
        if self._task.done():
            self._stack.close()
            return
        self._portal.call(self._stop.set)
        try:
            self._task.result()
        finally:
            self._stack.close()

    def _attend(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Ordered):
                self._orders.put(event)
        # A spare that is no longer one must leave the loop's pool as well.
        if any(isinstance(e, Ordered | DeviceChanged) for e in events):
            self.attention = True

    async def _work(self, devices: dict[str, int], *, task_status: Any) -> None:
        from ._door import door
        from ._hardware import watch

        stop = self._anyio.Event()
        async with self._anyio.create_task_group() as group:
            await group.start(self._governor.run)
            async with door(self._governor, self._journal.path, self._raw):
                group.start_soon(watch, self._governor.report, devices, _say)
                task_status.started(stop)
                await stop.wait()
            group.cancel_scope.cancel()


def _say(sentence: str) -> None:
    print(f"poise: {sentence}", file=sys.stderr)
