"""What NVIDIA's management library sees of the GPUs: XIDs, ECC errors, remapped rows, retired pages, throttling, and
the recovery action that the driver names.

Events are waited for in the library (an event set), in a thread of their own. With each event the counters that have no
event of their own are read once, and what has changed is reported. Nothing is read while nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from typing import Any

from ..events import Reported
from ._xid import RECOVERY, xid

WAIT_MS = 2000
"""How long one wait in the library lasts at most: it cannot be woken, so this is how long an ending may take."""

NAMES = (
    "nvmlEventTypeXidCriticalError", "nvmlEventTypeSingleBitEccError", "nvmlEventTypeDoubleBitEccError",
    "nvmlEventTypeClock", "nvmlEventTypeSingleBitEccErrorStorm", "nvmlEventTypeDramRetirementEvent",
    "nvmlEventTypeDramRetirementFailure", "nvmlEventTypeNonFatalPoisonError", "nvmlEventTypeFatalPoisonError",
    "nvmlEventTypeGpuUnavailableError", "nvmlEventTypeGpuRecoveryAction",
)  # fmt: skip
"""Kinds of event that are registered for, where the binding knows them and the device supports them."""

SLOWED = {
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal slowdown by the driver",
}
"""Reasons for lower clocks that say something about the device's health; power caps and idling do not."""

Look = dict[str, tuple[int, str]]
"""What the counters say: by kind of report the number and the words."""


def visible(environment: Mapping[str, str], n: int) -> list[str]:
    """How NVML names the GPUs that this process sees, in CUDA's order: an index in decimal, or a UUID."""
    said = environment.get("CUDA_VISIBLE_DEVICES")
    return [str(i) for i in range(n)] if said is None else [part.strip() for part in said.split(",") if part.strip()]


def hardware_ids(devices: Iterable[Any], environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """For the JAX devices that are GPUs: NVML's name -> JAX's id. Empty on a CPU."""
    gpus = [d for d in devices if d.platform in ("gpu", "cuda")]
    names = visible(environment, 1 + max((d.local_hardware_id for d in gpus), default=-1))
    return {names[d.local_hardware_id]: d.id for d in gpus if d.local_hardware_id < len(names)}


class Watch:
    """One event set over the GPUs in `ids` (NVML's name -> JAX's id). `nvml` is `pynvml` or speaks like it."""

    def __init__(self, ids: Mapping[str, int], nvml: Any) -> None:
        self.nvml = nvml
        nvml.nvmlInit()
        self._source = f"nvml:{os.getpid()}:{time.time_ns()}"
        self._seq = count(1)
        self._set = nvml.nvmlEventSetCreate()
        self._devices: dict[str, tuple[Any, int]] = {}
        self._last: dict[str, Look] = {}
        wanted = 0
        for name in NAMES:
            wanted |= getattr(nvml, name, 0)
        for name, device in ids.items():
            by_index = name.isdecimal()
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else nvml.nvmlDeviceGetHandleByUUID(name)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            self._devices[uuid] = (handle, device)
            supported = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(handle, wanted & supported, self._set)

    def first(self) -> list[Reported]:
        """What is not as it should be when the run begins."""
        out = []
        for uuid, (handle, device) in self._devices.items():
            look = self._last[uuid] = self._look(handle)
            out += [self._say(what, device, n, words) for what, (n, words) in look.items() if n]
        return out

    def wait(self) -> list[Reported]:
        """Wait for an event, up to `WAIT_MS`; what it and the counters say. Empty if nothing happened."""
        nvml = self.nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, WAIT_MS)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return []
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                return self._lost()
            raise
        try:
            uuid = nvml.nvmlDeviceGetUUID(event.device)
        except nvml.NVMLError:
            return self._lost()
        if uuid not in self._devices:
            return []
        handle, device = self._devices[uuid]
        out: list[Reported] = []
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            known = xid(int(event.eventData))
            out.append(self._say("xid", device, int(event.eventData), f"{known.meaning}; {known.advice}"))
        before, now = self._last.get(uuid, {}), self._look(handle)
        self._last[uuid] = now
        for what, (n, words) in now.items():
            if (n, words) != before.get(what, (0, "")):
                out.append(self._say(what, device, n, words))
        return out

    def close(self) -> None:
        """Give the event set back."""
        with contextlib.suppress(self.nvml.NVMLError):
            self.nvml.nvmlEventSetFree(self._set)
            self.nvml.nvmlShutdown()

    def _say(self, what: str, device: int, number: int, detail: str) -> Reported:
        return Reported(self._source, next(self._seq), what, device, number, detail)

    def _lost(self) -> list[Reported]:
        out = []
        for uuid, (handle, device) in list(self._devices.items()):
            try:
                self.nvml.nvmlDeviceGetUUID(handle)
            except self.nvml.NVMLError as error:
                if error.value == self.nvml.NVML_ERROR_GPU_IS_LOST:
                    del self._devices[uuid]
                    out.append(self._say("lost", device, -1, "the driver says that the GPU is lost"))
        return out

    def _look(self, handle: Any) -> Look:
        """The counters that the device has; what one lacks is left out."""
        nvml, out = self.nvml, Look()
        with contextlib.suppress(nvml.NVMLError):
            n = nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC)
            out["ecc_single"] = int(n), f"{n} corrected ECC errors"
        with contextlib.suppress(nvml.NVMLError):
            n = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
            out["ecc_double"] = int(n), f"{n} uncorrectable ECC errors"
        with contextlib.suppress(nvml.NVMLError):
            corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
            words = f"{corrected + uncorrected} rows remapped ({uncorrected} for uncorrectable errors)"
            words += ", more pending a reset" if pending else ""
            words += ", a remapping failed" if failed else ""
            out["remapped"] = corrected + uncorrected + bool(pending) + bool(failed), words
        with contextlib.suppress(nvml.NVMLError):
            cause = nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
            pages = len(nvml.nvmlDeviceGetRetiredPages(handle, cause))
            pending = bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
            out["retired"] = pages + pending, f"{pages} pages retired" + (", more pending a reset" if pending else "")
        with contextlib.suppress(nvml.NVMLError):
            bits = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
            reasons = [words for name, words in SLOWED.items() if bits & getattr(nvml, name)]
            out["throttle"] = len(reasons), "clocks lowered: " + ", ".join(reasons) if reasons else ""
        with contextlib.suppress(nvml.NVMLError):
            (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
            if value.nvmlReturn == 0:
                action = int(value.value.uiVal)
                out["recovery"] = (
                    action,
                    f"recovery action: {RECOVERY.get(action, (str(action),))[0]}" if action else "",
                )
        return out


async def watch(
    report: Callable[[Reported], Awaitable[Any]], ids: Mapping[str, int], say: Callable[[str], None], nvml: Any = None
) -> None:
    """Report what NVML sees until cancelled. Without NVML: say so, once, in words and in the journal."""
    import anyio.to_thread

    made, why = None, "this run has no NVIDIA GPU"
    if ids:
        made, why = await anyio.to_thread.run_sync(_open, ids, nvml)
    if made is None:
        say(f"hardware events are not watched: {why}.")
        await report(Reported(f"nvml:{os.getpid()}:{time.time_ns()}", 1, "unwatched", detail=why))
        return
    stop = threading.Event()
    try:
        found = await anyio.to_thread.run_sync(made.first)
        while True:
            for seen in found:
                await report(seen)
            found = await anyio.to_thread.run_sync(_next, made, stop, abandon_on_cancel=True)
    finally:
        stop.set()


def _open(ids: Mapping[str, int], nvml: Any) -> tuple[Watch | None, str]:
    if nvml is None:
        try:
            import pynvml as nvml
        except ImportError:
            return None, "NVML's Python binding is missing (pip install 'poise[serve]')"
    try:
        return Watch(ids, nvml), ""
    except nvml.NVMLError as error:
        return None, f"NVML cannot be used ({error})"


def _next(made: Watch, stop: threading.Event) -> list[Reported]:
    """The next reports; after `stop`, the end of the watch."""
    while not stop.is_set():
        found = made.wait()
        if found and not stop.is_set():
            return found
    made.close()
    return []
