"""What verifying and repairing found, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np


class Damage(Enum):
    """Where damage was. DATA: words of the state. MARKS: their checksums. PARITY: the spare bank. UNREPAIRABLE: more
    damage in a group than one bank can rebuild; those blocks were left exactly as they are. Restore them from a
    copy."""

    DATA = "data"
    MARKS = "marks"
    PARITY = "parity"
    UNREPAIRABLE = "unrepairable"


@dataclass(frozen=True)
class Finding:
    """`blocks` damaged blocks of one kind in one leaf (or group of small leaves) on one device."""

    device_id: int
    leaf: str
    damage: Damage
    blocks: int


@dataclass(frozen=True)
class SealReport:
    """All findings of one call; `repaired` says whether it mended or only looked."""

    findings: tuple[Finding, ...]
    repaired: bool

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.findings

    @property
    def unrepairable(self) -> int:
        """Blocks that could not be mended."""
        return sum(f.blocks for f in self.findings if f.damage is Damage.UNREPAIRABLE)

    @property
    def devices(self) -> tuple[int, ...]:
        """Ids of all devices with damage, each named once."""
        return tuple(sorted({f.device_id for f in self.findings}))

    def count(self, damage: Damage) -> int:
        """Blocks with this kind of damage."""
        return sum(f.blocks for f in self.findings if f.damage is damage)

    def __add__(self, other: SealReport) -> SealReport:
        return SealReport(self.findings + other.findings, self.repaired or other.repaired)

    def __str__(self) -> str:
        if self.ok:
            return "clean"
        return "; ".join(
            f"{f.blocks} {f.damage.value} block(s) of {f.leaf} on device {f.device_id}" for f in self.findings
        )


def findings(rows: np.ndarray, device_id: int, names: Iterable[str]) -> list[Finding]:
    """From rows of `kernels.ref.Mended` (units, 5) of one device."""
    out = []
    for name, (data, marks, parity, _, lost) in zip(names, rows.tolist(), strict=True):
        # Blocks beyond repair are among the damaged ones of either kind; they are named once, as what they are.
        lost_data = min(lost, data)
        pairs = (
            (Damage.DATA, data - lost_data), (Damage.MARKS, marks), (Damage.PARITY, parity - (lost - lost_data)),
            (Damage.UNREPAIRABLE, lost),
        )  # fmt: skip
        out += [Finding(device_id, name, damage, n) for damage, n in pairs if n]
    return out
