"""Burgers whose data come slowly until a file says that nothing is left to wait for.

A replacement takes seconds to be made ready whatever a step costs; the run must still be going then.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from poise.physics.grid import Burgers2d


class Slow(Burgers2d):
    """`burgers2d` with at least 0.4 s between two batches while the file named in SLOW_UNTIL is not there."""

    def batch(self, index: int) -> Any:
        """The batch of a step."""
        until = os.environ.get("SLOW_UNTIL")
        if until and index > 2 and not Path(until).exists():
            time.sleep(0.4)
        return super().batch(index)
