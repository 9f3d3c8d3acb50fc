"""A producer and a reader of records in shared memory, in one process: the field stays right while sensors fail."""

import os

import numpy as np

from poise.memory import Geometry, Publisher, Subscriber
from poise.physics.rules import Follower, Nudge, advection_diffusion

rng = np.random.default_rng(0)
grid = Geometry(rows=24, columns=24, dx=1 / 23, dy=1 / 23, dt=0.004)
x = np.linspace(0, 1, 24)

with Publisher(f"example-records-{os.getpid()}", grid) as out, Subscriber(out.path) as frames:
    model = advection_diffusion(velocity=(0.3, 0.0), nu=0.01, dx=grid.dx, dy=grid.dy, dt=grid.dt)
    follower = Follower(Nudge(model, gain=0.1), grid)
    for k in range(60):
        truth = np.tile(np.sin(np.pi * (x - 0.3 * grid.dt * k)), (24, 1))
        records = out.begin()
        records["u"] = (truth + 0.01 * rng.normal(size=truth.shape)).ravel()
        records["v"] = 0.5 + 0.01 * rng.normal(size=576)
        if k >= 20:
            records["u"][[7, 300]] = -99.0, np.nan
        out.publish(time=grid.dt * k)
        follower.take(frames.next(timeout=5), frames.accept)

print(f"failing: {follower.failing()}")
error = np.linalg.norm(follower.state.estimate[0] - truth) / np.linalg.norm(truth)
print(f"relative error of the estimate: {error:.4f}")
