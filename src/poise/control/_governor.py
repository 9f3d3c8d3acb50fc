"""The governor: one consumer that turns reports into orders, and owns the registry and the spares while it does.

Everything that wants something (the loop, hardware watchers, other processes, people) puts it into one inbox. The
consumer takes what is there, asks the pure rules (`_policy`, `_respond`), writes reports and what follows from them to
the journal in one transaction, and only then answers and acts. Hence:

- what was answered is in the journal; what was not may be sent again, and its number tells that it came twice;
- a spare is put aside by the event that names it, so nobody can be given it a second time;
- an order without an answer in the journal is carried out (again) after a crash; whoever carries it out knows its name.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from ..errors import PoiseError
from ..events import Decision, Done, Event, Fault, Mended, Ordered, Reported, RunFinished, RunStopped, Swapped
from ._journal import Journal
from ._policy import Limits, decide
from ._respond import Answer, answered, respond
from ._summary import Summary

BATCH = 1000
"""Items that share a transaction."""

INBOX = 10_000
"""Items that may wait; a source that sends more waits itself."""

CarryOut = Callable[[Ordered], Awaitable[tuple[bool, str]]]
"""Does what an order says, once for each name however often it is called; returns whether it was done, and a word."""


class GovernorGone(PoiseError):
    """The governor has ended (its journal could not be written, or it was told to); nothing more is decided."""

    def __init__(self) -> None:
        super().__init__("The governor has ended; its journal takes no more events.")


@dataclass
class _Item:
    what: Reported | Fault | list[Event]
    ready: anyio.Event = field(default_factory=anyio.Event)
    reply: Any = None
    error: BaseException | None = None


class Desk:
    """The consumer's books: the summary, the policy, and what the loop is about to use. No threads, no clock, no
    files."""

    def __init__(self, summary: Summary, limits: Limits) -> None:
        self.summary, self.limits = summary, limits
        self._held: dict[int, int] = {}

    def take(self, what: Reported | Fault | list[Event]) -> tuple[list[Event], Any]:
        """What goes into the journal, and the reply: an `Answer`, a `Decision`, or None."""
        match what:
            case Reported():
                answer = respond(self.summary, what, self.limits, frozenset(self._held))
                events = [what, *answer.events] if answer.outcome == "accepted" else []
                return self._add(events), answer
            case Fault():
                return [], self._decide(what)
            case _:
                out: list[Event] = []
                for event in what:
                    follows = answered(self.summary, event) if isinstance(event, Done) else []
                    out += self._add([event, *follows])
                    self._release(event)
                return out, None

    def _add(self, events: list[Event]) -> list[Event]:
        for event in events:
            self.summary.take(self.summary.last + 1, event)
        return events

    def _decide(self, fault: Fault) -> Decision:
        decision = decide(self.summary.registry.with_reserved, fault, self.limits)
        if decision.spare is not None and decision.slot is not None:
            self._held[decision.spare] = decision.slot
        return decision

    def _release(self, event: Event) -> None:
        if isinstance(event, Mended | RunStopped | RunFinished):
            self._held.clear()
        elif isinstance(event, Swapped):
            self._held = {spare: slot for spare, slot in self._held.items() if slot != event.slot}


class Governor:
    """The desk, its journal and its inbox, as a task group. `carry_out` is told every order; None: orders are answered
    by whoever reads the journal, through `tell(Done(...))`. `attend` is called, in the governor's thread, with the
    events of each batch once they are durable."""

    def __init__(
        self,
        journal: Journal,
        *,
        summary: Summary | None = None,
        limits: Limits | None = None,
        carry_out: CarryOut | None = None,
        attend: Callable[[list[Event]], None] | None = None,
    ) -> None:
        self.journal = journal
        self.desk = Desk(summary or Summary(run=journal.run), limits or Limits())
        self._carry_out, self._attend = carry_out, attend
        self._put, self._inbox = anyio.create_memory_object_stream[_Item](INBOX)
        self._order, self._orders = anyio.create_memory_object_stream[Ordered](math.inf)
        self._writer = anyio.CapacityLimiter(1)

    @property
    def summary(self) -> Summary:
        """Everything that is known of the run."""
        return self.desk.summary

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. Orders that the journal holds without an answer are given out first."""
        async with self._put, self._inbox, self._order, self._orders, anyio.create_task_group() as group:
            if self._carry_out is not None:
                for order in self.summary.registry.orders.values():
                    self._order.send_nowait(order)
                group.start_soon(self._execute, self._carry_out)
            group.start_soon(self._consume)
            task_status.started()

    async def report(self, report: Reported) -> Answer:
        """Returns once the report and what follows from it are durable (or it was refused)."""
        return await self._ask(report)

    async def tell(self, *events: Event) -> None:
        """Events of the loop, which happened whatever the governor thinks of them. Returns once they are durable."""
        await self._ask(list(events))

    async def decide(self, fault: Fault) -> Decision:
        """The policy's decision for a fault in the loop; a spare that it names is kept for the loop."""
        return await self._ask(fault)

    async def _ask(self, what: Reported | Fault | list[Event]) -> Any:
        item = _Item(what)
        try:
            await self._put.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise GovernorGone() from None
        await item.ready.wait()
        if item.error is not None:
            raise item.error
        return item.reply

    async def _consume(self) -> None:
        try:
            await self._work()
        finally:
            # Nobody waits for an answer that cannot come.
            while self._inbox.statistics().current_buffer_used:
                item = self._inbox.receive_nowait()
                item.error = GovernorGone()
                item.ready.set()
            self._inbox.close()  # whoever waits to put something in hears it as well

    async def _work(self) -> None:
        async for first in self._inbox:
            batch = [first]
            while len(batch) < BATCH and self._inbox.statistics().current_buffer_used:
                batch.append(self._inbox.receive_nowait())
            events: list[Event] = []
            try:
                for item in batch:
                    made, item.reply = self.desk.take(item.what)
                    events += made
                if events:
                    written = self.journal.append_all(events)
                    await anyio.to_thread.run_sync(written.result, limiter=self._writer)
            except Exception as error:
                # The desk is ahead of the journal now: nothing more is decided on it.
                for item in batch:
                    item.error = error
                    item.ready.set()
                raise
            if events and self._attend is not None:
                self._attend(events)
            for item in batch:
                item.ready.set()
            for event in events:
                if isinstance(event, Ordered) and self._carry_out is not None:
                    self._order.send_nowait(event)

    async def _execute(self, carry_out: CarryOut) -> None:
        async for order in self._orders:
            if order.order in self.summary.registry.orders:
                ok, detail = await carry_out(order)
                await self.tell(Done(order.order, ok, detail))
