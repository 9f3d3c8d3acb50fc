"""Features whose shape is a function of one direction, and their products: sines and ridges.

A ridge is g(w . x + b). Drawn from a distribution the directions make a random-feature network with one hidden layer;
as
a lattice of frequencies they are Fourier modes. Either way d^alpha g(w . x + b) = prod w^alpha g^(|alpha|)(w . x + b).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._expr import Order


def activation(name: str, s: Any, k: int, xp: Any = jnp) -> Any:
    """The k-th derivative of sin or tanh at s."""
    if name == "sin":
        return xp.sin(s + k * (np.pi / 2.0))
    t = xp.tanh(s)
    # d/ds of a polynomial in t = tanh s is its derivative times (1 - t^2)
    poly = np.polynomial.Polynomial([0.0, 1.0])
    for _ in range(k):
        poly = poly.deriv() * np.polynomial.Polynomial([1.0, 0.0, -1.0])
    value = xp.zeros_like(t)
    for coefficient in poly.coef[::-1]:
        value = value * t + coefficient
    return value


@dataclass(frozen=True, eq=False)
class Ridges:
    """Features g(weights @ x + bias); weights (count, d), bias (count,)."""

    axes: tuple[str, ...]
    name: str
    weights: np.ndarray
    bias: np.ndarray
    level: np.ndarray

    @property
    def count(self) -> int:
        return len(self.level)

    def columns(self, env: Mapping[Any, Any], order: Order) -> Any:
        x = jnp.stack([jnp.asarray(env[axis]) for axis in self.axes], axis=1)
        s = x @ self.weights.T + self.bias
        space = np.array([axis != "t" for axis in self.axes])
        if order == "lap":
            return activation(self.name, s, 2) * np.sum(self.weights[:, space] ** 2, axis=1)
        if order == "dn":
            n = jnp.stack([env["n", axis] for axis in self.axes if axis != "t"], axis=1)
            return activation(self.name, s, 1) * (n @ self.weights[:, space].T)
        assert not isinstance(order, str)
        factor = np.prod(self.weights ** np.array(order), axis=1)
        return activation(self.name, s, sum(order)) * factor


def ridges(
    axes: Sequence[str], low: Any, high: Any, count: int, scale: float, *, seed: int = 0, name: str = "sin"
) -> Ridges:
    """Random ridges: normal weights of standard deviation `scale` per half-width, phases uniform on a period."""
    rng = np.random.default_rng(seed)
    low, high = np.asarray(low, float), np.asarray(high, float)
    weights = rng.normal(size=(count, len(axes))) * scale / ((high - low) / 2.0)
    bias = rng.uniform(-np.pi, np.pi, count) - weights @ ((low + high) / 2.0)
    return Ridges(tuple(axes), name, weights, bias, (np.arange(count) + 1.0) / count)


@dataclass(frozen=True, eq=False)
class Hidden:
    """A hidden layer of tanh units whose weights (count, d + 1), the bias last, are found at the points under
    ("hidden", key)."""

    axes: tuple[str, ...]
    key: str
    count: int

    @property
    def level(self) -> np.ndarray:
        return (np.arange(self.count) + 1.0) / self.count

    def columns(self, env: Mapping[Any, Any], order: Order) -> Any:
        table = env["hidden", self.key]
        x = jnp.stack([jnp.asarray(env[axis]) for axis in self.axes], axis=1)
        weights = table[:, :-1]
        s = x @ weights.T + table[:, -1]
        space = np.array([axis != "t" for axis in self.axes])
        if order == "lap":
            return activation("tanh", s, 2) * jnp.sum(weights[:, space] ** 2, axis=1)
        if order == "dn":
            n = jnp.stack([env["n", axis] for axis in self.axes if axis != "t"], axis=1)
            return activation("tanh", s, 1) * (n @ weights[:, space].T)
        assert not isinstance(order, str)
        factor = jnp.prod(weights ** np.array(order), axis=1)
        return activation("tanh", s, sum(order)) * factor

    def fixed(self, table: np.ndarray) -> Ridges:
        """The same layer with its weights in it."""
        return Ridges(self.axes, "tanh", table[:, :-1], table[:, -1], self.level)


def between(first: np.ndarray, second: np.ndarray, steepness: float) -> np.ndarray:
    """The weights and biases (count, d + 1) of tanh units that turn between pairs of points (count, d).

    tanh(2 steepness g . (x - middle) / |g|^2) with g the gap: -steepness and +steepness at the two points (SWIM:
    Bolager et al. 2023, eq. 4).
    """
    gap = second - first
    weights = 2.0 * steepness * gap / np.sum(gap**2, axis=1, keepdims=True)
    bias = -np.sum(weights * (first + second) / 2.0, axis=1)
    return np.concatenate([weights, bias[:, None]], axis=1)


def sines(axes: Sequence[str], low: Any, high: Any, counts: Sequence[int], extension: float = 1.0) -> Ridges:
    """Fourier modes cos and sin of the lattice of frequencies on a box `extension` times as wide (1: periodic)."""
    low, high = np.asarray(low, float), np.asarray(high, float)
    grids = np.meshgrid(*(np.arange(-n, n + 1) for n in counts), indexing="ij")
    lattice = np.stack([g.reshape(-1) for g in grids], axis=1)
    half = lattice[len(lattice) // 2 :]  # one of each pair +-k, and the origin
    weights = 2.0 * np.pi * half / (extension * (high - low))
    level = np.max(np.abs(half) / np.maximum(np.array(counts), 1), axis=1)
    w = np.concatenate([weights, weights[1:]])
    phase = np.concatenate([np.full(len(weights), np.pi / 2.0), np.zeros(len(weights) - 1)])
    return Ridges(tuple(axes), "sin", w, phase - w @ low, np.concatenate([level, level[1:]]))
