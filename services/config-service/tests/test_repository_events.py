"""Events, their outbox, and the histories that they name, over SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ringcast_config_service.repository import (
    OutboxSpan,
    OutboxState,
    RefusedRecord,
    StoreRecord,
)
from ringcast_testkit import PATIENCE_S
from ringcast_testkit.rows import partition_of, same_partition
from ringcast_wire import (
    UnknownStoreError,
    decode_event,
    decode_fetch_reply,
    limits,
    names,
)

Bench = Any  # of conftest.py


async def test_everything_names_the_history_of_its_key(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await bench.write({"a": "1"}, key="other")
    histories = {}
    for key in ("k", "other"):
        history = histories[key] = (await bench.repo.reader.heads("s", key)).history
        replies = [
            decode_fetch_reply(await bench.repo.reader.read_partition("s", key, partition_of("a"), None)),
            await bench.repo.reader.read_rows("s", key, ["a"]),
            decode_fetch_reply(await bench.repo.reader.read_full("s", key)),
        ]
        assert {reply.history for reply in replies} == {history}
    named = [(decode_event(record.payload).history, record.msg_id) for record in await bench.waiting()]
    assert [history for history, _ in named] == list(histories.values())
    assert [names.parse_event_msg_id(msg_id) for _, msg_id in named] == [(1, history) for history in histories.values()]
    assert len({*histories.values(), (await bench.repo.stores.get_store("s")).record.history_id}) == 3


async def test_heads_count_the_live_rows(bench: Bench) -> None:
    await bench.write({"a": "1", "b": "1", "c": "1"})
    await bench.write({"a": None})
    rows = (await bench.repo.reader.heads("s", "k")).rows
    assert (sum(rows), len(rows)) == (2, 8)


async def test_a_new_history_is_named_by_all_that_comes_after_it(bench: Bench) -> None:
    await bench.write({"a": "1"})
    before, home = await bench.repo.reader.heads("s", "k"), partition_of("a")
    store = (await bench.repo.stores.get_store("s")).record.history_id
    assert await bench.repo.histories.new_history("s", instead_of="another") == store
    assert (await bench.repo.reader.heads("s", "k")).history == before.history

    new = await bench.repo.histories.new_history("s", instead_of=store)
    after = await bench.repo.reader.heads("s", "k")
    assert new == (await bench.repo.stores.get_store("s")).record.history_id != store
    assert after.history != before.history
    assert after.heads == before.heads  # the revisions go on
    since_old = decode_fetch_reply(await bench.repo.reader.read_partition("s", "k", home, 1, before.history))
    since_new = decode_fetch_reply(await bench.repo.reader.read_partition("s", "k", home, 1, after.history))
    assert (since_old.partitions[0].whole, since_new.partitions[0].whole) == (True, False)

    await bench.write({"a": "2"})
    events = [decode_event(record.payload) for record in await bench.waiting()]
    assert [event.history for event in events] == [before.history, after.history]
    assert await bench.repo.histories.new_history("s") != new
    with pytest.raises(UnknownStoreError, match="'none'"):
        await bench.repo.histories.new_history("none")


async def test_small_values_ride_in_the_event(bench: Bench) -> None:
    a, b, c = same_partition(3)
    await bench.write({a: "x" * 256, b: "x" * 257, c: ""}, metadata=None)
    ((_, event),) = await bench.events()
    assert [(change.row_id, change.value) for change in event.changes] == [(a, "x" * 256), (b, None), (c, "")]


async def test_inlining_can_be_off_and_counts_metadata(bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    quiet = await bench.repo.stores.create_store(new_store("quiet", inline_max_bytes=0))
    await bench.group([bench.request({"a": ""}, store=quiet), bench.request({"a": "v"}, metadata={"m": "x" * 256})])
    values = [change.value for _, event in await bench.events() for change in event.changes]
    assert values == [None, None]


async def test_a_large_write_is_not_listed(bench: Bench) -> None:
    ids = same_partition(limits.MAX_EVENT_CHANGES + 1)
    await bench.write(dict.fromkeys(ids[:-1], "v"))
    await bench.write(dict.fromkeys(ids, "w"))
    (_, listed), (_, unlisted) = await bench.events()
    assert len(listed.changes) == limits.MAX_EVENT_CHANGES
    assert (unlisted.changes, unlisted.prev, unlisted.rev) == (None, 256, 513)


async def test_the_outbox_keeps_what_was_not_deleted(bench: Bench) -> None:
    for number in range(5):
        await bench.write({f"r{number}": "v"})
    *gone, kept = await bench.repo.events.outbox("s", 0, 3, limits.MIB)
    await bench.repo.events.delete_events([record.id for record in gone])
    records = await bench.repo.events.outbox("s", 0, 10, limits.MIB)
    assert records[0] == kept
    assert len({record.msg_id for record in records}) == 3
    assert await bench.repo.events.outbox("s", kept.id, 10, limits.MIB) == records[1:]
    assert await bench.repo.events.outbox_spans() == [OutboxSpan("s", kept.id, records[-1].id)]


async def test_the_outbox_is_read_by_store_and_bytes(bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    other = await bench.repo.stores.create_store(new_store("t-1"))
    for number in range(4):
        await bench.write({f"r{number}": "v" * 200})
        await bench.group([bench.request({f"r{number}": "v"}, store=other)])
    own = await bench.repo.events.outbox("s", 0, 100, limits.MIB)
    others = await bench.repo.events.outbox("t-1", 0, 100, limits.MIB)
    assert [record.subject.split(".")[2] for record in (*own, *others)] == ["s"] * 4 + ["t-1"] * 4
    size = len(own[0].payload)
    assert await bench.repo.events.outbox("s", 0, 100, 2 * size) == own[:2]
    assert await bench.repo.events.outbox("s", 0, 100, 2 * size - 1) == own[:1]
    assert await bench.repo.events.outbox("s", own[0].id, 100, 1) == own[1:2], "the first is given however large it is"
    spans = [OutboxSpan(name, records[0].id, records[-1].id) for name, records in (("s", own), ("t-1", others))]
    assert await bench.repo.events.outbox_spans() == spans


async def test_one_relay_at_a_time_has_the_claim_on_a_store(bench: Bench) -> None:
    assert await bench.repo.events.claim_outbox("s", "one", 60_000)
    assert await bench.repo.events.claim_outbox("s", "one", 60_000)
    assert not await bench.repo.events.claim_outbox("s", "two", 60_000)
    assert await bench.repo.events.claim_outbox("t", "two", 60_000)
    await bench.repo.events.release_outbox("one")
    assert await bench.repo.events.claim_outbox("s", "two", 1)
    async with asyncio.timeout(PATIENCE_S):
        while not await bench.repo.events.claim_outbox("s", "one", 60_000):  # by the database's clock  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_refused_event_is_kept_apart(bench: Bench) -> None:
    for number in range(3):
        await bench.write({f"r{number}": "v"})
    refused, *others = await bench.waiting()
    await bench.repo.events.refuse_event(refused.id, "too large")
    await bench.repo.events.refuse_event(refused.id, "again")
    assert await bench.waiting() == others
    assert await bench.repo.events.refused_events(0, 10) == [RefusedRecord(refused, "too large")]
    assert await bench.repo.events.refused_events(refused.id, 10) == []


async def test_an_event_keeps_the_trace_of_the_first_request_that_made_it(bench: Bench) -> None:
    requests = [bench.request({"a": str(turn)}) for turn in range(4)]
    traced = [
        replace(request, traceparent=trace) for request, trace in zip(requests[:3], (None, "t1", "t2"), strict=True)
    ]
    (other,) = [row_id for row_id in ("b", "c", "d", "e") if partition_of(row_id) != partition_of("a")][:1]
    await bench.group([*traced, bench.request({other: "1"})])
    await bench.group([requests[3]])
    traces = {record.msg_id: record.traceparent for record in await bench.waiting()}
    history = (await bench.repo.reader.heads("s", "k")).history
    ids = [
        names.event_msg_id("s", "k", partition_of(row), rev, history) for row, rev in (("a", 3), (other, 1), ("a", 4))
    ]
    assert traces == dict(zip(ids, ("t1", None, None), strict=True))


async def test_the_state_of_the_outbox(bench: Bench) -> None:
    assert await bench.repo.events.outbox_state() == OutboxState(0, None)
    await bench.write({"a": "1"})
    await bench.pass_time(3_600_000)
    for turn in range(2):
        await bench.write({"a": str(turn)})
    state = await bench.repo.events.outbox_state()
    assert state.depth == 3
    assert 3_600_000 <= time.time() * 1000 - state.oldest_ms < 3_600_000 + PATIENCE_S * 1000
    await bench.repo.events.delete_events([record.id for record in (await bench.waiting())[:1]])
    state = await bench.repo.events.outbox_state()
    assert state.depth == 2
    assert time.time() * 1000 - state.oldest_ms < PATIENCE_S * 1000


# --- Limits -----------------------------------------------------------------------------------------------------------
