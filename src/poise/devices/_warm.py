"""Executables that are ready before they are needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from ._compiles import compiles
from ._placement import Placement

E = TypeVar("E")


class Warm(Generic[E]):
    """A store of what `build` makes for a placement, and of placements whose communicators exist.

    `warm` builds in the calling thread; `rewarm` builds in a thread of its own while the run goes on, and `settle`,
    called at a step boundary, makes the communicators and returns how many programs were compiled meanwhile. `get`
    waits for a build that is under way: a second loss right after a first is slower, not fatal.
    """

    def __init__(self, build: Callable[[Placement], E]) -> None:
        self._build = build
        self._ready: dict[Placement, E] = {}
        self._untouched: dict[Placement, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._compiled = 0
        self.seconds = 0.0

    def __contains__(self, placement: Placement) -> bool:
        return placement in self._ready

    def __len__(self) -> int:
        return len(self._ready)

    def warm(self, placements: Sequence[Placement]) -> float:
        """Build and touch what is not there yet; returns the seconds it took."""
        t0 = time.perf_counter()
        for placement in placements:
            if placement not in self._ready:
                self._make(placement)
        self._touch()
        self.seconds = time.perf_counter() - t0
        return self.seconds

    def rewarm(self, placements: Sequence[Placement]) -> None:
        """Start building for `placements` in the background; waits for an earlier background build first."""
        self.settle()
        wanted = [p for p in placements if p not in self._ready]

        def work() -> None:
            t0, c0 = time.perf_counter(), compiles()
            try:
                for placement in wanted:
                    self._make(placement)
            except BaseException as error:  # handed to the main thread, which raises it
                self._failure = error
            self._compiled += compiles() - c0
            self.seconds = time.perf_counter() - t0

        if wanted:
            self._thread = threading.Thread(target=work, name="poise-rewarm", daemon=True)
            self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a background build is still running."""
        return self._thread is not None and self._thread.is_alive()

    def settle(self) -> int:
        """Wait for the background build, make its communicators; returns the programs it compiled since the last
        call."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._touch()
        done, self._compiled = self._compiled, 0
        return done

    def get(self, placement: Placement) -> E:
        """What was built for `placement`, waiting for the background if it is being built; builds it if nobody did."""
        if placement not in self._ready:
            self.settle()
        if placement not in self._ready:
            self.warm([placement])
        return self._ready[placement]

    def keep_only(self, placements: Sequence[Placement]) -> None:
        """Forget the others (their devices are gone or taken); executables hold memory."""
        for placement in set(self._ready) - set(placements):
            del self._ready[placement]
            self._untouched.pop(placement, None)

    def _make(self, placement: Placement) -> None:
        self._ready[placement] = self._build(placement)
        self._untouched[placement] = communicators(placement)

    def _touch(self) -> None:
        while self._untouched:
            self._untouched.popitem()[1]()


def communicators(placement: Placement) -> Callable[[], None]:
    """Compile tiny collectives over every subset of the mesh's axes; calling the result runs them.

    Compiling creates no communicator, the first run does.
    """
    names = placement.names
    subsets = [s for r in range(1, len(names) + 1) for s in combinations(names, r)]
    sizes = dict(placement.axes)

    def tiny(x: jax.Array) -> jax.Array:
        for axes in subsets:
            x = x + lax.pmax(lax.psum(x, axes), axes)
        for name in names:
            x = x + lax.ppermute(x, name, [(i, (i + 1) % sizes[name]) for i in range(sizes[name])])
        return x

    spec = P(names)
    n = len(placement.devices)
    shape = jax.ShapeDtypeStruct((n,), jnp.int32, sharding=placement.sharding(spec))
    f = jax.shard_map(tiny, mesh=placement.mesh, in_specs=spec, out_specs=spec, check_vma=False)
    compiled = jax.jit(f).lower(shape).compile()

    def run() -> None:
        compiled(jax.device_put(np.ones(n, np.int32), placement.sharding(spec))).block_until_ready()

    return run
