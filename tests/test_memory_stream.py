"""Live streams: what is published is read where it lies; what is lost, torn, dead or stalled is counted and named."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poise import memory
from poise.errors import BadInput
from poise.memory import Frame, Geometry, Notice, Publisher, Recording, Subscriber, save_frames
from poise.memory import _protocol as protocol

GRID = Geometry(rows=3, columns=11, dx=0.1, dy=0.2, dt=0.5, rate=1000.0)
COMPILER = shutil.which("g++")
PRODUCER = Path(memory.include_dir()).parent / "producer"


@pytest.fixture
def name(tmp_path):
    return tmp_path / "stream"


def publish(out: Publisher, value: float) -> None:
    records = out.begin()
    assert records is not None
    records["w"], records["id"] = value, np.arange(len(records))
    out.publish(value)


def words(frame: Frame) -> np.ndarray:
    return np.asarray(memory.PINN.channel(frame.lease.array, "w"))


def a_frame(found: Frame | Notice | None) -> Frame:
    assert isinstance(found, Frame), found
    return found


def test_frames_arrive_in_order_where_they_lie(name):
    with Publisher(name, GRID) as out, Subscriber(name) as frames:
        assert frames.geometry == GRID
        for k in range(1, 12):
            publish(out, k)
            frame = a_frame(frames.next(5))
            assert (frame.sequence, frame.time) == (k, k)
            assert (words(frame) == k).all()
            assert frame.lease.bytes_copied == 0
            assert frames.accept(frame)
        assert frames.next(0.01) is None
    assert (frames.lost, frames.torn) == (0, 0)


def test_a_reader_that_is_too_slow_loses_the_oldest_and_counts_them(name):
    with Publisher(name, GRID) as out, Subscriber(name) as frames:
        publish(out, 1)
        assert a_frame(frames.next(5)).sequence == 1
        for k in range(2, 10):
            publish(out, k)
        frame = a_frame(frames.next(5))
        assert (frame.sequence, frames.lost) == (9, 7)
        assert (words(frame) == 9).all()


def test_a_frame_that_is_overwritten_during_the_work_is_not_accepted(name):
    with Publisher(name, GRID) as out, Subscriber(name) as frames:
        publish(out, 1)
        frame = a_frame(frames.next(5))
        for k in range(2, GRID.slots + 1):
            publish(out, k)
        assert frame.intact()
        out.begin()  # the producer comes round to this slot
        assert not frame.intact()
        assert not frames.accept(frame)
        assert frames.torn == 1


def test_a_reader_that_comes_late_begins_with_the_newest_frame(name):
    with Publisher(name, GRID) as out:
        for k in range(1, 8):
            publish(out, k)
        with Subscriber(name) as frames:
            assert a_frame(frames.next(5)).sequence == 7
            assert frames.lost == 0


def test_the_end_is_closed_and_not_dead(name):
    with Publisher(name, GRID) as out, Subscriber(name) as frames:
        publish(out, 1)
        out.close()
        assert a_frame(frames.next(5)).sequence == 1
        notice = frames.next(5)
        assert isinstance(notice, Notice)
        assert notice.kind == "closed"
        assert frames.next(5) is None
    assert not name.exists()


def test_a_waiting_reader_is_woken_by_a_frame(name):
    with Publisher(name, GRID) as out, Subscriber(name) as frames:
        found: list[object] = []
        reader = threading.Thread(target=lambda: found.append(frames.next(20)))
        reader.start()
        publish(out, 1)
        reader.join(20)
        assert isinstance(found[0], Frame)


def test_a_stall_and_its_end_are_named(name):
    with Publisher(name, GRID) as out, Subscriber(name, patience=0.05) as frames:
        notice = frames.next(5)
        assert isinstance(notice, Notice)
        assert notice.kind == "stalled"
        assert frames.next(0.1) is None  # said once
        publish(out, 1)
        notice = frames.next(5)
        assert isinstance(notice, Notice)
        assert notice.kind == "resumed"
        assert a_frame(frames.next(5)).sequence == 1


CHILD = """
    import os, sys
    from poise.memory import Geometry, Publisher
    out = Publisher(sys.argv[1], Geometry(rows=3, columns=11))
    for k in range(3):
        out.begin()["w"] = k
        out.publish(k)
    out.begin()["w"][:5] = 99          # a frame that never becomes whole
    print("torn", flush=True)
    sys.stdin.read()
"""


def child(name: Path) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(name)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    assert started.stdout.readline() == "torn\n"
    return started


def test_a_producer_that_is_killed_in_a_frame_is_noticed_and_its_successor_followed(name):
    first = child(name)
    with Subscriber(name) as frames:
        assert a_frame(frames.next(5)).sequence == 3
        os.kill(first.pid, signal.SIGKILL)
        notice = frames.next(10)
        assert isinstance(notice, Notice)
        assert notice.kind == "died"
        assert f"process {first.pid}" in notice.sentence
        assert "while it wrote frame 4" in notice.sentence
        assert frames.torn == 1
        assert frames.returned(0.05) is None
        with Publisher(name, GRID) as out:  # the dead producer's name is free
            notice = frames.returned(5)
            assert isinstance(notice, Notice)
            assert notice.kind == "restarted"
            publish(out, 5)
            frame = a_frame(frames.next(5))
            assert (frame.sequence, frames.restarts) == (1, 1)
            assert (words(frame) == 5).all()
    first.communicate()


def test_what_is_published_but_not_whole_is_torn(name):
    with Publisher(name, GRID) as out, Subscriber(name) as frames:
        publish(out, 1)
        assert a_frame(frames.next(5)).sequence == 1
        out.begin()
        out._words[protocol.HEAD // 8] = 2  # says that frame 2 is there while it is being written
        notice = frames.next(5)
        assert isinstance(notice, Notice)
        assert (notice.kind, frames.torn) == ("torn", 1)


def test_the_reader_writes_back_only_where_the_producer_agreed(name):
    agreed = Geometry(rows=3, columns=11, slots=2, write_back=True)
    with Publisher(name, agreed) as out, Subscriber(name) as frames:
        publish(out, 1)
        frame = a_frame(frames.next(5))
        publish(out, 2)
        assert out.begin() is None  # the reader still has frame 1
        assert out.dropped == 1
        frame.reply("w", np.full(33, 4.0, np.float32))
        records = out.begin()
        assert records is not None
        assert (records["w"] == 4).all()  # the answer, at the address of frame 1
        out.publish(3)
        assert frames.dropped == 1
    with Publisher(name, agreed) as out:  # nobody reads: nobody is waited for
        for k in range(5):
            publish(out, k)
    with Publisher(name, GRID) as out, Subscriber(name) as frames:
        publish(out, 1)
        with pytest.raises(BadInput, match="did not agree"):
            a_frame(frames.next(5)).reply("w", np.zeros(33))


def test_what_cannot_be_followed_or_published_is_refused(name, tmp_path):
    with pytest.raises(BadInput, match="no stream"):
        Subscriber(name)
    (tmp_path / "text").write_text("x" * 5000)
    with pytest.raises(BadInput, match="not a stream of records"):
        Subscriber(tmp_path / "text")
    with pytest.raises(BadInput, match=r"cannot be (opened|followed)"):
        Subscriber(tmp_path)
    with Publisher(name, GRID):
        with pytest.raises(BadInput, match="Another producer"):
            Publisher(name, GRID)
        with pytest.raises(BadInput, match="holds PINN cells"):
            Subscriber(name, layout=memory.PIM)
    for wrong in (Geometry(rows=0), Geometry(slots=1), Geometry(dx=-1), Geometry(rows=-3), Geometry(dt=float("nan"))):
        with pytest.raises(BadInput):
            Publisher(name, wrong)
    with pytest.raises(BadInput, match="cannot be made"):
        Publisher(tmp_path / "nowhere" / "x", GRID)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text"]  # nothing half-written stays


def header() -> bytearray:
    return bytearray(protocol.encode(GRID, 7, 8))


EDITS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 143), st.binary(min_size=1, max_size=8)),
        st.tuples(
            st.sampled_from([8, 12, 24, 28, 88, 92, 140]), st.integers(0, 70).map(lambda n: struct.pack("<I", n))
        ),
        st.tuples(
            st.sampled_from([32, 40, 48]),
            st.sampled_from([0, 1, 33, 2**20, 2**40, 2**63, 2**64 - 1]).map(lambda n: struct.pack("<Q", n)),
        ),
        st.tuples(
            st.sampled_from([56, 64, 72]),
            st.floats().map(lambda x: struct.pack("<d", x)),
        ),
    ),
    max_size=4,
)


def edited(edits: list[tuple[int, bytes]]) -> bytes:
    page = header()
    for at, what in edits:
        page[at : at + len(what)] = what
    return bytes(page[:4096])


@settings(max_examples=400, deadline=None)
@given(EDITS, st.sampled_from([0, 100, 4095, 4096, 8192, 4096 + 4 * 4096, 1 << 45]))
def test_a_damaged_header_is_read_or_refused_with_a_sentence(edits, size):
    page = edited(edits)
    try:
        head = protocol.decode(page[: min(size, 4096)], size)
    except BadInput as refused:
        assert str(refused).endswith(".")  # noqa: PT017
    else:
        g = head.geometry
        assert head.slot_bytes * g.slots <= size - 4096
        assert g.nbytes <= head.slot_bytes


CHECKER = """
#include "poise/stream.hpp"
#include <cstdlib>
#include <vector>
// Reads cases of (size, page length, page) and prints what is wrong with each.
int main() {
  std::uint64_t size, length;
  while (std::fread(&size, 8, 1, stdin) == 1 && std::fread(&length, 8, 1, stdin) == 1) {
    char* page = static_cast<char*>(std::malloc(length ? length : 1));  // no byte more than said
    if (std::fread(page, 1, length, stdin) != length) return 1;
    const char* fault = poise::header_fault(page, size);
    std::printf("%s\\n", fault ? fault : "");
    std::free(page);
  }
}
"""


@pytest.mark.skipif(COMPILER is None, reason="no g++ here")
def test_both_parsers_say_the_same_of_damaged_headers(tmp_path):
    source, program = tmp_path / "check.cc", tmp_path / "check"
    source.write_text(CHECKER)
    flags = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{memory.include_dir()}"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run(
        ["g++", *flags, *sanitize, str(source), "-o", str(program)], capture_output=True, text=True, check=False
    )
    if "cannot find" in built.stderr:
        built = subprocess.run(
            ["g++", *flags, str(source), "-o", str(program)], capture_output=True, text=True, check=False
        )
    assert built.returncode == 0, built.stderr
    rng = np.random.default_rng()
    small = [0, 1, 2, 3, 4, 32, 60, 61, 4096, 4100, 2**32 - 1]
    large = [0, 1, 2, 64, 4096, 2**20, 2**40, 2**40 + 1, 2**63]
    real = [0.0, -1.0, 1e300, float("nan"), float("inf"), 5e-324]
    fields = [("<I", small, [8, 12, 24, 28, 88, 92, 140]), ("<Q", large, [32, 40, 48]), ("<d", real, [56, 64, 72])]
    cases: list[tuple[bytes, int]] = []
    for _ in range(20_000):
        page = header()
        for _ in range(rng.integers(0, 4)):
            if rng.integers(4) == 0:
                page[rng.integers(0, 144)] = rng.integers(256)
            else:
                kind, values, places = fields[rng.integers(3)]
                struct.pack_into(kind, page, int(rng.choice(places)), values[rng.integers(len(values))])
        size = int(rng.choice([10, 4095, 4096, 4160, 8192, 20480, 1 << 44]))
        cases.append((bytes(page), size))
    fed = b"".join(struct.pack("<QQ", size, min(size, 4096)) + page[: min(size, 4096)] for page, size in cases)
    done = subprocess.run([str(program)], input=fed, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    theirs = done.stdout.decode().split("\n")[:-1]
    ours = [protocol._fault(page[: min(size, 4096)], size) for page, size in cases]
    assert ours == theirs
    assert len(set(ours)) > 8  # the cases reach most of the refusals
    assert "" in ours


@pytest.fixture(scope="module")
def producer(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no g++ here")
    program = tmp_path_factory.mktemp("producer") / "producer"
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{memory.include_dir()}"]
    subprocess.run(["g++", *flags, str(PRODUCER / "main.cpp"), "-o", str(program)], check=True)
    return program


@contextmanager
def run_producer(program: Path, name: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([str(program), "--name", str(name), *options], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("publishing at")
        yield started
        started.send_signal(signal.SIGTERM)


def test_the_cpp_producer_is_read_where_it_writes(producer, name):
    options = ("--rows", "5", "--columns", "9", "--frames", "400", "--rate", "200")
    with run_producer(producer, name, *options) as started, Subscriber(name) as frames:
        g = frames.geometry
        assert (g.rows, g.columns, g.dx, g.dy, g.dt) == (5, 9, 1 / 8, 1 / 4, 0.001)
        seen = 0
        for frame in frames:
            records = frame.lease.numpy()
            good = np.array_equal(records["id"], np.arange(45)) and np.all(np.abs(records["u"] - 0.65) < 0.3)
            if frames.accept(frame):
                assert good
                assert frame.lease.bytes_copied == 0
                seen += 1
        assert 0 < seen <= 400 - frames.lost - frames.torn
        assert started.wait(10) == 0


@pytest.mark.parametrize(
    ("option", "kind", "said"),
    [("--die-at", "died", "while it wrote frame 70"), ("--stall-at", "stalled", "published nothing"),
     ("--tear-at", "torn", "Frame 70 was published but is not whole")],
)  # fmt: skip
def test_what_the_cpp_producer_does_wrong_is_named(producer, name, option, kind, said):
    options = ("--frames", "100", "--rate", "70", option, "70")
    with run_producer(producer, name, *options), Subscriber(name, patience=0.3) as frames:
        notices: dict[str, str] = {}
        used = []
        while True:
            found = frames.next(5)
            if isinstance(found, Notice):
                notices[found.kind] = found.sentence
                if found.kind in ("closed", "died", "stalled"):
                    break
            elif isinstance(found, Frame) and frames.accept(found):
                used.append(found.sequence)
        assert said in notices[kind]
        assert 70 not in used
        assert frames.torn == (0 if kind == "stalled" else 1)


def test_a_recording_is_followed_like_a_stream(tmp_path):
    rng = np.random.default_rng()
    records = np.zeros((6, 3, 7), memory.PINN.dtype)
    records["w"] = rng.normal(size=records.shape)
    save_frames(tmp_path / "r.npz", records, np.arange(6) * 0.25, dx=0.5)
    with Recording(tmp_path / "r.npz") as frames:
        assert (frames.geometry.rows, frames.geometry.columns, frames.geometry.dx) == (3, 7, 0.5)
        got = []
        for frame in frames:
            assert frame.lease.bytes_copied == 0
            assert frames.accept(frame)
            got.append(words(frame).reshape(3, 7))
        assert np.array_equal(got, records["w"])


def test_a_recording_that_is_none_is_refused(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "short.npz", records=np.zeros((2, 3, 5, 7), np.float32))
    np.savez(tmp_path / "times.npz", records=np.zeros((2, 3, 5, 8), np.float32), times=np.zeros(3))
    for file, said in (
        ("absent", "cannot be read"), ("text", "no .npz"), ("other", "holds no 'records'"), ("short", "accepted are"),
        ("times", "one finite time"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=said):
            Recording(tmp_path / f"{file}.npz")
    with pytest.raises(BadInput, match="structured"):
        save_frames(tmp_path / "x.npz", np.zeros((2, 3, 4)))
