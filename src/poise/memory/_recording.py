"""Recorded frames: a `.npz` that is followed like a live stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns
from typing import Any

import jax
import numpy as np

from ..errors import BadInput
from ._layout import ALIGN, PINN, Layout
from ._lease import lease_pointer
from ._protocol import Geometry
from ._subscriber import Frame


def save_frames(
    path: str | Path, records: np.ndarray, times: np.ndarray | None = None, *, dx: float = 1.0, dy: float = 1.0
) -> None:
    """Write frames for `Recording`: `records` is structured, `(frames, rows, columns)`; `times` the model's,
    `(frames,)`."""
    if records.dtype.fields is None or records.ndim != 3 or records.size == 0:
        raise BadInput(
            f"Frames must be a structured array (frames, rows, columns), not {records.dtype}{records.shape}."
        )
    times = np.arange(len(records), dtype=float) if times is None else np.asarray(times, float)
    if times.shape != (len(records),):
        raise BadInput(f"There are {len(records)} frames and {times.shape} times; accepted is one time for each.")
    words = np.ascontiguousarray(records).view(np.uint32).reshape(*records.shape, -1)
    np.savez(path, records=words, times=times, dx=dx, dy=dy)


class Recording:
    """Frames of a `.npz`: `records`, `(frames, rows, columns, words)` uint32 or float32 (or without `rows`), and if
    they are there `times`, `dx`, `dy`. Followed like a `Subscriber`; nothing is ever lost or torn.

    Raises `BadInput` if the file cannot be read or holds something else.
    """

    lost = torn = restarts = dropped = 0

    def __init__(self, path: str | Path, *, layout: Layout = PINN, device: jax.Device | None = None) -> None:
        self.path, self._device = Path(path), device if device is not None and device.platform == "cpu" else None
        try:
            with np.load(self.path, allow_pickle=False) as data:
                held: dict[str, Any] = {k: data[k] for k in ("records", "times", "dx", "dy") if k in data}
        except OSError as error:
            raise BadInput(f"The recording {path} cannot be read: {error.strerror or error}.") from error
        except Exception as error:  # numpy and zipfile raise many kinds for a file that is no archive of arrays
            raise BadInput(f"The recording {path} is no .npz of plain numbers: {error}.") from error
        if "records" not in held:
            raise BadInput(f"The recording {path} holds no 'records'.")
        words = held["records"]
        if words.ndim == 3:
            words = words[:, None]
        if words.ndim != 4 or words.shape[-1] != layout.words or words.size == 0 or words.dtype.itemsize != 4:
            raise BadInput(
                f"The records of {path} are {words.dtype}{list(words.shape)}; accepted are 4-byte words of shape "
                f"(frames, rows, columns, {layout.words}), at least one."
            )
        frames, rows, columns, _ = words.shape
        self._times = np.asarray(held.get("times", np.arange(frames)), float)
        dx, dy = (float(np.asarray(held.get(k, 1.0)).reshape(-1)[0]) for k in ("dx", "dy"))
        if self._times.shape != (frames,) or not (
            np.isfinite(self._times).all() and 0 < dx < np.inf and 0 < dy < np.inf
        ):
            raise BadInput(
                f"The recording {path} needs one finite time for each of its {frames} frames and dx, dy above 0."
            )
        dt = float(self._times[1] - self._times[0]) if frames > 1 else 0.0
        self.geometry = Geometry(rows, columns, dx, dy, max(dt, 0.0), layout=layout)
        # Each frame starts at a multiple of 64 bytes, so that JAX uses it where it lies.
        step = -(-self.geometry.nbytes // ALIGN) * ALIGN
        raw = np.empty(frames * step + ALIGN, np.uint8)
        start = -raw.ctypes.data % ALIGN
        self._frames = raw[start : start + frames * step].reshape(frames, step)
        self._frames[:, : self.geometry.nbytes] = words.reshape(frames, -1).view(np.uint8)
        self._next = 0

    def next(self, timeout: float | None = None) -> Frame | None:
        """The next frame, or None after the last."""
        del timeout
        if self._next >= len(self._frames):
            return None
        k, g = self._next, self.geometry
        self._next += 1
        at = self._frames[k].ctypes.data
        held = lease_pointer(at, g.count, g.layout, owner=self._frames, device=self._device)
        return Frame(k + 1, float(self._times[k]), monotonic_ns(), held, (2 * (k + 1),), 0)

    def accept(self, frame: Frame) -> bool:
        """Always: nobody overwrites a recording."""
        return frame.intact()

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self.next()) is not None:
            yield frame

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the frames."""
        self._next = len(self._frames)
