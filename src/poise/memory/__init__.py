"""Records where they lie: layouts, leases of foreign memory, and live streams of frames in shared memory; and what the
process does with memory that it frees."""

from ._channel import Channel as Channel
from ._cuda import ipc_handle as ipc_handle
from ._layout import PIM as PIM
from ._layout import PINN as PINN
from ._layout import Layout as Layout
from ._layout import empty as empty
from ._layout import include_dir as include_dir
from ._lease import Lease as Lease
from ._lease import lease as lease
from ._lease import lease_ipc as lease_ipc
from ._lease import lease_pointer as lease_pointer
from ._protocol import Geometry as Geometry
from ._publisher import Publisher as Publisher
from ._recording import Recording as Recording
from ._recording import save_frames as save_frames
from ._retain import retain_freed as retain_freed
from ._sharded import ShardedLease as ShardedLease
from ._subscriber import Frame as Frame
from ._subscriber import Notice as Notice
from ._subscriber import Subscriber as Subscriber
