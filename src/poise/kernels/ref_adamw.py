"""The jnp twin of the sealed AdamW: repair what it reads, update, seal what it writes."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import BFloat16, Bool, Float32, UInt32

from . import ref
from .layout import BANKS, Layout
from .ref import Mended, Seal

W, M, V = 0, 1, 2


class Hyper(NamedTuple):
    """Scalars of one step, in the order of the kernels' array. `inv1` = 1 / (1 - b1^t), `inv2` likewise."""

    lr: Array
    b1: Array
    one_b1: Array
    b2: Array
    one_b2: Array
    eps: Array
    wd: Array
    inv1: Array
    inv2: Array
    clip: Array


class Sealed(NamedTuple):
    """The float32 words of one array (uint32, or the array itself) and their seal."""

    words: UInt32[Array, " n"] | Float32[Array, "*n"]
    seal: Seal


class State(NamedTuple):
    """Parameters (the float32 master copy) and the two moments, each sealed."""

    w: Sealed
    m: Sealed
    v: Sealed


def floats(words: UInt32[Array, " n"]) -> Float32[Array, " n"]:
    """The words as float32."""
    return lax.bitcast_convert_type(words, jnp.float32)


def _verdict(state: Sealed, lay: Layout) -> Bool[Array, " G"]:
    """Groups with a data block that does not match its marks."""
    return (ref.block_marks(ref.banks(state.words)) != state.seal.marks[:BANKS]).any((0, -1)) & jnp.ones(lay.G, bool)


def _by_word(groups: Bool[Array, " G"], lay: Layout) -> Bool[Array, " n"]:
    return jnp.broadcast_to(groups[None, :, None], (BANKS, lay.G, lay.B)).reshape(-1)[: lay.n]


def _keep(groups: Bool[Array, " G"], lay: Layout, new: Seal, old: Seal) -> Seal:
    return Seal(
        jnp.where(jnp.repeat(groups, lay.B), new.parity, old.parity),
        jnp.where(groups[None, :, None], new.marks, old.marks),
        jnp.where(groups[:, None], new.guard, old.guard),
    )


def adamw_step(
    w: Array, m: Array, v: Array, grad: Array, h: Hyper, lr_mask: Array | None = None, wd_mask: Array | None = None
) -> tuple[Array, Array, Array]:
    """The arithmetic alone: new w, m and v, float32 of any one shape, in the order of the kernels' operations."""
    g = grad * h.clip
    m = h.b1 * m + h.one_b1 * g
    v = h.b2 * v + h.one_b2 * (g * g)
    wd = h.wd if wd_mask is None else h.wd * wd_mask
    lr = h.lr if lr_mask is None else h.lr * lr_mask
    return w - lr * ((m * h.inv1) / (jnp.sqrt(v * h.inv2) + h.eps) + wd * w), m, v


def update(
    state: State,
    grad: Float32[Array, " n"],
    h: Hyper,
    ok: Bool[Array, ""],
    lr_mask: Float32[Array, " n"] | None = None,
    wd_mask: Float32[Array, " n"] | None = None,
) -> tuple[State, tuple[Mended, Mended, Mended], BFloat16[Array, " n"]]:
    """One step. A group that cannot be mended in any of the three is left as it is in all of them.

    Parity and guard are looked at only in groups with damaged data and in a withheld step (`ok` false): elsewhere they
    are made anew from words that match their marks.
    """
    lay = Layout(grad.shape[0])
    mended, reports, lost = [], [], jnp.zeros(lay.G, bool)
    for s in state:
        look = _verdict(s, lay) | ~ok
        words, new, _ = ref.repair(s.words, s.seal)
        still = _verdict(Sealed(words, new), lay)
        # Count only the groups that were looked at: the others' parity and guard are shown fresh.
        shown = _keep(look, lay, s.seal, ref.seal(s.words))
        reports.append(ref.repair(s.words, shown)[2])
        mended.append(Sealed(words, _keep(look, lay, new, s.seal)))
        lost = lost | (look & still)
    write = ok & ~lost

    w, m, v = (floats(s.words) for s in mended)
    moved = adamw_step(w, m, v, grad, h, lr_mask, wd_mask)
    here = _by_word(write, lay)
    out = []
    for s, new in zip(mended, moved, strict=True):
        words = jnp.where(here, lax.bitcast_convert_type(new, jnp.uint32), s.words)
        out.append(Sealed(words, _keep(write, lay, ref.seal(words), s.seal)))
    return State(*out), (reports[0], reports[1], reports[2]), floats(out[W].words).astype(jnp.bfloat16)
