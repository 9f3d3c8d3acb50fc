"""From a step's numbers to what happened: the table over devices, the repairs, and the health of a withheld state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..events import Fault
from ..gate import Gate
from ._code import Code
from ._form import Form
from ._step import COLUMNS

_AT = {name: i for i, name in enumerate(COLUMNS)}
CAUSES = ("nan", "inf", "overflow", "marker")


@dataclass(frozen=True)
class Seen:
    """What one settled proposal showed: `table` is (devices, columns), `mended` (devices, units, 5), `late`
    (devices, 6); it was dispatched at `sent` (of `time.perf_counter`)."""

    index: int
    table: np.ndarray
    mended: np.ndarray
    late: np.ndarray
    sent: float

    def column(self, name: str) -> np.ndarray:
        """One column of the table, by slot."""
        return self.table[:, _AT[name]]

    @property
    def code(self) -> Code:
        """The agreed code."""
        return Code(int(self.table[0, 0]))

    @property
    def stale(self) -> bool:
        """Whether the proposal was for a step whose predecessor had not been committed: a no-op."""
        tags = self.column("tag")
        return bool((tags == tags[0]).all() and tags[0] != self.index)

    @property
    def committed(self) -> bool:
        """Whether the step tag moved on, on every device."""
        return self.code in (Code.GO, Code.DROP) and not self.stale and not self.mended[:, :, 4].any()

    @property
    def clean(self) -> bool:
        """Whether the step was committed and nothing needed mending."""
        return self.code == Code.GO and not self.mended.any() and not self.column("tag_off").any()


def bad_slots(rows: np.ndarray) -> tuple[int, ...]:
    """Slots whose entry is not zero."""
    return tuple(int(s) for s in np.flatnonzero(rows))


def blocks(mended: np.ndarray) -> dict[str, int]:
    """Numbers of damaged blocks by where, over all devices and units."""
    sums = mended.reshape(-1, 5).sum(0)
    names = ("data", "marks", "parity", "repaired", "unrepairable")
    return {k: int(v) for k, v in zip(names, sums, strict=True) if v}


def classify(seen: Seen, mended: np.ndarray, form: Form, ids: tuple[int, ...], batch_names: tuple[str, ...]) -> Fault:
    """The fault behind a proposal that was not committed (or was, with repairs in its commit).

    Marks come before the batch and the batch before the next state: a neighbour's next state goes bad from someone
    else's rot. `mended` holds the repairs of the step and of the no-ops behind it.
    """
    memory = seen.column("data") + seen.column("parity") + seen.column("guard") + mended.sum((1, 2))
    batch = sum((seen.column(c) for c in CAUSES), np.zeros(form.devices, int))
    tags = seen.column("tag")

    def fault(kind: str, slots: tuple[int, ...], where: str, **more: Any) -> Fault:
        return Fault(seen.index, kind, slots, tuple(ids[s] for s in slots), where, **more)

    if memory.any():
        slots = bad_slots(memory)
        units = [form.plan.units[u].name for u in np.flatnonzero(mended.sum((0, 2)))]
        return fault("memory", slots, ", ".join(units), mended=not mended[:, :, 4].any())
    if (tags != tags[0]).any():
        common = np.bincount(np.maximum(tags, 0)).argmax()
        return fault("split", bad_slots(tags != common), f"step tags {tags.tolist()}", mended=False)
    if batch.any():
        slots = bad_slots(batch)
        first = slots[0]
        kind = next(c for c in CAUSES if seen.column(c)[first])
        leaf, index = int(seen.column("leaf")[first]), int(seen.column("index")[first])
        return fault(kind, slots, f"{batch_names[leaf]}[{index}]")
    if seen.column("state").any():
        slots = bad_slots(seen.column("state"))
        row = seen.late[slots[0]]
        leaf = int(row[4])
        what = next((c for c, n in zip(CAUSES, row[:4], strict=True) if n), "bad value")
        return fault("state", slots, f"{what} in {form.names[leaf]}[{int(row[5])}]" if leaf >= 0 else what)
    mine = seen.table[:, -2:]
    if (mine != mine[0]).any():
        slots, majority = outvoted(mine)
        return fault(
            "replicas", slots, "their next states differ" + ("" if majority else ", and no majority says whose")
        )
    if seen.column("tag_off").any():
        return fault("tag", bad_slots(seen.column("tag_off")), "step tag")
    return fault("split", (), f"agreed {seen.code.name} without a cause", mended=False)


def outvoted(prints: np.ndarray) -> tuple[tuple[int, ...], bool]:
    """Slots whose print is not that of the majority, or all slots if there is no majority."""
    _, inverse, counts = np.unique(prints, axis=0, return_inverse=True, return_counts=True)
    if 2 * counts.max() <= len(prints):
        return tuple(range(len(prints))), False
    return tuple(int(s) for s in np.flatnonzero(inverse.reshape(-1) != counts.argmax())), True


def batch_is_bad(batch: list[np.ndarray], gate: Gate) -> bool:
    """Whether the host's own copy of a batch would not pass the gate: then no device is to blame."""
    for x in batch:
        if not np.issubdtype(x.dtype, np.floating):
            continue
        wide = np.asarray(x, np.float64)
        limit = min(gate.limit, float(np.finfo(x.dtype).max))
        if not (np.abs(wide) <= limit).all():
            return True
        if any((np.abs(wide - m) <= gate.tolerance).any() for m in gate.markers):
            return True
    return False
