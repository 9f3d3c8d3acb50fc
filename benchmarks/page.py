"""The status page and the governor under load, and what they cost a healthy run.

    python benchmarks/page.py cost     step time with the page open / without, alternating in one run
    python benchmarks/page.py burst    10,000 reports in a second from 500 sources; a request's p95 meanwhile
    python benchmarks/page.py open     opening a journal of a million events
    python benchmarks/page.py kills    kill -9 of the governor at 200 random moments

Prints one JSON object each. Nothing is asserted.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import anyio

SOURCES, EACH = 500, 20


def page(journal: Path) -> tuple[subprocess.Popen[str], str]:
    """A server for `journal` and its address."""
    command = [sys.executable, "-c", "from poise.cli import main; main()", "serve", str(journal), "--port", "0",
               "--until-closed"]  # fmt: skip
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "JAX_PLATFORMS": "cpu"})  # fmt: skip
    assert child.stderr is not None
    found = re.search(r"http://\S+/", child.stderr.readline())
    assert found
    return child, found[0]


def stop(child: subprocess.Popen[str]) -> None:
    """End a server."""
    assert child.stdin is not None
    child.stdin.close()
    child.wait(20)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


LOOK = """
import sys, urllib.request
stream = urllib.request.urlopen(sys.argv[1] + "events")
while not stream.readline().startswith(b"event: log"):
    pass
print("there", flush=True)
for line in stream:
    pass
"""


def cost(rounds: int = 8, seconds: float = 3.0) -> dict[str, Any]:
    """Windows of steps without and with a page open, taken in turns, of one governed run with its journal."""
    import jax

    jax.config.update("jax_num_cpu_devices", 3)
    import poise
    from poise.physics.grid import Burgers2d

    def window(keeper: poise.Keeper) -> float:
        t0, n = time.perf_counter(), 0
        while time.perf_counter() - t0 < seconds:
            keeper.step()
            n += 1
        keeper.flush()
        return (time.perf_counter() - t0) / n

    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "run.db"
        with poise.Keeper(Burgers2d(n=512), poise.Pool(jax.devices(), 1), journal=journal, governed=True) as keeper:
            window(keeper)
            child, url = page(journal)
            without, with_, used = [], [], []
            for _ in range(rounds):
                without.append(window(keeper))
                viewer = subprocess.Popen([sys.executable, "-c", LOOK, url], stdout=subprocess.PIPE)
                assert viewer.stdout is not None
                viewer.stdout.readline()  # it has the whole page: its start is not what is measured
                before = cpu_seconds(child.pid)
                t0 = time.perf_counter()
                with_.append(window(keeper))
                used.append((cpu_seconds(child.pid) - before) / (time.perf_counter() - t0))
                viewer.kill()
                viewer.wait()
                viewer.stdout.close()
            stop(child)
            steps = keeper.settled
            keeper.close()
    ratios = [b / a for a, b in zip(without, with_, strict=True)]
    return {
        "steps": steps, "rounds": rounds, "step_ms_without": 1e3 * statistics.median(without),
        "step_ms_with": 1e3 * statistics.median(with_),
        "ratio_of_medians": statistics.median(with_) / statistics.median(without),
        "ratio_of_fastest": min(with_) / min(without), "median_of_paired_ratios": statistics.median(ratios),
        "paired_ratios": sorted(round(r, 3) for r in ratios), "server_share_of_one_core": statistics.median(used),
        "load": os.getloadavg()[0],
    }  # fmt: skip


def burst() -> dict[str, Any]:
    """A governor with its socket in one process, the page in another, sources and a visitor in this one."""
    import httpx

    from poise.control import read_journal
    from poise.events import Reported

    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "run.db"
        code = (
            "import sys, anyio; from pathlib import Path\n"
            "from poise.control._door import govern\n"
            "from poise.events import RunStarted\n"
            "async def carry_out(order): return False, 'a benchmark'\n"
            "async def main():\n"
            "    begin = [RunStarted('burst', 0, tuple(range(400)), tuple(range(400, 500)))]\n"
            "    async with govern(Path(sys.argv[1]), carry_out, begin=begin):\n"
            "        print('ready', flush=True); await anyio.to_thread.run_sync(sys.stdin.read)\n"
            "anyio.run(main)\n"
        )
        governor = subprocess.Popen([sys.executable, "-c", code, str(journal)], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert governor.stdout is not None
        assert governor.stdin is not None
        governor.stdout.readline()
        child, url = page(journal)
        took: list[float] = []
        done = threading.Event()

        def visit() -> None:
            with httpx.Client(base_url=url, timeout=30) as client:
                while not done.is_set():
                    for path in ("", "api/v1/status", "metrics"):
                        t0 = time.perf_counter()
                        assert client.get(path).status_code == 200
                        took.append(time.perf_counter() - t0)

        viewer = subprocess.Popen([sys.executable, "-c", LOOK, url])
        visitor = threading.Thread(target=visit)
        answers: list[str] = []

        async def source(n: int, start: anyio.Event) -> None:
            from poise.control._socket import address, socket_path

            with address(socket_path(journal)) as where:
                stream = await anyio.connect_unix(where)
            async with stream:
                await start.wait()
                lines = [
                    json.dumps({"report": {"source": f"s{n}", "seq": seq, "what": "xid", "device_id": (n + seq) % 400,
                                           "number": (13, 31, 63, 79)[seq % 4]}}).encode()
                    for seq in range(1, EACH + 1)
                ]  # fmt: skip
                await stream.send(b"\n".join(lines) + b"\n")
                got = b""
                while got.count(b"\n") < EACH:
                    got += await stream.receive()
                answers.extend(json.loads(line)["outcome"] for line in got.splitlines())

        async def main() -> float:
            start = anyio.Event()
            async with anyio.create_task_group() as group:
                for n in range(SOURCES):
                    group.start_soon(source, n, start)
                await anyio.sleep(2.0)  # everybody is connected
                visitor.start()
                await anyio.sleep(0.3)
                took.clear()
                t0 = time.perf_counter()
                start.set()
            return time.perf_counter() - t0

        seconds = anyio.run(main)
        time.sleep(1.0)
        done.set()
        visitor.join()
        viewer.kill()
        viewer.wait()
        used = {"governor": cpu_seconds(governor.pid), "server": cpu_seconds(child.pid)}
        stop(child)
        governor.stdin.close()
        governor.wait(20)
        told = [(e.source, e.seq) for _, e in read_journal(journal) if isinstance(e, Reported)]
    took.sort()
    return {
        "reports": SOURCES * EACH, "sources": SOURCES, "accepted": answers.count("accepted"), "journaled": len(told),
        "doubled": len(told) - len(set(told)), "seconds_until_all_were_durable": seconds, "requests": len(took),
        "request_p50_ms": 1e3 * took[len(took) // 2], "request_p95_ms": 1e3 * took[int(0.95 * len(took))],
        "request_max_ms": 1e3 * took[-1], "cpu_seconds_with_start": used, "load": os.getloadavg()[0],
    }  # fmt: skip


def opening(events: int = 1_000_000) -> dict[str, Any]:
    """A journal of many events: until a reader knows the run, until a governor could go on, until the page is there."""
    import httpx

    from poise.control import Journal
    from poise.control._read import Reader
    from poise.events import Action, Fault, Mended, Noticed, Progress, RunStarted

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        t0 = time.perf_counter()
        journal = Journal(path)
        journal.append(RunStarted("long", 0, tuple(range(8)), (8, 9)))
        made = 1
        while made < events:
            some: list[Any] = []
            for step in range(made, made + 2000):
                if step % 100 == 0:
                    f = Fault(step, "memory", (step % 8,), (step % 8,), "uv")
                    some += [
                        Noticed(f, Action.REPAIR, "mended in place", {"data": 1}),
                        Mended(f, Action.REPAIR, 0.01, 0, 2),
                    ]
                some.append(Progress(step, 100.0))
            journal.append_all(some).result()
            made += len(some)
        writing = time.perf_counter() - t0
        t0 = time.perf_counter()
        reader = Reader(path)
        while_written = time.perf_counter() - t0
        journal.close()
        t0 = time.perf_counter()
        reader = Reader(path)
        closed = time.perf_counter() - t0
        t0 = time.perf_counter()
        with Journal(path, again=True):
            again = time.perf_counter() - t0
        child, url = page(path)
        t0 = time.perf_counter()
        size = len(httpx.get(url, timeout=30).content)
        first = time.perf_counter() - t0
        stop(child)
        return {
            "events": made, "megabytes": path.stat().st_size / 1e6, "written_per_second": made / writing,
            "open_while_written_s": while_written, "open_closed_s": closed, "go_on_s": again, "first_page_s": first,
            "page_bytes": size, "faults": reader.summary.faults, "load": os.getloadavg()[0],
        }  # fmt: skip


def kills() -> dict[str, Any]:
    """The test's own killing, with its count of what was acknowledged."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from poise.control import read_journal, replay
    from poise.control._read import Reader
    from test_governor import killed_often

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        t0 = time.perf_counter()
        acknowledged, lives = killed_often(path, Path(folder) / "deeds", 200, int(time.time()))
        registry = replay(event for _, event in read_journal(path))
        return {
            "kills": lives, "seconds": time.perf_counter() - t0, "acknowledged_reports": len(acknowledged),
            "same_registry": registry == Reader(path).summary.registry,
        }  # fmt: skip


if __name__ == "__main__":
    known = {"cost": cost, "burst": burst, "open": opening, "kills": kills}
    if len(sys.argv) != 2 or sys.argv[1] not in known:
        sys.exit(f"usage: {sys.argv[0]} {'|'.join(known)}")
    print(json.dumps(known[sys.argv[1]](), indent=1))
