"""The governor: whatever comes, in whatever order, and wherever it is killed, nothing is lost, doubled or given away
twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import poise
from poise import BadInput, Limits
from poise.control import Journal, Registry, State, read_journal, replay
from poise.control._door import govern
from poise.control._governor import Desk, Governor, GovernorGone
from poise.control._read import Reader
from poise.control._socket import Reporter, parse, socket_path
from poise.control._summary import Summary
from poise.events import (
    Action,
    DeviceChanged,
    Done,
    Event,
    Fault,
    Noticed,
    Ordered,
    Paged,
    Progress,
    Reported,
    RunStarted,
    Swapped,
)
from test_registry import check

HARD = ["xid", "lost", "throttle", "remapped", "ecc_double", "note"]


def started(slots: int = 4, spares: int = 2) -> RunStarted:
    return RunStarted("job", 0, tuple(range(slots)), tuple(range(slots, slots + spares)), at=1.0)


def desk(slots: int = 4, spares: int = 2, **limits: Any) -> Desk:
    made = Desk(Summary(run=1), Limits(**limits))
    made.take([started(slots, spares)])
    return made


def person(what: str, device: int = -1, n: int = 1, **more: str) -> Reported:
    return Reported(f"me:{n}", 1, what, device, who="Ada", why="because", **more)


def one(events: list[Event], kind: type[Event]) -> Any:
    (found,) = [e for e in events if isinstance(e, kind)]
    return found


# -- the protocol, as a property ---------------------------------------------------------------------------------------


class Protocol(RuleBasedStateMachine):
    """Reports, requests and the loop's own events in any order; a crash may come between any two."""

    @initialize(slots=st.integers(1, 4), spares=st.integers(0, 4), shrink=st.booleans())
    def begin(self, slots: int, spares: int, shrink: bool) -> None:
        self.limits = Limits(exhausted="shrink" if shrink else "stop")
        self.journal: list[Event] = []
        self.desk = Desk(Summary(run=1), self.limits)
        self.seqs: Counter[str] = Counter()
        self.used: set[int] = set()
        self.people = 0
        self.tell(started(slots, spares))

    def tell(self, *events: Event) -> None:
        written, _ = self.desk.take(list(events))
        self.journal += written

    def report(self, report: Reported) -> Any:
        before = self.desk.summary.registry
        written, answer = self.desk.take(report)
        if answer.outcome != "accepted":
            assert not written
            assert self.desk.summary.registry == before
        self.journal += written
        return answer

    @rule(
        source=st.sampled_from("abc"), what=st.sampled_from(HARD), device=st.integers(-1, 9),
        number=st.sampled_from([0, 1, 13, 48, 63, 79, 92, 94, 999]), detail=st.sampled_from(["", "pending", "failed"]),
        slip=st.sampled_from([0, 0, 0, -1, -3, 1]),
    )  # fmt: skip
    def hear(self, source: str, what: str, device: int, number: int, detail: str, slip: int) -> None:
        seq = self.seqs[source] + 1 + slip
        if seq < 1:
            return
        answer = self.report(Reported(source, seq, what, device, number, detail))
        fresh = self.seqs[source] == 0 or slip == 0
        assert answer.outcome == ("accepted" if fresh else "duplicate" if slip < 0 else "gap")
        if answer.outcome == "accepted":
            self.seqs[source] = seq

    @rule(what=st.sampled_from(["drain", "pause", "resume", "acknowledge"]), device=st.integers(-1, 9))
    def ask(self, what: str, device: int) -> None:
        self.people += 1
        page = next(iter(self.desk.summary.pages), "none")
        self.report(person(what, device, self.people, detail=page))

    @rule(ok=st.booleans(), swaps=st.booleans())
    def answer(self, ok: bool, swaps: bool) -> None:
        orders = self.desk.summary.registry.orders
        if orders:
            order = next(iter(orders.values()))
            if ok and order.action in (Action.DRAIN, Action.SWAP) and swaps:
                cause = "drain" if order.action is Action.DRAIN else "lost"
                self.tell(Swapped(1, order.slot, order.device_id, order.spare, cause, "copy", 0.1, 0))
                # The device may have left the slot in another way meanwhile: then the swap is none, and the spare free.
                if self.desk.summary.registry.slots[order.slot] == order.spare:
                    self.used.add(order.spare)
            self.tell(Done(order.order, ok and swaps, "done"))

    @rule(slot=st.integers(0, 3))
    def lose(self, slot: int) -> None:
        """The loop loses a device by itself, and takes the spare that it is told."""
        registry = self.desk.summary.registry
        if slot < len(registry.slots):
            device = registry.slots[slot]
            fault = Fault(1, "lost", (slot,), (device,))
            _, decision = self.desk.take(fault)
            self.tell(Noticed(fault, decision.action, decision.reason))
            if decision.action is Action.SWAP:
                assert decision.spare not in self.used
                # In between somebody else may ask for a spare: it must not be this one.
                self.people += 1
                other = (slot + 1) % len(registry.slots)
                asked = self.report(person("drain", registry.slots[other], self.people))
                assert all(e.spare != decision.spare for e in asked.events if isinstance(e, Ordered))
                self.tell(Swapped(1, slot, device, decision.spare, "lost", "snapshot", 0.1, 0))
                assert self.desk.summary.registry.slots[slot] == decision.spare
                self.used.add(decision.spare)

    @rule(device=st.integers(0, 9))
    def repaired(self, device: int) -> None:
        self.tell(DeviceChanged(device, "spare", "back from repair"))
        if device in self.desk.summary.registry.spares:
            self.used.discard(device)

    @rule()
    def crash(self) -> None:
        """All that is in memory is gone; the journal is read again, through JSON as a saved summary is."""
        summary = Summary(run=1)
        for number, event in enumerate(self.journal, 1):
            summary.take(number, event)
        assert summary.registry == self.desk.summary.registry
        self.desk = Desk(Summary.from_dict(json.loads(json.dumps(summary.to_dict()))), self.limits)
        assert self.desk.summary.to_dict() == summary.to_dict()

    @invariant()
    def registry_holds_together(self) -> None:
        registry = self.desk.summary.registry
        check(registry)
        aside = [o.spare for o in registry.orders.values() if o.spare >= 0]
        assert len(aside) == len(set(aside)), "a spare put aside twice"
        assert not set(aside) & set(registry.spares)
        slots = [o.slot for o in registry.orders.values() if o.spare >= 0]
        assert len(slots) == len(set(slots)), "two orders for one slot"
        for device, state in registry.devices.items():
            if state is State.RESERVED:
                assert device in aside

    @invariant()
    def every_report_stands_once(self) -> None:
        told = Counter((e.source, e.seq) for e in self.journal if isinstance(e, Reported))
        assert all(n == 1 for n in told.values())
        for source, seq in self.seqs.items():
            first = min(s for (name, s) in told if name == source)
            assert {s for (name, s) in told if name == source} == set(range(first, seq + 1)), "a report was lost"
        orders = Counter(e.order for e in self.journal if isinstance(e, Ordered))
        assert all(n == 1 for n in orders.values()), "two orders of one name"


Protocol.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestProtocol = Protocol.TestCase


# -- what follows from what --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "state", "action"),
    [
        (Reported("a", 1, "xid", 1, 13), State.HEALTHY, None),
        (Reported("a", 1, "xid", 1, 92), State.DEGRADED, None),
        (Reported("a", 1, "xid", 1, 4242), State.DEGRADED, None),
        (Reported("a", 1, "xid", 1, 63), State.DRAINING, Action.DRAIN),
        (Reported("a", 1, "xid", 1, 94), State.DRAINING, Action.DRAIN),
        (Reported("a", 1, "xid", 1, 79), State.FAILED, Action.SWAP),
        (Reported("a", 1, "xid", 1, 48), State.FAILED, Action.SWAP),
        (Reported("a", 1, "ecc_single", 1, 500), State.HEALTHY, None),
        (Reported("a", 1, "ecc_double", 1, 1), State.DRAINING, Action.DRAIN),
        (Reported("a", 1, "remapped", 1, 2, "2 rows remapped"), State.HEALTHY, None),
        (Reported("a", 1, "remapped", 1, 2, "2 rows remapped, more pending a reset"), State.DRAINING, Action.DRAIN),
        (Reported("a", 1, "remapped", 1, 2, "a remapping failed"), State.FAILED, Action.SWAP),
        (Reported("a", 1, "throttle", 1, 1, "clocks lowered: power brake"), State.DEGRADED, None),
        (Reported("a", 1, "throttle", 1, 0), State.HEALTHY, None),
        (Reported("a", 1, "recovery", 1, 4), State.DRAINING, Action.DRAIN),
        (Reported("a", 1, "recovery", 1, 2), State.FAILED, Action.SWAP),
        (Reported("a", 1, "lost", 1), State.FAILED, Action.SWAP),
        (Reported("a", 1, "coffee", 1), State.HEALTHY, None),
    ],
)
def test_what_the_hardware_says_has_its_consequence(report: Reported, state: State, action: Action | None) -> None:
    made = desk()
    events, answer = made.take(report)
    assert answer.outcome == "accepted"
    assert made.summary.registry.devices[1] is state
    orders = [e for e in events if isinstance(e, Ordered)]
    assert [o.action for o in orders] == ([action] if action else [])
    if action:
        assert (orders[0].slot, orders[0].spare, orders[0].cause) == (1, 4, "a/1")
        assert made.summary.registry.devices[4] is State.RESERVED


def test_a_flood_about_one_device_is_one_order() -> None:
    made = desk()
    written = [e for n in range(1, 101) for e in made.take(Reported("a", n, "xid", 1, 79))[0]]
    assert Counter(type(e).__name__ for e in written) == {"Reported": 100, "DeviceChanged": 1, "Ordered": 1}
    assert made.summary.hardware["1"]["counts"] == {"xid 79": 100}


def test_a_spare_that_fails_is_not_assigned_and_needs_no_order() -> None:
    made = desk()
    events, _ = made.take(Reported("a", 1, "xid", 4, 63))
    assert [type(e).__name__ for e in events] == ["Reported", "DeviceChanged"]
    assert made.summary.registry.spares == (5,)
    events, _ = made.take(Reported("a", 2, "xid", 0, 79))
    assert one(events, Ordered).spare == 5


@pytest.mark.parametrize(("exhausted", "action"), [("stop", Action.STOP), ("shrink", Action.SHRINK)])
def test_without_a_spare_a_person_is_called_once_and_the_run_ends_as_told(exhausted: str, action: Action) -> None:
    made = desk(spares=0, exhausted=exhausted)
    first, _ = made.take(Reported("a", 1, "xid", 1, 79))
    again, _ = made.take(Reported("a", 2, "xid", 1, 79))
    other, _ = made.take(Reported("a", 3, "xid", 2, 79))
    assert one(first, Ordered).action is action
    assert "no spare is left" in one(first, Paged).reason
    assert not [e for e in again if isinstance(e, Ordered | Paged)]
    assert [type(e) for e in other if isinstance(e, Ordered | Paged)] == [Paged], "one ending is enough"
    assert len(made.summary.pages) == 2


def test_a_suspect_device_without_a_spare_stays_and_a_person_is_called() -> None:
    made = desk(spares=0)
    events, _ = made.take(Reported("a", 1, "xid", 1, 63))
    assert not [e for e in events if isinstance(e, Ordered)]
    assert one(events, Paged)
    assert made.summary.registry.devices[1] is State.DEGRADED
    page = next(iter(made.summary.pages))
    assert made.take(person("acknowledge", detail="nothing"))[1].outcome == "refused"
    assert made.take(person("acknowledge", n=2, detail=page))[1].outcome == "accepted"
    assert not made.summary.pages


def test_people_are_refused_with_a_reason_and_nothing_is_written() -> None:
    made = desk(spares=1)
    for report, why in (
        (Reported("x", 1, "drain", 1), "who asks and why"),
        (person("drain", 77, 1), "no device 77"),
        (person("resume", n=2), "running already"),
    ):
        events, answer = made.take(report)
        assert (events, answer.outcome) == ([], "refused")
        assert why in answer.why
    assert made.take(person("drain", 1, 3))[1].outcome == "accepted"
    for n, device, why in ((4, 1, "being replaced"), (5, 2, "no spare is free")):
        assert why in made.take(person("drain", device, n))[1].why
    assert made.take(person("pause", n=6))[1].outcome == "accepted"
    assert "paused already" in made.take(person("pause", n=7))[1].why
    assert "idle" in Desk(Summary(run=1), Limits()).take(person("pause"))[1].why


def test_an_order_that_failed_gives_its_spare_back_and_calls_a_person() -> None:
    made = desk()
    order = one(made.take(person("drain", 1))[0], Ordered)
    events, _ = made.take([Done(order.order, False, "the link is down")])
    assert "the link is down" in one(events, Paged).reason
    registry = made.summary.registry
    assert (registry.spares, registry.devices[1]) == ((4, 5), State.DEGRADED)
    assert made.take(person("drain", 1, 2))[1].outcome == "accepted", "it may be asked for again"


def test_a_device_that_is_gone_may_take_the_spare_of_an_order_that_nobody_has_begun() -> None:
    made = desk(spares=1)
    order = one(made.take(person("drain", 1))[0], Ordered)
    _, decision = made.take(Fault(3, "lost", (2,), (2,), mended=False))
    assert (decision.action, decision.spare) == (Action.SWAP, order.spare)
    made.take([Swapped(3, 2, 2, order.spare, "lost", "snapshot", 0.1, 0), Done(order.order, False, "used")])
    registry = made.summary.registry
    assert (registry.slots, registry.spares) == ((0, 1, 4, 3), ())
    check(registry)


# -- the service -------------------------------------------------------------------------------------------------------


def test_a_burst_of_ten_thousand_from_five_hundred_sources(tmp_path: Path) -> None:
    """None lost, none doubled, no spare assigned twice, with every tenth report sent twice."""
    path, slots, spares = tmp_path / "run.db", 400, 100
    moved: list[Ordered] = []

    async def main() -> Registry:
        with Journal(path) as journal:
            governor: Governor

            async def carry_out(order: Ordered) -> tuple[bool, str]:
                if order.action is not Action.STOP:
                    moved.append(order)
                    cause = order.action.value
                    await governor.tell(Swapped(1, order.slot, order.device_id, order.spare, cause, "copy", 0.0, 0))
                return True, ""

            governor = Governor(journal, carry_out=carry_out)

            async def source(n: int) -> None:
                rng = random.Random(n)
                for seq in range(1, 21):
                    what = rng.choice(["ecc_single", "xid", "xid", "note", "throttle"])
                    report = Reported(f"s{n}", seq, what, rng.randrange(slots), rng.choice([13, 31, 63, 79, 94, 1]))
                    answer = await governor.report(report)
                    assert answer.outcome == "accepted"
                    if seq % 10 == 0:
                        assert (await governor.report(report)).outcome == "duplicate"

            async with anyio.create_task_group() as group:
                await group.start(governor.run)
                await governor.tell(started(slots, spares))
                async with anyio.create_task_group() as sources:
                    for n in range(500):
                        sources.start_soon(source, n)
                while governor.summary.registry.orders:
                    await governor.tell(Progress(1, 1.0))
                registry = governor.summary.registry
                group.cancel_scope.cancel()
            return registry

    registry = anyio.run(main)
    events = [e for _, e in read_journal(path)]
    told = Counter((e.source, e.seq) for e in events if isinstance(e, Reported))
    assert len(told) == 10_000
    assert set(told.values()) == {1}
    assert replay(events) == registry
    assert len(moved) == spares, "more devices failed than there are spares"
    assert len({o.spare for o in moved}) == len(moved)
    assert len({o.order for o in moved}) == len(moved)
    check(registry)
    assert Reader(path).summary.registry == registry


def test_a_governor_that_ended_says_so_instead_of_keeping_people_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        with Journal(tmp_path / "run.db") as journal:
            governor = Governor(journal)
            async with anyio.create_task_group() as group:
                await group.start(governor.run)
                await governor.tell(started())
                group.cancel_scope.cancel()
            with pytest.raises(GovernorGone):
                await governor.tell(Progress(1, 1.0))

    anyio.run(main)


def test_a_journal_that_cannot_be_written_ends_the_governor_and_whoever_waits_hears_it(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal(tmp_path / "run.db")
        governor = Governor(journal)
        heard: list[BaseException] = []
        with pytest.raises(BaseExceptionGroup):
            async with anyio.create_task_group() as group:
                await group.start(governor.run)
                await governor.tell(started())
                journal.close()

                async def ask() -> None:
                    try:
                        await governor.report(person("pause"))
                    except BaseException as error:
                        heard.append(error)
                        raise

                group.start_soon(ask)
        assert len(heard) == 1

    anyio.run(main)


# -- the socket --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b"{", "no JSON"), (b"[]", "one key, report"), (b'{"report": 3}', "one key, report"),
        (b'{"report": {"source": "a", "seq": 1}}', "needs source"),
        (b'{"report": {"source": "a", "seq": 0, "what": "x"}}', "needs source"),
        (b'{"report": {"source": "a", "seq": true, "what": "x"}}', "seq must be int"),
        (b'{"report": {"source": "a", "seq": 1e3, "what": "x"}}', "seq must be int"),
        (b'{"report": {"source": 7, "seq": 1, "what": "x"}}', "source must be str"),
        (b'{"report": {"source": "a", "seq": 1, "what": "x", "shell": "rm"}}', "no field 'shell'"),
        (b'{"report": {"source": "a", "seq": 99999999999999999999, "what": "x"}}', "out of range"),
        (b'{"report": {"source": "a", "seq": 1, "what": "x", "why": "' + b"y" * 3000 + b'"}}', "longer than"),
    ],
)  # fmt: skip
def test_lines_that_are_no_report_are_refused_in_a_sentence(line: bytes, wrong: str) -> None:
    said = parse(line)
    assert isinstance(said, str)
    assert wrong in said


def test_other_processes_report_through_the_socket_and_a_second_governor_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("long " * 30)
    path = folder / "run.db"

    async def nothing(order: Ordered) -> tuple[bool, str]:
        return False, "not here"

    async def main() -> None:
        folder.mkdir()
        async with govern(path, nothing, begin=[started()]):
            assert socket_path(path).stat().st_mode & 0o777 == 0o600

            def talk() -> None:
                me = Reporter(path, "agent")
                assert me.report("note", detail="first")["outcome"] == "accepted"
                assert me.report("note", detail="first", again=True)["outcome"] == "duplicate"
                me.seq = 5
                assert me.report("note")["expected"] == 2
                assert "no JSON" in me.send(b"nonsense")["why"]
                with pytest.raises(OSError, match=r"(?i)hung up|reset|broken"):
                    for _ in range(3):  # the answer to a line that has no end, and then nobody
                        me.send(b"x" * 200_000)
                me.close()

            await anyio.to_thread.run_sync(talk)
            with pytest.raises(BadInput, match="Another process governs"):
                async with govern(path, nothing):
                    pass
        assert not socket_path(path).exists()

    anyio.run(main)
    assert [e.detail for _, e in read_journal(path) if isinstance(e, Reported)] == ["first"]


# -- kill -9 -----------------------------------------------------------------------------------------------------------

NURSERY = """
import os, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import anyio
from poise.control._door import govern
from poise.events import RunStarted, Swapped
path, deeds = Path(sys.argv[1]), Path(sys.argv[2])

async def life():
    async with govern(path, carry_out, begin=[RunStarted("job", 0, tuple(range(40)), tuple(range(40, 60)))]) as g:
        global governor
        governor = g
        await anyio.sleep_forever()

async def carry_out(order):
    # An idempotent deed: the file is made once, however often the order is told.
    try:
        os.close(os.open(deeds / order.order, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    if order.spare >= 0:
        await governor.tell(Swapped(1, order.slot, order.device_id, order.spare, order.action.value, "copy", 0.0, 0))
    return True, ""

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        anyio.run(life)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def killed_often(path: Path, deeds: Path, kills: int, seed: int) -> tuple[Counter[tuple[str, int]], int]:
    """Kill a governor `kills` times at random moments while sources report; acknowledged reports, and lives lived."""
    deeds.mkdir()
    rng = random.Random(seed)
    env = {**os.environ, "PYTHONPATH": str(Path(poise.__file__).parents[1])}
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(path), str(deeds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
        text=True,
    )  # fmt: skip
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    sources = [Reporter(path, f"s{n}", timeout=5.0) for n in range(4)]
    owed: dict[int, dict[str, Any]] = {}
    acknowledged: Counter[tuple[str, int]] = Counter()
    try:
        for life in range(kills + 1):
            nursery.stdin.write("live\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            until = time.monotonic() + (rng.uniform(0.0, 0.1) if life < kills else 60.0)
            sent = 0
            while time.monotonic() < until and (life < kills or sent < 40 or owed):
                n = rng.randrange(len(sources))
                again = n in owed
                what = owed.setdefault(
                    n, {"what": "xid", "device_id": rng.randrange(60), "number": rng.choice([13, 63, 79])}
                )
                try:
                    answer = sources[n].report(again=again, **what)
                except OSError:
                    time.sleep(0.002)  # it is not there yet, or not any more
                    continue
                assert answer["outcome"] in ("accepted", "duplicate")
                acknowledged[sources[n].source, sources[n].seq] += 1
                del owed[n]
                sent += 1
            if life == kills:
                last = Reader(path)
                while last.summary.registry.orders and time.monotonic() < until:
                    last.refresh()
            os.kill(child, signal.SIGKILL)
            assert nursery.stdout.readline() == "gone\n"
    finally:
        for source in sources:
            source.close()
        nursery.stdin.close()
        nursery.wait(20)
        nursery.stdout.close()
    return acknowledged, kills + 1


@pytest.mark.timeout(110)
def test_killed_at_two_hundred_random_moments_the_journal_replays_to_the_same_registry(tmp_path: Path) -> None:
    path, deeds = tmp_path / "run.db", tmp_path / "deeds"
    acknowledged, _ = killed_often(path, deeds, kills=200, seed=int.from_bytes(os.urandom(4)))
    events = [e for _, e in read_journal(path)]
    told = Counter((e.source, e.seq) for e in events if isinstance(e, Reported))
    assert acknowledged, "nothing was ever answered"
    assert set(acknowledged) == set(told), "what was acknowledged is there, and nothing else"
    assert set(told.values()) == set(acknowledged.values()) == {1}
    registry = replay(events)
    assert Reader(path).summary.registry == registry, "the saved summary and the events agree"
    check(registry)
    assert not registry.orders, "every order was carried out in the end"
    orders = [e for e in events if isinstance(e, Ordered)]
    assert {o.order for o in orders} == {p.name for p in deeds.iterdir()}
    spares = [o.spare for o in orders if o.spare >= 0]
    assert len(set(spares)) == len(spares)
    assert len({run for run, _ in read_journal(path)}) == 1, "one run, however many lives"
