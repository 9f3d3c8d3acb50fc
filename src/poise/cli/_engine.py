"""Running a job in its three ways: unguarded, kept and clean, kept and struck."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from ..control import Keeper
from ..devices import Pool, compiles
from ..errors import Stopped
from ..events import Event
from ..faults import Injector, ScriptedFault, Strike
from ..keeper import Workload
from ..keeper._step import Builder
from ._job import Job

Listener = Callable[[Event], None]


@dataclass
class Outcome:
    """How a kept run ended. `state` and `error` are those of its last step; `stopped` is set if it ended before."""

    steps: int
    fingerprint: str = ""
    state: Any = None
    seconds: float = 0.0
    warm_seconds: float = 0.0
    compiles: int = 0
    rewarm_compiles: int = 0
    strikes: tuple[Strike, ...] = ()
    stopped: Stopped | None = None
    counts: dict[str, int] | None = None


def kept_run(
    job: Job,
    workload: Workload,
    pool: Pool,
    *,
    steps: int | None = None,
    journal: Path | None = None,
    snapshots: Path | None = None,
    resume: Path | None = None,
    script: Iterable[ScriptedFault] = (),
    clean: dict[int, str] | None = None,
    watch: Iterable[int] = (),
    listen: Iterable[Listener] = (),
    governed: bool = False,
    each: Callable[[int, Any], None] | None = None,
) -> Outcome:
    """Keep `workload` to its end. With a `script`, strike it; `clean` says fingerprints by step, and `watch` fills
    it. `each` hears the metrics of every step in order, a few steps later."""
    script, watch = list(script), set(watch)
    known = {} if clean is None else clean
    options = replace(job.options, directory=snapshots)
    last = steps_of(workload) if steps is None else steps
    t0 = time.perf_counter()
    keeper = Keeper(
        workload, pool, journal=journal, limits=job.limits, options=options, resume=resume, listen=list(listen),
        governed=governed,
    )  # fmt: skip
    out = Outcome(last, warm_seconds=time.perf_counter() - t0)
    with keeper:
        injector = Injector(keeper.loop, script, known.get)
        keeper.listeners.append(injector.hear)
        heard: deque[tuple[int, Any]] = deque(maxlen=None if each is not None else 0)
        t0, c0 = time.perf_counter(), compiles()
        try:
            for index in range(keeper.settled, last):
                if index in watch:
                    keeper.flush()
                    known[index] = keeper.fingerprint()
                injector.follow(keeper.loop)
                injector.before(index)
                heard.append((index, keeper.step(injector.batch(index))))
                injector.after(index)
                # Looking at metrics waits for their step; those behind the ones in flight are there.
                while each is not None and len(heard) > job.options.depth + 1:
                    each(*heard.popleft())
            keeper.flush()
            while each is not None and heard:
                each(*heard.popleft())
        except Stopped as stopped:
            out.stopped = stopped
        out.seconds, out.compiles = time.perf_counter() - t0, compiles() - c0
        out.strikes = tuple(injector.strikes)
        if out.stopped is None:
            known[last] = out.fingerprint = keeper.fingerprint()
            out.state = jax.device_get(keeper.state)
            keeper.finish()
        out.rewarm_compiles = keeper.loop.rewarm_compiles
        registry = keeper.registry
        out.counts = {"noticed": registry.noticed, "mended": registry.mended, "dropped": registry.dropped}
    return out


def steps_of(workload: Workload) -> int:
    """How many steps the workload has. Raises `BadInput` for one that does not say."""
    from ..errors import BadJob

    steps = getattr(workload, "steps", None)
    if not isinstance(steps, int) or steps < 1:
        raise BadJob(f"The workload {workload.name} does not say how many steps it has; it needs an attribute `steps`.")
    return steps


class Unguarded:
    """The same job without guards: the workload's own step, jitted and donated, at the same depth."""

    def __init__(self, workload: Workload, pool: Pool, depth: int) -> None:
        self.workload, self.depth = workload, max(1, depth)
        self.placement = pool.placement(workload.axes(len(pool.active)))
        from ..keeper._form import Form

        state = workload.init()
        self.form = Form.of(state, workload.state_specs(), dict(self.placement.axes), workload.traits.heal)
        self.builder = Builder(workload, self.form, workload.batch(0))
        mesh = self.placement.mesh
        commit = workload.commit
        if workload.traits.in_place:  # it may ask which device it is on
            specs = workload.state_specs()
            ins = (specs, workload.proposal_specs())
            commit = jax.shard_map(commit, mesh=mesh, in_specs=ins, out_specs=specs, check_vma=False)

        def step(leaves: Any, batch: Any) -> Any:
            state = self.form.unflatten(leaves)
            proposal, metrics = workload.propose(mesh, state, batch)
            return self.form.flatten(commit(state, proposal)), metrics

        self._step = jax.jit(step, donate_argnums=0)

    def run(self, steps: int) -> float:
        """Seconds for `steps` steps, compilation apart (call twice)."""
        shardings = [self.placement.sharding(s) for s in self.form.specs]
        leaves = tuple(
            jax.device_put(x.copy(), s) for x, s in zip(self.form.flatten(self.workload.init()), shardings, strict=True)
        )
        specs = jax.tree.map(self.placement.sharding, self.builder.batch_specs)
        queue: deque[Any] = deque()
        jax.block_until_ready(leaves)
        t0 = time.perf_counter()
        for index in range(steps):
            leaves, metrics = self._step(leaves, jax.device_put(self.workload.batch(index), specs))
            # A donated array cannot be waited for; a copy of one scalar could, but costs a program: wait for the state
            # itself every `depth` steps instead.
            queue.append(metrics)
            if len(queue) > self.depth:
                jax.block_until_ready(leaves)
                queue.clear()
        jax.block_until_ready(leaves)
        return time.perf_counter() - t0


@dataclass(frozen=True)
class Overhead:
    """The fastest kept run over the fastest unguarded one, and all that was measured."""

    ratio: float
    kept_s: tuple[float, ...]
    unguarded_s: tuple[float, ...]
    steps: int
    snapshots: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "overhead_kept_s": list(self.kept_s),
            "overhead_unguarded_s": list(self.unguarded_s),
            "overhead_steps": self.steps,
            "overhead_snapshots": self.snapshots,
        }


def measure_overhead(job: Job, workload: Workload, pool: Pool, steps: int, rounds: int = 5) -> Overhead:
    """Total time of the kept run (snapshots included, at least three) over the fastest unguarded run.

    Kept and unguarded runs alternate, so that a slow spell of the machine hits both; the ratio is that of the fastest
    of either kind, and all times are reported.
    """
    every = max(1, min(job.options.every, steps // 4))
    job = replace(job, options=replace(job.options, every=every))
    alone = Pool(pool.active, 0)
    plain = Unguarded(workload, alone, job.options.depth)
    kept, unguarded = [], []
    snapshots = 0
    plain.run(min(steps, 2))  # compiles; a kept run is timed after its own compilation
    for _ in range(rounds):
        events: list[Event] = []
        unguarded.append(plain.run(steps))
        kept.append(kept_run(job, workload, alone, steps=steps, listen=[events.append]).seconds)
        snapshots = sum(type(e).__name__ == "SnapshotKept" for e in events)
    return Overhead(min(kept) / min(unguarded), tuple(kept), tuple(unguarded), steps, snapshots)
