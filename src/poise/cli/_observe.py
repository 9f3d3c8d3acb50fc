"""What a workload says beside its faults: losses, checks and histories of `llama`."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import jax

from ..keeper._snapshot import fingerprint
from ._engine import Outcome


class Observer:
    """Hears the metrics of every committed step of `workload`, in order. For workloads other than `llama` it says
    nothing.

    `where` is the run's output directory: a forward-only run appends its history there as it goes (`history.poise`),
    and the trained model is written there at the end (`model/`)."""

    def __init__(self, workload: Any, where: Path | None = None, first: int = 0) -> None:
        self.workload, self.where = workload, where
        self.method = getattr(workload, "method", None) if workload.name == "llama" else None
        self.losses: dict[int, float] = {}
        self.start = ""
        self._file: BinaryIO | None = None
        if self.method == "forward" and where is not None:
            self._begin(where / "history.poise", first)

    def _begin(self, path: Path, first: int) -> None:
        from ..llama._history import begin

        self.start = fingerprint(tuple(jax.tree.leaves(self.workload.init()["w"])))
        if first and path.is_file():
            self._file = open(path, "ab")  # noqa: SIM115 (held for the length of the run)
            return
        self._file = open(path, "wb")  # noqa: SIM115
        begin(self._file, self.start, "lora" if self.workload.lora else "weights")

    def __call__(self, index: int, metrics: Any) -> None:
        """A step's metrics."""
        if self.method is None:
            return
        self.losses[index] = float(metrics["loss"])
        if self._file is not None:
            from ..llama._history import note

            note(self._file, index, self.workload.seed, float(metrics["scalar"]))

    def said(self, outcome: Outcome) -> dict[str, Any]:
        """JSON-ready; writes the model if there is a directory."""
        if self.method is None:
            return {}
        if self._file is not None:
            self._file.close()
        out: dict[str, Any] = {
            "method": self.method,
            "losses": [self.losses[i] for i in sorted(self.losses)],
            "products": coverage(self.workload),
        }
        if outcome.state is None:
            return out
        weights = self.workload.weights(outcome.state)
        out["held_out_loss"] = self.workload.held_loss(weights)
        if self.where is not None:
            out["model"] = str(self._save(weights))
        if self.method == "forward":
            history = self.workload.history(outcome.state, self.start)
            out["history_bytes"] = 12 * len(history.scalars)
            if self.where is not None:
                history.save(self.where / "history.poise")
        return out

    def _save(self, weights: Any) -> Path:
        from ..llama import save

        assert self.where is not None
        path = self.where / "model"
        # Low-rank additions are not part of a checkpoint: what moved is in the history and the snapshots.
        layers = {k: v for k, v in weights["layers"].items() if not k.endswith(("_a", "_b"))}
        save({**weights, "layers": layers}, self.workload.config, path)
        tokens = Path(self.workload.tokens)
        tokens = tokens / "tokenizer.json" if tokens.is_dir() else tokens
        if self.workload.tokens != "bytes":
            with suppress(shutil.SameFileError):
                shutil.copyfile(tokens, path / "tokenizer.json")
        return path


def coverage(workload: Any) -> dict[str, Any]:
    """Which matrix products of a step are checked, and what is not covered."""
    layers = workload.config.layers
    products = 7 * layers + 1
    ways = 3 if workload.method == "adamw" else 1
    if workload.abft == "off":
        return {"mode": "off", "checked_share": 0.0, "not_covered": "every matrix product"}
    share = 1.0 if workload.abft == "all" else 1 / workload.period
    missed = "attention's scores and sums, low-rank additions, errors below rounding"
    if workload.abft == "audit":
        missed = f"in each step the layers whose number plus the step's is no multiple of {workload.period}; {missed}"
    return {
        "mode": workload.abft,
        "checked_share": share,
        "products_a_step": products * ways * share,
        "not_covered": missed,
    }
