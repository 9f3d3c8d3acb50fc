"""Reading a prompt and writing one token: the compiled halves of generation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, Int32

from ..errors import BadInput
from ._abft import Checked
from ._cache import Cache, Found, append, filled, repaired, room
from ._config import Config
from ._model import Product, Thin, bad_values, causal, layer, rms_norm
from ._names import DENSE
from ._rope import angles
from ._rules import Item, items
from ._watched import Audit, Watched, off_layers, rules, scores


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest at `temperature` 0, else drawn; `top_p` keeps the likeliest tokens
    that together have that probability (Holtzman et al. 2020). `seed` keys the draws: the same seed gives the same
    text."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise BadInput(f"The temperature is 0 or a positive number, not {self.temperature!r}.")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top_p is a probability above 0, not {self.top_p!r}.")
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise BadInput(f"The seed is a whole number from 0 to {2**32 - 1}, not {self.seed!r}.")


class Written(NamedTuple):
    """One step of generation: the `token` of each sequence, the gate's count of `bad` values behind its scores, what
    was `found` off in the cache before it was read, and how many products `failed` their check, by layer and, last,
    in the scores."""

    token: Int32[Array, " b"]
    bad: Int32[Array, ""]
    found: Found
    failed: Int32[Array, " layers+1"]


def choose(scores: Float[Array, "b v"], sampling: Sampling, seed: Any, at: Int[Array, " b"]) -> Int32[Array, " b"]:
    """The next token of each sequence. Draws are keyed by seed, sequence and position `at`, so a step that is repeated
    draws the same."""
    if sampling.temperature == 0:
        return scores.argmax(-1).astype(jnp.int32)
    scores = scores / sampling.temperature
    if sampling.top_p < 1:
        order = jnp.sort(scores, axis=-1, descending=True)
        share = jax.nn.softmax(order, axis=-1)
        # The token that crosses the threshold is kept; those before it sum to less.
        kept = jnp.cumsum(share, axis=-1) - share < sampling.top_p
        least = jnp.where(kept, order, jnp.inf).min(-1, keepdims=True)
        scores = jnp.where(scores < least, -jnp.inf, scores)
    key = jax.random.key(seed)
    keys = jax.vmap(lambda b, p: jax.random.fold_in(jax.random.fold_in(key, b), p))(jnp.arange(at.shape[0]), at)
    return jax.vmap(jax.random.categorical)(keys, scores).astype(jnp.int32)


@partial(jax.jit, static_argnames=("config", "positions", "sampling", "limit", "every"))
def read(
    params: dict[str, Any], tokens: Int[Array, "b s"], length: Int[Array, " b"], *, config: Config, positions: int,
    sampling: Sampling, limit: float, seed: Any = 0, audit: Audit | None = None, every: int = 1,
) -> tuple[Cache, Written]:  # fmt: skip
    """Read prompts of `length` tokens, padded on the right: a cache with room for `positions`, and the first new
    token. With `audit`, products of every `every`-th layer are checked."""
    dtype = params["embed"].dtype
    x = params["embed"][tokens]
    turn = angles(config, jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape))
    full = causal(config, dtype)

    number, sides = jnp.arange(config.layers), None
    each = Item(None, number, None, None)
    if audit is not None:
        sides = {name: audit.sides[name] for name in DENSE}
        mode = "all" if every == 1 else "audit"
        each = items(config.layers, tokens.shape[0], mode=mode, period=every, step=audit.step, blow=audit.blow)

    def body(x: Array, one: tuple[dict[str, Array], Item, Any]) -> tuple[Array, tuple[Array, ...]]:
        weights, item, known = one
        rows: list[Array] = []
        product = Product(weights)
        if audit is not None:
            product = Checked(weights, item, rules=rules(), differentiable=False, sides=known)

        def attend(q: Array, k: Array, v: Array) -> Array:
            rows.extend((k, v))
            return full(q, k, v)

        x, failed = product.done(layer(config, x, product, turn, attend))
        return x, (rows[0], rows[1], bad_values(x, limit).sum(), failed.sum())

    x, (k, v, bad, failed) = lax.scan(body, x, (params["layers"], each, sides))
    cache = filled(room(config, tokens.shape[0], positions, dtype), k, v, length)
    last = jnp.take_along_axis(x, (length - 1)[:, None, None], axis=1)[:, 0]
    made, off = scores(params, rms_norm(last, params["norm"], config.eps), False, audit)
    token = choose(made, sampling, seed, length)
    return cache, Written(token, bad.sum(dtype=jnp.int32), Found.nothing(), jnp.concatenate((failed, off)))


@partial(
    jax.jit, static_argnames=("config", "sampling", "limit", "check", "alone", "every"), donate_argnames=("cache",)
)
def write(
    params: dict[str, Any], cache: Cache, token: Int[Array, " b"], live: Bool[Array, " b"], *, config: Config,
    sampling: Sampling, limit: float, seed: Any = 0, check: bool = True, alone: bool = False,
    audit: Audit | None = None, every: int = 1,
) -> tuple[Cache, Written]:  # fmt: skip
    """Append `token` to the sequences that are `live` and choose the next one. With `check` the cache is verified, and
    mended, before attention reads it. `alone`: a single sequence, whose products read each weight once (`Thin`). With
    `audit`, products of every `every`-th layer are checked."""
    cache, found = repaired(cache) if check else (cache, Found.nothing())
    at = cache.length
    x = params["embed"][token][:, None]
    turn = angles(config, at[:, None])

    def body(carry: tuple[Array, Cache, Array], item: tuple[dict[str, Array], Array]) -> tuple[Any, Any]:
        x, cache, bad = carry
        weights, number = item
        grown: list[Cache] = []
        watched = None if audit is None else Watched(weights, alone, number, audit.blow)
        product = watched or (Thin if alone else Product)(weights)

        def attend(q: Array, k: Array, v: Array) -> Array:
            grown.append(append(cache, number, k[:, 0], v[:, 0], live))
            keys = lax.dynamic_index_in_dim(grown[0].k, number, 0, keepdims=False)
            values = lax.dynamic_index_in_dim(grown[0].v, number, 0, keepdims=False)
            return jax.nn.dot_product_attention(q, keys, values, key_value_seq_lengths=at + 1, implementation="xla")

        x = layer(config, x, product, turn, attend)
        kept = None if watched is None else jnp.concatenate(watched.kept, -1)
        return (x, grown[0], bad + bad_values(x, limit).sum()), kept

    numbers = jnp.arange(config.layers)
    (x, cache, bad), kept = lax.scan(body, (x, cache, jnp.int32(0)), (params["layers"], numbers))
    # A sequence that has ended keeps its length: what it appends is written over the next time.
    cache = cache._replace(length=jnp.where(live, at + 1, at))
    made, off = scores(params, rms_norm(x[:, 0], params["norm"], config.eps), alone, audit)
    failed = jnp.zeros(config.layers, jnp.int32) if audit is None else off_layers(audit, kept, params, every)
    token = choose(made, sampling, seed, at + 1)
    return cache, Written(token, bad, found, jnp.concatenate((failed, off)))
