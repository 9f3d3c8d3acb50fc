"""Leases: somebody else's memory as a JAX array that moves no bytes and keeps its owner alive."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax import Array

from ..errors import BadInput
from . import _checks, _cuda, _dlpack
from ._adopt import CPU, CUDA, adopt, first_cpu, hold, host_array
from ._channel import Channel
from ._layout import ALIGN, Layout, layout_of


class Lease:
    """A view of a producer's buffer. Make one with `lease`, `lease_pointer` or `lease_ipc`.

    - `array`: the buffer as a `jax.Array` on `device`, at `pointer`: `(n, words)` uint32 for records, else as it is.
    - `layout`: the records' layout, or None. `channel(name)` gives a field to strided consumers.
    - `write`: whether the producer agreed that its memory is written (and donated). Without it `put` is refused, and so
      is donating `array` on a GPU; on a CPU XLA never donates foreign memory, it copies.

    The owner lives as long as the lease or any array made from it. What the array shows changes when the producer
    writes; whoever reads live memory must know when it is whole (`Subscriber` does).
    """

    __slots__ = ("_array", "_fence", "_owner", "device", "layout", "nbytes", "pointer", "write")

    def __init__(
        self,
        array: Array,
        pointer: int,
        nbytes: int,
        device: jax.Device,
        layout: Layout | None,
        write: bool,
        owner: Any,
    ) -> None:
        self._array: Array | None = array
        self.pointer, self.nbytes, self.device, self.layout, self.write = pointer, nbytes, device, layout, write
        self._owner: Any = owner
        self._fence = None if write or device.platform == "cpu" else hold(array)

    @property
    def array(self) -> Array:
        """The buffer as a JAX array, where it lies."""
        if self._array is None:
            raise BadInput("The lease is closed; its pointer is stale.")
        return self._array

    @property
    def bytes_copied(self) -> int:
        """Bytes that the import moved: 0, or all of them if the array is not at the producer's address."""
        return 0 if self.array.unsafe_buffer_pointer() == self.pointer else self.nbytes

    def numpy(self) -> np.ndarray:
        """Host memory as numpy sees it (records by their fields); read-only unless the producer agreed."""
        if self.device.platform != "cpu":
            raise BadInput(f"This buffer is on {self.device}; numpy sees host memory only.")
        array = self.array
        shape, dtype = (
            (array.shape, np.dtype(array.dtype)) if self.layout is None else (array.shape[:1], self.layout.dtype)
        )
        return host_array(self.pointer, shape, dtype, self._owner, readonly=not self.write)

    def channel(self, field: str) -> Channel:
        """One field of all records, strided, for CuPy, PyTorch, Numba, Warp and numpy."""
        if self.layout is None:
            raise BadInput("This lease holds no records, so it has no channels.")
        array = self.array
        at = self.pointer + 4 * self.layout.word(field)
        kind, stride = self.layout.kind(field), self.layout.dtype.itemsize
        return Channel(at, (array.shape[0],), stride, kind, self.device, self._owner, readonly=not self.write)

    def put(self, field: str, values: Any) -> None:
        """Write one field of all records in place, at its address. Raises `BadInput` unless the producer agreed."""
        if self.layout is None:
            raise BadInput("This lease holds no records, so it has no fields to write.")
        if not self.write:
            raise BadInput("The producer did not agree to be written to; accepted is a lease made with write=True.")
        n = self.array.shape[0]
        if np.shape(values) != (n,):
            raise BadInput(f"{field!r} of {n} records needs shape ({n},), not {np.shape(values)}.")
        if self.device.platform == "cpu":
            self.numpy()[field] = np.asarray(values)
            return
        # Others see the memory without asking JAX, so it must be written when this returns.
        written = _put(self.layout, field, self.array, values).block_until_ready()
        if written.unsafe_buffer_pointer() != self.pointer:
            raise RuntimeError("XLA gave up the producer's buffer and wrote elsewhere.")
        self._array = written

    def close(self) -> None:
        """Let go. Arrays made from the lease stay valid, and keep the owner until they are gone."""
        self._array = self._fence = self._owner = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        what = "closed" if self._array is None else f"{self._array.dtype.name}{list(self._array.shape)}"
        return f"Lease({what} at {self.pointer:#x} on {self.device})"


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _put(layout: Layout, field: str, rows: Array, values: Any) -> Array:
    return layout.put(rows, field, values)


def lease_pointer(
    pointer: int,
    count: int | tuple[int, ...],
    of: Layout | Any,
    *,
    owner: Any,
    device: jax.Device | None = None,
    readonly: bool = False,
    write: bool = False,
    stream: int | None = None,
) -> Lease:
    """A lease of `count` records (`of` a `Layout`), or of an array of shape `count` and dtype `of`, at an address.

    - `owner`: any object; whatever it owns must stay valid while it lives. There is no lease without one.
    - `device`: None for host memory on the first CPU device; a GPU for device memory.
    - `readonly`: the memory must not be written. `write`: the producer agreed that it may be.
    - `stream`: the CUDA stream that the producer writes with; what reads the array waits for it. None: nothing is under
      way.

    Raises `BadInput` with one sentence for an address that is null, misaligned, not (or no longer) mapped, too short or
    on another device, and for `write` on read-only memory.
    """
    if owner is None:
        raise BadInput("A lease needs an owner that keeps the memory alive; accepted is any object that does.")
    host = device is None or device.platform == "cpu"
    shape, dtype, layout = _checks.form(count, of)
    size = _checks.nbytes(shape, dtype)
    at = _checks.address(pointer, ALIGN if host else _checks.DEVICE_ALIGN)
    if write and readonly:
        raise BadInput("This memory is read-only; a lease that writes is refused.")
    if host:
        where = device or first_cpu()
        _checks.readable(at, size)
        made = adopt(_dlpack.capsule(at, shape, None, dtype, (CPU, 0), owner), where)
    else:
        assert device is not None
        where = device
        _checks.on_device(at, size, where)
        # Without a stream the contents are there already, and JAX has nothing to wait for.
        consumer = None if stream is None else where.get_stream_for_external_ready_events()
        if stream is not None:
            _cuda.wait_for(stream, consumer, where.local_hardware_id)
        capsule = _dlpack.capsule(at, shape, None, dtype, (CUDA, where.local_hardware_id), owner)
        made = adopt(capsule, where, consumer)
    return Lease(made, at, size, where, layout, write, owner)


def lease_ipc(
    handle: bytes,
    count: int | tuple[int, ...],
    of: Layout | Any,
    *,
    device: jax.Device,
    offset: int = 0,
    write: bool = False,
) -> Lease:
    """A lease of another process's device memory, by the 64 bytes of its CUDA IPC handle.

    `offset` in bytes from the start of the allocation that the handle names. The other process must say when the
    contents are whole (after its stream is done) and must outlive the use; its death leaves the mapping valid until
    closed.
    """
    if device.platform == "cpu":
        raise BadInput(f"CUDA IPC memory is on a GPU, not on {device}.")
    memory = _cuda.IpcMemory(handle, device.local_hardware_id)
    return lease_pointer(memory.pointer + offset, count, of, owner=memory, device=device, write=write)


def lease(source: Any, of: Layout | None = None, *, device: jax.Device | None = None, write: bool = False) -> Lease:
    """A lease of an object's memory: `__cuda_array_interface__`, a numpy array or anything with its interface (an mmap
    or a SharedMemory through `numpy.frombuffer`), or `__dlpack__` (PyTorch, CuPy).

    `of`: how its bytes are records; taken from a structured dtype if left out. Without either the array is leased as it
    is. Raises `BadInput` as `lease_pointer` does, and for arrays that are not compact.
    """
    stream = None
    if hasattr(source, "__cuda_array_interface__"):
        pointer, shape, dtype, readonly, stream = _checks.interface(source, "__cuda_array_interface__")
        at = _checks.address(pointer, _checks.DEVICE_ALIGN)
        device = _checks.device_of(device, "gpu", at)
    else:
        if not isinstance(source, np.ndarray) and not hasattr(source, "__array_interface__"):
            source = _through_dlpack(source)
            if not isinstance(source, np.ndarray):  # a GPU's, taken through DLPack by JAX itself
                return _device_array(source, of, write)
        if isinstance(source, np.ndarray):
            pointer, shape, dtype, readonly = _checks.numpy_array(source)
        else:
            pointer, shape, dtype, readonly, _ = _checks.interface(source, "__array_interface__")
        device = _checks.device_of(device, "cpu")
    if of is None and dtype.fields is not None:
        of = layout_of(dtype)
    count: Any = shape
    if of is not None:
        size = _checks.nbytes(shape, dtype)
        if size % of.dtype.itemsize:
            raise BadInput(f"{size} bytes are not a whole number of records of {of.dtype.itemsize} bytes.")
        count = size // of.dtype.itemsize
    return lease_pointer(
        pointer, count, of or dtype, owner=source, device=device, readonly=readonly, write=write, stream=stream or None
    )


def _through_dlpack(source: Any) -> Any:
    if not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
        raise BadInput(
            f"A {type(source).__name__} shares no memory; accepted are numpy arrays, objects with "
            "__cuda_array_interface__, __array_interface__ or __dlpack__, and addresses with lease_pointer."
        )
    try:
        kind, _ = source.__dlpack_device__()
        return np.from_dlpack(source) if kind == CPU else jax.dlpack.from_dlpack(source, copy=False)
    except Exception as error:
        raise BadInput(f"This {type(source).__name__} cannot be shared through DLPack: {error}.") from error


def _device_array(array: Array, of: Layout | None, write: bool) -> Lease:
    (device,) = array.devices()
    if of is not None and (array.dtype != np.uint32 or array.ndim != 2 or array.shape[1] != of.words):
        raise BadInput(
            f"Records through DLPack must be uint32 of shape (n, {of.words}), not {array.dtype}{array.shape}."
        )
    return Lease(array, array.unsafe_buffer_pointer(), array.nbytes, device, of, write, array)
