"""The compiled kernels: found, loaded, registered with XLA; and the one switch between them and their jnp twins.

The libraries are modules without Python in them: ctypes opens them, each handler's address goes to XLA in a capsule.
They lie beside this file in a wheel, in site-packages for an editable install, or where `POISE_NATIVE` points.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict

import jax

Which = Literal["native", "jnp"]

HANDLERS = (
    "poise_seal",
    "poise_seal_counting",
    "poise_check",
    "poise_repair",
    "poise_settle",
    "poise_newly",
    "poise_gate_scan",
    "poise_stencil2d",
    "poise_stencil3d",
    "poise_adamw",
    "poise_pack",
    "poise_unpack",
    "poise_record_update",
    "poise_record_gradient",
    "poise_burgers_stage",
    "poise_burgers_stage_sealed",
)

_chosen: ContextVar[Which] = ContextVar("poise_kernels", default="native")


class Available(TypedDict):
    """Which compiled kernels this process has; `why` says what is missing, in a sentence, or is empty."""

    cpu: bool
    cuda: bool
    why: str


def _places(name: str) -> Iterator[Path]:
    if asked := os.environ.get("POISE_NATIVE"):
        yield Path(asked) / name
        return
    yield Path(__file__).parent / name
    try:
        files = importlib.metadata.files("poise") or []
    except importlib.metadata.PackageNotFoundError:
        return
    yield from (Path(str(f.locate())) for f in files if f.name == name)


def _load(name: str, platform: str) -> str:
    """Register every handler of a library; the sentence that says why not, or nothing."""
    path = next((p for p in _places(name) if p.exists()), None)
    if path is None:
        return f"{name} was not built (a C++ compiler was missing at install time)" if platform == "cpu" else ""
    try:
        library = ctypes.CDLL(str(path))
        for handler in HANDLERS:
            jax.ffi.register_ffi_target(handler, jax.ffi.pycapsule(getattr(library, handler)), platform=platform)
    except (OSError, AttributeError) as error:
        return f"{path} does not load: {error}"
    return ""


@cache
def _loaded() -> Available:
    if os.environ.get("POISE_KERNELS") == "jnp":
        return Available(cpu=False, cuda=False, why="POISE_KERNELS=jnp switches the compiled kernels off")
    reasons: list[str] = []
    have: dict[str, bool] = {}
    for key, platform in (("cpu", "cpu"), ("cuda", "CUDA")):
        name = f"libpoise_{key}.so"
        trouble = _load(name, platform)
        have[key] = not trouble and any(p.exists() for p in _places(name))
        if trouble:
            reasons.append(trouble)
        elif not have[key]:
            reasons.append(f"{name} was not built (nvcc was missing at install time, or POISE_CUDA=1 was not set)")
    return Available(cpu=have["cpu"], cuda=have["cuda"], why="; ".join(reasons))


def available() -> Available:
    """Which compiled kernels are loaded, and why others are not."""
    return _loaded().copy()


@contextmanager
def use(which: Which) -> Iterator[None]:
    """Choose compiled kernels ("native", the default) or the jnp twins ("jnp") for what is traced inside.

    The choice is made when a function is traced: a function jitted before keeps what it was traced with.
    """
    token = _chosen.set(which)
    try:
        yield
    finally:
        _chosen.reset(token)


def platforms() -> frozenset[str]:
    """The platforms ("cpu", "cuda") whose kernels are to be used in what is being traced."""
    if _chosen.get() == "jnp":
        return frozenset()
    have = _loaded()
    return frozenset(p for p in ("cpu", "cuda") if have[p])
