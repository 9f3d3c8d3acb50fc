"""Serving the governor's socket: every connection is a task, every line an item for its inbox."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
from anyio.streams.buffered import BufferedByteReceiveStream

from ..events import Event
from ._governor import CarryOut, Governor
from ._journal import Journal
from ._policy import Limits
from ._read import Reader
from ._respond import Answer
from ._socket import LINE, bind, parse, same_user, socket_path

MOST_CONNECTIONS = 2000


@contextlib.asynccontextmanager
async def door(governor: Governor, journal: Path, raw: socket.socket) -> AsyncIterator[None]:
    """Listen on `raw` (made by `bind`) while the context lasts; the socket's file goes with it."""
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


@contextlib.asynccontextmanager
async def govern(
    path: Path, carry_out: CarryOut, *, limits: Limits | None = None, begin: list[Event] | None = None
) -> AsyncIterator[Governor]:
    """A governor of its own (no loop beside it) as long as the context lasts, going on where the journal ends.

    `carry_out` is told every order that the journal holds without an answer, then every new one. `begin` are the first
    events of a journal that holds none yet.
    """
    # Before any task group, so that a refusal is itself and not a group of one.
    raw = bind(path)
    try:
        # Not in the loop's thread: opening a long journal may take a moment.
        journal = await anyio.to_thread.run_sync(lambda: Journal(path, again=True))
    except BaseException:
        raw.close()
        os.unlink(socket_path(path))
        raise
    try:
        reader = await anyio.to_thread.run_sync(Reader, path)
        known = reader.summary if reader.summary.run == journal.run else None
        governor = Governor(journal, summary=known, limits=limits, carry_out=carry_out)
        async with anyio.create_task_group() as group:
            await group.start(governor.run)
            if known is None and begin:
                await governor.tell(*begin)
            async with door(governor, path, raw):
                yield governor
            group.cancel_scope.cancel()
    finally:
        await anyio.to_thread.run_sync(journal.close)


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
