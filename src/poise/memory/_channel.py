"""One field of all records as a strided array, for libraries that take strides (JAX does not)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..errors import BadInput
from . import _cuda, _dlpack
from ._adopt import CPU, CUDA

_NOT_AGREED = (
    "The producer did not agree to be written to, and this consumer could; accepted is a lease with write=True."
)


class Channel:
    """`shape` values, `stride` bytes apart, at `pointer`.

    `torch.from_dlpack`, `cupy.asarray`, `numba.cuda.as_cuda_array`, `warp.from_dlpack` and `numpy.asarray` take it as
    it is, moving nothing. It keeps the owner alive, and so does what is made from it. Where the producer did not agree,
    consumers that know of read-only memory get it read-only.
    """

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        stride: int,
        dtype: np.dtype,
        device: jax.Device,
        owner: Any,
        *,
        readonly: bool,
    ) -> None:
        self.pointer, self.shape, self.stride, self.dtype = pointer, shape, stride, dtype
        self.device, self._owner, self.readonly = device, owner, readonly

    def _described(self, version: int) -> dict[str, Any]:
        return {
            "version": version, "shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, self.readonly),
            "strides": (self.stride,),
        }  # fmt: skip

    # numpy and CuPy look for these by hasattr: a channel has the one of its own device only.
    def __getattr__(self, name: str) -> Any:
        if name == "__array_interface__" and self.device.platform == "cpu":
            return self._described(3)
        if name == "__cuda_array_interface__" and self.device.platform != "cpu":
            return self._described(3)
        raise AttributeError(name)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device.platform == "cpu":
            return CPU, 0
        return CUDA, self.device.local_hardware_id

    def __dlpack__(self, *, stream: int | None = None, **asked: Any) -> Any:
        """A capsule. What a GPU holds, and consumers of DLPack before 1.0, know no "read-only": they are refused where
        the producer did not agree."""
        if asked.get("copy"):
            raise BadInput("A channel is shared, not copied.")
        if self.device.platform == "cpu":
            try:
                return np.asarray(self).__dlpack__(**asked)
            except BufferError:
                raise BadInput(_NOT_AGREED) from None
        if self.readonly:
            raise BadInput(_NOT_AGREED)
        if stream not in (None, -1):
            mine = self.device.get_stream_for_external_ready_events()
            _cuda.wait_for(mine, stream, self.device.local_hardware_id)
        return _dlpack.capsule(self.pointer, self.shape, (self.stride,), self.dtype, self.__dlpack_device__(), self)
