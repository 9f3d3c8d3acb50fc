"""Which process this is: as `poise launch` says it, or as a cluster's scheduler does; and which GPU each one gets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..devices.process import Device, die_with_parent, find_cluster, join
from ..errors import BadInput

GPU_FLAGS = {
    "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE": "1",
    "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT": "1",
}
GPU_XLA_FLAGS = (
    "--xla_gpu_nccl_terminate_on_error=false --xla_gpu_nccl_async_execution=true "
    "--xla_gpu_nccl_blocking_communicators=false"
)
"""Without these a survivor of a lost peer hangs for good."""

PATIENCE = 100.0
"""Heartbeat seconds of JAX's runtime: deaths are noticed otherwise, and much sooner."""


@dataclass(frozen=True)
class Seat:
    """This process's place: its seat and incarnation, where the launcher listens, and on which host to listen."""

    device: Device
    launcher: tuple[str, int]
    key: bytes
    host: str


def launched_seat() -> Seat:
    """The seat that `poise launch` gave this process, taken."""
    die_with_parent()
    device = (_number("POISE_SEAT"), _number("POISE_INCARNATION"))
    patience = float(_said("POISE_PATIENCE"))
    join(_said("POISE_COORDINATOR"), device[0], _number("POISE_SEATS"), patience, lambda client: device[1])
    host, port = _said("POISE_LAUNCHER").rsplit(":", 1)
    return Seat(device, (host, int(port)), bytes.fromhex(_said("POISE_KEY")), "127.0.0.1")


def scheduled_seat(job: str, active: int, spares: int, out: Path, resume: Path | None) -> Seat:
    """The seat that a scheduler gave this process, taken. The first one in seat 0 starts the coordinator and the
    launcher beside it, in a process that outlives it."""
    address, seats, seat = find_cluster()
    if seats != active + spares:
        raise BadInput(
            f"The scheduler started {seats} processes; {active} active and {spares} spare ones need {active + spares}."
        )
    host, port = address.rsplit(":", 1)
    said = None
    if seat == 0 and not _reachable(host, int(port)):
        said = _serve(job, active, spares, out, resume, address)
    incarnation = 0

    def again(client: object) -> int:
        nonlocal incarnation
        incarnation = client.key_value_increment(f"poise/seat/{seat}", 1) - 1  # type: ignore[attr-defined]
        return incarnation

    client = join(address, seat, seats, PATIENCE, again)
    if said is not None:
        client.key_value_set("poise/launcher", said)
    told = json.loads(client.blocking_key_value_get("poise/launcher", 300_000))
    launcher_host, launcher_port = told["launcher"].rsplit(":", 1)
    return Seat((seat, incarnation), (launcher_host, int(launcher_port)), bytes.fromhex(told["key"]), _towards(host))


def _serve(job: str, active: int, spares: int, out: Path, resume: Path | None, address: str) -> str:
    """Start `poise launch --serve`; its first line says where it listens."""
    command = [
        sys.executable, "-m", "poise", "launch", job, "-n", str(active), "--spares", str(spares), "--out", str(out),
        "--serve", address,
    ]  # fmt: skip
    command += [] if resume is None else ["--resume", str(resume)]
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "launch.log", "ab") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        words = (out / "launch.log").read_text().strip().splitlines()
        raise BadInput(f"The launcher could not be started: {words[-1] if words else 'it said nothing'}")
    return line


def _reachable(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 1.0):
            return True
    except OSError:
        return False


def _towards(host: str) -> str:
    """This machine's address as `host` sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((host, 9))  # sends nothing
        return str(s.getsockname()[0])


def _said(name: str) -> str:
    if name not in os.environ:
        raise BadInput(f"poise worker is started by poise launch or a scheduler; {name} is not set.")
    return os.environ[name]


def _number(name: str) -> int:
    return int(_said(name))


# -- GPUs --------------------------------------------------------------------------------------------------------------


def gpus() -> list[str]:
    """The GPUs that workers may have: none where JAX is told to use the CPU."""
    if os.environ.get("JAX_PLATFORMS", "cuda").split(",")[0] not in ("cuda", "gpu"):
        return []
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [g for g in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if g and g != "-1"]
    return [str(i) for i in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def seat_environments(seats: int) -> list[dict[str, str]]:
    """What each seat's process needs to see its own GPU; with fewer GPUs than seats the last seats share from the end.

    Nothing on a machine without GPUs.
    """
    found = gpus()
    if not found:
        return []
    # The spares, which come last, share with the last active ones: a loss there moves to the same GPU.
    chosen = [found[min(seat, len(found) - 1)] for seat in range(seats)]
    most = max(chosen.count(g) for g in found)
    flags = f"{os.environ.get('XLA_FLAGS', '')} {GPU_XLA_FLAGS}".strip()
    common = {**GPU_FLAGS, "XLA_FLAGS": flags, "POISE_GPUS": ",".join(chosen)}
    if most > 1:
        common["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / most:.2f}"
    return [{**common, "CUDA_VISIBLE_DEVICES": gpu} for gpu in chosen]


def apart(slots: Sequence[Device], chosen: str | None = None) -> bool:
    """Whether the processes in `slots` sit on GPUs of their own: two on one cannot talk through NCCL."""
    said = os.environ.get("POISE_GPUS", "") if chosen is None else chosen
    if not said:
        return True
    of_seat = said.split(",")
    mine = [of_seat[seat] for seat, _ in slots]
    return len(set(mine)) == len(mine)
