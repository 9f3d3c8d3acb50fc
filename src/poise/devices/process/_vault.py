"""XOR parity of the members' shards in a spare's host memory, generation by generation.

Every member sends the words of each generation of its shard; the spare XORs them as they come. A generation is whole
once every slot has sent it; only then the one before is forgotten and the members are told that they may forget theirs.
The words of the survivors, XORed on top, leave those of the lost one. Marks and tags travel along, so a rebuilt shard
verifies itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.connection import Listener

import numpy as np

from ._wire import Wire, accept


class Vault:
    """What a spare holds. `whole(generation)` is called, in a receiving thread, when a generation has become whole,
    or with -1 when a survivor's words have come."""

    def __init__(self, listener: Listener, whole: Callable[[int], None]) -> None:
        self._whole, self._lock = whole, threading.Condition()
        self._epoch, self._slots = -1, 0
        self._sums: dict[int, np.ndarray] = {}
        self._from: dict[int, set[int]] = {}
        self._given: dict[int, tuple[set[int], np.ndarray]] = {}
        self._free: list[np.ndarray] = []
        self._wires: set[Wire] = set()
        self._listener = listener
        threading.Thread(target=self._accept, name="poise-vault", daemon=True).start()

    def open(self, epoch: int, slots: int) -> None:
        """Hold the generations of `epoch`, whose members sit in `slots` slots; what came before is forgotten."""
        with self._lock:
            self._epoch, self._slots = epoch, slots
            self._sums, self._from, self._given, self._free = {}, {}, {}, []

    @property
    def whole(self) -> tuple[int, ...]:
        """The generations that are whole."""
        with self._lock:
            return tuple(sorted(g for g, slots in self._from.items() if len(slots) == self._slots))

    @property
    def descriptors(self) -> list[int]:
        """The connections' file descriptors."""
        with self._lock:
            return [wire.fileno for wire in self._wires]

    def rebuilt(self, epoch: int, senders: int, generation: int) -> np.ndarray | None:
        """The lost shard's words: what `senders` survivors gave under `epoch` (negative), on top of the parity of
        `generation`, or of nothing if that is -1 (a replica's words). None until all have come."""
        with self._lock:
            given = self._given.get(epoch)
            if senders and (given is None or len(given[0]) < senders):
                return None
            parts = ([] if given is None else [given[1]]) + ([] if generation < 0 else [self._sums[generation]])
            return np.bitwise_xor.reduce(parts) if len(parts) > 1 else parts[0].copy()

    def _accept(self) -> None:
        while (wire := accept(self._listener)) is not None:
            with self._lock:
                self._wires.add(wire)
            threading.Thread(target=self._serve, args=(wire,), name="poise-vault", daemon=True).start()

    def _serve(self, wire: Wire) -> None:
        words = np.empty(0, np.uint32)
        while (message := wire.hear()) is not None:
            if words.size != message["words"]:
                words = np.empty(message["words"], np.uint32)
            if not wire.hear_into(words):
                break
            done, words = self._take(message, words)
            if done == -1:
                self._whole(done)
            elif done is not None:
                with self._lock:
                    wires = list(self._wires)
                for other in wires:
                    other.say({"whole": done, "epoch": message["epoch"]})
                self._whole(done)
        with self._lock:
            self._wires.discard(wire)
        wire.close()

    def _take(self, message: dict[str, int], words: np.ndarray) -> tuple[int | None, np.ndarray]:
        """XOR what came; the generation that became whole by it, -1 for a survivor's words, and an array for what comes
        next: a generation's first words stay where they are, and arrays are used again, since new ones cost more than
        the XOR."""
        generation, slot = message["generation"], message["slot"]
        with self._lock:
            if message["kind"] == "rebuild":
                senders, total = self._given.setdefault(message["epoch"], (set(), np.zeros(words.size, np.uint32)))
                if slot not in senders:
                    senders.add(slot)
                    np.bitwise_xor(total, words, out=total)
                return -1, words
            if message["epoch"] != self._epoch:
                return None, words
            seen = self._from.setdefault(generation, set())
            if slot in seen:
                return None, words
            seen.add(slot)
            if generation in self._sums:
                np.bitwise_xor(self._sums[generation], words, out=self._sums[generation])
            else:
                self._sums[generation] = words
                words = self._free.pop() if self._free else np.empty_like(words)
            if len(seen) < self._slots:
                return None, words
            for older in [g for g in self._sums if g < generation]:
                self._free.append(self._sums.pop(older))
                del self._from[older]
            return generation, words
