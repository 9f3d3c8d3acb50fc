"""The gradient of a raw flux into the `u` of PINN cells, along lines of cells; the kernel and its jnp twin."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float32, UInt32

from ..errors import BadInput
from . import _rule
from ._call import call
from ._records import STATUS, BadRows
from ._rule import Rule
from .ref_adamw import floats

BROKEN_U = -99.0
"""What `u` holds where an input was broken."""

BROKEN_STATUS = 2
"""And what the row's status says there."""

U = 1


def gradient_twin(
    rows: UInt32[Array, "n 8"],
    flux: Float32[Array, " n"] | None,
    ends: tuple[Float32[Array, " lines"], Float32[Array, " lines"]] | None,
    columns: int,
    factor: float,
    gate: Rule,
) -> tuple[UInt32[Array, "n 8"], BadRows]:
    """What the kernel computes, in jnp: `u = (east - west) * factor`."""
    x = (floats(rows[:, 0]) if flux is None else flux).reshape(-1, columns)
    first, last = (x[:, :1], x[:, -1:]) if ends is None else (ends[0][:, None], ends[1][:, None])
    wide = jnp.concatenate((first, x, last), 1)
    bad = _rule.bad(gate, wide)
    broken = (bad[:, :-2] | bad[:, 1:-1] | bad[:, 2:]).reshape(-1)
    slope = ((wide[:, 2:] - wide[:, :-2]) * jnp.float32(factor)).reshape(-1)
    u = lax.bitcast_convert_type(jnp.where(broken, jnp.float32(BROKEN_U), slope), jnp.uint32)
    status = jnp.where(broken, jnp.uint32(BROKEN_STATUS), rows[:, STATUS["pinn"]])
    out = rows.at[:, U].set(u).at[:, STATUS["pinn"]].set(status)
    where = jnp.where(broken.any(), jnp.argmax(broken), -1).astype(jnp.int32) if broken.size else jnp.int32(-1)
    return out, BadRows(broken.sum().astype(jnp.int32), where)


def record_gradient(
    rows: UInt32[Array, "n 8"],
    dx: float,
    gate: Rule,
    *,
    flux: Float32[Array, " n"] | None = None,
    columns: int | None = None,
    ends: tuple[Float32[Array, " lines"], Float32[Array, " lines"]] | None = None,
    raw: bool = False,
) -> tuple[UInt32[Array, "n 8"], BadRows]:
    """PINN cells with `u` = (east - west) / (2 dx) of a flux, in one pass; in place if the caller gives the rows up.

    - `flux`: one value a cell; without it the rows' own `w`.
    - `columns`: cells of a line; neighbours in another line are none (default: all cells are one line).
    - `ends`: the values beyond each line's west and east end, where lines are cut over devices; without them the ends
      are clamped: the outermost value stands for the neighbour that is not there.
    - `raw`: `east - west` as it is.
    - A cell whose own value or a neighbour's does not pass the gate gets -99 in `u` and 2 in its status and is counted;
      the others keep their status.

    The division is a multiplication by the rounded reciprocal, never further than 1 ulp from it (see
    `design/kernels-words.md`). Raises `BadInput` for lines that do not fit and for a spacing that is not positive.
    """
    n = rows.shape[0]
    columns = n if columns is None else columns
    if columns < 1 and n:
        raise BadInput(f"A line has at least one cell, not {columns}.")
    if n and n % columns:
        raise BadInput(f"{n} records are no lines of {columns} cells.")
    if not (dx > 0 and math.isfinite(dx)):
        raise BadInput(f"dx must be a positive number, not {dx!r}.")
    lines = n // columns if n else 0
    for what, array, size in (("The flux", flux, n), *(("The ends", e, lines) for e in ends or ())):
        if array is not None and (array.shape != (size,) or array.dtype != jnp.float32):
            raise BadInput(f"{what} must be float32 of shape ({size},), not {array.dtype.name} of {array.shape}.")
    if n == 0:
        return rows, BadRows(jnp.int32(0), jnp.int32(-1))
    factor = np.float32(1.0 if raw else 0.5 / dx)

    def twin(r: Array, *rest: Array) -> list[Array]:
        left = list(rest)
        given = left.pop(0) if flux is not None else None
        out, bad = gradient_twin(r, given, (left[0], left[1]) if left else None, columns, float(factor), gate)
        return [out, jnp.stack([bad.rows - 1, bad.first])]

    args = [rows, *([] if flux is None else [flux]), *(ends or ())]
    out, found = call(
        "poise_record_gradient",
        twin,
        args,
        [(rows.shape, jnp.uint32), ((2,), jnp.int32)],
        aliases={0: 0},
        columns=np.int64(columns),
        factor=factor,
        given=flux is not None,
        halo=ends is not None,
        rule=_rule.encode(gate, jnp.float32),
    )
    return out, BadRows(found[0] + 1, found[1])
