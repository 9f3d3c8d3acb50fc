"""Fault scripts: TOML with one `[[fault]]` table per fault.

[[fault]]
kind = "bitflip"     # nan, inf, marker, overflow | bitflip, two_banks | product, gradient | drain, lost
step = 20            # strikes between commit 19 and proposal 20
slot = 1             # logical slot (default 0)
where = "data"       # bitflip: data, marks, guard, parity or tag
extent = "bit"       # bitflip: bit, bits (several words), block or bank
leaf = "uv"          # which leaf of the state, or of the batch (default: the first)
origin = "device"    # nan, inf, marker, overflow: the device's copy of the batch, or the batch itself ("data")
persistent = false   # batch faults: strike again at every try and step until the device is replaced
during_rewarm = false  # drain, lost: strike even while the spare for it is still being warmed
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import BadJob

BATCH = ("nan", "inf", "marker", "overflow")
MEMORY = ("bitflip", "two_banks")
COMPUTE = ("product", "gradient")
"""Wrong arithmetic: a matrix product with a wrong element, a gradient that is NaN (workloads that have a place for
it)."""

LEAVE = ("drain", "lost")
KINDS = (*BATCH, *MEMORY, *COMPUTE, *LEAVE)
PLACES = ("data", "marks", "guard", "parity", "tag")
EXTENTS = ("bit", "bits", "block", "bank")


@dataclass(frozen=True)
class ScriptedFault:
    """One fault of a script; the module's docstring says what the fields mean."""

    kind: str
    step: int
    slot: int = 0
    where: str = "data"
    extent: str = "bit"
    leaf: str = ""
    origin: str = "device"
    persistent: bool = False
    during_rewarm: bool = False

    @property
    def label(self) -> str:
        """The fault in a few words."""
        if self.kind == "bitflip":
            return f"bitflip {self.extent if self.where == 'data' else self.where}"
        words = _WORDS.get(self.kind, self.kind)
        return f"{words}, persistent" if self.persistent else words


_WORDS = {
    "two_banks": "two banks",
    "lost": "device lost",
    "product": "wrong product",
    "gradient": "NaN gradient",
}
_CHOICES = {"kind": KINDS, "where": PLACES, "extent": EXTENTS, "origin": ("device", "data")}


def parse_script(data: dict[str, Any], source: str = "the fault script") -> list[ScriptedFault]:
    """The faults of a parsed TOML document, in order of steps. Raises `BadJob` with one sentence."""
    unknown = set(data) - {"fault"}
    if unknown:
        raise BadJob(f"{source} has unknown tables {sorted(unknown)}; accepted is [[fault]].")
    tables = data.get("fault", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise BadJob(f"{source}: each fault is a [[fault]] table.")
    return sorted((_fault(t, f"{source}, fault {i + 1}") for i, t in enumerate(tables)), key=lambda f: f.step)


def _fault(table: dict[str, Any], source: str) -> ScriptedFault:
    if table.get("kind") in ("kill", "stop"):
        raise BadJob(f"{source} strikes a process; that needs several: poise launch.")
    known = {f.name: f for f in fields(ScriptedFault)}
    unknown = set(table) - set(known)
    if unknown:
        raise BadJob(f"{source} has unknown keys {sorted(unknown)}; accepted are {', '.join(known)}.")
    for key in ("kind", "step"):
        if key not in table:
            raise BadJob(f"{source} has no {key!r}.")
    for key, value in table.items():
        want = {"int": int, "str": str, "bool": bool}[str(known[key].type)]
        if type(value) is not want:
            raise BadJob(f"{source}: {key} must be {want.__name__}, not {value!r}.")
        if key in _CHOICES and value not in _CHOICES[key]:
            raise BadJob(f"{source}: {key} is one of {', '.join(_CHOICES[key])}, not {value!r}.")
    if table["step"] < 0 or table.get("slot", 0) < 0:
        raise BadJob(f"{source}: step and slot must not be negative.")
    if table.get("persistent") and table["kind"] not in BATCH:
        raise BadJob(f"{source}: only {', '.join(BATCH)} can be persistent.")
    return ScriptedFault(**table)


def load_script(path: Path) -> list[ScriptedFault]:
    """Read and check a script. Raises `BadJob` for a file that cannot be read or is no TOML."""
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except OSError as error:
        raise BadJob(f"The fault script {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadJob(f"The fault script {path} is not valid TOML: {error}.") from error
    return parse_script(data, str(path))
