"""Nudging: a model step, corrected towards the sensors that are healthy (Hoke and Anthes 1976's Newtonian
relaxation)."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from ...errors import BadInput
from ._models import Fields, Model, persistence
from ._sensors import HEALTHY, Seen, Sensors, Watch


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NudgeState:
    """The estimate of both axes, whether there is one yet, and what is known of the sensors."""

    estimate: Float32[Array, "2 rows columns"]
    frames: Int32[Array, ""]
    watch: Watch


@dataclass(frozen=True)
class Nudge:
    """estimate' = M(estimate) + gain (reading - M(estimate)) where the sensor is healthy, M(estimate) where it is not.

    - `model`: a step from one frame's time to the next, `(2, rows, columns)` to the same.
    - The gain is the record's own channel, clipped to 0..1 (0 where it is broken), or `gain` if that is given.
    - `sensors`: the tests.
    - The first estimate is the median of each cell's neighbourhood, which few broken sensors cannot move. So is the
      next one when more than half of the good readings disagree with the forecast: then the forecast is wrong, not
      they.
    """

    model: Model = persistence
    gain: float | None = None
    sensors: Sensors = field(default_factory=Sensors)

    def __post_init__(self) -> None:
        if self.gain is not None and not 0 <= self.gain <= 1:
            raise BadInput(f"The gain must lie between 0 and 1, not {self.gain!r}.")

    def init(self, rows: int, columns: int) -> NudgeState:
        """Before the first frame."""
        return NudgeState(jnp.zeros((2, rows, columns), jnp.float32), jnp.int32(0), Watch.init(rows, columns))

    def __call__(
        self, state: NudgeState, readings: Float32[Array, "2 rows columns"], gain: Array, status: Array
    ) -> tuple[NudgeState, Bool[Array, ""]]:
        """One frame: the new state, and whether the forecast is lost, so that `restart` should be taken instead (which
        it is at the first frame)."""
        seen = self.sensors.look(state.watch, readings, status)
        forecast = self.model(state.estimate)
        far = self.sensors.far(seen, forecast)
        judged = (seen.now == HEALTHY) & (state.watch.code == HEALTHY)
        # +1 for every sensor that disagrees, -1 for every one that agrees: one reduction.
        votes = jnp.sum(jnp.where(judged, jnp.where(far, 1, -1), 0), dtype=jnp.int32)
        return self._correct(state, seen, forecast, far, gain), (state.frames == 0) | (votes > 0)

    def restart(
        self, state: NudgeState, readings: Float32[Array, "2 rows columns"], gain: Array, status: Array
    ) -> NudgeState:
        """One frame without a forecast: the median of the neighbourhood stands for it."""
        seen = self.sensors.look(state.watch, readings, status)
        middle = median(seen.clean, seen.now == HEALTHY)
        return self._correct(state, seen, middle, self.sensors.far(seen, middle), gain)

    def _correct(self, state: NudgeState, seen: Seen, forecast: Fields, far: Array, gain: Array) -> NudgeState:
        watch, ok = self.sensors.judge(state.watch, seen, far)
        estimate = forecast + jnp.where(ok, self._gain(gain), 0.0) * (seen.clean - forecast)
        return NudgeState(estimate, state.frames + 1, watch)

    def _gain(self, gain: Array) -> Array:
        if self.gain is not None:
            return jnp.float32(self.gain)
        return jnp.where(jnp.isfinite(gain), jnp.clip(gain, 0.0, 1.0), 0.0)


def median(x: Fields, good: Array) -> Fields:
    """The median of each cell's 3 x 3 neighbourhood, ends repeated; broken entries count as the mean of the good."""
    axes = (-2, -1)
    count = jnp.maximum(good.sum(axes, keepdims=True), 1)
    x = jnp.where(good, x, jnp.where(good, x, 0.0).sum(axes, keepdims=True) / count)
    padded = jnp.pad(x, [(0, 0), (1, 1), (1, 1)], mode="edge")
    v = [padded[:, i : i + x.shape[1], j : j + x.shape[2]] for i in range(3) for j in range(3)]

    def order(i: int, j: int) -> None:
        v[i], v[j] = jnp.minimum(v[i], v[j]), jnp.maximum(v[i], v[j])

    # Smith's network of 19 exchanges: the fifth of nine ends up in place 4.
    for i, j in (
        (1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3), (5, 8), (4, 7), (3, 6), (1, 4),
        (2, 5), (4, 7), (4, 2), (6, 4), (4, 2),
    ):  # fmt: skip
        order(i, j)
    return v[4]
