"""Which sockets belong to which placement's communicators, and cutting those of a dead process.

On the CPU only the ring neighbours of a dead process get an exception; the others wait for good. A communicator opens
its sockets when it first runs, so the sockets that appear meanwhile are its own; shutting them down makes every
collective that waits on them raise. On other backends there is nothing of ours to cut (see `_standin.py`).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager


def sockets() -> dict[int, str]:
    """This process's open sockets: file descriptor to what the kernel calls it."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


class Cliques:
    """The sockets of each placement, by its members."""

    def __init__(self) -> None:
        self._of: dict[tuple[Hashable, ...], dict[int, str]] = {}

    @contextmanager
    def recording(self, members: tuple[Hashable, ...], ours: Callable[[], Iterable[int]]) -> Iterator[None]:
        """Note the sockets that appear inside the block, but for the descriptors that `ours` returns afterwards."""
        before = set(sockets().items())
        try:
            yield
        finally:
            mine = set(ours())
            new = {fd: name for fd, name in sockets().items() if (fd, name) not in before and fd not in mine}
            self._of.setdefault(members, {}).update(new)

    def cut(self, dead: Iterable[Hashable]) -> int:
        """Shut down the sockets of every placement with a dead member; returns how many there were."""
        gone, count = set(dead), 0
        for members in [m for m in self._of if gone & set(m)]:
            for fd, name in self._of.pop(members).items():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{fd}") == name:
                        with socket.socket(fileno=os.dup(fd)) as s:
                            s.shutdown(socket.SHUT_RDWR)
                        count += 1
        return count
