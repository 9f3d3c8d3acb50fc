"""Leases: no byte moves, the owner lives, and what cannot work is refused with a sentence."""

from __future__ import annotations

import ctypes
import gc
import mmap
import shutil
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from poise import memory
from poise.errors import BadInput, BadMesh
from poise.memory import PIM, PINN, Layout, ShardedLease, lease, lease_pointer

LIBC = ctypes.CDLL(None)
OWN = np.dtype([("a", "<f4"), ("b", "<i4"), ("c", "<u4")])


def filled(n: int, layout: Layout = PINN) -> np.ndarray:
    rng = np.random.default_rng()
    records = memory.empty(n, layout)
    for name in layout.dtype.names or ():
        records[name] = rng.integers(0, 1000, n)
    return records


@pytest.mark.parametrize("layout", [PINN, PIM, Layout("own", OWN)], ids=lambda layout: layout.name)
@pytest.mark.parametrize("n", [1, 7, 1024, 20_011])
def test_every_field_is_seen_where_it_lies(layout, n):
    records = filled(n, layout)
    held = lease(records, layout)
    assert held.array.shape == (n, layout.words)
    assert held.array.unsafe_buffer_pointer() == records.ctypes.data
    assert held.bytes_copied == 0
    for name in layout.dtype.names:
        got = jax.jit(layout.channel, static_argnums=1)(held.array, name)
        assert np.array_equal(got, records[name])
        assert np.array_equal(np.asarray(held.channel(name)), records[name])
        assert np.asarray(held.channel(name)).ctypes.data == records.ctypes.data + 4 * layout.word(name)


def test_what_the_producer_writes_is_seen():
    records = filled(300)
    held = lease(records)
    total = jax.jit(lambda rows: PINN.channel(rows, "w").sum())
    before = float(total(held.array))
    records["w"] += 1
    assert float(total(held.array)) == before + 300


def test_importing_allocates_nothing():
    records = filled(1_000_000)
    lease(records)  # the first one may load code
    gc.collect()
    resident = _resident()
    kept = [lease(records) for _ in range(50)]  # JAX believes to hold 1.6 GB
    assert _resident() - resident < records.nbytes
    assert all(k.bytes_copied == 0 for k in kept)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, np.complex64, ml_dtypes.bfloat16, np.float16])
def test_any_array_is_leased_as_it_is(dtype):
    raw = memory.empty(64).view(np.uint8)[: 64 * np.dtype(dtype).itemsize]
    array = raw.view(dtype).reshape(4, 16)
    array[:] = np.arange(64).reshape(4, 16) % 2
    held = lease(array)
    assert held.array.dtype == dtype
    assert held.array.shape == (4, 16)
    assert held.bytes_copied == 0
    assert np.array_equal(np.asarray(held.array).astype(np.complex64), array.astype(np.complex64))
    assert np.array_equal(held.numpy(), array)


def test_only_who_agreed_is_written_to():
    records = filled(100)
    held = lease(records)
    with pytest.raises(BadInput, match="did not agree"):
        held.put("w", np.zeros(100))
    with pytest.raises(ValueError, match="read-only"):
        held.numpy()["w"] = 0
    assert not np.from_dlpack(held.channel("w")).flags.writeable
    with pytest.raises(BadInput, match="did not agree"):
        held.channel("w").__dlpack__()  # a consumer that knows no read-only memory
    agreed = lease(records, write=True)
    values = np.random.default_rng().normal(size=100).astype(np.float32)
    agreed.put("w", jnp.array(values))
    assert np.array_equal(records["w"], values)
    assert np.array_equal(PINN.channel(agreed.array, "w"), values)
    np.from_dlpack(agreed.channel("v"))[:] = 7
    assert (records["v"] == 7).all()


def test_donating_a_leased_array_leaves_the_producer_alone():
    records = filled(128)
    before = records.copy()
    spoil = jax.jit(lambda rows: rows * 0 + 5, donate_argnums=0)
    assert int(spoil(lease(records).array)[3, 3]) == 5
    assert np.array_equal(records, before)


def test_the_owner_lives_as_long_as_anything_made_from_it():
    class Owner:
        def __init__(self) -> None:
            self.memory = filled(64)

    owner = Owner()
    gone = weakref.ref(owner)
    held = lease_pointer(owner.memory.ctypes.data, 64, PINN, owner=owner)
    array, channel = held.array, held.channel("w")
    want = owner.memory["w"].copy()
    view = np.asarray(channel)
    held.close()
    del owner, held, channel
    gc.collect()
    assert np.array_equal(view, want)
    del view
    gc.collect()
    assert gone() is not None
    assert np.array_equal(PINN.channel(array, "w"), want)
    array.delete()
    del array
    gc.collect()
    assert gone() is None


CRASH = """
    import gc, mmap, sys
    import jax, numpy as np
    from poise import memory
    n = 4096
    class Producer:
        def __init__(self):
            self.map = mmap.mmap(-1, 32 * n)
            self.address = np.frombuffer(self.map, np.uint8).ctypes.data
    producer = Producer()
    np.frombuffer(producer.map, np.uint32)[:] = 3
    owner = producer if sys.argv[1] == "lease" else object()     # an empty deleter: nothing keeps the memory
    array = memory.lease_pointer(producer.address, n, memory.PINN, owner=owner).array
    jax.block_until_ready(array.sum())
    del producer, owner
    gc.collect()
    print(int(array.sum()) == 3 * 8 * n, flush=True)
"""


@pytest.mark.parametrize(("how", "crashes"), [("lease", False), ("nobody", True)])
def test_a_lease_prevents_the_use_after_free_that_an_empty_deleter_allows(how, crashes):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CRASH), how], capture_output=True, text=True, timeout=60, check=False
    )
    if crashes:
        assert done.returncode == -11  # the memory is gone: SIGSEGV
    else:
        assert (done.returncode, done.stdout) == (0, "True\n")


def test_a_process_ends_well_with_leases_alive():
    code = """
        import jax, ml_dtypes, numpy as np
        from poise import memory
        records = memory.empty(1000)
        held = memory.lease(records, write=True)
        weights = memory.lease(memory.empty(8).view(ml_dtypes.bfloat16))
        view = np.from_dlpack(held.channel("w"))
        busy = jax.jit(lambda r, w: (r * 2, w * 2))(held.array, weights.array)
        capsule = held.channel("u").__dlpack__()
        kept = memory.lease_pointer(records.ctypes.data, 1000, memory.PINN, owner=records)
        print("end")
    """
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_letting_go_swallows_no_exception(dtype):
    def fail(array: jax.Array) -> None:
        raise KeyError("the user's")

    with pytest.raises(KeyError, match="the user's"):
        fail(lease(memory.empty(16).view(np.uint8).view(dtype)).array)


def test_a_closed_lease_is_stale():
    with lease(filled(8)) as held:
        pass
    with pytest.raises(BadInput, match="stale"):
        held.array  # noqa: B018
    with pytest.raises(BadInput, match="stale"):
        held.channel("w")


def test_an_unmapped_address_is_refused():
    size = 1 << 20
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    at = LIBC.mmap(None, size, 3, 0x22, -1, 0)
    assert lease_pointer(at, size // 32, PINN, owner=size).bytes_copied == 0
    gc.collect()
    assert LIBC.munmap(at, size) == 0
    with pytest.raises(BadInput, match="no longer"):
        lease_pointer(at, size // 32, PINN, owner=size)


REFUSED = {
    "null": (lambda r: lease_pointer(0, 4, PINN, owner=r), "null"),
    "misaligned": (lambda r: lease_pointer(r.ctypes.data + 32, 4, PINN, owner=r), "multiples of 64"),
    "no number": (lambda r: lease_pointer("0x40", 4, PINN, owner=r), "whole number"),
    "no owner": (lambda r: lease_pointer(r.ctypes.data, 4, PINN, owner=None), "owner"),
    "no records": (lambda r: lease_pointer(r.ctypes.data, 0, PINN, owner=r), "between 1"),
    "too long": (lambda r: lease_pointer(r.ctypes.data, 1 << 40, PINN, owner=r), "memory"),
    "negative": (lambda r: lease_pointer(-64, 4, PINN, owner=r), "no address"),
    "read-only": (lambda r: lease_pointer(r.ctypes.data, 4, PINN, owner=r, readonly=True, write=True), "read-only"),
    "read-only array": (lambda r: lease(_frozen(r), write=True), "read-only"),
    "strided": (lambda r: lease(r["w"]), "compact"),
    "short": (lambda r: lease(r.view(np.uint8)[:40], PINN), "whole number of records"),
    "64 bits": (lambda r: lease(r.view(np.float64)), "enable_x64"),
    "objects": (lambda r: lease(np.array([None] * 8)), "not object"),
    "no memory": (lambda r: lease([1, 2, 3]), "shares no memory"),
    "wrong layout": (lambda r: lease_pointer(r.ctypes.data, 4, "cell", owner=r), "neither a Layout"),
    "other field": (lambda r: lease(r).channel("pressure"), "accepted are w, u, v"),
    "ipc on a CPU": (lambda r: memory.lease_ipc(b"", 4, PINN, device=jax.devices()[0]), "is on a GPU"),
    "wrong shape": (lambda r: lease(r, write=True).put("w", np.zeros(3)), r"shape \(64,\)"),
}


def _frozen(records: np.ndarray) -> np.ndarray:
    frozen = records.view()
    frozen.flags.writeable = False
    return frozen


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_sentences(case):
    what, said = REFUSED[case]
    with pytest.raises(BadInput, match=said) as refused:
        what(filled(64))
    assert str(refused.value).endswith(".")


class Told:
    """Somebody else's object with an interface."""

    def __init__(self, name: str, told: object) -> None:
        setattr(self, name, told)


ANYTHING = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.text(max_size=4),
    st.floats(),
    st.lists(st.integers(-5, 2**65), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(
    data=st.one_of(ANYTHING, st.tuples(st.integers(-(2**66), 2**66), st.booleans())),
    shape=st.one_of(ANYTHING, st.tuples(st.integers(-2, 2**63), st.integers(-2, 9))),
    typestr=st.sampled_from(["<f4", "<u4", "|V32", ">f4", "<f8", "x", "", "|O8", "<U3", 4, None]),
    rest=st.dictionaries(st.sampled_from(["strides", "mask", "descr", "stream", "version"]), ANYTHING),
    missing=st.sampled_from(["", "data", "shape", "typestr"]),
    layout=st.sampled_from([None, PINN, PIM]),
)
def test_whatever_an_interface_says_is_a_lease_or_a_sentence(data, shape, typestr, rest, missing, layout):
    told = {"data": data, "shape": shape, "typestr": typestr, **rest}
    told.pop(missing, None)
    # Only addresses that are nobody's: a lease of those would be refused, never read.
    try:
        held = lease(Told("__array_interface__", told), layout)
    except BadInput:
        return
    held.close()


@settings(max_examples=200, deadline=None)
@given(
    pointer=st.one_of(st.integers(-(2**65), 2**65), ANYTHING),
    count=ANYTHING,
    of=st.sampled_from([PINN, PIM, np.float32, "f4", np.dtype("V7"), None, object, 3, np.dtype(">f4")]),
)
def test_whatever_a_pointer_is_is_a_lease_or_a_sentence(pointer, count, of):
    try:
        lease_pointer(pointer, count, of, owner=1).close()
    except BadInput:
        return


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["<f4", "<u4", ">f4", "<f8", "<i4", "V4", "<f4,<f4"])),
        min_size=1, max_size=3, unique_by=lambda field: field[0],
    )
)  # fmt: skip
def test_a_layout_holds_the_dtype_or_says_why_not(fields):
    dtype = np.dtype(fields)
    try:
        layout = Layout("x", dtype)
    except BadInput:
        return
    assert all(kind in ("<f4", "<u4", "<i4") for _, kind in fields)
    assert layout.words == len(fields)


@pytest.fixture
def leases():
    return [lease(filled(24), device=device) for device in jax.devices()[:4]]


def test_a_sharded_lease_is_one_array_and_moves_nothing(leases):
    sharded = ShardedLease(leases[:2], leases[2:])
    mesh = Mesh(np.array(jax.devices()[:2]), ("rows",))
    whole = sharded.array(NamedSharding(mesh, PartitionSpec("rows")))
    assert whole.shape == (48, 8)
    assert [s.data.unsafe_buffer_pointer() for s in whole.addressable_shards] == [x.pointer for x in leases[:2]]
    assert sharded.bytes_copied == 0
    assert np.array_equal(whole, np.concatenate([x.array for x in leases[:2]]))
    moved = sharded.swapped(1, 0)  # the spare's buffer is the second shard now
    mesh = Mesh(np.array([jax.devices()[0], jax.devices()[2]]), ("rows",))
    whole = moved.array(NamedSharding(mesh, PartitionSpec("rows")))
    assert [s.data.unsafe_buffer_pointer() for s in whole.addressable_shards] == [leases[0].pointer, leases[2].pointer]
    replicated = sharded.array(NamedSharding(Mesh(np.array(jax.devices()[:2]), ("rows",)), PartitionSpec()))
    assert replicated.shape == (24, 8)


def test_a_sharded_lease_refuses_what_does_not_fit(leases):
    mesh = Mesh(np.array(jax.devices()[:2]), ("rows",))
    rows = NamedSharding(mesh, PartitionSpec("rows"))
    with pytest.raises(BadMesh, match="Place 0"):
        ShardedLease([leases[1], leases[0]]).array(rows)
    with pytest.raises(BadMesh, match="2 devices and there are 3"):
        ShardedLease(leases[:3]).array(rows)
    with pytest.raises(BadMesh, match="must be alike"):
        ShardedLease([leases[0], lease(filled(23), device=jax.devices()[1])])
    with pytest.raises(BadMesh, match="one device"):
        ShardedLease([leases[0], lease(filled(24))])
    with pytest.raises(BadMesh, match="first axis"):
        ShardedLease(leases[:2]).array(NamedSharding(mesh, PartitionSpec(None, "rows")))
    with pytest.raises(BadMesh, match="no spare"):
        ShardedLease(leases[:2]).swapped(0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_the_header_and_the_dtypes_agree(tmp_path):
    lines = [
        f'std::printf("{cell} {name} %zu %zu\\n", offsetof(poise_{cell}_cell, {name}), sizeof(poise_{cell}_cell));'
        for cell, layout in (("pinn", PINN), ("pim", PIM))
        for name in layout.dtype.names or ()
    ]
    source = tmp_path / "offsets.cc"
    source.write_text('#include <cstdio>\n#include "poise/records.hpp"\nint main() {\n' + "\n".join(lines) + "\n}\n")
    program = tmp_path / "offsets"
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{memory.include_dir()}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(program)], check=True)
    for line in subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines():
        cell, name, offset, size = line.split()
        layout = {"pinn": PINN, "pim": PIM}[cell]
        assert (layout.dtype.fields[name][1], layout.dtype.itemsize) == (int(offset), int(size))
    c = tmp_path / "c.c"
    c.write_text('#include "poise/records.hpp"\nint main(void) { return sizeof(struct poise_pim_cell) != 32; }\n')
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{memory.include_dir()}"]
    subprocess.run(["gcc", *flags, str(c), "-o", str(program)], check=True)
    assert subprocess.run([str(program)], check=False).returncode == 0
