"""The gradient that fills u of a grid of records."""

from __future__ import annotations

from jax import Array
from jaxtyping import Int32, UInt32

from ...errors import BadInput
from ...gate import Gate
from ...kernels import record_gradient


def fill_gradient(
    records: UInt32[Array, "n 8"], rows: int, columns: int, dx: float, *, raw: bool = False, gate: Gate | None = None
) -> tuple[UInt32[Array, "n 8"], Int32[Array, ""]]:
    """PINN cells with u = (east - west) / (2 dx) of w along each row of `columns` cells, and how many were broken.

    - The ends are clamped: the outermost w stands for the neighbour that is not there.
    - `raw`: east - west as it is. (The blueprint scales it by 1 / dx, which is twice the derivative.)
    - A record whose own w, or a neighbour's, does not pass the gate gets -99 in u and 2 in status; others keep theirs.

    One pass of the compiled kernel where there is one (`poise.kernels.record_gradient`); in place if the caller gives
    the records up.
    """
    if records.shape[0] != rows * columns:
        raise BadInput(f"{records.shape[0]} records are no grid of {rows} x {columns}.")
    filled, broken = record_gradient(records, dx, gate or Gate(markers=(-99.0, -999.0)), columns=columns, raw=raw)
    return filled, broken.rows
