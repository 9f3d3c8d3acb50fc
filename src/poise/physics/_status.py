"""How a solve ended: a value with advice, never a silent wrong answer."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """What happened, and which knob to turn."""

    CONVERGED = "converged"
    TOLERANCE_MISSED = "tolerance_missed"
    STALLED = "stalled"
    ILL_POSED = "ill_posed"
    NOT_FINITE = "not_finite"

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Status.CONVERGED: "The estimated error is below the tolerance.",
    Status.TOLERANCE_MISSED: "The estimated error is above the tolerance; raise max_features, or accept it as stated.",
    Status.STALLED: "The nonlinear iteration stopped before its residual did; take smaller steps in the "
    "parameter that makes the problem hard.",
    Status.ILL_POSED: "The conditions contradict each other or leave the solution undetermined: the residual does "
    "not fall as features are added; check the conditions' signs and that every boundary has the right number.",
    Status.NOT_FINITE: "Numbers overflowed; take smaller time steps or check coefficients for poles in the region.",
}
