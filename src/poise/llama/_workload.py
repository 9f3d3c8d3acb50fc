"""The workload `llama` of a job: `method = "adamw"` trains with backpropagation, "forward" without."""

from __future__ import annotations

import inspect
from typing import Any

from ..errors import BadInput
from ._adamw import AdamW
from ._forward import Forward

METHODS = {"adamw": AdamW, "forward": Forward}


def workload(method: str = "adamw", **params: Any) -> AdamW | Forward:
    """The workload for a job's `[params]`; `docs/llama.md` lists them. Raises `BadInput` for what it does not take."""
    if method not in METHODS:
        raise BadInput(f"llama's method is {', '.join(METHODS)}, not {method!r}.")
    made = METHODS[method]
    known = inspect.signature(made).parameters
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise BadInput(f"llama with method = {method!r} has no parameters {unknown}; accepted are {', '.join(known)}.")
    if "model" not in params:
        raise BadInput("A llama job says which model: a published shape, a checkpoint's folder, or a table of sizes.")
    return made(**params)
