"""A neural field without backpropagation: one hidden layer drawn from the data, then trained by forward Gauss-Newton.

Each tanh unit is set by a pair of points of the region, so that it turns between them (Bolager et al. 2023; for
differential equations Datar et al. 2024), with the steepness chosen by the residual on points that took no part in the
fit; the outer weights come from the streamed factorisation of the structured features. Then all weights are trained by
Levenberg-Marquardt, whose Jacobian is made of Jacobian-vector products. `design/physics-network.md` has the figures.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import BadInput
from .._points import Cloud
from .._precision import in_double
from .._problem import Problem
from .._representations import Collocated
from .._solution import Solution
from ..evolve import _network as march
from ..features import Family, Hidden, between, tensor
from ._plan import discs
from ._rows import Trial, blocks
from ._solve import Fit, finish, fit_stream, weight
from ._solve import Options as Collocation
from ._stream import FIT, Stream


@dataclass(frozen=True)
class Options:
    """`width` hidden units (None: 64, or as many as a march needs), at most `iterations` of training (0: none),
    `steepness` values to choose from, `oversample` rows per weight.

    An evolution over one space axis is marched instead: the layer is drawn `draws` times, with `time_steps` steps each.
    """

    width: int | None = None
    iterations: int = 80
    steepness: tuple[float, ...] = (0.25, 0.5, 1.0)
    oversample: int = 6
    seed: int = 0
    points: int | None = None
    draws: int = 10
    time_steps: int = 10


WIDTH = 64
NEAR = 0.8
"""The share of units that turn near holes."""


def places(problem: Problem, count: int, offset: float) -> np.ndarray:
    """Points of the region (and time), (count, d)."""
    env, keep = Cloud(problem.domain, (), problem.time).at(jnp.arange(4 * count), offset)
    points = np.stack([np.asarray(env[axis]) for axis in problem.axes], axis=1)[np.asarray(keep)]
    return points[:count]


def layer(problem: Problem, width: int) -> Trial:
    """The trial functions of every field: a constant and the hidden layer, whose weights are arguments."""
    families: dict[str, tuple[Family, ...]] = {}
    for field in problem.unknowns:
        d = len(field.axes)
        one = tensor(field.axes, np.zeros(d), np.ones(d), (0,) * d)
        families[field.name] = (one, Hidden(field.axes, field.name, width))
    return Trial(families)


def weights_of(problem: Problem, pairs: tuple[np.ndarray, np.ndarray], steepness: float) -> dict[Any, np.ndarray]:
    """The hidden layers' weights from pairs of points."""
    made: dict[Any, np.ndarray] = {}
    for field in problem.unknowns:
        columns = [problem.axes.index(axis) for axis in field.axes]
        made["hidden", field.name] = between(pairs[0][:, columns], pairs[1][:, columns], steepness)
    return made


@functools.lru_cache(maxsize=8)
def prepared(problem: Problem, width: int) -> tuple[Stream, np.ndarray]:
    """The compiled pass and the blocks' weights; every draw of hidden weights uses the same one."""
    trial = layer(problem, width)
    shapes = tuple((("hidden", f.name), (width, len(f.axes) + 1)) for f in problem.unknowns)
    stream = Stream.build(trial, blocks(problem, max(2 * trial.count, 128)), shapes)
    return stream, np.array([weight(problem, block) for block in stream.blocks])


def even(problem: Problem, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of points from all over, at distances from a twentieth of the region to all of it."""
    cloud = places(problem, 8 * count, 0.3)
    width = np.ptp(cloud, axis=0)
    first = rng.integers(0, len(cloud), count)
    a, b = cloud[first], cloud[(first + rng.integers(1, len(cloud), count)) % len(cloud)]  # never the point itself
    gap = (b - a) / width
    length = np.maximum(np.linalg.norm(gap, axis=1, keepdims=True), 1e-6)
    reach = 10.0 ** rng.uniform(-1.3, 0.0, (count, 1))
    return a, a + gap / length * reach * width


def around(problem: Problem, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray] | None:
    """Pairs for a plane with discs cut out: most begin near a disc, and they are the shorter the nearer; else None."""
    holes = discs(problem.domain)
    if not holes or problem.time or problem.axes != ("x", "y"):
        return None
    centre, radius = np.array([c for c, _ in holes]), np.array([r for _, r in holes])
    which, angle = rng.integers(0, len(holes), 4 * count), rng.uniform(0.0, 2.0 * np.pi, 4 * count)
    away = radius[which] * (1.0 + rng.uniform(size=4 * count) ** 2)
    near = centre[which] + away[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    near = near[np.asarray(problem.domain.inside(near))][: round(NEAR * count)]
    cloud = places(problem, 8 * count, 0.3)
    a = np.concatenate([near, cloud[rng.integers(0, len(cloud), count - len(near))]])
    reach = np.min(np.linalg.norm(a[:, None] - centre, axis=2) - radius, axis=1)
    length = 10.0 ** rng.uniform(-0.8, 0.0, count) * 3.0 * (float(np.mean(radius)) + reach)
    turn = rng.uniform(0.0, 2.0 * np.pi, count)
    step = length[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    return a - step / 2.0, a + step / 2.0


@dataclass(frozen=True, eq=False)
class Field:
    """The residuals of every equation and condition, with their Jacobian by all weights, one chunk of points at a time.

    The Jacobian is a stack of Jacobian-vector products, one tangent per weight: forward mode only.
    """

    stream: Stream
    weights: np.ndarray
    keys: tuple[Any, ...]

    def residuals(self, index: Any, offset: Any, parameters: Any) -> Any:
        """Weighted residuals of chunk `index` (rows,), zero at points that do not count."""
        theta, tables = parameters
        made = []
        for i, block in enumerate(self.stream.blocks):
            env, keep, values = block.at(index * block.rows, offset)
            left = block.value(self.stream.trial, {**env, **dict(zip(self.keys, tables, strict=True))}, theta, values)
            made.append(jnp.where(keep, left, 0.0) * (self.weights[i] / np.sqrt(block.rows)))
        return jnp.concatenate(made)

    @functools.cached_property
    def jacobian(self) -> Any:
        """(index, flat weights) -> [J | r] (rows, weights + 1)."""

        def made(index: Any, flat: Any) -> Any:
            act = lambda v: self.residuals(index, FIT, self.split(v))  # noqa: E731
            tangents = jnp.eye(flat.shape[0])
            value = act(flat)
            columns = jax.lax.map(lambda t: jax.jvp(act, (flat,), (t,))[1], tangents, batch_size=32)
            return jnp.concatenate([columns.T, value[:, None]], axis=1)

        return jax.jit(made)

    @functools.cached_property
    def misfit(self) -> Any:
        """(index, offset, flat weights) -> the sum of squares of a chunk."""
        return jax.jit(lambda i, offset, flat: jnp.sum(self.residuals(i, offset, self.split(flat)) ** 2))

    def split(self, flat: Any) -> tuple[Any, list[Any]]:
        """Outer weights and the hidden layers' tables."""
        start = self.stream.trial.count
        tables = []
        for key, shape in self.stream.shapes:
            assert key in self.keys
            size = math.prod(shape)
            tables.append(flat[start : start + size].reshape(shape))
            start += size
        return flat[: self.stream.trial.count], tables

    def train(self, flat: np.ndarray, iterations: int, chunks: int) -> tuple[np.ndarray, list[float]]:
        """Levenberg-Marquardt on all weights by streamed QR; the residual norms it went through."""
        damp, history = 1e-2, []
        total = lambda v: sum(float(self.misfit(i, FIT, v)) for i in range(chunks))  # noqa: E731
        now = total(flat)
        for _ in range(iterations):
            history.append(math.sqrt(now / chunks))
            r = np.zeros((0, len(flat) + 1))
            for i in range(chunks):
                r = np.asarray(np.linalg.qr(np.concatenate([r, np.asarray(self.jacobian(i, flat))]), mode="r"))
            scale = np.maximum(np.linalg.norm(r[:, :-1], axis=0), 1e-12)
            for _ in range(6):
                rows = np.concatenate([r, np.concatenate([np.diag(damp * scale), np.zeros((len(flat), 1))], axis=1)])
                full = np.asarray(np.linalg.qr(rows, mode="r"))
                step = np.linalg.solve(full[:-1, :-1], -full[:-1, -1])
                new = total(flat + step)
                if new < now:
                    break
                damp *= 4.0
            else:
                break
            slow = new > now * (1.0 - 1e-4)
            flat, now, damp = flat + step, new, max(damp / 3.0, 1e-9)
            if slow and damp <= 1e-8:
                break
        return flat, history


@in_double
def solve_network(problem: Problem, tol: float, options: Options = Options()) -> Solution:
    """Draw the hidden layer, train all weights, then fit the outer ones once more and estimate the error.

    An evolution of first order over one space axis goes to `evolve/_network.py`.
    """
    if march.form(problem) is not None:
        if options.points is not None:
            raise BadInput("A march of a drawn layer takes width, draws and time_steps, not points.")
        return march.march_network(problem, tol, options.width, options.draws, options.time_steps, options.seed)
    width = options.width or WIDTH
    rng = np.random.default_rng(options.seed)
    rules = Collocation(points=options.points, oversample=options.oversample)
    stream, weights = prepared(problem, width)
    pairs = around(problem, width, rng) or even(problem, width, rng)
    best: Fit | None = None
    chosen, data = options.steepness[0], weights_of(problem, pairs, options.steepness[0])
    for steepness in options.steepness:
        tried = weights_of(problem, pairs, steepness)
        made = fit_stream(stream, weights, rules, data=tried)
        if best is None or made.residual < best.residual or not math.isfinite(best.residual):
            best, chosen, data = made, steepness, tried
    assert best is not None
    sampled, history = best.residual, []
    if options.iterations:
        field = Field(stream, weights, tuple(key for key, _ in stream.shapes))
        # where Newton did not converge from nothing, training starts from nothing too
        outer = best.theta if best.converged else np.zeros(stream.trial.count)
        flat = np.concatenate([outer, *(data[key].reshape(-1) for key in field.keys)])
        chunks = max(1, math.ceil(options.oversample * len(flat) / stream.rows))
        flat, history = field.train(flat, options.iterations, chunks)
        theta, tables = field.split(flat)
        data = dict(zip(field.keys, tables, strict=True))
        best = fit_stream(stream, weights, rules, theta, data)
    solution = finish(problem, best, tol, [(stream.trial.count, best.estimate, best.residual)])
    families = {
        name: tuple(f.fixed(data["hidden", name]) if isinstance(f, Hidden) else f for f in group)
        for name, group in stream.trial.families.items()
    }
    count = stream.trial.count + sum(table.size for table in data.values())
    return replace(
        solution,
        representation=Collocated(Trial(families), best.theta, problem.axes),
        method=f"a hidden layer of {width} tanh units, drawn from the data"
        + (", all weights by forward Gauss-Newton" if options.iterations else ", outer weights by least squares"),
        features=count,
        detail={**solution.detail, "sampled_residual": sampled, "training": history, "steepness": chosen},
    )
