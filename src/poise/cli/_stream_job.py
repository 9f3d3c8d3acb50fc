"""What a stream's job file may say, and the rule and the grid that it means."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import BadJob
from ..memory import Geometry
from ..physics.rules import CurlInversion, Model, Nudge, Sensors, advection_diffusion, burgers, persistence

MODELS = ("burgers", "advection-diffusion", "persistence")
RULES = ("nudge", "curl")


@dataclass(frozen=True)
class StreamJob:
    """The parameters of `workload = "stream"`. What is None is chosen: see `fitted`.

    - `source`: "example" (the producer that comes with poise, built and started), the name or the path of a live
      stream, or a recorded `.npz`.
    - `rule`, `model`, `nu`, `velocity`, `gain`: what relaxes the field. `gain` None: the record's own.
    - `noise`, `resolution`, `spike`, `recover`: of the sensors (`poise.physics.rules.Sensors`).
    - `seconds`: of following, None without end; `wait`: for a producer that died, or is silent, before giving up.
    - `truth`: "wave" compares with the example's exact solution; "" with nothing.
    - `rows`, `columns` or `records`, `rate`, `dt`, `slots`, `fail`, `fail_at`, `recover_at`, `kinds`, `size`, `seed`:
      of the example.
    """

    source: str = "example"
    rule: str = "nudge"
    model: str = "burgers"
    nu: float | None = None
    velocity: tuple[float, float] = (0.0, 0.0)
    gain: float | None = None
    noise: float = 0.01
    resolution: float = 0.0
    spike: float | None = None
    recover: int = 3
    seconds: float | None = 10.0
    wait: float = 5.0
    truth: str | None = None
    records: int | None = None
    rows: int = 32
    columns: int = 32
    rate: float | None = None
    dt: float | None = None
    slots: int = 4
    fail: float = 0.1
    fail_at: int | None = None
    recover_at: int = 0
    kinds: str = "marker,nan,stuck,spike"
    size: float = 0.5
    seed: int = 1

    def fitted(self) -> StreamJob:
        """With every choice made: a grid of `records` as square as can be; a viscosity of a cell's width (0.03 at
        most), so that the front is resolved; a time step that one inner step covers; a rate that a small machine keeps
        up with; failures at frame 50, or a quarter of the way."""
        job = self
        if job.records is not None:
            rows = next(r for r in range(math.isqrt(job.records), 0, -1) if job.records % r == 0)
            job = replace(job, rows=rows, columns=job.records // rows)
        cells = max(job.rows, job.columns) - 1
        width = 1 / max(1, cells)
        job = replace(job, nu=min(0.03, width) if job.nu is None else job.nu)
        job = replace(job, dt=min(1e-3, 0.15 * width) if job.dt is None else job.dt)
        job = replace(job, rate=min(200.0, 1e7 / (job.rows * job.columns)) if job.rate is None else job.rate)
        frames = float(job.rate or 1) * (job.seconds or 1e6)
        job = replace(job, fail_at=max(2, min(50, int(frames / 4))) if job.fail_at is None else job.fail_at)
        return replace(job, truth=("wave" if job.source == "example" else "") if job.truth is None else job.truth)

    @property
    def geometry(self) -> Geometry:
        """The example's grid."""
        assert self.dt is not None
        dx, dy = 1 / max(1, self.columns - 1), 1 / max(1, self.rows - 1)
        return Geometry(self.rows, self.columns, dx, dy, self.dt, float(self.rate or 0), self.slots)

    def producer_options(self, name: str, log: str) -> dict[str, str]:
        """The example producer's words."""
        frames = max(1, round((self.seconds or 1e6) * float(self.rate or 1)))
        return {
            "name": name, "log": log, "rows": str(self.rows), "columns": str(self.columns), "rate": repr(self.rate),
            "frames": str(min(frames, 10**9)), "slots": str(self.slots), "nu": repr(self.nu), "dt": repr(self.dt),
            "noise": repr(self.noise), "fail": repr(self.fail), "fail-at": str(self.fail_at),
            "recover-at": str(self.recover_at), "kinds": self.kinds, "spike": repr(self.size), "seed": str(self.seed),
        }  # fmt: skip

    def make_rule(self, g: Geometry) -> Nudge | CurlInversion:
        """The rule on a grid. Raises `BadInput`."""
        return CurlInversion() if self.rule == "curl" else Nudge(self._model(g), self.gain, self.sensors)

    @property
    def sensors(self) -> Sensors:
        """The sensors' tests."""
        return Sensors(noise=self.noise, resolution=self.resolution, spike=self.spike, recover=self.recover)

    def _model(self, g: Geometry) -> Model:
        assert self.nu is not None
        if self.model == "burgers":
            return burgers(nu=self.nu, dx=g.dx, dy=g.dy, dt=g.dt)
        if self.model == "advection-diffusion":
            return advection_diffusion(velocity=self.velocity, nu=self.nu, dx=g.dx, dy=g.dy, dt=g.dt)
        return persistence


_NUMBERS = {
    "nu": (0.0, 1e6), "gain": (0.0, 1.0), "noise": (0.0, 1e6), "resolution": (0.0, 1e6), "spike": (1e-30, 1e30),
    "recover": (1, 255), "seconds": (1e-3, 1e9), "wait": (0.0, 1e9), "records": (1, 2**31 - 1), "rows": (1, 10**6),
    "columns": (1, 10**6), "rate": (1e-3, 1e6), "dt": (0.0, 1.0), "slots": (2, 60), "fail": (0.0, 1.0),
    "fail_at": (1, 10**9), "recover_at": (0, 10**9), "size": (0.0, 1e6), "seed": (0, 10**9),
}  # fmt: skip


def stream_job(params: dict[str, Any], source: str = "The job") -> StreamJob:
    """A job of what a file's [params] say. Raises `BadJob` with one sentence."""
    known = {f.name: f for f in fields(StreamJob)}
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise BadJob(f"{source}: stream has no parameters {unknown}; accepted are {', '.join(known)}.")
    said: dict[str, Any] = {}
    for key, value in params.items():
        if key in _NUMBERS:
            least, most = _NUMBERS[key]
            whole = isinstance(least, int)
            kinds = (int,) if whole else (int, float)
            if type(value) not in kinds or not least <= value <= most:
                kind = "a whole number" if whole else "a number"
                raise BadJob(f"{source}: {key} must be {kind} from {least:g} to {most:g}, not {value!r}.")
            said[key] = value if whole else float(value)
        elif key == "velocity":
            if not (isinstance(value, list) and len(value) == 2 and all(type(v) in (int, float) for v in value)):
                raise BadJob(f"{source}: velocity must be two numbers, not {value!r}.")
            said[key] = (float(value[0]), float(value[1]))
        elif not isinstance(value, str):
            raise BadJob(f"{source}: {key} must be a word, not {value!r}.")
        else:
            said[key] = value
    job = StreamJob(**said)
    for key, accepted in (("rule", RULES), ("model", MODELS), ("truth", ("wave", "", None))):
        if getattr(job, key) not in accepted:
            words = ", ".join(a for a in accepted if a)
            raise BadJob(f"{source}: {key} must be one of {words}, not {getattr(job, key)!r}.")
    return job.fitted()
