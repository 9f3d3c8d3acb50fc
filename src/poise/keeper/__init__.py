"""The two-phase loop over any workload."""

from ._code import Code as Code
from ._fused import Moved as Moved
from ._fused import Moves as Moves
from ._loop import Loop as Loop
from ._loop import Options as Options
from ._metrics import Metrics as Metrics
from ._optimized import OptimizedStep as OptimizedStep
from ._train import TrainStep as TrainStep
from ._workload import SealedWorkload as SealedWorkload
from ._workload import Traits as Traits
from ._workload import Workload as Workload
