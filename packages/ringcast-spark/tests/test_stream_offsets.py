"""Where a stream is and goes next, without a service."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_ringcast._common.offsets import (
    ChangesLostError,
    Offset,
    Range,
    first_offset,
    next_offset,
    parse_starting,
    ranges,
    shared_out,
)
from ringcast_wire import InvalidInputError, MismatchError

PLACE = "gateway/blocklist"


def after(start: Offset, heads: list[int], limit: int | None = None, *, first: int = 0, reset: bool = False) -> Offset:
    return next_offset(start, heads, range(len(heads)), limit, first=first, reset=reset)[0]


@given(
    steps=st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=6),
    limit=st.none() | st.integers(1, 30),
)
def test_every_revision_is_read_once_and_no_batch_is_too_large(steps: list[list[int]], limit: int | None) -> None:
    heads = [0, 0, 0]
    offset, first, read = Offset(PLACE, 3), 0, [0, 0, 0]
    for step in steps:
        heads = [head + more for head, more in zip(heads, step, strict=True)]
        for _ in range(2):  # the stream may lag behind
            end, first = next_offset(offset, heads, range(3), limit, first=first)
            planned = ranges(offset, end, heads)
            assert limit is None or sum(one.revisions for one in planned) <= limit
            for one in planned:
                assert one.after == read[one.partition]
                assert one.after < one.upto <= one.head == heads[one.partition]
                read[one.partition] = one.upto
            assert Offset.from_json(json.loads(json.dumps(end.to_json())), PLACE) == end
            offset = end
    while (end := next_offset(offset, heads, range(3), limit)[0]) != offset:
        read = [end.revisions.get(partition, 0) for partition in range(3)]
        offset = end
    assert read == heads
    assert not offset.loading


def test_a_partition_is_loaded_up_to_where_it_was_when_that_began() -> None:
    begun = after(Offset(PLACE, 1), [10], 4)
    assert begun.to_json() == {"list": PLACE, "partitions": 1, "revisions": {"0": 4}, "loading": {"0": 10}}
    assert ranges(Offset(PLACE, 1), begun, [10]) == [Range(0, 0, 4, True, 10)]
    loaded = after(begun, [25], 100)
    assert (loaded.revisions, loaded.loading) == ({0: 10}, {})
    assert ranges(begun, loaded, [25]) == [Range(0, 4, 10, True, 25)]
    followed = after(loaded, [25])
    assert ranges(loaded, followed, [25]) == [Range(0, 10, 25, False, 25)]


def test_a_limit_goes_round_the_partitions() -> None:
    offset, first, heads = Offset(PLACE, 3), 0, [100, 3, 3]
    offset, first = next_offset(offset, heads, range(3), 5, first=first)
    assert (dict(offset.revisions), first) == ({0: 5}, 0)
    offset, first = next_offset(offset, heads, range(3), 5, first=1)
    assert (dict(offset.revisions), first) == ({0: 5, 1: 3, 2: 2}, 2)
    offset, first = next_offset(offset, heads, range(3), 5, first=first)
    assert (dict(offset.revisions), first) == ({0: 9, 1: 3, 2: 3}, 0)


def test_only_the_chosen_partitions_move() -> None:
    end, _ = next_offset(Offset(PLACE, 3, {0: 1}), [5, 5, 5], [2], None)
    assert dict(end.revisions) == {0: 1, 2: 5}


def test_a_restored_database_is_an_error_or_loaded_again() -> None:
    start = Offset(PLACE, 2, {0: 9, 1: 4})
    with pytest.raises(ChangesLostError, match=r"partition 0 of gateway/blocklist is at revision 5, before .* 9"):
        after(start, [5, 4])
    end = after(start, [5, 4], reset=True)
    assert ranges(start, end, [5, 4]) == [Range(0, 0, 5, True, 5)]
    assert after(end, [5, 4], reset=True) == end
    gone = after(start, [0, 4], reset=True)
    assert dict(gone.revisions) == {1: 4}
    assert ranges(start, gone, [0, 4]) == []

    loading = Offset(PLACE, 1, {0: 3}, {0: 10})
    with pytest.raises(ChangesLostError, match=r"is at revision 7, before .* 10"):
        after(loading, [7])
    again = after(loading, [7], reset=True)
    assert (again.revisions, again.loading) == ({0: 7}, {})


def test_where_a_new_stream_begins() -> None:
    heads = [4, 0, 7]
    assert first_offset(PLACE, "earliest", heads, range(3)) == Offset(PLACE, 3)
    assert first_offset(PLACE, "latest", heads, range(3)) == Offset(PLACE, 3, {0: 4, 2: 7})
    assert first_offset(PLACE, "latest", heads, [2]) == Offset(PLACE, 3, {2: 7})
    assert first_offset(PLACE, {0: 2, 1: 0}, heads, range(3)) == Offset(PLACE, 3, {0: 2})
    with pytest.raises(InvalidInputError, match="revision 5 for partition 0, which is at revision 4"):
        first_offset(PLACE, {0: 5}, heads, range(3))
    with pytest.raises(InvalidInputError, match="revision 1 for partition 3, which does not exist"):
        first_offset(PLACE, {3: 1}, heads, range(3))


def test_starting_offsets_are_words_or_revisions() -> None:
    assert parse_starting("starting_offsets", "Earliest") == "earliest"
    assert parse_starting("starting_offsets", "latest") == "latest"
    assert parse_starting("starting_offsets", '{"0": 17, "3": 2}') == {0: 17, 3: 2}
    printed = json.dumps(Offset(PLACE, 4, {1: 5}).to_json())
    assert parse_starting("starting_offsets", printed) == {1: 5}


@pytest.mark.parametrize("text", ["", "newest", "[1]", '{"a": 1}', '{"0": -1}', '{"0": "x"}', '{"4096": 1}', "{", "7"])
def test_other_starting_offsets_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"option starting_offsets is .*earliest, latest or JSON"):
        parse_starting("starting_offsets", text)


@pytest.mark.parametrize(
    "given", [{}, {"list": PLACE}, {"list": PLACE, "partitions": 1, "revisions": {"x": 1}}, [], {"revisions": 3}]
)
def test_a_damaged_offset_is_refused(given: object) -> None:
    with pytest.raises(InvalidInputError, match="the checkpoint has an offset that can't be read"):
        Offset.from_json(given, PLACE)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    stored = Offset("gateway/other", 4).to_json()
    with pytest.raises(MismatchError, match="belongs to a stream of 'gateway/other', this one reads gateway/blocklist"):
        Offset.from_json(stored, PLACE)
    with pytest.raises(MismatchError, match="with 4 partitions, and that of gateway/blocklist has 8"):
        Offset(PLACE, 4).check_partition_count(8)


@given(sizes=st.lists(st.integers(1, 1_000), max_size=50), tasks=st.integers(1, 20))
def test_tasks_share_the_ranges_out(sizes: list[int], tasks: int) -> None:
    given_ranges = [Range(number, 0, size, False, size) for number, size in enumerate(sizes)]
    groups = shared_out(given_ranges, tasks)
    assert [one for group in groups for one in group] == given_ranges
    assert len(groups) <= tasks
    assert all(groups)
    for group in groups:
        assert sum(one.revisions for one in group) <= sum(sizes) / tasks + 2 * max(sizes)
