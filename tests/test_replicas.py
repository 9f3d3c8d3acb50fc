"""Replicas that compute something else than the others, and sensors that may be dead."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from poise import Gate, Keeper, Pool, Stopped, Traits
from poise.devices import Placement
from poise.events import Noticed, Swapped
from poise.keeper._form import Form


class Replicated:
    """The same state everywhere; `glitch` is what one device's arithmetic adds on its own."""

    name = "replicated"
    steps = 12
    traits = Traits(heal="replica")

    def axes(self, n: int) -> dict[str, int]:
        return {"d": n}

    def init(self) -> Any:
        return {"w": np.linspace(0, 1, 500, dtype=np.float32)}

    def state_specs(self) -> Any:
        return P()

    proposal_specs = state_specs

    def batch_specs(self) -> Any:
        return {"glitch": P("d")}

    def batch(self, index: int) -> Any:
        return {"glitch": np.zeros(4, np.float32)}

    def propose(self, mesh: Any, state: Any, batch: Any) -> Any:
        step = jax.shard_map(
            lambda w, glitch: w * 0.9 + 0.1 + glitch,
            mesh=mesh,
            in_specs=(P(), P("d")),
            out_specs=P(),
            check_vma=False,
        )
        return {"w": step(state["w"], batch["glitch"])}, {}

    def commit(self, state: Any, proposal: Any) -> Any:
        return proposal


def kept(wrong: dict[int, list[int]], spares: int, always: bool = False) -> tuple[str, list[Any]]:
    """Run with wrong arithmetic in some slots at some steps: at the first try, or wherever a device computes it."""
    events: list[Any] = []
    with Keeper(Replicated(), Pool(jax.devices()[: 4 + spares], spares), listen=[events.append], every=4) as keeper:
        suspects = {(i, keeper.loop.stage.placement.ids[s]) for i, slots in wrong.items() for s in slots}

        def intake(index: int, attempt: int, placement: Any, batch: Any) -> Any:
            glitch = np.array([(index, d) in suspects and (always or attempt == 0) for d in placement.ids], np.float32)
            return {"glitch": glitch * np.float32(1e-3)}

        keeper.loop.intake = intake
        keeper.run(12)
        return keeper.fingerprint(), events


def test_a_wrong_sum_on_one_device_is_noticed_before_it_is_committed() -> None:
    clean, _ = kept({}, 0)
    struck, events = kept({3: [1], 7: [0, 2]}, 0)
    assert struck == clean
    first, second = [e for e in events if isinstance(e, Noticed)]
    assert (first.fault.kind, first.fault.step, first.fault.slots) == ("replicas", 3, (1,))
    assert (second.fault.step, second.fault.slots) == (7, (0, 1, 2, 3))
    assert "no majority" in second.fault.where


def test_a_device_that_is_outvoted_again_is_drained() -> None:
    clean, _ = kept({}, 0)
    struck, events = kept({3: [1]}, 1, always=True)
    assert struck == clean
    (swap,) = [e for e in events if isinstance(e, Swapped)]
    assert (swap.slot, swap.compiles) == (1, 0)
    with pytest.raises(Stopped, match="replicas disagree"):
        kept({3: [1]}, 0, always=True)


class Stream(Replicated):
    """A stream whose dead sensors may be filled."""

    traits = Traits(gate=Gate(markers=(-99.0,)), tolerant=True)


def test_a_tolerant_site_is_filled_counted_and_committed() -> None:
    with Keeper(Stream(), Pool(jax.devices()[:4], 0)) as keeper:
        for i in range(6):
            bad = np.zeros(4, np.float32)
            bad[i % 4] = np.nan if i < 4 else -99.0
            keeper.step({"glitch": bad})
        clean = keeper.fingerprint()
        assert keeper.loop.contained == {"nan": 4, "inf": 0, "overflow": 0, "marker": 2}
    with Keeper(Stream(), Pool(jax.devices()[:4], 0)) as keeper:
        keeper.run(6)
        assert keeper.fingerprint() == clean


def test_a_reused_buffer_does_not_reach_a_replay() -> None:
    def run(reuse: bool) -> str:
        with Keeper(Stream(), Pool(jax.devices()[:4], 0), depth=3) as keeper:
            buffer = np.zeros(4, np.float32)
            for i in range(8):
                batch = buffer if reuse else np.zeros(4, np.float32)
                batch[:] = 0.01 * i
                keeper.step({"glitch": batch})
            return keeper.fingerprint()

    assert run(True) == run(False)


@pytest.mark.parametrize("specs", [P(), P("a"), P("b"), P(("a", "b")), [P("a"), P("b")], [P("c"), P(None, "a")]])
def test_a_form_knows_who_holds_the_same_pieces_as_jax_places_them(specs: Any) -> None:
    state = [np.zeros((4, 4), np.float32), np.zeros((4, 2), np.int32)]
    form = Form.of(state, specs, {"a": 2, "b": 2, "c": 1})
    placement = Placement(tuple(jax.devices()[:4]), form.axes)
    maps = [placement.sharding(spec).devices_indices_map(x.shape) for x, spec in zip(state, form.specs, strict=True)]
    held = [str([m[device] for m in maps]) for device in placement.devices]
    for slot in range(4):
        assert form.replicas(slot) == [other for other in range(4) if other != slot and held[other] == held[slot]]
    assert form.replicated == all(held.count(pieces) > 1 for pieces in held)
