"""Hardware events: a fake NVML that speaks the real binding's calls, event by event."""

from __future__ import annotations

import inspect
import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pynvml
import pytest

from poise.control import _hardware
from poise.control._hardware import Watch, hardware_ids, visible, watch
from poise.control._xid import RECOVERY, XIDS, Grade, xid
from poise.events import Reported


class FakeNvml:
    """Two GPUs. What is not defined here comes from the real binding: constants and error classes are its own."""

    def __init__(self) -> None:
        self.events: queue.Queue[Any] = queue.Queue()
        self.registered: dict[str, int] = {}
        self.calls: set[str] = set()
        self.open = 0
        self.gpus = {
            f"GPU-{n}": {
                "corrected": 0, "uncorrected": 0, "rows": (0, 0, 0, 0), "pages": [], "pending": 0, "clocks": 0,
                "recovery": 0, "lost": False,
            }
            for n in range(2)
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(real := getattr(pynvml, name)) and not isinstance(real, type):
            raise AssertionError(f"the watcher calls {name}, which the fake does not have")
        return getattr(pynvml, name)

    def happens(self, gpu: str, kind: int, data: int = 0, **state: Any) -> None:
        self.gpus[gpu].update(state)
        self.events.put((gpu, kind, data))

    def _gpu(self, handle: str) -> dict[str, Any]:
        if self.gpus[handle]["lost"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self.gpus[handle]

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlEventSetFree(self, eventSet: str) -> None:
        assert eventSet == "set"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return list(self.gpus)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.gpus:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        self._gpu(handle)
        return handle

    def nvmlDeviceGetSupportedEventTypes(self, handle: str) -> int:
        return pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError | 0x8000_0000

    def nvmlDeviceRegisterEvents(self, handle: str, eventTypes: int, eventSet: str) -> None:
        self.registered[handle] = eventTypes

    def nvmlEventSetWait_v2(self, eventSet: str, timeoutms: int) -> Any:
        try:
            item = self.events.get(timeout=timeoutms / 1000)
        except queue.Empty:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT) from None
        if isinstance(item, Exception):
            raise item
        gpu, kind, data = item
        return SimpleNamespace(device=gpu, eventType=kind, eventData=data)

    def nvmlDeviceGetTotalEccErrors(self, handle: str, errorType: int, counterType: int) -> int:
        assert counterType == pynvml.NVML_VOLATILE_ECC
        wrong = errorType == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        return self._gpu(handle)["uncorrected" if wrong else "corrected"]

    def nvmlDeviceGetRemappedRows(self, device: str) -> tuple[int, int, int, int]:
        return self._gpu(device)["rows"]

    def nvmlDeviceGetRetiredPages(self, device: str, sourceFilter: int) -> list[int]:
        if device == "GPU-1":  # newer GPUs remap rows instead
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._gpu(device)["pages"]

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: str) -> int:
        return self._gpu(device)["pending"]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self._gpu(handle)["clocks"]

    def nvmlDeviceGetFieldValues(self, handle: str, fieldIds: list[int]) -> list[Any]:
        assert fieldIds == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        value = SimpleNamespace(uiVal=self._gpu(handle)["recovery"])
        return [SimpleNamespace(nvmlReturn=0, value=value)]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setattr(_hardware, "WAIT_MS", 50)
    return FakeNvml()


def seen(found: list[Reported]) -> list[tuple[str, int, int]]:
    return [(r.what, r.device_id, r.number) for r in found]


def test_the_fake_has_the_calls_of_the_real_binding_with_its_parameters() -> None:
    mine = {n: f for n, f in vars(FakeNvml).items() if n.startswith("nvml")}
    assert len(mine) > 12
    for name, method in mine.items():
        theirs = list(inspect.signature(getattr(pynvml, name)).parameters)
        assert list(inspect.signature(method).parameters)[1:] == theirs or name == "nvmlInit", name


def test_only_events_that_the_device_supports_are_registered_for(nvml: FakeNvml) -> None:
    Watch({"0": 10, "GPU-1": 11}, nvml)
    wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
    assert nvml.registered == {"GPU-0": wanted, "GPU-1": wanted}


XID = pynvml.nvmlEventTypeXidCriticalError
ECC = pynvml.nvmlEventTypeDoubleBitEccError


@pytest.mark.parametrize(
    ("happens", "reports", "words"),
    [
        ({"kind": XID, "data": 79}, [("xid", 11, 79)], "fallen off the bus"),
        ({"kind": XID, "data": 13}, [("xid", 11, 13)], "graphics engine exception"),
        ({"kind": ECC, "uncorrected": 2}, [("ecc_double", 11, 2)], "2 uncorrectable"),
        ({"kind": ECC, "corrected": 9}, [("ecc_single", 11, 9)], "9 corrected"),
        ({"kind": XID, "data": 63, "rows": (1, 2, 1, 0)}, [("xid", 11, 63), ("remapped", 11, 4)], "pending a reset"),
        ({"kind": ECC, "rows": (0, 1, 0, 1)}, [("remapped", 11, 2)], "a remapping failed"),
        (
            {"kind": ECC, "clocks": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown},
            [("throttle", 11, 1)],
            "power brake",
        ),
        ({"kind": ECC, "clocks": pynvml.nvmlClocksEventReasonSwPowerCap}, [], ""),
        ({"kind": XID, "data": 154, "recovery": 4}, [("xid", 11, 154), ("recovery", 11, 4)], "drain and reset"),
    ],
)
def test_an_event_reports_itself_and_the_counters_that_changed(
    nvml: FakeNvml, happens: dict[str, Any], reports: list[Any], words: str
) -> None:
    made = Watch({"GPU-0": 10, "GPU-1": 11}, nvml)
    assert made.first() == []
    assert made.wait() == [], "nothing happened yet"
    nvml.happens("GPU-1", **happens)
    found = made.wait()
    assert seen(found) == reports
    assert words in " ".join(r.detail for r in found)
    nvml.happens("GPU-0", ECC)
    assert made.wait() == [], "what was said once is not said again"
    assert len({(r.source, r.seq) for r in found}) == len(found)
    made.close()
    assert nvml.open == 0


def test_what_is_wrong_when_the_run_begins_is_reported_first(nvml: FakeNvml) -> None:
    nvml.gpus["GPU-0"].update(rows=(0, 0, 1, 0), pages=[4096], uncorrected=0)
    assert seen(Watch({"0": 3}, nvml).first()) == [("remapped", 3, 1), ("retired", 3, 1)]


def test_a_gpu_that_is_lost_is_reported_once(nvml: FakeNvml) -> None:
    made = Watch({"0": 3, "1": 4}, nvml)
    made.first()
    nvml.gpus["GPU-1"]["lost"] = True
    nvml.events.put(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    nvml.events.put(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert seen(made.wait()) == [("lost", 4, -1)]
    assert made.wait() == []


def run_watch(
    nvml: Any, ids: dict[str, int], enough: Callable[[list[Reported]], bool]
) -> tuple[list[Reported], list[str]]:
    """Reports and words until `enough`."""
    found: list[Reported] = []
    said: list[str] = []

    async def main() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:

                async def report(r: Reported) -> None:
                    found.append(r)
                    if enough(found):
                        group.cancel_scope.cancel()

                await watch(report, ids, said.append, nvml)

    anyio.run(main)
    return found, said


def test_the_watch_reports_what_happens_while_it_waits(nvml: FakeNvml) -> None:
    nvml.happens("GPU-0", XID, 94)
    found, said = run_watch(nvml, {"0": 7}, lambda f: len(f) == 1)
    assert (seen(found), said) == ([("xid", 7, 94)], [])


def test_without_nvml_it_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    fake = FakeNvml()
    monkeypatch.setattr(fake, "nvmlInit", broken, raising=False)
    for nvml, ids, why in ((fake, {"0": 0}, "cannot be used"), (None, {}, "no NVIDIA GPU")):
        found, said = run_watch(nvml, ids, bool)
        assert [r.what for r in found] == ["unwatched"]
        assert len(said) == 1
        assert why in said[0]


def test_names_of_gpus_follow_cuda_visible_devices() -> None:
    assert visible({}, 3) == ["0", "1", "2"]
    assert visible({"CUDA_VISIBLE_DEVICES": "2, GPU-abc"}, 2) == ["2", "GPU-abc"]
    gpus = [SimpleNamespace(platform="gpu", id=i, local_hardware_id=i) for i in range(2)]
    assert hardware_ids(gpus, {"CUDA_VISIBLE_DEVICES": "5,GPU-abc"}) == {"5": 0, "GPU-abc": 1}
    assert hardware_ids([SimpleNamespace(platform="cpu", id=0, local_hardware_id=0)], {}) == {}


def test_the_table_of_xids_says_what_each_asks_for() -> None:
    assert {n: XIDS[n].grade for n in (13, 31, 43, 45)} == dict.fromkeys((13, 31, 43, 45), Grade.NOTE)
    assert {n: XIDS[n].grade for n in (48, 79, 95, 119)} == dict.fromkeys((48, 79, 95, 119), Grade.GONE)
    assert {n: XIDS[n].grade for n in (63, 74, 94)} == dict.fromkeys((63, 74, 94), Grade.DRAIN)
    assert xid(31337).grade is Grade.WATCH
    assert all(x.meaning and x.advice for x in XIDS.values())
    actions = {v for n, v in vars(pynvml).items() if n.startswith("NVML_GPU_RECOVERY_ACTION_")}
    assert actions == set(RECOVERY), "every recovery action that the binding names has its meaning"
