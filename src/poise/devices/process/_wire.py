"""Messages between processes: JSON and bytes over the standard library's connections, which authenticate both ends."""

from __future__ import annotations

import contextlib
import json
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

Address = tuple[str, int]


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
    """One connection: any thread may say something, one thread hears."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self.fileno = connection.fileno()

    def say(self, message: dict[str, Any], payload: Any = None) -> bool:
        """Send a message and perhaps bytes behind it; False if nobody is there any more."""
        try:
            with self._lock:
                self._connection.send_bytes(json.dumps(message).encode())
                if payload is not None:
                    self._connection.send_bytes(payload)
        except (OSError, ValueError, TypeError):  # TypeError: closed by another thread meanwhile
            return False
        return True

    def hear(self) -> dict[str, Any] | None:
        """The next message, waiting for it; None at the end."""
        try:
            return json.loads(self._connection.recv_bytes())
        except (OSError, EOFError, ValueError, TypeError):
            return None

    def hear_bytes(self) -> bytes | None:
        """The bytes that a message announced; None at the end."""
        try:
            return self._connection.recv_bytes()
        except (OSError, EOFError, ValueError, TypeError):
            return None

    def tear(self, message: dict[str, Any], payload: bytes) -> None:
        """Send the message and half of its bytes: for fault injection, right before this process dies."""
        import os
        import struct

        with self._lock:
            self._connection.send_bytes(json.dumps(message).encode())
            os.write(self.fileno, struct.pack("!i", len(payload)) + payload[: len(payload) // 2])

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):
            self._connection.close()
