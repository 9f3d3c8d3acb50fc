"""Sends a member's generations to the spare's vault, off the step's path."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._wire import Address, Wire, dial

Words = Callable[[], Sequence[np.ndarray]]
"""Makes the arrays, of uint32, whose words are sent one behind the other."""


class Courier:
    """One connection to one vault. `acked` is the newest generation that is whole there, `alive` turns false when the
    vault is gone. `poke` is called after either changes."""

    def __init__(self, address: Address, key: bytes, epoch: int, slot: int, poke: Callable[[], None]) -> None:
        self.acked, self.alive = -1, True
        self.before: Callable[[Wire, dict[str, Any], Sequence[np.ndarray]], None] = lambda wire, message, pieces: None
        self._epoch, self._slot, self._poke = epoch, slot, poke
        self._queue: queue.SimpleQueue[tuple[str, int, int, Words] | None] = queue.SimpleQueue()
        self._wire: Wire | None = None
        threading.Thread(target=self._send, args=(address, key), name="poise-courier", daemon=True).start()

    def send(self, generation: int, words: Words) -> None:
        """Send the words of a generation when its turn comes; `words` is called in the courier's thread."""
        self._queue.put(("share", self._epoch, generation, words))

    def send_rebuild(self, epoch: int, generation: int, words: Words) -> None:
        """Send what rebuilds a lost shard, under the epoch that begins."""
        self._queue.put(("rebuild", epoch, generation, words))

    def close(self) -> None:
        """Send what is queued, then hang up."""
        self._queue.put(None)

    @property
    def descriptors(self) -> list[int]:
        """The connection's file descriptor."""
        return [] if self._wire is None else [self._wire.fileno]

    def _send(self, address: Address, key: bytes) -> None:
        try:
            self._wire = wire = dial(address, key)
        except Exception:  # it died before it was dialled: the launcher says so in its own time
            self._end()
            return
        threading.Thread(target=self._hear, args=(wire,), name="poise-courier", daemon=True).start()
        while (item := self._queue.get()) is not None:
            kind, epoch, generation, words = item
            pieces = words()
            message = {
                "kind": kind, "epoch": epoch, "generation": generation, "slot": self._slot,
                "words": sum(piece.size for piece in pieces),
            }  # fmt: skip
            self.before(wire, message, pieces)
            if not wire.say(message, pieces):
                break
        if item is not None:
            self._end()
        else:
            wire.close()

    def _hear(self, wire: Wire) -> None:
        while (message := wire.hear()) is not None:
            if message["epoch"] == self._epoch:
                self.acked = max(self.acked, int(message["whole"]))
                self._poke()
        self._end()

    def _end(self) -> None:
        self.alive = False
        self._poke()
