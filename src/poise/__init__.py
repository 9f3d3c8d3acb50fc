"""poise keeps long JAX runs right and running.

Numbers go bad, memory rots, devices die; poise notices inside the compiled step, mends bit for bit, moves work to a
warm spare without recompiling, and says what it did.
"""

from . import optim as optim
from .control import Keeper as Keeper
from .control import Limits as Limits
from .control import keep as keep
from .devices import Placement as Placement
from .devices import Pool as Pool
from .errors import BadInput as BadInput
from .errors import Exhausted as Exhausted
from .errors import Missing as Missing
from .errors import PoiseError as PoiseError
from .errors import Stopped as Stopped
from .gate import Gate as Gate
from .gate import Health as Health
from .keeper import Code as Code
from .keeper import Options as Options
from .keeper import Traits as Traits
from .keeper import Workload as Workload
from .memory import include_dir as include_dir
from .seal import Scrub as Scrub
from .seal import Sealed as Sealed
from .seal import SealReport as SealReport
from .seal import repair as repair
from .seal import scrub as scrub
from .seal import seal as seal
from .seal import verify as verify

__version__ = "0.1.0"
