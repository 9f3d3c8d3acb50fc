"""Checked matrix products (algorithm-based fault tolerance, Huang and Abraham 1984), forward and backward.

For `Y = A B^T` the columns of Y are cut into groups g of up to `GROUP`. Summed over a group,

    sum_j Y_ij  =  A_i . (sum_j B_j),

and the right side costs one thin product with float32 sums of B. Both sides differ by rounding only. Rounding Y to
its dtype (unit roundoff u) makes errors that spread evenly over at most u |Y_ij| to either side, independent of each
other: by the bound for sums of such (Hoeffding 1963, with the variance of an even spread), theirs exceeds k u |Y_ig|
/ sqrt(3), Euclidean norm over the group, with probability 2 exp(-k^2 / 2); k = 8 leaves 3e-14 per row and group.
Float32 accumulation adds at most c 2^-24 |A_i| (|B_g| + |sum of B_g|), where c grows like the square root of the
length (random signs) plus a sixteenth of it (tensor cores cut off what does not fit). An error above the sum of both
is no rounding. `design/llama-abft.md` says what that sees and what it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int32

from ._model import Product, Seen, adapted, multiply
from ._names import DENSE

GROUP = 256
"""Columns per checksum, at most: few enough to see a third of a typical value, many enough to be cheap."""

SIGMAS = 8.0
"""k above."""


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
    float32), whether the forward pass runs twice, whether its result stays in float32 (scores), whether it is
    checked."""

    number: int
    forward_over: int = 1
    input_over: int = 1
    weight_over: int = 1
    twice: bool = False
    scores: bool = False
    check: bool = True


Rules = tuple[Rule, ...]
Weights = list[Array]


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


def group_size(n: int) -> int:
    """The largest divisor of `n` up to `GROUP`, or `n` itself where only small ones divide it."""
    best = max(d for d in range(1, min(n, GROUP) + 1) if n % d == 0)
    return n if best < 32 else best


def _thin(a: Array, sums: Float[Array, "g k"]) -> Float[Array, "m g"]:
    """`a . sums` to float32 accuracy; for narrow `a` the sums are cut into three pieces of 8 bits, exactly."""
    if a.dtype.itemsize == 4:
        return jnp.einsum("mk,gk->mg", a, sums, precision="highest")
    pieces, rest = [], sums
    for _ in range(3):
        # Not astype and back: XLA may leave such a pair out.
        piece = lax.reduce_precision(rest, 8, 7)
        pieces.append(piece.astype(jnp.bfloat16))
        rest = rest - piece
    wide = jnp.einsum("mk,gk->mg", a.astype(jnp.bfloat16), jnp.concatenate(pieces), preferred_element_type=jnp.float32)
    return wide.reshape(a.shape[0], 3, -1).sum(1)


class Side(NamedTuple):
    """What a check needs of B: sums over each group of its rows, and the size of the group."""

    sums: Float[Array, "g k"]
    size: Float[Array, " g"]


def side_of(b: Float[Array, "n k"]) -> Side:
    """One read of B, in float32."""
    n, k = b.shape
    bands = b.reshape(-1, group_size(n), k)
    sums = bands.sum(1, dtype=jnp.float32)
    size = jnp.sqrt(jnp.square(bands.astype(jnp.float32)).sum((1, 2))) + jnp.sqrt(jnp.square(sums).sum(1))
    return Side(sums, size)


def off_rows(a: Float[Array, "m k"], sides: Sequence[Side], ys: Sequence[Float[Array, "m n"]]) -> list[Array]:
    """For each of several products with the same A, the rows of the result that are not right within rounding."""
    wide, k = jnp.float32, a.shape[1]
    unit = 2.0**-24
    length = unit * (8.0 * k**0.5 + k / 16)
    reach = jnp.sqrt(jnp.square(a.astype(wide)).sum(1, keepdims=True))
    want = _thin(a, jnp.concatenate([side.sums for side in sides]))
    out, at = [], 0
    for side, y in zip(sides, ys, strict=True):
        size = group_size(y.shape[1])
        got = y.astype(wide).reshape(y.shape[0], -1, size)
        norm = jnp.sqrt(jnp.square(got).sum(-1))
        rounding = SIGMAS / 3**0.5 * float(jnp.finfo(y.dtype).eps) / 2 + 2 * unit * size**0.5
        bound = rounding * norm + length * reach * side.size
        off = jnp.abs(want[:, at : at + norm.shape[1]] - got.sum(-1))
        at += norm.shape[1]
        # A bound that is not finite bounds nothing: an element above 1e19 has a square that is not.
        out.append((~((off <= bound) & jnp.isfinite(bound))).any(-1))
    return out


def wrong_rows(a: Float[Array, "m k"], b: Float[Array, "n k"], y: Float[Array, "m n"]) -> Bool[Array, " m"]:
    """Rows of `y` that are not those of `a b^T` within rounding."""
    return off_rows(a, [side_of(b)], [y])[0]


def _struck(y: Array, hit: Array, blow: Blow) -> Array:
    """`y` (rows, columns) with one element changed where `hit`."""
    # Elementwise, so that it means the same wherever the partitioner cuts `y` (an indexed update of a sum that is
    # spread over
    # devices does not).
    row, column = lax.broadcasted_iota(jnp.int32, y.shape, 0), lax.broadcasted_iota(jnp.int32, y.shape, 1)
    there = hit & (row == blow.row % y.shape[0]) & (column == blow.column % y.shape[1])
    word = jnp.uint32 if y.dtype.itemsize == 4 else jnp.uint16
    flipped = lax.bitcast_convert_type(lax.bitcast_convert_type(y, word) ^ blow.bits.astype(word), y.dtype)
    return jnp.where(there, jnp.where(blow.bits == 0, jnp.asarray(jnp.nan, y.dtype), flipped), y)


def _maybe(rule: Rule, item: Item, way: int, y: Array) -> Array:
    if item.blow is None:
        return y
    blow = item.blow
    hit = (blow.layer == item.layer) & (blow.product == rule.number) & (blow.way == way)
    return _struck(y, hit, blow)


def _rows(bad: Bool[Array, " m"], batch: int) -> Float[Array, " b"]:
    return bad.reshape(batch, -1).sum(1).astype(jnp.float32)


def _when(rules: Rules, on: Array | None, check: Any, nothing: Any, *args: Any) -> Any:
    # One condition for all products that share an input: on a GPU each waits for the host.
    if not rules[0].check:
        return nothing
    return check(*args) if on is None else lax.cond(on, check, lambda *_: nothing, *args)


def forward(rules: Rules, x: Array, ws: Weights, item: Item) -> tuple[list[Array], Array]:
    """`checked` without a reverse mode of its own: forward mode goes through it."""
    flat, batch = x.reshape(-1, x.shape[-1]), x.shape[0]
    ys = []
    for rule, w in zip(rules, ws, strict=True):
        wide = rule.scores or rule.forward_over > 1
        ys.append(_maybe(rule, item, 0, multiply(flat, w, jnp.float32 if wide else w.dtype)))

    def check(flat: Array, ws: Weights, ys: list[Array]) -> Array:
        return sum((_rows(off, batch) for off in off_rows(flat, [side_of(w) for w in ws], ys)), jnp.zeros(batch))

    failed = _when(rules, item.on, check, jnp.zeros(batch), flat, ws, ys)
    out = []
    for rule, w, y in zip(rules, ws, ys, strict=True):
        out.append((y if rule.scores else y.astype(w.dtype)).reshape(*x.shape[:-1], w.shape[0]))
    return out, failed


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def checked(rules: Rules, x: Float[Array, "b s k"], ws: Weights, item: Item) -> tuple[list[Array], Array]:
    """`x w^T` for each of the weights, and how many rows of them fail their check, by batch row. The backward pass
    checks its products too and says so through `item.probe`."""
    return forward(rules, x, ws, item)


def _fwd(rules: Rules, x: Array, ws: Weights, item: Item) -> Any:
    ys, failed = forward(rules, x, ws, item)
    return (ys, failed), (x, ws, item, failed)


def _bwd(rules: Rules, kept: Any, cotangents: Any) -> Any:
    x, ws, item, failed = kept
    flat, batch = x.reshape(-1, x.shape[-1]), x.shape[0]
    # The gradients of scores are float32; products run in the weights' type.
    dys = [dy.reshape(-1, w.shape[0]).astype(w.dtype) for dy, w in zip(cotangents[0], ws, strict=True)]
    dxs, dws = [], []
    for rule, w, dy in zip(rules, ws, dys, strict=True):
        dxs.append(_maybe(rule, item, 1, multiply(dy, w.T, jnp.float32 if rule.input_over > 1 else w.dtype)))
        dws.append(_maybe(rule, item, 2, multiply(dy.T, flat.T, jnp.float32 if rule.weight_over > 1 else w.dtype)))

    def check(flat: Array, ws: Weights, dys: list[Array], dxs: list[Array], dws: list[Array]) -> tuple[Array, Array]:
        rows, weight = jnp.zeros(batch), jnp.float32(0)
        shared = side_of(flat.T)
        for w, dy, dx, dw in zip(ws, dys, dxs, dws, strict=True):
            rows = rows + _rows(wrong_rows(dy, w.T, dx), batch)
            weight = weight + off_rows(dy.T, [shared], [dw])[0].sum().astype(jnp.float32)
        return rows, weight

    nothing = (jnp.zeros(batch), jnp.float32(0))
    rows, weight = _when(rules, item.on, check, nothing, flat, ws, dys, dxs, dws)
    # Where the forward pass runs once more for the backward one, `failed` is what its second run found.
    probe = None if item.probe is None else Probe(rows + failed if rules[0].twice else rows, weight)
    dx = sum((d.astype(w.dtype) for d, w in zip(dxs[1:], ws[1:], strict=True)), dxs[0].astype(ws[0].dtype))
    dws = [d.astype(w.dtype) for d, w in zip(dws, ws, strict=True)]
    return dx.reshape(x.shape), dws, Item(None, None, probe, None)  # type: ignore[arg-type]


checked.defvjp(_fwd, _bwd)


class Checked(Product):
    """A layer's products with their checks. `differentiable`: with a checked reverse mode; otherwise forward mode
    works."""

    def __init__(self, weights: dict[str, Array], item: Item, *, rules: dict[str, Rule], differentiable: bool) -> None:
        super().__init__(weights)
        self.item, self.rules, self.differentiable = item, rules, differentiable

    def __call__(self, names: Sequence[str], x: Array) -> list[Array]:
        """As `Product`."""
        rules, ws = tuple(self.rules[n] for n in names), [self.weights[n] for n in names]
        made: Any = (checked if self.differentiable else forward)(rules, x, ws, self.item)
        ys, failed = made
        self.seen = self.seen._replace(failed=self.seen.failed + lax.stop_gradient(failed).astype(jnp.int32))
        return [adapted(self.weights, n, x, y) for n, y in zip(names, ys, strict=True)]


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


__all__ = ["Blow", "Checked", "Item", "Probe", "Seen", "checked", "items", "no_probe", "rules_for", "wrong_rows"]
