"""The registry and the policy: whatever the order of events, no device is in two places and no spare is lost."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from poise import BadInput, Limits
from poise.control import Registry, State, apply, decide, replay
from poise.events import (
    Action,
    Decision,
    DeviceChanged,
    Dropped,
    Event,
    Fault,
    Mended,
    Noticed,
    Progress,
    RunFinished,
    RunStarted,
    RunStopped,
    Survivable,
    Swapped,
)

DEVICES = st.integers(0, 7)
STATES = st.sampled_from([s.value for s in State])


def started(slots=(0, 1, 2, 3), spares=(4, 5), step=0) -> RunStarted:
    return RunStarted("job", step, tuple(slots), tuple(spares), at=0.0)


def fault(kind: str, slot: int = 1, device: int = 1, **more) -> Fault:
    return Fault(**{"step": 7, "kind": kind, "slots": (slot,), "device_ids": (device,), "where": "batch 'x'", **more})


def noticed(f: Fault, action: Action = Action.REPAIR) -> Noticed:
    return Noticed(f, action, "why", at=0.0)


def swapped(slot: int, old: int, new: int, cause: str = "lost") -> Swapped:
    return Swapped(7, slot, old, new, cause, "snapshot", 0.1, 0, at=0.0)


def check(registry: Registry) -> None:
    """What must hold after any events at all."""
    assert len(set(registry.slots)) == len(registry.slots), "a device in two slots"
    assert len(set(registry.spares)) == len(registry.spares), "a spare listed twice"
    assert not set(registry.slots) & set(registry.spares), "a spare that is in a slot"
    for device, state in registry.devices.items():
        assert (state is State.SPARE) == (device in registry.spares), f"device {device} is {state} but not listed so"
        if state in (State.HEALTHY, State.DEGRADED, State.DRAINING):
            assert device in registry.slots, f"device {device} is {state} and in no slot"
        if state is State.RETIRED:
            assert device not in registry.slots
    assert set(registry.slots) | set(registry.spares) <= set(registry.devices)


class AnyOrder(RuleBasedStateMachine):
    """Events in any order, sensible or not, and decisions carried out as the keeper does."""

    @initialize(devices=st.permutations(range(8)), n=st.integers(1, 4), spares=st.integers(0, 4))
    def start(self, devices, n, spares):
        self.history: list[Event] = []
        self.registry = Registry()
        self.assigned: list[int] = []
        self.readmitted: set[int] = set()
        self.hear(started(devices[:n], devices[n : n + spares]))
        self.all = set(devices[: n + spares])

    def hear(self, event: Event) -> None:
        before = self.registry
        self.history.append(event)
        self.registry = apply(before, event)
        for device, state in self.registry.devices.items():
            if state is State.SPARE and before.devices.get(device) in (State.FAILED, State.RETIRED):
                self.readmitted.add(device)

    @rule(device=DEVICES, state=STATES)
    def change(self, device, state):
        self.hear(DeviceChanged(device, state, "told", at=0.0))

    @rule(slot=st.integers(-1, 5), old=DEVICES, new=DEVICES, cause=st.sampled_from(["lost", "drain"]))
    def swap_as_told(self, slot, old, new, cause):
        before = self.registry
        self.hear(swapped(slot, old, new, cause))
        if not (0 <= slot < len(before.slots) and before.slots[slot] == old and new in before.spares):
            assert self.registry == before, "a swap that makes no sense changed something"

    @rule(slot=st.integers(0, 3), kind=st.sampled_from(["lost", "drain", "memory", "nan"]), attempt=st.integers(0, 3))
    def decide_and_act(self, slot, kind, attempt):
        if slot >= len(self.registry.slots):
            return
        device = self.registry.slots[slot]
        told = fault(kind, slot, device, attempt=attempt)
        decision = decide(self.registry, told)
        self.hear(noticed(told, decision.action))
        if decision.action in (Action.SWAP, Action.DRAIN):
            assert decision.spare in self.registry.spares
            assert decision.slot == slot
            assert decision.spare not in self.assigned or decision.spare in self.readmitted, "a spare assigned twice"
            self.hear(swapped(slot, device, decision.spare, kind))
            self.assigned.append(decision.spare)
            self.readmitted.discard(decision.spare)
            assert self.registry.slots[slot] == decision.spare
            assert self.registry.routes[device] == decision.spare
            left = State.FAILED if kind == "lost" else State.RETIRED
            assert self.registry.devices[device] is left
        elif kind in ("lost", "drain"):
            assert decision.action is Action.STOP
            assert not self.registry.spares

    @invariant()
    def everyone_is_somewhere_once(self):
        check(self.registry)
        assert set(self.registry.devices) == self.all, "a device was lost from the books, or came from nowhere"

    @invariant()
    def replaying_gives_the_same_registry(self):
        assert replay(self.history) == self.registry

    @invariant()
    def replaying_twice_is_harmless(self):
        assert replay([*self.history, *self.history]) == self.registry


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestAnyOrder = AnyOrder.TestCase


# -- the registry, event by event -------------------------------------------------------------------------------------


def test_a_run_begins_with_healthy_slots_and_waiting_spares():
    r = replay([started(step=5)])
    assert dict(r.devices) == {0: State.HEALTHY, 1: State.HEALTHY, 2: State.HEALTHY, 3: State.HEALTHY,
                               4: State.SPARE, 5: State.SPARE}  # fmt: skip
    assert (r.slots, r.spares, r.step, r.job, r.status) == ((0, 1, 2, 3), (4, 5), 5, "job", "running")
    assert r.survivable == (True, "2 warm spares")


def test_spares_are_used_in_order_until_none_is_left():
    r = replay([started(), swapped(1, 1, 4), swapped(2, 2, 5, "drain")])
    assert r.slots == (0, 4, 5, 3)
    assert r.spares == ()
    assert r.devices[1] is State.FAILED
    assert r.devices[2] is State.RETIRED
    assert dict(r.routes) == {1: 4, 2: 5}
    assert not r.survivable[0]


def test_a_device_that_failed_in_its_slot_is_no_spare_before_it_has_left():
    r = replay([started(), DeviceChanged(1, "failed", "xid", at=0.0), DeviceChanged(1, "spare", "back?", at=0.0)])
    check(r)
    assert 1 not in r.spares
    r = replay([started(), swapped(1, 1, 4), DeviceChanged(1, "spare", "repaired", at=0.0)])
    assert r.spares == (5, 1), "a repaired device waits behind the others"


def test_a_spare_that_fails_is_never_assigned():
    r = replay([started(), DeviceChanged(4, "failed", "ecc", at=0.0)])
    assert r.spares == (5,)
    assert decide(r, fault("lost")).spare == 5


def test_telling_a_spare_that_it_is_one_does_not_change_the_order():
    r = replay([started(), DeviceChanged(4, "spare", "still", at=0.0)])
    assert r.spares == (4, 5)


@pytest.mark.parametrize("event", [DeviceChanged(99, "failed", "", at=0.0), DeviceChanged(0, "sleepy", "", at=0.0)])
def test_an_event_about_nobody_or_nothing_known_changes_nothing(event):
    r = replay([started()])
    assert apply(r, event) == r


def test_counts_and_the_end_of_a_run():
    f = fault("memory")
    r = replay([
        started(), Progress(3, 10.0, at=0.0), noticed(f), Mended(f, Action.REPAIR, 0.1, 0, 2, at=0.0),
        noticed(fault("nan")), Dropped(7, "bad", at=0.0), RunFinished(20, "ab", at=0.0),
    ])  # fmt: skip
    assert (r.noticed, r.mended, r.dropped, r.step, r.status) == (2, 1, 1, 20, "finished")
    assert dict(r.faults) == {1: 1}, "only memory faults count against a device"
    assert apply(r, RunStopped(9, "no spare", at=0.0)).status == "stopped: no spare"


def test_a_registry_cannot_be_changed_in_place():
    r = replay([started()])
    with pytest.raises(TypeError):
        r.devices[0] = State.FAILED  # type: ignore[index]


def test_the_journal_of_a_long_run_can_be_replayed_twice():
    """A spare that took over and was lost later: the second reading must follow the same way."""
    events = [started(), swapped(0, 0, 4), swapped(0, 4, 5), DeviceChanged(5, "degraded", "flips", at=0.0)]
    assert replay([*events, *events]) == replay(events)
    assert replay([*events, *events]).slots == (5, 1, 2, 3)


def test_a_second_run_in_the_same_file_begins_with_its_own_devices():
    r = replay([started(), swapped(0, 0, 4), noticed(fault("memory")), started((2, 3), (0,), step=9)])
    assert (r.slots, r.spares, r.step, r.noticed) == ((2, 3), (0,), 9, 0)
    check(r)


# -- the policy -------------------------------------------------------------------------------------------------------

FULL = replay([started()])
EMPTY = replay([started(spares=())])
WORN = replay([started(), *[noticed(fault("memory"))] * 3])
WORN_EMPTY = replay([started(spares=()), *[noticed(fault("memory"))] * 3])


@pytest.mark.parametrize(
    ("registry", "what", "action", "spare", "reason"),
    [
        (FULL, fault("lost"), Action.SWAP, 4, "device is gone"),
        (EMPTY, fault("lost"), Action.STOP, None, "none is left"),
        (FULL, fault("drain", where="operator"), Action.DRAIN, 4, "operator"),
        (EMPTY, fault("drain"), Action.STOP, None, "none is left"),
        (FULL, fault("memory"), Action.REPAIR, None, "mended in place"),
        (FULL, fault("tag"), Action.REPAIR, None, "mended in place"),
        (FULL, fault("memory", mended=False), Action.ROLLBACK, None, "beyond parity"),
        (FULL, fault("split", mended=False), Action.ROLLBACK, None, "disagree"),
        (FULL, fault("raised", mended=False), Action.ROLLBACK, None, "backend"),
        (FULL, fault("memory", mended=False, attempt=3), Action.STOP, None, "3 tries"),
        (WORN, fault("memory"), Action.DRAIN, 4, "more than 3 memory faults"),
        (WORN, fault("memory", slot=0, device=0), Action.REPAIR, None, "mended in place"),
        (WORN_EMPTY, fault("memory"), Action.REPAIR, None, "mended in place"),
        (FULL, fault("nan"), Action.RETRY, None, "fresh copy"),
        (FULL, fault("state"), Action.RETRY, None, "fresh copy"),
        (FULL, fault("nan", attempt=1), Action.DRAIN, 4, "device is suspect"),
        (FULL, fault("nan", attempt=1, slots=(0, 1), device_ids=(0, 1), droppable=True), Action.DROP, None, "recurs"),
        (EMPTY, fault("nan", attempt=1, droppable=True), Action.DROP, None, "recurs"),
        (EMPTY, fault("nan", attempt=1), Action.STOP, None, "may not drop"),
        (FULL, fault("nan", attempt=3), Action.STOP, None, "may not drop"),
        (FULL, fault("inf", in_data=True, droppable=True), Action.DROP, None, "the batch itself has inf"),
        (FULL, fault("marker", in_data=True), Action.STOP, None, "may not drop"),
        (FULL, fault("nan", in_data=True, droppable=True, drops_in_a_row=3), Action.STOP, None, "3 batches dropped"),
        (FULL, fault("nan", in_data=True, droppable=True, drops_in_a_row=2), Action.DROP, None, "left out"),
    ],
)
def test_each_fault_has_its_action_and_a_reason_that_says_why(registry, what, action, spare, reason):
    decision = decide(registry, what)
    assert decision.action is action
    assert decision.spare == spare
    assert decision.slot == (1 if spare is not None else None)
    assert reason in decision.reason


def test_limits_move_the_thresholds():
    strict = Limits(memory_faults=1, tries=1, drops_in_a_row=1)
    once = replay([started(), noticed(fault("memory"))])
    assert decide(once, fault("memory"), strict).action is Action.DRAIN
    assert decide(FULL, fault("memory", mended=False, attempt=1), strict).action is Action.STOP
    bad = fault("nan", in_data=True, droppable=True, drops_in_a_row=1)
    assert decide(FULL, bad, strict).action is Action.STOP
    assert decide(FULL, bad).action is Action.DROP


@pytest.mark.parametrize("wrong", [{"memory_faults": 0}, {"tries": -1}, {"drops_in_a_row": 0}])
def test_limits_below_one_are_refused(wrong):
    with pytest.raises(BadInput):
        Limits(**wrong)


KINDS = ["nan", "inf", "overflow", "marker", "state", "memory", "tag", "split", "raised", "drain", "lost"]


@settings(max_examples=200, deadline=None)
@given(
    registry=st.sampled_from([FULL, EMPTY, WORN, WORN_EMPTY]),
    kind=st.sampled_from(KINDS),
    where=st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    attempt=st.integers(0, 5),
    drops=st.integers(0, 5),
)
def test_every_fault_gets_an_action_that_the_registry_can_carry_out(registry, kind, where, flags, attempt, drops):
    mended, in_data, droppable = flags
    what = Fault(3, kind, tuple(where), tuple(where), "x", attempt, mended, in_data, droppable, drops)
    decision = decide(registry, what)
    assert decision == decide(registry, what), "the policy is a pure function"
    assert decision.reason
    assert isinstance(decision, Decision)
    moves = decision.action in (Action.DRAIN, Action.SWAP)
    assert moves == (decision.spare is not None) == (decision.slot is not None)
    if moves:
        assert decision.slot in where
        assert decision.spare in registry.spares
    if decision.action is Action.DROP:
        assert droppable
    if decision.action is Action.RETRY:
        assert attempt == 0, "plain retry must end"


def test_over_processes_the_launcher_says_whether_the_next_loss_is_survivable():
    r = apply(Registry(), RunStarted("burgers2d", 0, (0, 1), (2,)))
    assert r.survivable[0], "warm spares, as long as nobody knows better"
    for event, ok, spares in (
        (Survivable(1, False, "another is being made ready", 0), False, (2,)),
        (DeviceChanged(2, "failed", "killed"), False, ()),
        (DeviceChanged(2, "spare", "warm again"), False, (2,)),
        (Survivable(9, True, "the parity is whole", 2), True, (2,)),
    ):
        r = apply(r, event)
        assert (r.survivable[0], r.spares) == (ok, spares)
    assert r.survivable[1] == "the parity is whole"
    assert apply(r, RunStarted("burgers2d", 0, (0, 1), ())).survivable[0] is False
