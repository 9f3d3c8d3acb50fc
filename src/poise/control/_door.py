"""Serving the governor's socket: every connection is a task, every line an item for its inbox."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from ._governor import Governor
from ._respond import Answer
from ._socket import LINE, bind, parse, same_user, socket_path

MOST_CONNECTIONS = 2000


@contextlib.asynccontextmanager
async def door(governor: Governor, journal: Path) -> AsyncIterator[None]:
    """Listen while the context lasts. Raises `BadInput` if another process governs this journal."""
    raw = bind(journal)
    listener = await anyio.abc.SocketListener.from_socket(raw)
    room = anyio.CapacityLimiter(MOST_CONNECTIONS)

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream, room:
            peer = stream.extra(anyio.abc.SocketAttribute.raw_socket)
            if same_user(peer):
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await _talk(governor, stream)

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(socket_path(journal))
            group.cancel_scope.cancel()


async def _talk(governor: Governor, stream: anyio.abc.SocketStream) -> None:
    lines = BufferedByteReceiveStream(stream)
    while True:
        try:
            line = await lines.receive_until(b"\n", LINE)
        except (anyio.EndOfStream, anyio.IncompleteRead):
            return
        except anyio.DelimiterNotFound:
            await _say(stream, Answer("refused", f"the line is longer than {LINE} bytes"))
            return
        report = parse(line)
        answer = Answer("refused", report) if isinstance(report, str) else await governor.report(report)
        await _say(stream, answer)


async def _say(stream: anyio.abc.SocketStream, answer: Answer) -> None:
    said = asdict(answer)
    said["events"] = len(answer.events)
    await stream.send(json.dumps(said).encode() + b"\n")
