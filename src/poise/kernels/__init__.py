"""Compiled kernels and their jnp twins. `ref*.py` says what each computes; callers get the compiled one where it is."""

from ._adamw import adamw as adamw
from ._burgers import burgers_stage as burgers_stage
from ._native import Available as Available
from ._native import available as available
from ._native import platforms as platforms
from ._native import use as use
from ._records import BadRows as BadRows
from ._records import pack as pack
from ._records import unpack as unpack
from ._records import update_records as update_records
from ._seal import check as check
from ._seal import limit_bits as limit_bits
from ._seal import repair as repair
from ._seal import seal as seal
from ._seal import seal_counting as seal_counting
from ._stencil import gate_scan as gate_scan
from ._stencil import stencil as stencil
from .layout import Layout as Layout
from .ref import Check as Check
from .ref import Mended as Mended
from .ref import Seal as Seal
from .ref_adamw import Hyper as Hyper
from .ref_adamw import Sealed as Sealed
from .ref_adamw import State as State
from .ref_stencil import Scan as Scan
from .ref_stencil import Trips as Trips
