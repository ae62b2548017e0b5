"""JumpHash, assignment and ring from Python."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import Any

import jump
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_core import MAX_SLOTS, Ring, assign_jump, assign_ring, jump_hash, jump_hash_batch

KEYS = st.integers(0, 2**64 - 1)
SLOTS = st.lists(st.integers(0, 40) | st.integers(0, MAX_SLOTS - 1), min_size=1, max_size=40, unique=True)
MEMBERS = st.lists(st.from_regex(r"[a-z0-9-]{1,8}", fullmatch=True), min_size=1, max_size=12, unique=True)


@given(st.lists(KEYS, max_size=40), st.integers(1, 2**31 - 1))
def test_jump_hash_is_that_of_the_independent_package(keys: list[int], buckets: int) -> None:
    want = array("i", [jump.hash(key, buckets) for key in keys])
    assert array("i", [jump_hash(key, buckets) for key in keys]) == want
    assert jump_hash_batch(keys, buckets) == want
    assert jump_hash_batch(iter(keys), buckets) == want
    assert jump_hash_batch(array("Q", keys), buckets) == want
    assert jump_hash_batch(np.array(keys, np.uint64), buckets) == want


def test_keys_in_a_strided_or_signed_buffer() -> None:
    keys = np.arange(20, dtype=np.uint64)
    assert jump_hash_batch(keys[::2], 7) == jump_hash_batch(list(range(0, 20, 2)), 7)
    assert jump_hash_batch(np.arange(20, dtype=np.int64), 7) == jump_hash_batch(keys, 7)


def test_bad_keys_and_buckets() -> None:
    for buckets in (0, -1, 2**31):
        with pytest.raises(ValueError, match=f"^buckets must be between 1 and 2147483647, got {buckets}$"):
            jump_hash(1, buckets)
        with pytest.raises(ValueError, match=f"^buckets must be between 1 and 2147483647, got {buckets}$"):
            jump_hash_batch([1], buckets)
    with pytest.raises(ValueError, match=r"^key must be between 0 and 18446744073709551615, got -1$"):
        jump_hash(-1, 5)
    with pytest.raises(ValueError, match=rf"^keys\[1\] must be between 0 and 18446744073709551615, got {2**64}$"):
        jump_hash_batch([1, 2**64], 5)
    bad: Any = "a"
    with pytest.raises(TypeError, match=r"^key must be int, got str$"):
        jump_hash(bad, 5)


@given(st.integers(1, 1024), SLOTS, st.sampled_from([1.0, 1.1, 1.25, 2.0]))
def test_every_partition_is_owned_within_the_bound(partitions: int, slots: list[int], load_factor: float) -> None:
    table = assign_jump(partitions, slots, load_factor)
    assert len(table) == partitions
    assert set(table) <= set(slots)
    assert max(Counter(table).values()) <= math.ceil(load_factor * partitions / len(slots))
    assert table == assign_jump(partitions, sorted(slots), load_factor)
    assert table == assign_jump(partitions, tuple(reversed(slots)), load_factor)


def test_a_leaver_moves_what_the_design_allows() -> None:
    """1024 partitions, 50 workers, load factor 1.25: ideal is 2.0 %, the design's own figure 2.5 %."""
    slots = list(range(50))
    before = assign_jump(1024, slots)
    shares = []
    for gone in slots[:-1]:
        after = assign_jump(1024, [slot for slot in slots if slot != gone])
        assert max(Counter(after).values()) / (1024 / 49) <= 1.29
        shares.append(sum(old != new for old, new in zip(before, after, strict=True)) / 1024)
    assert sum(shares) / len(shares) <= 0.0205


@pytest.mark.parametrize(
    ("partitions", "slots", "load_factor", "message"),
    [
        (0, [0], 1.25, "partitions must be between 1 and 4096, got 0"),
        (4097, [0], 1.25, "partitions must be between 1 and 4096, got 4097"),
        (8, [], 1.25, "slots must have at least one entry, got none"),
        (8, [1024], 1.25, "slots must be between 0 and 1023, got 1024"),
        (8, [0, -3], 1.25, r"slots\[1\] must be between 0 and 1023, got -3"),
        (8, [2, 2], 1.25, "slots must not repeat an entry, got 2 twice"),
        (8, [1], 0.5, "load_factor must be between 1.0 and 1024.0, got 0.5"),
        (8, [1], math.nan, "load_factor must be between 1.0 and 1024.0, got NaN"),
        (8, [1], math.inf, "load_factor must be between 1.0 and 1024.0, got inf"),
    ],
)
def test_bad_assignments(partitions: int, slots: list[int], load_factor: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        assign_jump(partitions, slots, load_factor)


@given(MEMBERS, st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=20))
def test_ring_answers_one_by_one_and_together(members: list[str], keys: list[str]) -> None:
    ring = Ring(members)
    assert ring.members == members
    assert len(ring) == len(members)
    owners = [ring.owner(key) for key in keys]
    assert ring.owners(keys) == owners
    assert ring.owners([key.encode() for key in keys]) == owners
    assert [Ring(sorted(members)).owner(key) for key in keys] == owners
    assert [ring.owner(key, members) for key in keys] == owners


@given(MEMBERS, st.data(), st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_projection_equals_a_ring_of_the_eligible(members: list[str], data: st.DataObject, key: str) -> None:
    eligible = data.draw(st.lists(st.sampled_from(members), unique=True))
    want = Ring(eligible).owner(key) if eligible else None
    assert Ring(members).owner(key, eligible) == want
    assert Ring(members).owner(key, set(eligible)) == want


@given(st.integers(1, 4096), MEMBERS)
def test_ring_assignment_asks_for_the_number_as_text(partitions: int, members: list[str]) -> None:
    ring = Ring(members)
    table = assign_ring(partitions, members)
    assert [members[member] for member in table] == ring.owners([str(p) for p in range(partitions)])


def test_bad_rings() -> None:
    for members, message in [
        ([], "members must have at least one entry, got none"),
        (["a", "b", "a"], 'members must not repeat an entry, got "a" twice'),
        ([""], "member length in bytes must be between 1 and 512, got 0"),
        (["x" * 513], "member length in bytes must be between 1 and 512, got 513"),
        ([str(n) for n in range(1025)], "number of members must be between 1 and 1024, got 1025"),
        (["a", "\ud800"], r"members\[1\] must be encodable as UTF-8, got a lone surrogate"),
    ]:
        with pytest.raises(ValueError, match=f"^{message}$"):
            Ring(members)
        with pytest.raises(ValueError, match=f"^{message}$"):
            assign_ring(8, members)
    one: Any = "abc"
    with pytest.raises(TypeError, match="members must be a sequence of str, not one str"):
        Ring(one)
    with pytest.raises(ValueError, match='eligible must name members of the ring, got "b"'):
        Ring(["a"]).owner("key", ["b"])
