"""Devices: placements, warm executables, swaps."""

from ._compiles import compiles as compiles
from ._placement import Placement as Placement
from ._pool import Pool as Pool
from ._swap import assemble as assemble
from ._swap import move as move
from ._swap import shards_by_slot as shards_by_slot
from ._warm import Warm as Warm
