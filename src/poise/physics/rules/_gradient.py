"""The gradient that fills u: central differences along a row of cells, broken inputs marked and not spread."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int32, UInt32

from ...errors import BadInput
from ...gate import Gate
from ...memory import PINN, Layout
from ._models import neighbours

BROKEN = -99.0
"""What u says where an input was broken."""

STATUS_BROKEN = 2


def fill_gradient(
    records: UInt32[Array, "n words"],
    rows: int,
    columns: int,
    dx: float,
    *,
    raw: bool = False,
    gate: Gate | None = None,
    layout: Layout = PINN,
) -> tuple[UInt32[Array, "n words"], Int32[Array, ""]]:
    """Records with u = (east - west) / (2 dx) of w along each row of `columns` cells, and how many were broken.

    - The ends are clamped: the outermost w stands for the neighbour that is not there.
    - `raw`: east - west as it is. (The blueprint scales it by 1 / dx, which is twice the derivative.)
    - A record whose own w, or a neighbour's, does not pass the gate gets -99 in u and 2 in status; others keep theirs.
    """
    if records.shape[0] != rows * columns:
        raise BadInput(f"{records.shape[0]} records are no grid of {rows} x {columns}.")
    if not dx > 0:
        raise BadInput(f"dx must be a positive number, not {dx!r}.")
    w = layout.channel(records, "w").reshape(rows, columns)
    nan, inf, over, marker = (gate or Gate(markers=(-99.0, -999.0))).causes(w)
    bad = nan | inf | over | marker
    west_bad, east_bad, _, _ = neighbours(bad)
    broken = (bad | west_bad | east_bad).reshape(-1)
    west, east, _, _ = neighbours(jnp.where(bad, 0.0, w))
    slope = (east - west) * jnp.float32(1.0 if raw else 0.5 / dx)
    filled = layout.put(records, "u", jnp.where(broken, jnp.float32(BROKEN), slope.reshape(-1)))
    status = jnp.where(broken, jnp.uint32(STATUS_BROKEN), layout.channel(records, "status"))
    return layout.put(filled, "status", status), broken.sum().astype(jnp.int32)
