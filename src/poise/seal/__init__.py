"""Marks, parity, verify, repair: memory that is told when it rots, and mended bit for bit."""

from ._report import Damage as Damage
from ._report import Finding as Finding
from ._report import SealReport as SealReport
from ._scrub import Scrub as Scrub
from ._sealed import Sealed as Sealed
from ._sealed import repair as repair
from ._sealed import scrub as scrub
from ._sealed import seal as seal
from ._sealed import verify as verify
