"""Checked matrix products of a layer, forward and backward; what is compared with what is in `_checksum`.

A layer's products run as they would unchecked. What they leave is looked at together, at the end of the layer and,
backward, at its beginning: where only some layers are audited, that is one condition each way.

- Forward, `Y = X W^T`: sums over groups of W's rows, so that a row of Y (a token) is named.
- The input's gradient, `dX = dY W`: sums over groups of tokens, which read dY once and bring the norms that the next
  check needs.
- The weight's, `dW = dY^T X`: sums over groups of X's columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from ._checksum import Side, grouped, lengths, norm, off_rows, side, side_of, turned, wanted, width, wrong
from ._model import Product, adapted, multiply
from ._rules import SHARED, Item, Probe, Rule, struck

Rules = tuple[Rule, ...]
Weights = list[Array]


class Work(NamedTuple):
    """What the backward pass of products that share an input leaves to be checked."""

    x: Array
    dys: list[Array]
    dxs: list[Array]
    dws: list[Array]


class Done(NamedTuple):
    """What the forward pass of such products leaves to be checked, and the weights' sides if they are known."""

    x: Array
    ws: Weights
    ys: list[Array]
    sides: list[Side] | None


def _results(rules: Rules, x: Array, ws: Weights, item: Item) -> list[Array]:
    """The forward products, flat, as they are before anything narrows them."""
    flat, out = x.reshape(-1, x.shape[-1]), []
    for rule, w in zip(rules, ws, strict=True):
        wide = rule.scores or rule.forward_over > 1
        out.append(struck(rule, item, 0, multiply(flat, w, jnp.float32 if wide else w.dtype)))
    return out


def _output(rule: Rule, x: Array, w: Array, y: Array) -> Array:
    return (y if rule.scores else y.astype(w.dtype)).reshape(*x.shape[:-1], w.shape[0])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def made(rules: Rules, x: Float[Array, "b s k"], ws: Weights, item: Item, work: Work | None) -> Any:
    """`x w^T` for each of the weights, in two forms: as the model goes on with it, and as it is checked. The backward
    pass puts what it did into the "gradient" of `work`."""
    return _both(rules, x, ws, item)


def _both(rules: Rules, x: Array, ws: Weights, item: Item) -> tuple[list[Array], list[Array]]:
    ys = _results(rules, x, ws, item)
    return [_output(r, x, w, y) for r, w, y in zip(rules, ws, ys, strict=True)], ys


def _made_fwd(rules: Rules, x: Array, ws: Weights, item: Item, work: Work | None) -> Any:
    # Not `made`: a policy of rematerialisation does not look into it.
    return _both(rules, x, ws, item), (x, ws, item, None if work is None else ())


def _made_bwd(rules: Rules, kept: Any, cotangents: Any) -> Any:
    x, ws, item, place = kept
    flat = x.reshape(-1, x.shape[-1])
    # The gradients of scores are float32; products run in the weights' type.
    dys = [dy.reshape(-1, w.shape[0]).astype(w.dtype) for dy, w in zip(cotangents[0], ws, strict=True)]
    dys = lax.optimization_barrier(dys)
    dxs, dws = [], []
    for rule, w, dy in zip(rules, ws, dys, strict=True):
        dxs.append(struck(rule, item, 1, multiply(dy, w.T, jnp.float32 if rule.input_over > 1 else w.dtype)))
        dws.append(struck(rule, item, 2, multiply(dy.T, flat.T, jnp.float32 if rule.weight_over > 1 else w.dtype)))
    dx = dxs[0].astype(ws[0].dtype)
    for d, w in zip(dxs[1:], ws[1:], strict=True):
        dx = dx + d.astype(w.dtype)
    work = None if place is None else Work(flat, dys, dxs, dws)
    return dx.reshape(x.shape), [d.astype(w.dtype) for d, w in zip(dws, ws, strict=True)], None, work


made.defvjp(_made_fwd, _made_bwd)


def _forward_check(batch: int, done: list[Done]) -> Float[Array, " b"]:
    """Rows that are off, by batch row."""
    rows = jnp.zeros(batch)
    for x, ws, ys, sides in done:
        flat = x.reshape(-1, x.shape[-1])
        if sides is None:
            sides = [side_of(w, y.dtype) for w, y in zip(ws, ys, strict=True)]
        for off in off_rows(flat, sides, [width(w.shape[0], y.dtype) for w, y in zip(ws, ys, strict=True)], ys):
            rows = rows + off.reshape(batch, -1).sum(1)
    return rows


def _backward_check(batch: int, wss: list[Weights], works: list[Work]) -> Probe:
    """Groups of tokens whose input gradients are off, by batch row, and rows of weights' gradients that are."""
    rows, weight = jnp.zeros(batch), jnp.float32(0)
    for ws, (x, dys, dxs, dws) in zip(wss, works, strict=True):
        tokens, k = x.shape
        across = width(k, dws[0].dtype)
        channels = side(turned(grouped(x, across, 1)), across)
        for w, dy, dx, dw in zip(ws, dys, dxs, dws, strict=True):
            # A group of tokens is within a batch row, which is on one device.
            size = width(k, dx.dtype)
            sums = grouped(dy.reshape(batch, -1, dy.shape[1]), size, 1)
            y = grouped(dx.reshape(batch, -1, k), size, 1, powers=True)
            (want,) = wanted([sums.sums], w.T, dx.dtype)
            rows = rows + wrong(side(sums, size), size, want, lengths(w.T), y, dx.dtype).any(-1).sum(1)
            y = turned(grouped(dw, across, 1, powers=True))
            (want,) = wanted([channels.sums], dy.T, dw.dtype)
            reach = norm(sums.squares, (0, 1), tokens)
            weight = weight + wrong(channels, across, want, reach, y, dw.dtype).any(0).sum()
    return Probe(rows, weight)


def _when(on: Array | None, check: Any, nothing: Any, *args: Any) -> Any:
    return check(*args) if on is None else lax.cond(on, check, lambda *_: nothing, *args)


def _works(groups: tuple[Rules, ...], shape: tuple[int, ...], wss: list[Weights]) -> list[Work]:
    tokens, out = shape[0] * shape[1], []
    for rules, ws in zip(groups, wss, strict=True):
        k, kind, wide = ws[0].shape[1], ws[0].dtype, jnp.float32
        dxs = [jnp.zeros((tokens, k), wide if r.input_over > 1 else kind) for r in rules]
        dws = [jnp.zeros(w.shape, wide if r.weight_over > 1 else kind) for r, w in zip(rules, ws, strict=True)]
        out.append(Work(jnp.zeros((tokens, k), kind), [jnp.zeros((tokens, w.shape[0]), kind) for w in ws], dxs, dws))
    return out


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def opened(groups: tuple[Rules, ...], shape: tuple[int, ...], wss: list[Weights], on: Any, probe: Probe) -> list[Work]:
    """Places for the backward pass's work on inputs (batch, sequence), which it fills with its "gradients"; when all
    of them are there they are checked, and `probe` gets what was found. The zeros are never read."""
    return _works(groups, shape, wss)


def _opened_fwd(groups: tuple[Rules, ...], shape: tuple[int, ...], wss: list[Weights], on: Any, probe: Probe) -> Any:
    return _works(groups, shape, wss), (wss, on)


def _opened_bwd(groups: tuple[Rules, ...], shape: tuple[int, ...], kept: Any, works: list[Work]) -> Any:
    wss, on = kept
    nothing = Probe(jnp.zeros(shape[0]), jnp.float32(0))
    return None, None, _when(on, partial(_backward_check, shape[0]), nothing, wss, works)


opened.defvjp(_opened_fwd, _opened_bwd)


@jax.custom_vjp
def told(x: Array, failed: Float[Array, " b"], probe: Probe) -> Array:
    """`x`. Where the forward pass runs once more for the backward one, `failed` is what its second run found, and
    `probe` is told."""
    return x


told.defvjp(lambda x, failed, probe: (x, failed), lambda failed, dx: (dx, None, Probe(failed, jnp.float32(0))))


class Checked(Product):
    """A layer's products with their checks. `differentiable`: with a checked reverse mode, through `item.probe`;
    otherwise forward mode works. `sides`: the weights', where they are known already."""

    def __init__(
        self, weights: dict[str, Array], item: Item, *, rules: dict[str, Rule], differentiable: bool,
        sides: dict[str, Side] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(weights)
        self.item, self.rules, self.differentiable, self._sides = item, rules, differentiable, sides
        self._done: list[Done] = []
        self._works: dict[tuple[str, ...], Work] | None = None
        self._twice = False

    def __call__(self, names: Sequence[str], x: Array) -> list[Array]:
        """As `Product`."""
        rules, ws = tuple(self.rules[n] for n in names), [self.weights[n] for n in names]
        x = lax.optimization_barrier(x)  # the product and its check read the same rounded values
        if self.differentiable:
            both: Any = made(rules, x, ws, self.item, self._work(tuple(names), x))
            out, ys = both
        else:
            out, ys = _both(rules, x, ws, self.item)
        if rules[0].check:
            sides = None if self._sides is None else [self._sides[n] for n in names]
            self._done.append(lax.stop_gradient(Done(x, ws, ys, sides)))
            self._twice = rules[0].twice
        return [adapted(self.weights, n, x, y) for n, y in zip(names, out, strict=True)]

    def _work(self, names: tuple[str, ...], x: Array) -> Work | None:
        item = self.item
        if item.probe is None or not self.rules[names[0]].check:
            return None
        if self._works is None:
            groups = [g for g in SHARED if g[0] in self.rules and g[0] in self.weights]
            rules = tuple(tuple(self.rules[n] for n in g) for g in groups)
            wss = [[self.weights[n] for n in g] for g in groups]
            works: Any = opened(rules, x.shape[:2], wss, item.on, item.probe)
            self._works = dict(zip(groups, works, strict=True))
        return self._works[names]

    def done(self, x: Array) -> tuple[Array, Array]:
        """As `Product`."""
        batch, item = x.shape[0], self.item
        if not self._done:
            return x, jnp.zeros(batch, jnp.int32)
        failed = _when(item.on, partial(_forward_check, batch), jnp.zeros(batch), self._done)
        if self.differentiable and item.probe is not None and self._twice:
            x = told(x, failed, item.probe)
        return x, failed.astype(jnp.int32)
