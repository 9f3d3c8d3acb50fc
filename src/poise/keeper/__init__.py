"""The two-phase loop over any workload."""

from ._code import Code as Code
from ._loop import Loop as Loop
from ._loop import Options as Options
from ._metrics import Metrics as Metrics
from ._train import TrainStep as TrainStep
from ._workload import Traits as Traits
from ._workload import Workload as Workload
