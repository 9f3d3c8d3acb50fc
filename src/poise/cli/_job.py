"""Job files: which workload, on how many devices, kept how."""

from __future__ import annotations

import importlib
import inspect
import tomllib
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..control import Limits
from ..errors import BadInput, BadJob
from ..keeper import Options

WORKLOADS = {"burgers2d": "poise.physics.grid:Burgers2d", "llama": "poise.llama:workload"}


@dataclass(frozen=True)
class Job:
    """What a job file says. `active` and `spares` may be left out: all but the spares, and 5 (or as many as there
    are)."""

    workload: str
    params: dict[str, Any] = field(default_factory=dict)
    active: int | None = None
    spares: int | None = None
    options: Options = field(default_factory=Options)
    limits: Limits = field(default_factory=Limits)

    def make(self) -> Any:
        """The workload (`keeper.Workload`). Raises `BadInput` for parameters that it does not take."""
        if self.workload == "stream":
            raise BadJob("A stream is followed with poise stream or poise run; it has no state to keep or plan.")
        target = WORKLOADS.get(self.workload, self.workload)
        made: Any = _import(target)
        if isinstance(made, type) or (callable(made) and not hasattr(made, "propose")):
            try:
                known = inspect.signature(made).parameters
                anything = any(p.kind is p.VAR_KEYWORD for p in known.values())  # then it refuses unknown ones itself
                unknown = [] if anything else sorted(set(self.params) - set(known))
                if unknown:
                    raise BadJob(f"{self.workload} has no parameters {unknown}; accepted are {', '.join(known)}.")
                made = made(**self.params)
            except BadInput:
                raise
            except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
                given = ", ".join(f"{k} = {v!r}" for k, v in self.params.items()) or "no parameters"
                raise BadJob(f"{self.workload} cannot be made with {given}: {error}.") from error
        elif self.params:
            raise BadJob(f"{self.workload} is an object that is ready; it takes no [params].")
        missing = [n for n in ("name", "traits", "axes", "init", "propose", "commit", "batch") if not hasattr(made, n)]
        if missing:
            raise BadJob(f"{self.workload} is no workload: it lacks {', '.join(missing)}.")
        return made

    def with_devices(self, active: int | None, spares: int | None) -> Job:
        """The job with other numbers of devices, where given."""
        job = replace(self, active=self.active if active is None else active)
        job = replace(job, spares=self.spares if spares is None else spares)
        if job.active is not None and job.active < 1:
            raise BadJob(f"A run needs at least one active device, not {job.active}.")
        if job.spares is not None and job.spares < 0:
            raise BadJob(f"The number of spares must not be negative, not {job.spares}.")
        return job


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    if not (module and name):
        raise BadJob(f"Unknown job {target!r}; accepted are a file, {', '.join(WORKLOADS)} or module:object.")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise BadJob(f"The module {module!r} has no {name!r}.") from None
    except Exception as error:  # importing runs somebody's code
        raise BadJob(f"The module of {target!r} cannot be imported: {error}.") from error


def packaged(name: str) -> Path | None:
    """The path of a packaged job or fault script, by its name without the suffix."""
    path = Path(str(resources.files("poise") / "jobs" / f"{name}.toml"))
    return path if name.isidentifier() and path.is_file() else None


def _table(data: dict[str, Any], name: str, source: str, known: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise BadJob(f"{source}: {name} must be a table.")
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise BadJob(f"{source}: [{name}] has unknown keys {unknown}; accepted are {', '.join(known)}.")
    for key, value in table.items():
        if type(value) not in known[key]:
            raise BadJob(f"{source}: {name}.{key} must be {known[key][0].__name__}, not {value!r}.")
    return table


def load_job(job: str) -> Job:
    """A job by file, packaged name or `module:object`. Raises `BadJob` with one sentence."""
    path = packaged(job) or Path(job)
    if ":" in job and not path.exists():
        return Job(job)
    if not path.is_file():
        raise BadJob(f"There is no job {job!r}; accepted are a file, {', '.join(WORKLOADS)} or module:object.")
    source = str(path)
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadJob(f"The job {source} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadJob(f"The job {source} is not valid TOML: {error}.") from error
    unknown = sorted(set(data) - {"workload", "params", "devices", "keeper", "policy"})
    if unknown:
        raise BadJob(f"{source} has unknown keys {unknown}; accepted are workload, params, devices, keeper, policy.")
    if not isinstance(data.get("workload"), str):
        raise BadJob(f'{source} must say which workload, such as workload = "burgers2d".')
    devices = _table(data, "devices", source, {"active": (int,), "spares": (int,)})
    kept = _table(data, "keeper", source, {"depth": (int,), "every": (int,), "source": (str,), "fused": (bool,)})
    policy = _table(data, "policy", source, {f.name: (type(f.default),) for f in fields(Limits)})
    params = data.get("params", {})
    if not isinstance(params, dict):
        raise BadJob(f"{source}: params must be a table.")
    if isinstance(params.get("initial"), str):
        params = {**params, "initial": load_field(path.parent / params["initial"])}
    return Job(data["workload"], params, options=Options(**kept), limits=Limits(**policy)).with_devices(
        devices.get("active"), devices.get("spares")
    )


def load_field(path: Path) -> np.ndarray:
    """A two-component field from a `.npy` of shape (2, n, n), or a `.npz` with `uv`, or with `u` and `v`.

    Raises `BadInput` if it cannot be read, has another shape, is not real, or holds NaN or Inf.
    """
    try:
        with open(path, "rb") as file:
            data: Any = np.load(file, allow_pickle=False)
            if isinstance(data, np.ndarray):
                found = data
            elif "uv" in data:
                found = data["uv"]
            elif "u" in data and "v" in data:
                found = np.stack((data["u"], data["v"]))
            else:
                raise BadInput(f"{path} holds {', '.join(data)}; accepted are uv, or u and v.")
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"The initial state {path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # numpy and zipfile raise many kinds for a file that is no array
        raise BadInput(f"The initial state {path} is no .npy or .npz of plain numbers: {error}.") from error
    if found.ndim != 3 or found.shape[0] != 2 or found.shape[1] != found.shape[2]:
        raise BadInput(f"The initial state {path} has shape {found.shape}; accepted is (2, n, n).")
    if not np.issubdtype(found.dtype, np.floating) and not np.issubdtype(found.dtype, np.integer):
        raise BadInput(f"The initial state {path} holds {found.dtype}; accepted are real numbers.")
    bad = int((~np.isfinite(found)).sum())
    if bad:
        raise BadInput(f"The initial state {path} holds {bad} values that are NaN or infinite.")
    return found
