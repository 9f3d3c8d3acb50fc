"""A steady solution on a box: coefficients of products of orthonormal Legendre polynomials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features._polynomial import legendre


@dataclass(frozen=True, eq=False)
class Tensor:
    """`states[name]` (n1, n2, …) and per axis ("legendre", low, length)."""

    bases: tuple[tuple[str, float, float], ...]
    states: dict[str, np.ndarray]

    def value(self, name: str, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        made = [np.zeros(0)]
        c = self.states[name]
        for start in range(0, len(points), 2048):
            part = points[start : start + 2048]
            value = None
            for i, (_, low, length) in enumerate(self.bases):
                half = length / 2.0
                table = (
                    legendre((part[:, i] - low) / half - 1.0, c.shape[i] - 1, order[i], np)[order[i]] / half ** order[i]
                )
                if value is None:
                    value = (table @ c.reshape(c.shape[0], -1)).reshape(len(part), *c.shape[1:])
                else:
                    value = np.einsum("pk,pk...->p...", table, value)
            assert value is not None
            made.append(value)
        return np.concatenate(made)

    def pack(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"kind": "tensor", "bases": list(self.bases)}, {f"state.{k}": v for k, v in self.states.items()}


def unpack_tensor(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Tensor:
    states = {key[6:]: value for key, value in arrays.items() if key.startswith("state.")}
    return Tensor(tuple((kind, low, length) for kind, low, length in meta["bases"]), states)
