"""Scripts that strike processes: TOML with one `[[fault]]` table per blow, for `poise launch`.

[[fault]]
kind = "kill"        # kill (SIGKILL), stop (SIGSTOP), bitflip (one bit of its shard), two_banks (damage beyond parity)
step = 40
worker = 1           # the seat of the process, or "coordinator"
phase = ""           # "": as soon as a member begins `step`; else the process strikes itself: in "propose"
                     # (dispatched; "begin": before), "ready" (its proposal is here), "agree" (a random moment of the
                     # reduction by which all agree), "commit" (agreed), "share" (half of its parity message is sent),
                     # or at the first "rebuild" or "rewarm" from `step` on
incarnation = 0      # which process in that seat
wait = false         # true: at the first such moment from `step` on at which the loss of a member can be survived; in
                     # "rebuild" and "rewarm" at the first one behind such a moment, caused by the next blow
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import BadJob

SIGNALS = ("kill", "stop")
DAMAGE = ("bitflip", "two_banks")
RECOVERY = ("rebuild", "rewarm")
PHASES = ("", "begin", "propose", "ready", "agree", "commit", "share", *RECOVERY)
COORDINATOR = -1


@dataclass(frozen=True)
class ProcessFault:
    """One blow at a process; `worker` -1 is the coordinator. The module's docstring says what the fields mean."""

    kind: str
    step: int
    worker: int
    phase: str = ""
    incarnation: int = 0
    wait: bool = False


def load_process_script(path: Path, seats: int) -> list[ProcessFault]:
    """Read and check a script for a run of `seats` processes. Raises `BadJob` with one sentence."""
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadJob(f"The fault script {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadJob(f"The fault script {path} is not valid TOML: {error}.") from error
    tables = data.get("fault", [])
    if set(data) - {"fault"} or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise BadJob(f"{path}: accepted are [[fault]] tables alone.")
    found = [_fault(t, f"{path}, fault {i + 1}", seats) for i, t in enumerate(tables)]
    return sorted(found, key=lambda f: f.step)


def _fault(table: dict[str, Any], source: str, seats: int) -> ProcessFault:
    known = {f.name for f in fields(ProcessFault)}
    if set(table) - known:
        raise BadJob(
            f"{source} has unknown keys {sorted(set(table) - known)}; accepted are {', '.join(sorted(known))}."
        )
    for key in ("kind", "step", "worker"):
        if key not in table:
            raise BadJob(f"{source} has no {key!r}.")
    if table["kind"] not in (*SIGNALS, *DAMAGE):
        kinds = ", ".join((*SIGNALS, *DAMAGE))
        raise BadJob(f"{source}: poise launch knows {kinds}, not {table['kind']!r}; for others: poise run.")
    if table["kind"] in DAMAGE:
        table = {"phase": "begin", **table}
        if table["phase"] != "begin":
            raise BadJob(f"{source}: memory is struck between steps; leave out the phase.")
    table = {**table, "worker": COORDINATOR if table["worker"] == "coordinator" else table["worker"]}
    for key in ("step", "worker", "incarnation"):
        if type(table.get(key, 0)) is not int or (table.get(key, 0) < 0 and table.get(key) != COORDINATOR):
            raise BadJob(f"{source}: {key} must be a whole number that is not negative, not {table[key]!r}.")
    if table["step"] < 0 or table["worker"] >= seats:
        raise BadJob(f"{source}: the workers are 0 to {seats - 1} or 'coordinator', and step is not negative.")
    if type(table.get("wait", False)) is not bool:
        raise BadJob(f"{source}: wait must be true or false, not {table['wait']!r}.")
    if table.get("phase", "") not in PHASES:
        raise BadJob(f"{source}: phase is one of {', '.join(PHASES[1:])} or left out, not {table['phase']!r}.")
    if table["worker"] == COORDINATOR and table.get("phase"):
        raise BadJob(f"{source}: the coordinator takes no part in steps; leave out the phase.")
    return ProcessFault(**table)
