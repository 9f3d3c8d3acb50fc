"""What NVIDIA's XID numbers mean for a device in a run.

The wording and the grouping follow NVIDIA's "Xid Errors" guide and its catalog
(https://docs.nvidia.com/deploy/xid-errors/): errors that an application causes say nothing about the device; errors
that NVIDIA answers with a reset or a reboot mean that the device leaves its slot; what may pass marks it as suspect.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """What an XID asks for. NOTE: nothing about the device. WATCH: suspect (DEGRADED). DRAIN: can still be read, is to
    be replaced by copy. GONE: must not be read any more (FAILED)."""

    NOTE = "note"
    WATCH = "watch"
    DRAIN = "drain"
    GONE = "gone"


@dataclass(frozen=True)
class Xid:
    """One number: NVIDIA's description, what it asks for, and what NVIDIA advises."""

    meaning: str
    grade: Grade
    advice: str


_APP = "an application's error as a rule; look at the program"
_RESET = "reset the GPU"
_SUPPORT = "contact support if it recurs"

XIDS: dict[int, Xid] = {
    8: Xid("GPU stopped processing", Grade.NOTE, "restart the application"),
    11: Xid("invalid or corrupted push buffer stream", Grade.NOTE, "restart the application"),
    13: Xid("graphics engine exception", Grade.NOTE, _APP),
    31: Xid("GPU memory page fault", Grade.NOTE, _APP),
    32: Xid("invalid or corrupted push buffer stream", Grade.WATCH, "bus quality; " + _SUPPORT),
    38: Xid("driver firmware error", Grade.WATCH, _SUPPORT),
    43: Xid("GPU stopped processing", Grade.NOTE, _APP + "; the GPU itself stays healthy"),
    45: Xid("preemptive cleanup, due to previous errors", Grade.NOTE, "look at what came before"),
    46: Xid("GPU stopped processing", Grade.GONE, _RESET),
    48: Xid("double-bit ECC error", Grade.GONE, _RESET),
    61: Xid("internal micro-controller breakpoint or warning", Grade.WATCH, _RESET + " when it is idle"),
    62: Xid("internal micro-controller halt", Grade.GONE, _RESET),
    63: Xid("row remapping or page retirement recorded", Grade.DRAIN, _RESET + ", for it to take effect"),
    64: Xid("row remapping or page retirement failed", Grade.GONE, _RESET + "; replace it if it recurs"),
    68: Xid("video processor exception", Grade.NOTE, _APP),
    69: Xid("graphics engine class error", Grade.NOTE, _APP),
    74: Xid("NVLink error", Grade.DRAIN, _RESET + "; the fault may lie at the other end of the link"),
    79: Xid("GPU has fallen off the bus", Grade.GONE, "reboot the node; check seating, power and cooling"),
    92: Xid("high single-bit ECC error rate", Grade.WATCH, "run field diagnostics if it recurs"),
    94: Xid("contained memory error", Grade.DRAIN, "restart the application; " + _RESET + " when it is idle"),
    95: Xid("uncontained memory error", Grade.GONE, _RESET + " before anything else runs on it"),
    109: Xid("context switch timeout", Grade.WATCH, _RESET + " if it recurs"),
    110: Xid("security fault", Grade.GONE, _RESET),
    119: Xid("GSP RPC timeout", Grade.GONE, _RESET),
    120: Xid("GSP error", Grade.GONE, _RESET),
    121: Xid("C2C link corrected error", Grade.WATCH, _RESET + " when it is idle"),
    122: Xid("SPI PMU RPC read failure", Grade.WATCH, _SUPPORT),
    123: Xid("SPI PMU RPC write failure", Grade.WATCH, _SUPPORT),
    124: Xid("SPI PMU RPC erase failure", Grade.WATCH, _SUPPORT),
    125: Xid("inforom file system failure", Grade.WATCH, _SUPPORT),
    137: Xid("NVLink privilege error", Grade.NOTE, _APP),
    140: Xid("unrecovered ECC error", Grade.GONE, _RESET),
    143: Xid("GPU initialization error", Grade.GONE, _RESET),
    **{
        n: Xid(f"NVLink: {unit} error", Grade.DRAIN, _RESET)
        for n, unit in enumerate(("SAW", "RLW", "TLW", "TREX", "NVLPW_CTRL", "NETIR", "MSE"), 144)
    },
    151: Xid("key rotation error", Grade.NOTE, _SUPPORT),
    154: Xid("GPU recovery action changed", Grade.NOTE, "follow the recovery action that the driver names"),
    155: Xid("NVLink: software defined error", Grade.WATCH, _SUPPORT),
    156: Xid("resource retirement event", Grade.DRAIN, _RESET + " when it is idle"),
    157: Xid("resource retirement failure", Grade.GONE, "replace it"),
    158: Xid("GPU fatal timeout", Grade.GONE, _RESET),
}  # fmt: skip

UNKNOWN = Xid("an error that is not in the table", Grade.WATCH, "see NVIDIA's catalog of XIDs")

RECOVERY: dict[int, tuple[str, Grade]] = {
    0: ("none", Grade.NOTE),
    1: ("reset the GPU", Grade.GONE),
    2: ("reboot the node", Grade.GONE),
    3: ("drain peer-to-peer traffic", Grade.DRAIN),
    4: ("drain and reset the GPU", Grade.DRAIN),
    5: ("recover the IMEX domain", Grade.DRAIN),
    6: ("reset the bus", Grade.GONE),
    7: ("reboot the system", Grade.GONE),
}
"""NVML's recovery actions (`NVML_GPU_RECOVERY_ACTION_*`): what the driver says that the GPU needs."""


def xid(number: int) -> Xid:
    """The meaning of an XID; one that the table lacks is watched."""
    return XIDS.get(number, UNKNOWN)
