"""What is said about a layer's checked products before they run: static rules, what comes with each layer, scripted
faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int32

from ._names import DENSE

SHARED = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",), ("head",))
"""The products that share an input."""


class Blow(NamedTuple):
    """A scripted arithmetic fault: in `layer`, product number `product` (of `DENSE`), `way` 0 forward, 1 the input's
    gradient, 2 the weight's: the element at `row`, `column` of the result has `bits` flipped, or is NaN if `bits` is 0.
    `layer` -1: none."""

    layer: Int32[Array, ""]
    product: Int32[Array, ""]
    way: Int32[Array, ""]
    row: Int32[Array, ""]
    column: Int32[Array, ""]
    bits: Int32[Array, ""]


@dataclass(frozen=True)
class Rule:
    """Static facts about one product: its number, over how many devices each way sums (their partial sums then stay in
    float32), whether the forward pass runs again for the backward one, whether its result stays in float32 (scores),
    whether it is checked."""

    number: int
    forward_over: int = 1
    input_over: int = 1
    weight_over: int = 1
    twice: bool = False
    scores: bool = False
    check: bool = True


class Probe(NamedTuple):
    """What the backward pass found, as the "gradient" of zeros: failed checks by batch row, and of the weights'
    gradients (float32, since only such have gradients)."""

    rows: Float[Array, " b"]
    weight: Float[Array, ""]


class Item(NamedTuple):
    """What one layer's checks need: whether it is audited, its number, the probe, the blow."""

    on: Bool[Array, ""] | None
    layer: Int32[Array, ""]
    probe: Probe | None
    blow: Blow | None


def _flipped(y: Array, hit: Array, blow: Blow) -> Array:
    """`y` (rows, columns) with one element changed where `hit`."""
    # Elementwise, so that it means the same wherever the partitioner cuts `y` (an indexed update of a sum that is
    # spread over devices does not).
    row, column = lax.broadcasted_iota(jnp.int32, y.shape, 0), lax.broadcasted_iota(jnp.int32, y.shape, 1)
    there = hit & (row == blow.row % y.shape[0]) & (column == blow.column % y.shape[1])
    word = jnp.uint32 if y.dtype.itemsize == 4 else jnp.uint16
    flipped = lax.bitcast_convert_type(lax.bitcast_convert_type(y, word) ^ blow.bits.astype(word), y.dtype)
    return jnp.where(there, jnp.where(blow.bits == 0, jnp.asarray(jnp.nan, y.dtype), flipped), y)


def struck(rule: Rule, item: Item, way: int, y: Array) -> Array:
    if item.blow is None:
        return y
    blow = item.blow
    hit = (blow.layer == item.layer) & (blow.product == rule.number) & (blow.way == way)
    return _flipped(y, hit, blow)


def rules_for(tensor: int, batch: int, twice: bool) -> dict[str, Rule]:
    """Which products sum over devices, on a mesh that cuts heads over `tensor` and sequences over `batch` devices."""
    rules = {}
    for number, name in enumerate(DENSE):
        narrow = name in ("o", "down")
        rules[name] = Rule(number, tensor if narrow else 1, 1 if narrow else tensor, batch, twice)
    rules["head"] = Rule(len(DENSE), 1, tensor, batch, True, scores=True)
    return rules


def items(
    layers: int, batch: int, *, mode: str, period: int, step: Array, probe: Any = None, blow: Blow | None = None
) -> Item:
    """Items for all layers, stacked; `mode` "audit" checks every `period`-th layer, another one each step."""
    number = jnp.arange(layers)
    on = None if mode == "all" else (number + step) % period == 0
    stacked = None if blow is None else Blow(*(jnp.broadcast_to(x, (layers,)) for x in blow))
    return Item(on, number, probe, stacked)


def no_probe(layers: int, batch: int) -> Probe:
    """Zeros to differentiate with respect to."""
    return Probe(jnp.zeros((layers, batch)), jnp.zeros(layers))
