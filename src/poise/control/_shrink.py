"""Going on with fewer devices: what `Limits(exhausted="shrink")` does where a run would end for want of a spare.

The last good snapshot file is loaded onto as many of the remaining devices as the workload can use; the others become
spares. That compiles, and the result equals the uninterrupted run's to rounding only. Batches since the snapshot are
replayed from memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..devices import Pool
from ..errors import BadMesh, Stopped
from ..keeper import Loop

if TYPE_CHECKING:
    from ._keeper import Keeper


def shrunk(keeper: Keeper, stopped: Stopped, gone: int) -> Loop | None:
    """A loop on the remaining devices at the last snapshot, wanting what the old one wanted; None if there is no
    snapshot, nothing remains, or the run did not end because a device had to go."""
    old = keeper.loop
    left = [d for d in old.stage.placement.devices if d.id != gone]
    if gone < 0 or stopped.resume is None or not left:
        return None
    old.snapshots.close()
    old.stage.warm.settle()
    made = None
    for n in range(len(left), 0, -1):
        try:
            made = Loop(
                old.workload, Pool(left, len(left) - n), old.recovery.decide, old.emit, old.options,
                resume=Path(stopped.resume),
            )  # fmt: skip
            break
        except BadMesh:
            continue  # that many cannot share the workload
    if made is None:
        return None
    made.batches |= {i: b for i, b in old.batches.items() if i >= made.settled}
    made.drops |= old.drops
    made.wanted = max(old.wanted, made.settled)
    made.contained = old.contained
    made.adopt(old)
    return made
