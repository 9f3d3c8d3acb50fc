"""Peers of `poise bench physics` that are extras: exponax for periodic evolutions, DeepXDE for a backprop PINN.

What is not installed is left out. DeepXDE sets the dtype and backend of its whole process, so it has one of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..physics import solve
from ..physics._precision import in_double
from ..physics.tasks import get

INSTANTS = 100
"""States kept, as many as a march of ours keeps."""
PINN = """
import os, sys, time
os.environ["DDE_BACKEND"] = "jax"
import deepxde as dde, numpy as np
dde.config.set_random_seed(0)
path, bound = sys.argv[1], float(sys.argv[2])

def equation(x, y):
    u_x, u_t = (dde.grad.jacobian(y, x, i=0, j=j)[0] for j in (0, 1))
    return u_t + y[0] * u_x - 0.01 / np.pi * dde.grad.hessian(y, x, i=0, j=0)[0]

region = dde.geometry.GeometryXTime(dde.geometry.Interval(-1, 1), dde.geometry.TimeDomain(0, 1))
ends = dde.icbc.DirichletBC(region, lambda x: 0, lambda _, on_boundary: on_boundary)
start = dde.icbc.IC(region, lambda x: -np.sin(np.pi * x[:, 0:1]), lambda _, on_initial: on_initial)
data = dde.data.TimePDE(region, equation, [ends, start], num_domain=2540, num_boundary=80, num_initial=160)
model = dde.Model(data, dde.nn.FNN([2] + [20] * 3 + [1], "tanh", "Glorot normal"))
model.compile("adam", lr=1e-3)
begun = time.perf_counter()
model.train(iterations=15000, callbacks=[dde.callbacks.Timer(bound / 60)], display_every=1000, verbose=0)
seconds = time.perf_counter() - begun
stored = dict(np.load(path))
found = np.asarray(model.predict(stored["points"].astype(np.float32)))[:, 0]
np.savez(path, found=found, seconds=seconds, iterations=model.train_state.iteration)
"""
"""DeepXDE's own example of Burgers1d with its settings; of its two phases the first, Adam, until its time is over."""


def _kuramoto(dt: float, count: int) -> Any:
    ex = importlib.import_module("exponax")
    return ex.stepper.KuramotoSivashinskyConservative(
        1,
        2 * np.pi,
        count,
        dt,
        convection_scale=100 / 16,
        second_order_scale=100 / 16**2,
        fourth_order_scale=100 / 16**4,
        order=4,
    )


def _allen_cahn(dt: float, count: int) -> Any:
    ex = importlib.import_module("exponax")
    return ex.stepper.reaction.AllenCahn(
        1, 2.0, count, dt, diffusivity=1e-4, first_order_coefficient=5.0, third_order_coefficient=-5.0, order=4
    )


EVOLUTIONS: dict[str, tuple[Callable[[float, int], Any], Callable[[Any], Any], int]] = {
    "ks": (_kuramoto, lambda x: jnp.cos(x) * (1 + jnp.sin(x)), 256),
    "allen-cahn-periodic": (_allen_cahn, lambda x: x**2 * jnp.cos(jnp.pi * x), 512),
}
"""Steppers, initial states and nodes of the periodic tasks."""


@in_double
def exponax(name: str, count: int, steps: int, timed: Callable[[Callable[[], Any]], tuple[float, Any]]) -> Any:
    """Seconds, places and last state of a march of ETDRK4 on `count` nodes, `steps` steps per kept instant."""
    ex = importlib.import_module("exponax")
    make, start, _ = EVOLUTIONS[name]
    task = get(name).built
    assert task.time is not None
    x = np.linspace(task.domain.low[0], task.domain.high[0], count, endpoint=False)
    stepper = ex.RepeatedStepper(make((task.time[1] - task.time[0]) / (INSTANTS * steps), count), steps)
    run = jax.jit(ex.rollout(stepper, INSTANTS))
    first = jnp.asarray(start(jnp.asarray(x)))[None]
    seconds, states = timed(lambda: jax.block_until_ready(run(first)))
    return seconds, x, np.asarray(states)[-1, 0]


def periodic(name: str, timed: Callable[[Callable[[], Any]], tuple[float, Any]], row: Callable[..., None]) -> None:
    """A row for a periodic task: exponax with the fewest nodes and steps that are no worse than ours at the end."""
    if importlib.util.find_spec("exponax") is None:
        return
    task = get(name)
    assert task.built.time is not None
    end = task.built.time[1]
    truth = task.solve(task.tol / 100.0, None)
    seconds, solution = timed(lambda: task.solve(task.tol, None))

    def error(x: np.ndarray, values: np.ndarray) -> float:
        exact = truth(np.stack([x, np.full_like(x, end)], axis=1))
        return float(np.linalg.norm(values - exact) / np.linalg.norm(exact))

    def march(count: int, steps: int) -> tuple[float, float]:
        theirs, x, last = exponax(name, count, steps, timed)
        return theirs, error(x, last)

    places = np.linspace(task.built.domain.low[0], task.built.domain.high[0], 512, endpoint=False)
    ours = error(places, solution(np.stack([places, np.full_like(places, end)], axis=1)))
    count, steps = EVOLUTIONS[name][2], 1
    theirs, left = march(count, steps)
    while left > ours and steps < 512 and count < 4096:
        after = march(count, 2 * steps)
        if after[1] < 0.5 * left:
            steps, (theirs, left) = 2 * steps, after
        else:  # shorter steps do not help: what is left is in space
            count *= 2
            theirs, left = march(count, steps)
    label = f"exponax, {count} nodes, {INSTANTS * steps} steps"
    row(name, seconds, ours, solution.features, label, theirs, left)


def backprop(bound: float, timed: Callable[[Callable[[], Any]], tuple[float, Any]], row: Callable[..., None]) -> None:
    """A row for Burgers1d: DeepXDE's documented example, stopped after `bound` seconds, beside the default method."""
    if importlib.util.find_spec("deepxde") is None:
        return
    task = get("burgers1d")
    points = task.scatter(3000)
    truth = solve(task.built, 1e-9)(points)
    seconds, solution = timed(lambda: task.solve(task.tol, None))
    distance = lambda values: float(np.linalg.norm(values - truth) / np.linalg.norm(truth))  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "burgers.npz"
        np.savez(path, points=points)
        command = [sys.executable, "-c", PINN, str(path), str(bound)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "DDE_BACKEND": "jax"})
        if done.returncode:
            last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            row(
                "burgers1d",
                seconds,
                distance(solution(points)),
                solution.features,
                f"DeepXDE failed: {last}",
                None,
                None,
            )
            return
        with np.load(path) as stored:
            found, theirs, iterations = stored["found"], float(stored["seconds"]), int(stored["iterations"])
    label = f"DeepXDE 3 x 20, {iterations} of 15000 Adam iterations"
    row("burgers1d", seconds, distance(solution(points)), solution.features, label, theirs, distance(found))
