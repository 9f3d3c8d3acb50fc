"""Which sensors fail: each record has two, axis u and axis v; a sensor is a (sector, axis), the sector its record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32, UInt8, UInt32

from ...errors import BadInput
from ...gate import Gate

AXES = ("u", "v")
KINDS = ("healthy", "nan", "inf", "overflow", "marker", "stuck", "spike", "status")
"""What a sensor's code means; `status`: the producer itself calls the record broken."""
HEALTHY, NAN, INF, OVERFLOW, MARKER, STUCK, SPIKE, STATUS = range(8)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Watch:
    """What is remembered of every sensor: `code` (0: healthy, else `KINDS`), the bits of its last reading, how often it
    said the same since, and how many good readings it has given since it failed."""

    code: UInt8[Array, "2 rows columns"]
    last: UInt32[Array, "2 rows columns"]
    repeats: UInt8[Array, "2 rows columns"]
    good: UInt8[Array, "2 rows columns"]

    @staticmethod
    def init(rows: int, columns: int) -> Watch:
        """Every sensor healthy and silent so far."""
        zero = jnp.zeros((2, rows, columns), jnp.uint8)
        # Bits that no sensor sends at first: a NaN, which is noticed as one anyway.
        return Watch(zero, jnp.full((2, rows, columns), 0xFFFFFFFF, jnp.uint32), zero, zero)


class Seen(NamedTuple):
    """Readings of one frame: contained by the gate, and the code of each by itself."""

    clean: Float32[Array, "2 rows columns"]
    now: UInt8[Array, "2 rows columns"]
    repeats: UInt8[Array, "2 rows columns"]
    bits: UInt32[Array, "2 rows columns"]


@dataclass(frozen=True)
class Sensors:
    """The tests, and when a sensor is believed again.

    - `gate`: NaN, Inf, overflow and markers fail at once.
    - `noise`: standard deviation of a healthy reading around the truth; 0 if there is none.
    - `resolution`: smallest step between two readings (of a coarse converter); 0: that of float32.
    - A reading more than `spike` from the forecast fails (default: eight times the noise).
    - A sensor that says the very same again and again is stuck: after as many repeats as chance gives less than once
      in `horizon` frames of all sensors, by a factor of 100. Without noise a repeat means nothing (where the field
      rests, a healthy sensor repeats), and a stuck sensor is noticed as a spike once the field has moved on.
    - After `recover` good readings in a row a failing sensor is healthy again.
    """

    gate: Gate = Gate(markers=(-99.0, -999.0))  # noqa: RUF009 (frozen)
    noise: float = 0.01
    resolution: float = 0.0
    spike: float | None = None
    recover: int = 3
    horizon: float = 1e4

    def __post_init__(self) -> None:
        if not (0 <= self.noise < math.inf and 0 <= self.resolution < math.inf):
            raise BadInput("noise and resolution must be finite and not negative.")
        if self.spike is None and self.noise == 0:
            raise BadInput("Without noise a spike needs a size of its own: spike must be given.")
        if self.spike is not None and not self.spike > 0:
            raise BadInput(f"spike must be a positive number, not {self.spike!r}.")
        if not 1 <= self.recover <= 255:
            raise BadInput(f"recover must be between 1 and 255 frames, not {self.recover!r}.")

    @property
    def threshold(self) -> float:
        """Distance from the forecast above which a reading is a spike."""
        return 8 * self.noise if self.spike is None else self.spike

    def repeats(self, sensors: int, scale: float = 1.0) -> int:
        """Repeats that make a sensor stuck. Two independent readings with normal noise s agree to a resolution q with
        probability q / (2 sqrt(pi) s); q of float32 at magnitude `scale`."""
        if self.noise == 0:
            return 255
        q = max(self.resolution, float(np.spacing(np.float32(scale))))
        chance = min(0.5, q / (2 * math.sqrt(math.pi) * self.noise))
        wanted = 1e-2 / (sensors * self.horizon)
        return min(254, max(2, math.ceil(math.log(wanted) / math.log(chance))))

    def look(
        self, watch: Watch, readings: Float32[Array, "2 rows columns"], status: UInt32[Array, "rows columns"]
    ) -> Seen:
        """The tests that need no forecast."""
        nan, inf, over, marker = self.gate.causes(readings)
        clean = jnp.where(nan | inf | over | marker, jnp.float32(self.gate.fill), readings)
        bits = lax.bitcast_convert_type(readings, jnp.uint32)
        same = bits == watch.last
        repeats = jnp.where(same, jnp.minimum(watch.repeats, 254) + 1, 0).astype(jnp.uint8)
        limit = self.repeats(readings.size)
        now = jnp.zeros(readings.shape, jnp.uint8)
        broken = jnp.broadcast_to(status != 0, readings.shape)
        for code, which in (
            (STATUS, broken), (STUCK, repeats >= limit if limit < 255 else jnp.zeros_like(same)), (MARKER, marker),
            (OVERFLOW, over), (INF, inf), (NAN, nan),
        ):  # fmt: skip
            now = jnp.where(which, jnp.uint8(code), now)
        return Seen(clean, now, repeats, bits)

    def far(self, seen: Seen, forecast: Float32[Array, "2 rows columns"]) -> Array:
        """Good readings that are further from the forecast than noise explains."""
        return (seen.now == HEALTHY) & ~(jnp.abs(seen.clean - forecast) <= self.threshold)

    def judge(self, watch: Watch, seen: Seen, far: Array) -> tuple[Watch, Array]:
        """The new memory, and which sensors are believed in this frame."""
        now = jnp.where(far, jnp.uint8(SPIKE), seen.now)
        good = jnp.where(now == HEALTHY, jnp.minimum(watch.good, 254) + 1, 0).astype(jnp.uint8)
        healed = (watch.code != HEALTHY) & (good >= self.recover)
        # A stuck sensor is first a spike, if it is stuck far away: the newest word is the better one.
        code = jnp.where(now != HEALTHY, now, jnp.where(healed, jnp.uint8(HEALTHY), watch.code))
        return Watch(code, seen.bits, seen.repeats, good), code == HEALTHY
