"""Child processes: started, their words logged, their deaths known in milliseconds, and none left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import PoiseError

Ended = Callable[[int], None]


class Child:
    """One child and its log. `ended(status)` is called, in a thread of its own, as soon as it is dead.

    Start children from the main thread: the kernel kills them when the thread that made them ends.
    """

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path, ended: Ended) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self.pid = log, -1
        self._tail: deque[str] = deque(maxlen=40)
        self._heard = threading.Condition()
        self._dumped = False
        # A session of its own: Ctrl-C reaches the parent alone, which ends its children itself.
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, text=True, errors="replace",
        )  # fmt: skip
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name="poise-log", daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, args=(ended,), name="poise-wait", daemon=True).start()

    def line(self, text: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()

    def heard(self, text: str, seconds: float) -> bool:
        """Wait until it has said a line that begins with `text`; False if it ends or the time is up first."""
        with self._heard:
            self._heard.wait_for(lambda: any(t.startswith(text) for t in self._tail) or not self.alive, seconds)
            return any(t.startswith(text) for t in self._tail)

    @property
    def alive(self) -> bool:
        """Whether it runs or is stopped."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """What it said last that is not empty, for the sentence about its end."""
        self._reader.join(1.0)
        lines = [t.strip() for t in self._tail if t.strip()]
        return lines[-1] if lines else "it said nothing"

    def dump(self, seconds: float) -> bool:
        """Have it write its threads' stacks to its log, waking it if it is stopped; whether it did in time."""
        self.signal(signal.SIGUSR1)
        self.signal(signal.SIGCONT)
        with self._heard:
            return self._heard.wait_for(lambda: self._dumped or not self.alive, seconds)

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it and wait for that."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join(5.0)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with open(self.log, "a") as log, self._process.stdout as lines:
            for text in lines:
                log.write(text)
                log.flush()
                with self._heard:
                    self._tail.append(text)
                    # The head of each thread's stack in what faulthandler writes.
                    self._dumped = self._dumped or "(most recent call first)" in text
                    self._heard.notify_all()

    def _wait(self, ended: Ended) -> None:
        status = self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with self._heard:
            self._heard.notify_all()
        ended(status)


def how(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now."""
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def start_coordinator(
    seats: int, patience: float, log: Path, ended: Ended, fixed: str | None = None
) -> tuple[Child, str]:
    """A coordinator in a process of its own, and its address (`fixed`, or a free port of this host).

    Raises `PoiseError` if it cannot be started.
    """
    child: Child | None = None
    for _ in range(1 if fixed else 3):  # somebody else may take the free port first
        address = fixed or f"127.0.0.1:{free_port()}"
        live = threading.Event()
        command = [sys.executable, "-m", "poise.devices.process._coordinator", address, str(seats), str(patience)]
        child = Child(
            command, dict(os.environ), log, lambda status, live=live: ended(status) if live.is_set() else None
        )
        if child.heard("serving", 60.0):
            live.set()
            return child, address
        child.kill()
    raise PoiseError(f"The coordinator cannot be started: {child.last_words if child else ''}")
