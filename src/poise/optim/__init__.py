"""Optimizers that protect their state while they use it."""

from ._adamw import AdamW as AdamW
from ._adamw import Report as Report
from ._adamw import adamw as adamw
