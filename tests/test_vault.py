"""Parity in a spare's memory: whole generations only, and what is lost comes back word for word."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from poise.devices.process import Courier, Vault, listen
from poise.devices.process._children import free_port

KEY = b"not a secret in a test"


class Host:
    """A vault and what it announced."""

    def __init__(self) -> None:
        self.listener = listen("127.0.0.1", KEY)
        self.news = threading.Condition()
        self.whole: list[int] = []
        self.vault = Vault(self.listener, self._hear)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.listener.address  # type: ignore[misc]
        return str(host), int(port)

    def _hear(self, generation: int) -> None:
        with self.news:
            self.whole.append(generation)
            self.news.notify_all()

    def heard(self, generation: int, times: int = 1) -> bool:
        with self.news:
            return self.news.wait_for(lambda: self.whole.count(generation) >= times, 10)

    def poke(self) -> None:
        with self.news:
            self.news.notify_all()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.listener.close()


def shards(seed: int, slots: int, words: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2**32, words, dtype=np.uint32) for _ in range(slots)]


@pytest.mark.parametrize(("slots", "words"), [(1, 1), (2, 7), (3, 1000), (5, 31)])
def test_the_lost_shard_comes_back_whichever_it_was(host: Host, slots: int, words: int) -> None:
    host.vault.open(0, slots)
    data = shards(slots, slots, words)
    couriers = [Courier(host.address, KEY, 0, slot, host.poke) for slot in range(slots)]
    for courier, mine in zip(couriers, data, strict=True):
        courier.send(4, lambda mine=mine: [mine])
    assert host.heard(4)
    for lost in range(slots):
        epoch = -1 - lost
        for slot in range(slots):
            if slot != lost:
                couriers[slot].send_rebuild(epoch, 4, lambda slot=slot: [data[slot]])
        assert host.heard(-1, times=(lost + 1) * (slots - 1))
        found = host.vault.rebuilt(epoch, slots - 1, 4)
        assert found is not None
        np.testing.assert_array_equal(found, data[lost])


def test_words_travel_from_many_pieces_and_generation_after_generation(host: Host) -> None:
    """More pieces than one system call takes, empty ones among them; arrays of forgotten generations are used again."""
    host.vault.open(0, 2)
    rng = np.random.default_rng(0)
    couriers = [Courier(host.address, KEY, 0, slot, host.poke) for slot in range(2)]
    for generation in range(6):
        sizes = rng.integers(0, 40, 1300)
        data = [[rng.integers(0, 2**32, n, dtype=np.uint32) for n in sizes] for _ in range(2)]
        for courier, pieces in zip(couriers, data, strict=True):
            courier.send(generation, lambda pieces=pieces: pieces)
        assert host.heard(generation)
        assert host.vault.whole == (generation,)
        found = host.vault.rebuilt(-1, 0, generation)
        np.testing.assert_array_equal(found, np.concatenate(data[0]) ^ np.concatenate(data[1]))


def test_a_generation_counts_only_when_every_slot_has_sent_it(host: Host) -> None:
    host.vault.open(0, 2)
    a, b = (Courier(host.address, KEY, 0, slot, host.poke) for slot in range(2))
    words = np.arange(9, dtype=np.uint32)
    for generation in (3, 4):
        a.send(generation, lambda: [words])
    b.send(3, lambda: [words])
    assert host.heard(3)
    assert host.vault.whole == (3,)
    with host.news:
        assert host.news.wait_for(lambda: a.acked == 3 and b.acked == 3, 10)
    b.send(4, lambda: [words])
    assert host.heard(4)
    assert host.vault.whole == (4,), "the generation before is forgotten only now"


def test_what_belongs_to_another_epoch_is_not_counted(host: Host) -> None:
    host.vault.open(7, 1)
    words = np.arange(5, dtype=np.uint32)
    Courier(host.address, KEY, 6, 0, host.poke).send(1, lambda: [words])
    good = Courier(host.address, KEY, 7, 0, host.poke)
    good.send(2, lambda: [words])
    assert host.heard(2)
    assert host.vault.whole == (2,)


def test_a_replica_is_taken_as_it_is(host: Host) -> None:
    words = np.arange(12, dtype=np.uint32)
    assert host.vault.rebuilt(-1, 1, -1) is None
    Courier(host.address, KEY, -1, 0, host.poke).send_rebuild(-1, 9, lambda: [words])
    assert host.heard(-1)
    found = host.vault.rebuilt(-1, 1, -1)
    assert found is not None
    np.testing.assert_array_equal(found, words)


def test_a_torn_message_does_not_count(host: Host) -> None:
    host.vault.open(0, 1)
    words = np.arange(40000, dtype=np.uint32)
    torn = Courier(host.address, KEY, 0, 0, host.poke)
    done = threading.Event()

    def tear(wire: object, message: dict[str, object], made: list[np.ndarray]) -> None:
        wire.tear(message, made)  # type: ignore[attr-defined]
        wire.close()  # type: ignore[attr-defined]
        done.set()

    torn.before = tear
    torn.send(1, lambda: [words])
    assert done.wait(10)
    Courier(host.address, KEY, 0, 0, host.poke).send(2, lambda: [words])
    assert host.heard(2)
    assert host.vault.whole == (2,)


def test_a_courier_to_nobody_says_so(host: Host) -> None:
    courier = Courier(("127.0.0.1", free_port()), KEY, 0, 0, host.poke)
    with host.news:
        assert host.news.wait_for(lambda: not courier.alive, 10)


def test_a_stranger_without_the_key_is_not_heard(host: Host) -> None:
    host.vault.open(0, 1)
    courier = Courier(host.address, b"another key", 0, 0, host.poke)
    with host.news:
        assert host.news.wait_for(lambda: not courier.alive, 10)
    words = np.arange(3, dtype=np.uint32)
    Courier(host.address, KEY, 0, 0, host.poke).send(1, lambda: [words])
    assert host.heard(1)
