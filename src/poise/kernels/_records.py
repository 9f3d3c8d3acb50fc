"""32-byte records: rows <-> channels, and the gated update of each cell kind; compiled kernels with their jnp twins.

A row is eight 4-byte words. PIM cells: w, m, v, lr_mask, wd_mask, status, id, free. PINN cells: w, u, v, gain, status,
id, free, free. Floats are float32, the rest uint32; a row whose status is not 0 is left alone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32, Int32, UInt32

from . import _rule
from ._call import call
from ._rule import Rule
from .ref_adamw import Hyper, floats

Cell = Literal["pim", "pinn"]
CELLS: tuple[Cell, ...] = ("pim", "pinn")
STATUS = {"pim": 5, "pinn": 4}


class BadRows(NamedTuple):
    """Rows that were left as they were, with status 1: how many, and the first of them (-1: none)."""

    rows: Int32[Array, ""]
    first: Int32[Array, ""]


def pack(channels: UInt32[Array, "8 n"]) -> UInt32[Array, "n 8"]:
    """Channels into rows."""
    if channels.size == 0:
        return channels.T
    return call("poise_pack", lambda c: [c.T], [channels], [((channels.shape[1], 8), jnp.uint32)])[0]


def unpack(rows: UInt32[Array, "n 8"]) -> UInt32[Array, "8 n"]:
    """Rows into channels."""
    if rows.size == 0:
        return rows.T
    return call("poise_unpack", lambda r: [r.T], [rows], [((8, rows.shape[0]), jnp.uint32)])[0]


def update_twin(
    rows: UInt32[Array, "n 8"], grad: Float32[Array, " n"], hyper: Float32[Array, " 10"], cell: Cell, gate: Rule
) -> tuple[UInt32[Array, "n 8"], BadRows]:
    """What the kernel computes: AdamW on PIM cells, `w <- gamma w + alpha gain g` on PINN cells."""
    at = STATUS[cell]
    w, m, v = (floats(rows[:, i]) for i in range(3))
    asleep = rows[:, at] != 0
    bad = _rule.bad(gate, grad) | _rule.bad(gate, w)
    if cell == "pim":
        h = Hyper(*hyper)
        bad = bad | _rule.bad(gate, m) | _rule.bad(gate, v)
        g = grad * h.clip
        m1, v1 = h.b1 * m + h.one_b1 * g, h.b2 * v + h.one_b2 * (g * g)
        step = (m1 * h.inv1) / (jnp.sqrt(v1 * h.inv2) + h.eps) + h.wd * floats(rows[:, 4]) * w
        new = [w - h.lr * floats(rows[:, 3]) * step, m1, v1]
    else:
        new = [hyper[0] * w + hyper[1] * (floats(rows[:, 3]) * grad)]
    bad = ~asleep & (bad | _rule.bad(gate, new[0]))
    out = rows
    for i, x in enumerate(new):
        words = lax.bitcast_convert_type(x, jnp.uint32)
        out = out.at[:, i].set(jnp.where(asleep | bad, rows[:, i], words))
    out = out.at[:, at].set(jnp.where(bad, jnp.uint32(1), rows[:, at]))
    first = jnp.where(bad.any(), jnp.argmax(bad), -1).astype(jnp.int32) if bad.size else jnp.int32(-1)
    return out, BadRows(bad.sum().astype(jnp.int32), first)


def update_records(
    rows: UInt32[Array, "n 8"], grad: Float32[Array, " n"], hyper: Float32[Array, " k"], cell: Cell, gate: Rule
) -> tuple[UInt32[Array, "n 8"], BadRows]:
    """One gated step on every row, each read once and written once, in place if the caller gives the rows up.

    - PIM cells: `hyper` are the ten numbers of `ref_adamw.Hyper`; the row's masks scale rate and decay.
    - PINN cells: `hyper` is (gamma, alpha).
    - A row with a bad number in its gradient, its state or its result is left as it was and gets status 1.
    """
    h = jnp.zeros(10, jnp.float32).at[: hyper.shape[0]].set(hyper)

    def twin(r: Array, g: Array, k: Array) -> list[Array]:
        out, bad = update_twin(r, g, k, cell, gate)
        return [out, jnp.stack([bad.rows - 1, bad.first])]

    args = [rows, grad, h]
    if rows.size == 0:
        out, found = twin(*args)
    else:
        out, found = call(
            "poise_record_update",
            twin,
            args,
            [(rows.shape, jnp.uint32), ((2,), jnp.int32)],
            aliases={0: 0},
            cell=np.int32(CELLS.index(cell)),
            rule=_rule.encode(gate, jnp.float32),
        )
    return out, BadRows(found[0] + 1, found[1])
