"""Checked products of generation. The weights stay as they are, so what they add up to is kept (a hundredth of their
size), and the results of a token are so small that they are left in float32 until they are checked, where rounding
hides nothing. All layers are checked together behind the last one: a token's arithmetic is too short for anything in
between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int32

from ._checksum import Side, grouped, norm, settled, side_of, width, wrong
from ._model import Product, adapted, head, multiply, thin
from ._names import DENSE
from ._rules import SHARED, Blow, Item, Rule, struck

PERIOD = 8
"""An audit looks at every eighth layer, others with each token."""

LAYER = SHARED[:-1]


class Audit(NamedTuple):
    """What is checked beside a token: the weights' `sides`, stacked over layers, and the token's number, which says
    which layers an audit looks at. `blow`: a scripted arithmetic fault."""

    sides: dict[str, Side]
    step: Int32[Array, ""]
    blow: Blow | None = None


@jax.jit
def sides_of(params: dict[str, Any]) -> dict[str, Side]:
    """The sides of all weights that products read: one read of them."""
    layers = params["layers"]
    out = {name: side_of(layers[name], layers[name].dtype) for name in DENSE}
    return out | {"head": side_of(head(params), head(params).dtype)}


def rules() -> dict[str, Rule]:
    """As `_abft` has them, of one device."""
    return {n: Rule(i, scores=n == "head") for i, n in enumerate((*DENSE, "head"))}


class Watched(Product):
    """The products of one token, whose operands and results are `kept`. `alone`: of one sequence, as `Thin`."""

    def __init__(self, weights: dict[str, Array], alone: bool, layer: Any, blow: Blow | None) -> None:
        super().__init__(weights)
        self.alone, self.layer, self.blow = alone, layer, blow
        self.kept: list[Float[Array, "b n"]] = []

    def __call__(self, names: Sequence[str], x: Array) -> list[Array]:
        """As `Product`."""
        wide = settled(x)
        x = wide.astype(x.dtype)
        self.kept.append(wide.reshape(x.shape[0], -1))
        return [adapted(self.weights, n, x, self.wide(n, x).astype(x.dtype)) for n in names]

    def wide(self, name: str, x: Float[Array, "b 1 k"]) -> Float[Array, "b 1 n"]:
        """One product, in float32."""
        w = self.weights[name]
        y = thin(x, w) if self.alone else multiply(x, w, jnp.float32)
        item = Item(None, self.layer, None, self.blow)
        y = struck(rules()[name], item, 0, y.reshape(x.shape[0], -1))
        self.kept.append(y)
        return y.reshape(*x.shape[:-1], -1)


def off(b: Side, x: Float[Array, "*l b k"], y: Float[Array, "*l b n"], dtype: Any) -> Bool[Array, "*l"]:
    """Whether float32 products of `x` with weights of `dtype` whose side is `b` are off anywhere."""
    size = width(y.shape[-1], dtype)
    if x.shape[-2] == 1:
        want = (b.sums * x).sum(-1)[..., None]
    else:
        want = jnp.einsum("...gk,...bk->...gb", b.sums, x, precision="highest")
    made = grouped(y, size, -1, powers=True)
    made = made._replace(sums=jnp.swapaxes(made.sums, -1, -2))
    reach = norm(jnp.square(x), -1, x.shape[-1])[..., None, :]
    return wrong(b, size, want, reach, made, jnp.float32).any((-1, -2))


def scores(
    params: dict[str, Any], x: Float[Array, "b k"], alone: bool, audit: Audit | None
) -> tuple[Float[Array, "b v"], Int32[Array, " 1"]]:
    """The scores, and 1 if their product is off; with `audit` it is always looked at."""
    table = head(params)
    made = (lambda x: thin(x, table)[0]) if alone else (lambda x: multiply(x, table, jnp.float32))
    if audit is None:
        return made(x), jnp.zeros(1, jnp.int32)
    wide = settled(x)
    item = Item(None, jnp.int32(params["layers"]["q"].shape[0]), None, audit.blow)
    y = struck(rules()["head"], item, 0, made(wide.astype(x.dtype)))
    return y, off(audit.sides["head"], wide, y, table.dtype).astype(jnp.int32)[None]


def off_layers(audit: Audit, kept: Float[Array, "l b n"], params: dict[str, Any], every: int) -> Int32[Array, " l"]:
    """How many products of each layer are off, of those that a check of every `every`-th layer looks at. `kept`: what
    `Watched` kept, side by side."""
    layers, w = kept.shape[0], params["layers"]
    # The layers whose number plus the token's is a multiple of `every`, as in training.
    first = jnp.mod(-audit.step, every)
    number = first + every * jnp.arange(-(-layers // every))
    there, number = number < layers, jnp.minimum(number, layers - 1)
    some = (lambda x: x) if every == 1 else (lambda x: x[number])
    bad, at = jnp.zeros(layers if every == 1 else number.shape[0], jnp.int32), 0

    def cut(n: int) -> Array:
        nonlocal at
        at += n
        return some(kept[..., at - n : at])

    for names in LAYER:
        x = cut(w[names[0]].shape[-1])
        for n in names:
            b = jax.tree.map(some, audit.sides[n])
            bad = bad + off(b, x, cut(w[n].shape[-2]), w[n].dtype)
    if every == 1:
        return bad
    return jnp.zeros(layers, jnp.int32).at[number].add(jnp.where(there, bad, 0))
