"""Checked matrix products (algorithm-based fault tolerance, Huang and Abraham 1984), forward and backward.

For `Y = A B^T` the columns of Y are cut into groups g of up to `GROUP`. Summed over a group,

    sum_j Y_ij  =  A_i . (sum_j B_j),

and the right side costs one thin product with float32 sums of B. Both sides differ by rounding only: by the rounding
of Y
to its dtype (unit roundoff u), independent errors of at most u |Y_ij| each, and by float32 accumulation. With
probability
1 - 2 exp(-k^2 / 2) (Hoeffding 1963) the first stays below k u |Y_ig|, Euclidean norm over the group; k = 8 leaves 3e-14
per row and group. The second stays below c 2^-24 |A_i| (|B_g| + |sum of B_g|), where c grows like the square root of
the
length (random signs) plus a sixteenth of it (tensor cores cut off what does not fit). An error above the sum of both is
no rounding. `design/llama-abft.md` has what that sees and what it does not.
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

GROUP = 512
"""Columns per checksum, at most: few enough to see an error of a third of the typical value, many enough to be
cheap."""

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


class Probe(NamedTuple):
    """What the backward pass found, as the "gradient" of zeros: failed checks by batch row, and of the weights'
    gradients
    (float32, since only such have gradients)."""

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


def wrong_rows(a: Float[Array, "m k"], b: Float[Array, "n k"], y: Float[Array, "m n"]) -> Bool[Array, " m"]:
    """Rows of `y` that are not those of `a b^T` within rounding."""
    wide = jnp.float32
    (m, k), n = a.shape, b.shape[0]
    size = group_size(n)
    bands = b.reshape(n // size, size, k)
    sums = bands.sum(1, dtype=wide)
    weight = jnp.sqrt(jnp.square(bands.astype(wide)).sum((1, 2))) + jnp.sqrt(jnp.square(sums).sum(1))
    reach = jnp.sqrt(jnp.square(a.astype(wide)).sum(1, keepdims=True))
    got = y.astype(wide).reshape(m, n // size, size)
    norm = jnp.sqrt(jnp.square(got).sum(-1))
    unit = 2.0**-24
    length = unit * (8.0 * k**0.5 + k / 16)
    rounding = SIGMAS * float(jnp.finfo(y.dtype).eps) / 2 + 2 * unit * size**0.5
    off = jnp.abs(_thin(a, sums) - got.sum(-1))
    bound = rounding * norm + length * reach * weight
    # A bound that is not finite bounds nothing: an element above 1e19 has a square that is not.
    return (~((off <= bound) & jnp.isfinite(bound))).any(-1)


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


def _when(rule: Rule, on: Array | None, check: Any, nothing: Array, *args: Array) -> Array:
    if not rule.check:
        return nothing
    return check(*args) if on is None else lax.cond(on, check, lambda *_: nothing, *args)


def forward(rule: Rule, x: Array, w: Array, item: Item) -> tuple[Array, Array]:
    """`checked` without a reverse mode of its own: forward mode goes through it."""
    flat = x.reshape(-1, x.shape[-1])
    wide = rule.scores or rule.forward_over > 1
    y = _maybe(rule, item, 0, multiply(flat, w, jnp.float32 if wide else w.dtype))
    batch = x.shape[0]
    failed = _when(
        rule, item.on, lambda a, b, c: _rows(wrong_rows(a, b, c), batch), jnp.zeros(batch, jnp.float32), flat, w, y
    )
    y = y if rule.scores else y.astype(w.dtype)
    return y.reshape(*x.shape[:-1], w.shape[0]), failed


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def checked(rule: Rule, x: Float[Array, "b s k"], w: Float[Array, "n k"], item: Item) -> tuple[Array, Array]:
    """`x w^T`, and how many rows of it fail their check, by batch row. The backward pass checks its products too and
    says
    so through `item.probe`."""
    return forward(rule, x, w, item)


def _fwd(rule: Rule, x: Array, w: Array, item: Item) -> Any:
    y, failed = forward(rule, x, w, item)
    return (y, failed), (x, w, item, failed)


def _bwd(rule: Rule, kept: Any, cotangents: Any) -> Any:
    x, w, item, failed = kept
    dy = cotangents[0].reshape(-1, w.shape[0]).astype(w.dtype)  # scores' gradients too: products run in narrow types
    flat, batch = x.reshape(-1, x.shape[-1]), x.shape[0]
    wide = jnp.float32 if rule.input_over > 1 else w.dtype
    dx = _maybe(rule, item, 1, multiply(dy, w.T, wide))
    wide = jnp.float32 if rule.weight_over > 1 else w.dtype
    dw = _maybe(rule, item, 2, multiply(dy.T, flat.T, wide))
    rows = _when(
        rule, item.on, lambda a, b, c: _rows(wrong_rows(a, b.T, c), batch), jnp.zeros(batch, jnp.float32), dy, w, dx
    )
    weight = _when(
        rule, item.on, lambda a, b, c: wrong_rows(a.T, b.T, c).sum().astype(jnp.float32), jnp.float32(0), dy, flat, dw
    )
    # Where the forward pass runs once more for the backward one, this is what its second run found.
    probe = None if item.probe is None else Probe(rows + failed if rule.twice else rows, weight)
    return dx.astype(w.dtype).reshape(x.shape), dw.astype(w.dtype), Item(None, None, probe, None)  # type: ignore[arg-type]


checked.defvjp(_fwd, _bwd)


class Checked(Product):
    """A layer's products with their checks. `differentiable`: with a checked reverse mode; otherwise forward mode
    works."""

    def __init__(self, weights: dict[str, Array], item: Item, *, rules: dict[str, Rule], differentiable: bool) -> None:
        super().__init__(weights)
        self.item, self.rules, self.differentiable = item, rules, differentiable

    def __call__(self, names: Sequence[str], x: Array) -> list[Array]:
        out = []
        for name in names:
            w, rule = self.weights[name], self.rules[name]
            y, failed = (checked if self.differentiable else forward)(rule, x, w, self.item)
            failed = lax.stop_gradient(failed).astype(jnp.int32)
            self.seen = self.seen._replace(failed=self.seen.failed + failed)
            out.append(adapted(self.weights, name, x, y))
        return out


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
