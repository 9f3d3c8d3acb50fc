"""Seal format 1 as `kernels.ref` defines it: what is noticed, what is mended, and that mending makes nothing worse."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings

from poise.kernels import ref
from poise.kernels.layout import BANKS, ROWS, Layout

SIZES = [0, 1, 2, 19, 20, 21, 255, 256, 257, 5119, 5120, 5121, 20 * 256 * 3 + 7]
SOME = [1, 2, 19, 21, 257, 5121, 20 * 256 * 3 + 7]

seal = jax.jit(ref.seal)
check = jax.jit(ref.check)
repair = jax.jit(ref.repair)


class Memory(NamedTuple):
    """One shard's words and what is kept beside them, on the host, where they can be struck."""

    words: np.ndarray
    parity: np.ndarray
    marks: np.ndarray
    guard: np.ndarray

    def copy(self) -> Memory:
        return Memory(*(x.copy() for x in self))

    def equals(self, other: Memory) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(self, other, strict=True))

    def group(self, g: int) -> list[np.ndarray]:
        """All that belongs to group `g`: data blocks, parity block, marks, guard."""
        lay = Layout(self.words.size)
        padded = np.zeros(lay.padded, np.uint32)
        padded[: lay.n] = self.words
        block = slice(g * lay.B, (g + 1) * lay.B)
        return [padded.reshape(BANKS, lay.L)[:, block], self.parity[block], self.marks[:, g], self.guard[g]]


@cache
def sealed(n: int) -> Memory:
    words = np.random.default_rng(n).integers(0, 2**32, n, np.uint32)
    return Memory(words, *(np.asarray(x) for x in seal(words)))


def mend(memory: Memory) -> tuple[Memory, dict[str, int]]:
    words, kept, mended = repair(memory.words, ref.Seal(*memory[1:]))
    return Memory(np.asarray(words), *(np.asarray(x) for x in kept)), {k: int(v) for k, v in mended._asdict().items()}


def noticed(memory: Memory) -> dict[str, int]:
    return {k: int(v) for k, v in check(memory.words, ref.Seal(*memory[1:]))._asdict().items()}


def data_index(lay: Layout, row: int, g: int, j: int = 0) -> int:
    """The index of word j of block (row, g), or -1 where the words have ended."""
    i = row * lay.L + g * lay.B + j
    return i if i < lay.n else -1


# -- the cut ----------------------------------------------------------------------------------------------------------


def test_banks_cover_the_words_once_with_little_padding():
    for n in [*range(700), *SIZES, 5120 * 40 + 1, 10**7]:
        lay = Layout(n)
        assert lay.padded >= n
        assert lay.L == lay.B * lay.G
        assert lay.padded - n < BANKS * lay.B
        assert 1 <= lay.B <= 256
        assert lay.B & (lay.B - 1) == 0


@pytest.mark.parametrize("n", [2**18, 2**18 + 1, 5120 * 52 - 1, 10**7])
def test_spare_words_of_more_than_a_mebibyte_are_at_most_seven_percent(n):
    assert Layout(n).spare_words <= 0.07 * n


@pytest.mark.parametrize("n", SIZES)
def test_fresh_seals_have_the_shapes_of_the_format_and_verify(n):
    memory, lay = sealed(n), Layout(n)
    assert memory.parity.shape == (lay.L,)
    assert memory.marks.shape == (ROWS, lay.G, 2)
    assert memory.guard.shape == (lay.G, 2)
    assert sum(noticed(memory).values()) == 0
    after, mended = mend(memory)
    assert after.equals(memory)
    assert set(mended.values()) == {0}


def test_marks_are_the_sums_that_the_format_says():
    """Written out in Python integers, so that a change of the format cannot hide."""
    n, m = 5121, 2**32
    memory, lay = sealed(n), Layout(n)
    padded = [int(w) for w in memory.words] + [0] * (lay.padded - n)
    for row, g in [(0, 0), (3, 1), (19, 1)]:
        start = row * lay.L + g * lay.B
        block = padded[start : start + lay.B]
        s2 = 0
        for j, w in enumerate(block):
            q = (w + (2 * (start + j) + 1) * 0x9E3779B1) % m
            t = ((q ^ (q >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
            t ^= t >> 13
            s2 += t * t
        assert memory.marks[row, g].tolist() == [sum(block) % m, s2 % m]
    for j in (0, lay.L - 1):
        assert memory.parity[j] == np.bitwise_xor.reduce([padded[r * lay.L + j] for r in range(BANKS)])


# -- one thing damaged: noticed, and mended bit for bit ---------------------------------------------------------------


def flip_words(m: Memory, rng: np.random.Generator, start: int, stop: int) -> None:
    stop = min(stop, m.words.size)
    m.words[start:stop] ^= rng.integers(1, 2**32, stop - start, np.uint32)


def bit(m: Memory, rng: np.random.Generator) -> str:
    m.words[rng.integers(m.words.size)] ^= np.uint32(1 << rng.integers(32))
    return "data"


def some_words(m: Memory, rng: np.random.Generator) -> str:
    lay = Layout(m.words.size)
    start = rng.integers(-(-lay.n // lay.B)) * lay.B
    for i in rng.choice(lay.B, min(5, lay.B), replace=False) + start:
        flip_words(m, rng, i, i + 1) if i < lay.n else None
    if m.equals(sealed(lay.n)):
        flip_words(m, rng, start, start + 1)
    return "data"


def block(m: Memory, rng: np.random.Generator) -> str:
    lay = Layout(m.words.size)
    start = rng.integers(-(-lay.n // lay.B)) * lay.B
    flip_words(m, rng, start, start + lay.B)
    return "data"


def bank(m: Memory, rng: np.random.Generator) -> str:
    lay = Layout(m.words.size)
    start = rng.integers(-(-lay.n // lay.L)) * lay.L
    flip_words(m, rng, start, start + lay.L)
    return "data"


def zeroed_bank(m: Memory, rng: np.random.Generator) -> str:
    lay = Layout(m.words.size)
    start = rng.integers(-(-lay.n // lay.L)) * lay.L
    m.words[start : start + lay.L] = 0
    return "data"


def run_across_a_bank_edge(m: Memory, rng: np.random.Generator) -> str:
    """A contiguous run of L - B words wherever it starts; it meets each group at most once."""
    lay = Layout(m.words.size)
    length = max(1, lay.L - lay.B)
    start = rng.integers(lay.n)
    flip_words(m, rng, start, start + length)
    return "data"


def mark(m: Memory, rng: np.random.Generator) -> str:
    m.marks[rng.integers(BANKS), rng.integers(m.guard.shape[0]), rng.integers(2)] ^= np.uint32(1 << rng.integers(32))
    return "marks"


def marks_of_several_blocks(m: Memory, rng: np.random.Generator) -> str:
    g = rng.integers(m.guard.shape[0])
    m.marks[rng.choice(BANKS, 7, replace=False), g] ^= rng.integers(1, 2**32, (7, 2), np.uint32)
    return "marks"


def all_marks(m: Memory, rng: np.random.Generator) -> str:
    m.marks[:] ^= rng.integers(1, 2**32, m.marks.shape, np.uint32)
    return "marks"


def guard(m: Memory, rng: np.random.Generator) -> str:
    m.guard[rng.integers(m.guard.shape[0]), rng.integers(2)] ^= np.uint32(1 << rng.integers(32))
    return "marks"


def marks_with_their_guard(m: Memory, rng: np.random.Generator) -> str:
    g = rng.integers(m.guard.shape[0])
    m.marks[rng.choice(BANKS, 3, replace=False), g] ^= rng.integers(1, 2**32, (3, 2), np.uint32)
    m.guard[g] ^= rng.integers(1, 2**32, 2, np.uint32)
    return "marks"


def parity(m: Memory, rng: np.random.Generator) -> str:
    m.parity[rng.integers(m.parity.size)] ^= np.uint32(1 << rng.integers(32))
    return "parity"


def parity_bank(m: Memory, rng: np.random.Generator) -> str:
    m.parity[:] ^= rng.integers(1, 2**32, m.parity.size, np.uint32)
    return "parity"


def parity_mark(m: Memory, rng: np.random.Generator) -> str:
    m.marks[BANKS, rng.integers(m.guard.shape[0]), rng.integers(2)] ^= np.uint32(1 << rng.integers(32))
    return "marks"


ONE_BANK = [
    bit, some_words, block, bank, zeroed_bank, run_across_a_bank_edge, mark, marks_of_several_blocks, all_marks, guard,
    marks_with_their_guard, parity, parity_bank, parity_mark,
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(n=st.sampled_from(SIZES[1:]), damage=st.sampled_from(ONE_BANK), seed=st.integers(0, 2**32 - 1))
def test_repair_undoes_damage_of_up_to_a_bank(n, damage, seed):
    memory = sealed(n).copy()
    where = damage(memory, np.random.default_rng(seed))
    assume(not memory.equals(sealed(n)))
    assert sum(noticed(memory).values()) > 0, "not noticed"
    after, mended = mend(memory)
    assert after.equals(sealed(n)), "not mended bit for bit"
    assert mended[where] > 0, "named as something else"
    assert mended["unrepairable"] == 0
    assert mended["repaired"] == mended[where]
    assert all(mended[k] == 0 for k in ("data", "marks", "parity") if k != where)


@pytest.mark.parametrize("damage", ONE_BANK, ids=lambda f: f.__name__)
def test_every_kind_of_damage_at_a_ragged_size_of_several_groups(damage):
    n = 20 * 256 * 3 + 7
    for seed in range(3):
        memory = sealed(n).copy()
        where = damage(memory, np.random.default_rng(seed))
        assert sum(noticed(memory).values()) > 0
        after, mended = mend(memory)
        assert after.equals(sealed(n))
        assert mended[where] == mended["repaired"] > 0


# -- pairs of changes whose plain sum cancels: only a truly nonlinear second sum sees them -----------------------


def missed(pairs: list[np.ndarray]) -> int:
    """How many of the damaged copies of the words of size 5121 nobody notices."""
    return sum(sum(noticed(sealed(5121)._replace(words=w)).values()) == 0 for w in pairs)


@pytest.mark.parametrize("bit", [31, 20])
def test_the_same_bit_flipped_in_two_words_of_a_block_is_noticed(bit):
    rng, pairs = np.random.default_rng(bit), []
    for _ in range(100):
        words = sealed(5121).words.copy()
        words[rng.choice(Layout(5121).B, 2, replace=False)] ^= np.uint32(1 << bit)
        pairs.append(words)
    assert missed(pairs) == 0


def test_swapped_neighbours_of_a_smooth_field_are_noticed():
    n, count = 5121, 0
    words = np.linspace(0.5, 0.5003, n, dtype=np.float32).view(np.uint32)
    kept = seal(words)
    for i in range(0, 200, 2):
        swapped = words.copy()
        swapped[[i, i + 1]] = swapped[[i + 1, i]]
        count += swapped[i] != words[i] and not int(check(swapped, kept).data)
    assert count == 0


def test_words_of_random_data_swapped_in_a_block_are_noticed_and_mended():
    rng = np.random.default_rng(3)
    for _ in range(50):
        memory = sealed(5121).copy()
        i, j = rng.choice(Layout(5121).B, 2, replace=False)
        memory.words[[i, j]] = memory.words[[j, i]]
        assert noticed(memory)["data"] == 1
        assert mend(memory)[0].equals(sealed(5121))


# -- damage of several kinds at once ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(n=st.sampled_from(SOME), seed=st.integers(0, 2**32 - 1))
def test_a_damaged_block_together_with_damaged_marks_of_others_is_mended(n, seed):
    rng = np.random.default_rng(seed)
    memory, lay = sealed(n).copy(), Layout(n)
    g = int(rng.integers(lay.G))
    rows = [r for r in range(BANKS) if data_index(lay, r, g) >= 0]
    assume(rows)
    row = int(rng.choice(rows))
    memory.words[data_index(lay, row, g)] ^= np.uint32(rng.integers(1, 2**32))
    others = [r for r in range(ROWS) if r != row]
    memory.marks[rng.choice(others, 4, replace=False), g] ^= rng.integers(1, 2**32, (4, 2), np.uint32)
    after, mended = mend(memory)
    assert after.equals(sealed(n))
    assert mended == {"data": 1, "marks": 4, "parity": 0, "repaired": 5, "unrepairable": 0}


def test_a_damaged_block_whose_own_mark_is_damaged_is_left_alone():
    n = 5121
    memory = sealed(n).copy()
    memory.words[0] ^= np.uint32(8)
    memory.marks[0, 0, 0] ^= np.uint32(8)
    before = memory.copy()
    after, mended = mend(memory)
    assert after.equals(before)
    assert mended["unrepairable"] > 0
    assert mended["repaired"] == 0


# -- beyond the promise: left exactly as it is ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [20, 257, 5121, 20 * 256 * 3 + 7])
@pytest.mark.parametrize("flip", [1 << 31, 1, 0xDEADBEEF])
def test_equal_flips_in_two_banks_are_noticed_and_left_alone(n, flip):
    """They cancel in the parity: without the guard they would look like damaged marks, and be blessed."""
    memory, lay = sealed(n).copy(), Layout(n)
    for row in (2, 11):
        memory.words[data_index(lay, row, 0)] ^= np.uint32(flip)
    before = memory.copy()
    assert noticed(memory) == {"data": 2, "parity": 0, "guard": 0}
    after, mended = mend(memory)
    assert after.equals(before)
    assert mended == {"data": 2, "marks": 0, "parity": 0, "repaired": 0, "unrepairable": 2}


def test_equal_flips_in_two_banks_beside_a_block_that_could_be_mended_are_not_blessed():
    """The parity explains the third block alone; the guard says that the other two marks are right, so their data are
    not."""
    n = 20 * 256 * 3 + 7
    memory, lay = sealed(n).copy(), Layout(n)
    for row in (2, 11):
        memory.words[data_index(lay, row, 0, 9)] ^= np.uint32(1 << 31)
    memory.words[data_index(lay, 5, 0)] ^= np.uint32(77)
    before = memory.copy()
    after, mended = mend(memory)
    assert after.equals(before)
    assert mended["unrepairable"] == 3


def test_words_swapped_between_two_banks_are_noticed():
    n = 20 * 256 * 3 + 7
    lay = Layout(n)
    for j, k in [(5, 5), (5, 6)]:
        memory = sealed(n).copy()
        a, b = data_index(lay, 4, 1, j), data_index(lay, 9, 1, k)
        memory.words[[a, b]] = memory.words[[b, a]]
        before = memory.copy()
        assert noticed(memory)["data"] == 2
        after, mended = mend(memory)
        assert after.equals(before)
        assert mended["unrepairable"] == 2


def test_whole_blocks_that_changed_places_are_noticed():
    n = 20 * 256 * 3 + 7
    memory, lay = sealed(n).copy(), Layout(n)
    a, b = slice(0, lay.B), slice(lay.B, 2 * lay.B)
    memory.words[a], memory.words[b] = memory.words[b].copy(), memory.words[a].copy()
    assert noticed(memory)["data"] == 2
    assert mend(memory)[0].equals(sealed(n)), "two groups, one block each"


def test_a_damaged_block_and_a_damaged_parity_block_of_one_group_are_left_alone():
    n = 5121
    memory = sealed(n).copy()
    memory.words[7] ^= np.uint32(1)
    memory.parity[9] ^= np.uint32(2)
    before = memory.copy()
    after, mended = mend(memory)
    assert after.equals(before)
    assert mended == {"data": 1, "marks": 0, "parity": 1, "repaired": 0, "unrepairable": 2}


def test_a_lost_group_does_not_keep_the_others_from_being_mended():
    n = 20 * 256 * 3 + 7
    memory, lay = sealed(n).copy(), Layout(n)
    memory.words[data_index(lay, 0, 0)] ^= np.uint32(1)
    memory.words[data_index(lay, 1, 0, 3)] ^= np.uint32(2)
    memory.words[data_index(lay, 5, 2)] ^= np.uint32(4)
    memory.parity[lay.B] ^= np.uint32(8)
    before = memory.copy()
    after, mended = mend(memory)
    assert mended == {"data": 3, "marks": 0, "parity": 1, "repaired": 2, "unrepairable": 2}
    for g, want in [(0, before), (1, sealed(n)), (2, sealed(n)), (3, sealed(n))]:
        assert all(np.array_equal(a, b) for a, b in zip(after.group(g), want.group(g), strict=True)), g


BLOW = st.tuples(
    st.sampled_from(["word", "run", "parity", "mark", "guard"]), st.floats(0, 1, exclude_max=True), st.floats(0, 1)
)


@settings(max_examples=150, deadline=None)
@given(n=st.sampled_from(SOME), blows=st.lists(BLOW, min_size=1, max_size=8), seed=st.integers(0, 2**32 - 1))
def test_repair_never_makes_anything_worse(n, blows, seed):
    """Whatever was hit: every group ends exactly right, or exactly as it was found and counted as unrepairable."""
    rng = np.random.default_rng(seed)
    memory, lay = sealed(n).copy(), Layout(n)
    for kind, at, extent in blows:
        target = {"parity": memory.parity, "mark": memory.marks, "guard": memory.guard}.get(kind, memory.words)
        flat = target.reshape(-1)
        start = int(at * flat.size)
        length = 1 + int(extent * 2 * lay.L) if kind == "run" else 1
        part = flat[start : start + length]
        part ^= rng.integers(1, 2**32, part.size, np.uint32)
    before = memory.copy()
    after, mended = mend(memory)
    left = 0
    for g in range(lay.G):
        got, right, found = after.group(g), sealed(n).group(g), before.group(g)
        if all(np.array_equal(a, b) for a, b in zip(got, right, strict=True)):
            continue
        assert all(np.array_equal(a, b) for a, b in zip(got, found, strict=True)), f"group {g} was changed, not mended"
        left += 1
    assert (mended["unrepairable"] > 0) == (left > 0)
    assert mended["unrepairable"] >= left
    assert mended["data"] + mended["marks"] + mended["parity"] == mended["repaired"] + mended["unrepairable"]
    again, _ = mend(after)
    assert again.equals(after), "repairing twice differs from repairing once"


def test_repair_of_an_empty_shard_finds_nothing():
    after, mended = mend(sealed(0))
    assert after.words.size == 0
    assert set(mended.values()) == {0}
