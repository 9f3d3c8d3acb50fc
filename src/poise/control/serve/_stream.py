"""Server-sent events: the parts of the page that have changed, whenever they have.

A client is never owed anything but the newest state, so a slow one costs no memory: while it does not read, nothing is
made for it, and after a while it is let go (the browser comes back by itself).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import anyio

from ._live import Live, View

MOST = 64
"""Open streams."""

PATIENCE = 20.0
"""Seconds that a client may take to read what was sent."""

REST = 0.25
"""Seconds between two messages to one client."""

Parts = Callable[[View, bool], dict[str, str]]
"""The page's parts by name, as HTML: all of them, or only those that progress changes."""


class Streams:
    """Counts who is listening."""

    def __init__(self, live: Live, parts: Parts) -> None:
        self.live, self.open = live, 0
        self._parts = parts
        self._made: tuple[View | None, dict[str, str]] = (None, {})

    def parts(self, view: View) -> dict[str, str]:
        """The parts of a view, made once for all clients."""
        last, made = self._made
        if last is None or last.version != view.version:
            whole = last is None or (last.told, last.governed) != (view.told, view.governed)
            self._made = view, {**made, **self._parts(view, whole)}
        return self._made[1]


class Stream:
    """One client, as an ASGI response."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send until the client leaves or stops reading."""
        self.streams.open += 1
        try:
            async with anyio.create_task_group() as group:

                async def leave() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    group.cancel_scope.cancel()

                group.start_soon(leave)
                await self._send(send)
                group.cancel_scope.cancel()
        finally:
            self.streams.open -= 1

    async def _send(self, send: Any) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sent: dict[str, bytes] = {}
        version, text = -1, "retry: 1000\n\n"
        while True:
            view = await self.streams.live.follow(version)
            version = view.version
            for name, html in self.streams.parts(view).items():
                mark = hashlib.blake2b(html.encode(), digest_size=8).digest()
                if sent.get(name) != mark:
                    sent[name] = mark
                    data = "\n".join(f"data: {line}" for line in html.splitlines())
                    text += f"event: {name}\n{data}\n\n"
            with anyio.move_on_after(PATIENCE) as scope:
                await send(
                    {"type": "http.response.body", "body": (text or ": still here\n\n").encode(), "more_body": True}
                )
            if scope.cancelled_caught:
                return
            text = ""
            await anyio.sleep(REST)
