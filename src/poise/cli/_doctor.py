"""`poise doctor`: what this machine has and lacks."""

from __future__ import annotations

import importlib.util
import platform
import sys
from typing import Any

import jax

from .. import __version__
from ..kernels import available
from ._output import check_json, console, write_json


def doctor(json: str | None) -> int:
    """Print it; the exit status is 0 even if something optional is missing."""
    check_json(json)
    problems: list[str] = []
    try:
        devices = [f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()]
        backend: str | None = jax.default_backend()
    except RuntimeError as error:
        devices, backend = [], None
        problems.append(f"JAX has no usable backend: {str(error).splitlines()[0]}.")
    native = available()
    if backend == "gpu" and not native["cuda"]:
        problems.append("There is a GPU, but poise's CUDA kernels are not built; the jnp twins are used instead.")
    nvml = importlib.util.find_spec("pynvml") is not None
    if backend == "gpu" and not nvml:
        problems.append("NVML's Python binding is missing; hardware events (ECC, XID) are not seen.")
    if len(devices) < 2:
        problems.append("There is one device: no spare can take over. On a CPU `poise demo` makes virtual ones.")
    said: dict[str, Any] = {
        "poise": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "backend": backend,
        "devices": devices,
        "native": {"cpu": native["cpu"], "cuda": native["cuda"]},
        "native_why": native["why"],
        "nvml": nvml,
        "extras": {m: importlib.util.find_spec(m) is not None for m in ("rich", "cyclopts", "matplotlib", "optax")},
        "problems": problems,
    }
    write_json(said, json)
    show = console(json)
    show.print(f"poise {__version__}, Python {platform.python_version()}, JAX {jax.__version__}, {sys.platform}")
    show.print(f"backend {backend}: {', '.join(devices)}")
    why = f" ({native['why']})" if native["why"] else ""
    show.print(f"native kernels: cpu {native['cpu']}, cuda {native['cuda']}{why}", soft_wrap=True)
    for problem in problems:
        show.print(f"- {problem}")
    return 0
