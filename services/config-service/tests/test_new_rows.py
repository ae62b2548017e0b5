"""Plain rows that are all new are planned column by column: to the same effect as row by row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_config_service.permits import Permit
from ringcast_config_service.repository import NOBODY, Authorship, Chain, StoreRecord, WriteRequest
from ringcast_config_service.repository.base import Bundle, IdempotencyMark
from ringcast_config_service.repository.postgres.copying import (
    history_lines,
    new_ends,
    new_pieces,
    planned_ends,
    planned_pieces,
    row_lines,
)
from ringcast_config_service.repository.postgres.new_rows import plan_new
from ringcast_config_service.repository.writes import CurrentState, Head, KeyRef, PartitionRef, plan_writes
from ringcast_config_service.writes.batches import PlainRows, plain_writes
from ringcast_wire import StoreSettings, UnavailableError, limits

PARTITIONS = 4
RECORD = StoreRecord("s", StoreSettings(partition_count=PARTITIONS), 8, 1)


def request(key: str, rows: dict[str, str], traceparent: str | None = None) -> WriteRequest:
    plain = plain_writes(PlainRows(list(rows), list(rows.values())), PARTITIONS)
    assert plain is not None
    by = Authorship("deploy", f"with {traceparent}\t") if traceparent else NOBODY
    return WriteRequest(RECORD, key, plain, traceparent=traceparent, by=by)


def state(**heads: dict[int, Head]) -> CurrentState:
    found = CurrentState(stores={"s"})
    for number, (key, of_key) in enumerate(heads.items()):
        ref = KeyRef("s", key)
        found.keys[ref], found.partition_counts[ref], found.histories[ref] = number, PARTITIONS, f"h{number}"
        found.heads |= {PartitionRef(ref, partition): head for partition, head in of_key.items()}
    return found


async def text(lines: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in lines])


def same(requests: Sequence[WriteRequest], found: CurrentState) -> None:
    slow = plan_writes(requests, found, 7)
    planned = plan_new(requests, found, 7)
    assert planned is not None
    fast, new = planned
    assert (fast.outcomes, fast.heads, fast.traceparents) == (slow.outcomes, slow.heads, slow.traceparents)
    assert sorted(fast.events) == sorted(slow.events)

    async def both() -> None:
        copied: list[list[str]] = [[], []]
        pieces = planned_pieces(list(slow.rows.values()), found.keys), new_pieces(new, found.keys)
        rows = [await text(row_lines(each, 7, common)) for each, common in zip(pieces, copied, strict=True)]
        assert rows[0] == rows[1]
        ends = planned_ends(slow.history), new_ends(new)
        history = [await text(history_lines(each, common, 7)) for each, common in zip(ends, copied, strict=True)]
        assert history[0] == history[1]

    asyncio.run(both())


ids = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
values = st.one_of(ids, st.sampled_from(["", "\\N", "a\tb", "a\nb\r", "x" * 20]))
heads = st.dictionaries(st.integers(0, PARTITIONS - 1), st.just(Head(5, 3, 30)))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.dictionaries(ids, values, min_size=1, max_size=30))), heads, heads)
def test_columns_are_planned_like_rows(batches: list[tuple[str, dict[str, str]]], a: Any, b: Any) -> None:
    seen: set[tuple[str, str]] = set()
    requests = []
    for number, (key, rows) in enumerate(batches):
        fresh = {row_id: value for row_id, value in rows.items() if (key, row_id) not in seen}
        seen |= {(key, row_id) for row_id in fresh}
        if fresh:
            requests.append(request(key, fresh, f"trace{number}" if number % 2 else None))
    same(requests, state(a=a, b=b))


def test_a_partition_with_more_rows_than_an_event_lists() -> None:
    rows = {f"r{number}": "v" for number in range(limits.MAX_EVENT_CHANGES * PARTITIONS)}
    same([request("k", rows)], state(k={0: Head(9, 9, 99)}))
    many = {f"r{number}": "v" for number in range(2 * limits.MAX_EVENT_CHANGES * PARTITIONS)}
    same([request("k", many)], state(k={}))


def withdrawn() -> Permit:
    permit = Permit()
    permit.withdrawn = lambda: True
    return permit


def broken() -> Chain:
    chain = Chain()
    chain.failed = True
    return chain


@pytest.mark.parametrize(
    "words",
    [
        {"mark": IdempotencyMark("a", "b")},
        {"bundle": Bundle()},
        {"permit": withdrawn()},
        {"permit": Permit(0.0)},
        {"chain": broken()},
        {"store": replace(RECORD, settings=StoreSettings(partition_count=8))},
        {"key": "unknown"},
    ],
)
def test_what_takes_a_closer_look_is_left_to_it(words: Any) -> None:
    assert plan_new([replace(request("k", {"a": "1"}), **words)], state(k={}), 7) is None


def test_a_row_that_comes_twice_or_finds_no_room_is_left_to_a_closer_look() -> None:
    twice = [request("k", {"a": "1"}), request("k", {"a": "2"})]
    assert plan_new(twice, state(k={}), 7) is None
    assert plan_new(twice[:1], state(k={}), 7) is not None
    full = {partition: Head(1, 1, limits.MAX_PARTITION_BYTES) for partition in range(PARTITIONS)}
    assert plan_new(twice[:1], state(k=full), 7) is None
    deleted = state(k={})
    deleted.deleted[KeyRef("s", "k")] = UnavailableError("it is being restored")
    assert plan_new(twice[:1], deleted, 7) is None
