"""A rule over a stream: one compiled, donated step per frame, and nothing kept of a frame that was not whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import SingleDeviceSharding
from jaxtyping import Bool, Int32

from ...errors import BadInput
from ...memory import PINN, Frame, Geometry, Layout
from ._curl import CurlInversion, CurlState
from ._nudge import Nudge, NudgeState
from ._sensors import AXES, HEALTHY, KINDS, Sensors, Watch

FAR = 32
"""More frames than that lost in a row, or a new producer: the field is taken from the readings anew."""

NEEDED = ("w", "u", "v", "gain", "status")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Report:
    """What one frame showed: how many sensors changed their kind, and whether the rule lost its way."""

    changed: Int32[Array, ""]
    lost: Bool[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Curl:
    """The state of a `CurlInversion` over a stream: the rule's own, its last output, and the sensors."""

    rule: CurlState
    output: Array
    watch: Watch


State = NudgeState | Curl


def initial(rule: Nudge | CurlInversion, geometry: Geometry) -> State:
    """The state before the first frame."""
    shape = geometry.rows, geometry.columns
    if isinstance(rule, Nudge):
        return rule.init(*shape)
    return Curl(rule.init(*shape), jnp.zeros(shape, jnp.float32), Watch.init(*shape))


def step_of(
    rule: Nudge | CurlInversion,
    geometry: Geometry,
    layout: Layout = PINN,
    sensors: Sensors | None = None,
    *,
    afresh: bool = False,
) -> Callable[[Any, Array], tuple[Any, Report]]:
    """`(state, records) -> (state, report)`, to be jitted: records, gate, sensors and rule in one. `sensors`: the tests
    for a curl inversion (a `Nudge` has its own). `afresh`: the step that a `Nudge` takes at the first frame and after
    it was lost.

    Raises `BadInput` for a layout that lacks one of w, u, v, gain and status.
    """
    for name in NEEDED:
        layout.word(name)
    shape = geometry.rows, geometry.columns
    watching = sensors or Sensors(gate=rule.gate) if isinstance(rule, CurlInversion) else rule.sensors

    def step(state: Any, records: Array) -> tuple[Any, Report]:
        w, u, v, gain, status = (layout.channel(records, name).reshape(shape) for name in NEEDED)
        readings = jnp.stack((u, v))
        lost = jnp.bool_(False)
        if isinstance(rule, Nudge) and afresh:
            after: Any = rule.restart(state, readings, gain, status)
        elif isinstance(rule, Nudge):
            after, lost = rule(state, readings, gain, status)
        else:
            seen = watching.look(state.watch, readings, status)
            watch, ok = watching.judge(state.watch, seen, jnp.zeros_like(seen.now, bool))
            inner, output = rule(state.rule, w, seen.clean[0], seen.clean[1], ok[0], ok[1])
            after = Curl(inner, output, watch)
        return after, Report(jnp.sum(after.watch.code != state.watch.code, dtype=jnp.int32), lost)

    return step


class Follower:
    """Runs a rule over frames: compiled once, ahead of time, for one geometry and device.

    Two states take turns: the step reads the one and writes the new one where the one before it lay (which is donated),
    so a frame that turns out torn costs nothing but the step, and nothing is allocated.
    """

    def __init__(
        self,
        rule: Nudge | CurlInversion,
        geometry: Geometry,
        *,
        device: jax.Device | None = None,
        sensors: Sensors | None = None,
    ) -> None:
        if geometry.layout.words > 1024 or geometry.count > 2**31 - 1:
            raise BadInput("A frame must have less than 2^31 records.")
        self.geometry, self.device = geometry, device or jax.devices()[0]
        make = jax.jit(lambda: initial(rule, geometry), out_shardings=SingleDeviceSharding(self.device))
        self.state, self._before = make(), make()
        records = jax.ShapeDtypeStruct(
            (geometry.count, geometry.layout.words), jnp.uint32, sharding=SingleDeviceSharding(self.device)
        )

        def compiled(afresh: bool) -> Any:
            step = step_of(rule, geometry, geometry.layout, sensors, afresh=afresh)
            fused = jax.jit(lambda state, records, before: step(state, records), donate_argnums=2, keep_unused=True)
            return fused.lower(self.state, records, self._before).compile()

        self._run = compiled(False)
        self._restart = compiled(True) if isinstance(rule, Nudge) else self._run
        self._advance = (
            jax.jit(lambda state: replace(state, estimate=rule.model(state.estimate))).lower(self.state).compile()
            if isinstance(rule, Nudge)
            else None
        )
        self._warm()
        self.state, self._before = make(), make()
        self.report: Report | None = None
        self.bytes_copied = self.restarts = 0
        self.seconds = 0.0
        self.sequence = 0

    def take(self, frame: Frame, accept: Callable[[Frame], bool]) -> bool:
        """One step; kept if `accept(frame)` says afterwards that the frame was whole. Where the producer agreed, the
        relaxed field is then written into the frame's w, in place. `seconds`: from the frame to the finished state."""
        t0 = perf_counter()
        records = frame.lease.array
        copied = frame.lease.bytes_copied
        if self.device != frame.lease.device:
            records, copied = jax.device_put(records, self.device), frame.lease.nbytes
        gap = frame.sequence - self.sequence - 1
        state = self.state
        if self._advance is not None and self.sequence and 0 < gap <= FAR:
            for _ in range(gap):  # frames that were lost: the model goes on without them
                state = self._advance(state)
        after, report = jax.block_until_ready(self._run(state, records, self._before))
        if self._advance is not None and (report.lost or not 0 <= gap <= FAR):
            after, report = jax.block_until_ready(self._restart(self.state, records, after))
            self.restarts += 1
        self.seconds = perf_counter() - t0
        self.bytes_copied += copied
        if not accept(frame):
            self._before = after
            return False
        self._before, self.state, self.report, self.sequence = self.state, after, report, frame.sequence
        if frame.lease.write:
            frame.reply("w", self.relaxed.reshape(-1))
        return True

    @property
    def relaxed(self) -> Array:
        """The relaxed field, `(rows, columns)`: a `Nudge`'s estimate of axis u, a curl inversion's output."""
        return self.state.output if isinstance(self.state, Curl) else self.state.estimate[0]

    def _warm(self) -> None:
        """Run everything once on nothing: what the first frame would wait for otherwise is no compilation only."""
        g = self.geometry
        nothing = jax.device_put(np.zeros((g.count, g.layout.words), np.uint32), self.device)
        after, report = self._run(self.state, nothing, self._before)
        after, report = self._restart(self.state, nothing, after)
        if self._advance is not None:
            jax.block_until_ready(self._advance(self.state))
        jax.block_until_ready(after)
        jax.device_get(report)

    def failing(self) -> dict[tuple[int, str], str]:
        """Every failing sensor now: `(sector, axis)` to its kind. The sector is the record's number."""
        return {(sector, axis): kind for sector, axis, kind in self.named()}

    def named(self) -> list[tuple[int, str, str]]:
        """Every failing sensor now, in order of axis and sector."""
        code = np.asarray(self.state.watch.code).reshape(len(AXES), -1)
        return [(int(s), AXES[a], KINDS[code[a, s]]) for a, s in zip(*np.nonzero(code != HEALTHY), strict=True)]
