"""Messages between processes: JSON and words over the standard library's connections, which authenticate both ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import numpy as np

Address = tuple[str, int]

TOGETHER = 512
"""Arrays per system call; the kernel takes 1024."""


def listen(host: str, key: bytes) -> Listener:
    """Listen on a free port of `host`."""
    return Listener((host, 0), authkey=key, backlog=64)


def accept(listener: Listener) -> Wire | None:
    """The next one who connects and has the key; None once the listener is closed."""
    while True:
        try:
            return Wire(listener.accept())
        except (EOFError, AuthenticationError, ConnectionError):
            continue  # a stranger without the key, or a peer that died while it shook hands
        except OSError:
            return None


def dial(address: Address, key: bytes) -> Wire:
    """Connect to somebody who listens. Raises OSError, EOFError or AuthenticationError."""
    return Wire(Client((address[0], int(address[1])), authkey=key))


class Wire:
    """One connection: any thread may say something, one thread hears.

    Words travel raw behind the message that announces how many they are, from the arrays where they lie into the array
    where they are wanted: a step's parity is the size of the state, and every copy of it is the step's time.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self.fileno = connection.fileno()
        with socket.socket(fileno=os.dup(self.fileno)) as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # short messages must not wait for each other

    def say(self, message: dict[str, Any], pieces: Sequence[np.ndarray] = ()) -> bool:
        """Send a message and perhaps the words of some arrays behind it; False if nobody is there any more."""
        try:
            with self._lock:
                self._connection.send_bytes(json.dumps(message).encode())
                self._write([piece.data.cast("B") for piece in pieces if piece.size])
        except (OSError, ValueError, TypeError):  # TypeError: closed by another thread meanwhile
            return False
        return True

    def hear(self) -> dict[str, Any] | None:
        """The next message, waiting for it; None at the end."""
        try:
            return json.loads(self._connection.recv_bytes())
        except (OSError, EOFError, ValueError, TypeError):
            return None

    def hear_into(self, words: np.ndarray) -> bool:
        """Fill an array with the words that a message announced; False if the connection ends before."""
        view = words.data.cast("B") if words.size else memoryview(b"")
        try:
            while view:
                count = os.readv(self._connection.fileno(), [view])
                if count == 0:
                    return False
                view = view[count:]
        except (OSError, ValueError, TypeError):
            return False
        return True

    def tear(self, message: dict[str, Any], pieces: Sequence[np.ndarray]) -> None:
        """Send the message and half of the words: for fault injection, right before this process dies."""
        with self._lock:
            self._connection.send_bytes(json.dumps(message).encode())
            raw = b"".join(piece.tobytes() for piece in pieces)
            self._write([memoryview(raw[: len(raw) // 2])])

    def _write(self, views: list[memoryview]) -> None:
        while views:
            count = os.writev(self._connection.fileno(), views[:TOGETHER])
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if views:
                views[0] = views[0][count:]

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):
            self._connection.close()
