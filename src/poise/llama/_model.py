"""The decoder (Touvron et al. 2023; Llama team 2024) as pure functions of a parameter tree (`_names`).

A layer is `x + o(attention(q, k, v of norm(x)))`, then `x + down(silu(gate) * up of norm(x))`. Layers run under one
scan, so that a model of 32 compiles like one of 2. Products run in the parameters' dtype, norms, angles and the loss in
float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, Int32

from ._config import Config
from ._rope import angles, rotate

Remat = Literal["none", "dots", "full"]
"""What the backward pass computes again: nothing, all but the matrix products, or whole layers."""

Attend = Callable[[Array, Array, Array], Array]
Constrain = Callable[[Array], Array]


class Seen(NamedTuple):
    """What one layer's guards saw, by batch row: `bad` values of the residual stream (not finite, or above the limit),
    and rows of its products that `failed` their check."""

    bad: Int32[Array, " b"]
    failed: Int32[Array, " b"]


class Product:
    """The plain matrix products of one layer; `_abft` has a subclass that checks them.

    Weights may bring low-rank additions (Hu et al. 2021): `q_a` (rank, in) and `q_b` (out, rank) add `x q_a^T q_b^T` to
    the product with `q`."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = weights

    def __call__(self, names: Sequence[str], x: Array) -> list[Array]:
        """`x W^T` for each of the named weights, which share `x`."""
        return [adapted(self.weights, n, x, multiply(x, self.weights[n])) for n in names]

    def done(self, x: Array) -> tuple[Array, Int32[Array, " b"]]:
        """After all of a layer's products: its output `x`, and how many of their rows failed a check, by batch row."""
        return x, jnp.zeros(x.shape[0], jnp.int32)


def multiply(x: Float[Array, "*m k"], w: Float[Array, "n k"], dtype: Any = None) -> Float[Array, "*m n"]:
    """`x w^T`, accumulated in float32, in `dtype` (that of `w`). Float32 means float32, also on a GPU."""
    precision = "highest" if w.dtype.itemsize == 4 else None
    return jnp.einsum("...k,nk->...n", x, w, precision=precision, preferred_element_type=dtype or w.dtype)


class Thin(Product):
    """The products of a single token, as sums along the rows of the weights. XLA fuses the cut of a layer out of its
    stack into a sum, but copies it for a matrix product, and at one token the weights' bytes are all that counts."""

    def __call__(self, names: Sequence[str], x: Array) -> list[Array]:
        """As `Product`."""
        return [adapted(self.weights, n, x, thin(x, self.weights[n]).astype(x.dtype)) for n in names]


def thin(x: Float[Array, "1 1 k"], w: Float[Array, "n k"]) -> Float[Array, "1 1 n"]:
    """`x w^T` of one row, in float32."""
    return (x.reshape(-1).astype(jnp.float32) * w.astype(jnp.float32)).sum(-1)[None, None]


def adapted(weights: dict[str, Array], name: str, x: Array, y: Array) -> Array:
    """`y` with the low-rank addition of `name`, if the weights bring one."""
    down, up = weights.get(f"{name}_a"), weights.get(f"{name}_b")
    if down is None or up is None:
        return y
    return y + multiply(multiply(x.astype(down.dtype), down), up).astype(y.dtype)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """`weight * x / sqrt(mean(x^2) + eps)`, in float32 (Zhang and Sennrich 2019)."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return weight * wide.astype(x.dtype)


def causal(config: Config, dtype: Any) -> Attend:
    """Attention of each position to itself and what is before it; cuDNN's flash kernel where the backend has it."""
    flash = jax.default_backend() == "gpu" and jnp.dtype(dtype).itemsize == 2 and config.head in (64, 128)
    kind = "cudnn" if flash else "xla"
    return partial(jax.nn.dot_product_attention, is_causal=True, implementation=kind)


def layer(config: Config, x: Array, product: Product, turn: tuple[Array, Array], attend: Attend) -> Array:
    """One decoder layer: (batch, positions, width) to the same."""
    w = product.weights
    b, s, _ = x.shape
    q, k, v = product(("q", "k", "v"), rms_norm(x, w["attn_norm"], config.eps))
    q = rotate(q.reshape(b, s, config.heads, config.head), turn)
    k = rotate(k.reshape(b, s, config.kv_heads, config.head), turn)
    mixed = attend(q, k, v.reshape(b, s, config.kv_heads, config.head))
    (out,) = product(("o",), mixed.reshape(b, s, config.heads * config.head))
    x = x + out
    gate, up = product(("gate", "up"), rms_norm(x, w["mlp_norm"], config.eps))
    (out,) = product(("down",), jax.nn.silu(gate) * up)
    return x + out


def bad_values(x: Float[Array, "b ..."], limit: float) -> Int32[Array, " b"]:
    """How many values of each batch row are not finite or above `limit` in magnitude."""
    bound = jnp.asarray(min(limit, float(jnp.finfo(x.dtype).max)), x.dtype)
    return (~(jnp.abs(lax.stop_gradient(x)) <= bound)).sum(tuple(range(1, x.ndim)), dtype=jnp.int32)


def rematerialised(f: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """`f` under a policy of what its backward pass keeps."""
    if remat == "none":
        return f
    keep = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    return jax.checkpoint(f, policy=keep, prevent_cse=False)


def hidden(
    params: dict[str, Any],
    tokens: Int[Array, "b s"],
    config: Config,
    *,
    product: Callable[[dict[str, Array], Any], Product] = lambda w, _: Product(w),
    each: Any = None,
    remat: Remat = "none",
    limit: float | None = None,
    constrain: Constrain = lambda x: x,
) -> tuple[Float[Array, "b s d"], Seen]:
    """The last layer's output after the final norm, and what the guards saw, stacked over layers.

    `product(weights, item)` makes a layer's products, `each` is a tree of what they need per layer, stacked over
    layers. `limit` is the gate's on the residual stream. `constrain` says how activations are cut over a mesh."""
    dtype = params["embed"].dtype
    x = constrain(params["embed"][tokens])
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    turn, attend = angles(config, positions), causal(config, dtype)

    def body(x: Array, item: tuple[dict[str, Array], Any]) -> tuple[Array, Seen]:
        weights, more = item
        mine = product(weights, more)
        x, failed = mine.done(constrain(layer(config, x, mine, turn, attend)))
        bad = jnp.zeros_like(failed) if limit is None else bad_values(x, limit)
        return x, Seen(bad, failed)

    x, seen = lax.scan(rematerialised(body, remat), x, (params["layers"], each))
    return rms_norm(x, params["norm"], config.eps), seen


def head(params: dict[str, Any]) -> Array:
    """The output head: (vocab, width)."""
    return params.get("head", params["embed"])


def logits(params: dict[str, Any], tokens: Int[Array, "b s"], config: Config) -> Float[Array, "b s v"]:
    """Scores of the next token at every position, float32."""
    x, _ = hidden(params, tokens, config)
    return multiply(x, head(params), jnp.float32)


def plain_scores(x: Float[Array, "b s d"], table: Float[Array, "v d"]) -> tuple[Array, Array]:
    """Scores in float32, and the rows of each sequence that failed a check: none."""
    return multiply(x, table, jnp.float32), jnp.zeros(x.shape[0])


def cross_entropy(
    x: Float[Array, "b s d"], table: Float[Array, "v d"], targets: Int[Array, "b s"], weight: Float[Array, " b"],
    chunk: int, scores: Callable[[Array, Array], tuple[Array, Array]] = plain_scores,
) -> tuple[Float[Array, ""], Float[Array, " b"]]:  # fmt: skip
    """Sum over tokens of `-weight log p(target)` in nats, and what `scores` said about its product.

    The scores of `chunk` positions at a time are made, forward and backward, never those of all: at 128256 tokens they
    would outweigh everything else."""
    b, s, d = x.shape
    n = s // chunk if chunk and s % chunk == 0 else 1

    @partial(jax.checkpoint, prevent_cse=False)
    def some(carry: tuple[Array, Array], part: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        h, t = part
        made, failed = scores(h, table)
        norm = jax.nn.logsumexp(made, axis=-1)
        at = jnp.take_along_axis(made, t[..., None], axis=-1)[..., 0]
        loss = ((norm - at) * weight[:, None]).sum()
        return (carry[0] + loss, carry[1] + lax.stop_gradient(failed)), None

    parts = (x.reshape(b, n, s // n, d).swapaxes(0, 1), targets.reshape(b, n, s // n).swapaxes(0, 1))
    (total, failed), _ = lax.scan(some, (jnp.float32(0), jnp.zeros(b)), parts)
    return total, failed
