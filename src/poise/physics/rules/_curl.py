"""The curl inversion: weights that follow the rotated deviation of a field from its two sensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32

from ...errors import BadInput
from ...gate import Gate

SIGMA = 3.125e-5
"""Leak per step: 1/32000."""


class Curled(NamedTuple):
    """One step of the rule: the new weights and gain, and the output."""

    w_u: Array
    w_v: Array
    gain: Array
    output: Array


def curl_inversion(
    w: Array,
    u: Array,
    v: Array,
    gain: Array,
    w_u: Array,
    w_v: Array,
    *,
    sigma: float = SIGMA,
    alpha: float = 0.005,
    target: float = 1.0,
) -> Curled:
    """The rule itself, element by element on arrays of one shape.

    With g_u = w - u, g_v = w - v and gamma = 1 - sigma:

        W_u'  = gamma W_u + alpha (-g_v gain)
        W_v'  = gamma W_v + alpha ( g_u gain)
        gain' = gain + alpha (|W_u' - W_u| - sigma gain)
        output = (g_u W_u' + g_v W_v') target

    It is a leaky integrator of the deviation turned by 90 degrees; where it goes is derived in
    design/curl-inversion.md.
    """
    gamma = 1.0 - sigma
    g_u, g_v = w - u, w - v
    next_u = gamma * w_u + alpha * (-g_v * gain)
    next_v = gamma * w_v + alpha * (g_u * gain)
    next_gain = gain + alpha * (jnp.abs(next_u - w_u) - sigma * gain)
    return Curled(next_u, next_v, next_gain, (g_u * next_u + g_v * next_v) * target)


def fixed_point(
    g_u: Array, g_v: Array, gain: Array, *, sigma: float = SIGMA, alpha: float = 0.005
) -> tuple[Array, Array]:
    """Where the weights go while deviations and gain stay: (-g_v, g_u) gain alpha / sigma. The output is 0 there."""
    return -g_v * gain * (alpha / sigma), g_u * gain * (alpha / sigma)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CurlState:
    """Weights and gain of every cell."""

    w_u: Float32[Array, "rows columns"]
    w_v: Float32[Array, "rows columns"]
    gain: Float32[Array, "rows columns"]


@dataclass(frozen=True)
class CurlInversion:
    """The curl inversion over a stream of records: w, u and v come from the record, weights and gain are kept here.

    u and v pass `gate` first; a deviation whose sensor is broken counts as 0 in that step, so that what a broken sensor
    says drives no weight.
    """

    sigma: float = SIGMA
    alpha: float = 0.005
    target: float = 1.0
    weight: float = 1.0
    gain: float = 0.1
    gate: Gate = Gate(markers=(-99.0, -999.0))  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if not (0 < self.sigma < 1 and 0 < self.alpha < 1):
            raise BadInput(f"sigma and alpha must lie between 0 and 1, not {self.sigma!r} and {self.alpha!r}.")

    def init(self, rows: int, columns: int) -> CurlState:
        """Weights and gain before the first frame."""
        ones = jnp.ones((rows, columns), jnp.float32)
        return CurlState(self.weight * ones, self.weight * ones, self.gain * ones)

    def __call__(
        self, state: CurlState, w: Array, u: Array, v: Array, ok_u: Array, ok_v: Array
    ) -> tuple[CurlState, Array]:
        """One step: the new state and the output; `ok_u` and `ok_v` say which readings count."""
        u, v = jnp.where(ok_u, u, w), jnp.where(ok_v, v, w)
        done = curl_inversion(
            w, u, v, state.gain, state.w_u, state.w_v, sigma=self.sigma, alpha=self.alpha, target=self.target
        )
        return replace(state, w_u=done.w_u, w_v=done.w_v, gain=done.gain), done.output
