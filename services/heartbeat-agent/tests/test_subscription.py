"""What waits for a subscriber, how it falls behind, and how it catches up."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest
from ringcast import Change, InvalidInputError, UnavailableError
from ringcast.hosting import ConfigurationItem
from ringcast_core import row_partition
from ringcast_heartbeat_agent._proto import dapr_messages_pb2 as pb
from ringcast_heartbeat_agent.dapr.items import KeySelection, deleted_item, item_of, memory_size, wire_size
from ringcast_heartbeat_agent.dapr.subscription import Changed, Place, Since, Subscription, Update
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_testkit import PATIENCE_S
from ringcast_wire import limits

PLACE = ("list", 0)


def item(value: str, version: int = 1) -> ConfigurationItem:
    return item_of(Change("s", "list", 0, "a", value, version))


class Key:
    """A key of one partition: what subscribers that are behind read from."""

    def __init__(self) -> None:
        self.rows: dict[str, ConfigurationItem] = {}
        self.revision = 0
        self.asked: list[Since] = []
        self.away = 0
        self.whole = False
        self.count = 1
        self.reading = asyncio.Event()
        self.answer = asyncio.Event()
        self.answer.set()

    def put(self, row_id: str, value: str) -> ConfigurationItem:
        self.revision += 1
        self.rows[row_id] = item(value, self.revision)
        return self.rows[row_id]

    async def since(self, store: str, place: Place, since: Since) -> Changed:
        self.asked.append(since)
        self.reading.set()
        if self.away:
            self.away -= 1
            raise UnavailableError("nobody answers")
        updates = [Update(name, held) for name, held in self.rows.items() if int(held.version) > since.revision]
        changed = Changed(updates, self.revision, self.whole, self.count, frozenset(self.rows), "h")
        await self.answer.wait()
        return changed


def subscription(key: Key | None = None, *names: str, max_items: int = 3, max_bytes: int = 10_000) -> Subscription:
    wanted = KeySelection(names or ["list"])
    return Subscription("s", wanted, max_items=max_items, max_bytes=max_bytes, api="grpc", changes=key)


def offer(each: Subscription, key: Key, row_id: str, value: str) -> None:
    each.offer("list", row_id, key.put(row_id, value), place=PLACE, history="h")


async def drained(each: Subscription) -> list[dict[str, str]]:
    """What a reader that comes late gets."""
    found = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in each.batches():
            found.append({name: item.value for name, item in batch.items()})
            if not each.waiting and not each.behind:
                each.end()
    return found


async def test_an_update_that_waits_is_replaced_by_a_newer_one_of_its_row() -> None:
    one = subscription()
    for number in range(100):
        one.offer("list", "a", item(str(number)))
        one.offer("list", "b", item(str(-number)))
    assert one.waiting == 2
    assert await drained(one) == [{"a": "99", "b": "-99"}]


async def test_what_does_not_fit_is_read_once_the_rest_was_taken() -> None:
    key = Key()
    one = subscription(key, max_items=3)
    for number in range(50):
        offer(one, key, f"r{number}", "1")
    offer(one, key, "r1", "2")
    assert (one.waiting, one.behind) == (3, 1), "memory has a bound, however much changes"
    told = await drained(one)
    assert told[0] == {"r0": "1", "r1": "1", "r2": "1"}
    assert told[1] == {**{f"r{number}": "1" for number in range(3, 50)}, "r1": "2"}
    assert key.asked == [Since(3, "h")]


async def test_bytes_have_a_bound_too() -> None:
    key = Key()
    room = 10_000 - memory_size("a", item("x")) - memory_size("b", item(""))
    one = subscription(key, max_bytes=10_000)
    offer(one, key, "a", "x" * 50_000)  # alone it is let in: a row may be larger than the queue
    assert not one.behind
    offer(one, key, "a", "x")  # smaller than the one that it replaces
    offer(one, key, "b", "y" * room)
    assert not one.behind
    offer(one, key, "b", "y" * (room + 1))
    assert one.behind
    assert (await drained(one))[-1] == {"b": "y" * (room + 1)}


@pytest.mark.parametrize("text", ["", "grün", "列表", "list 🗒"])
@pytest.mark.parametrize("entries", [0, 3, 32])
def test_what_is_counted_is_no_less_than_what_waits_takes(text: str, entries: int) -> None:
    count = 1_000
    one = subscription(max_items=count, max_bytes=1024 * limits.MIB)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            metadata = {f"{text}{number}-{entry}": f"{entry}-{number}{text}" for entry in range(entries)}
            change = Change(
                "s", "list", number % 256, f"r{number}", f"{number}{text}", 10**6 + number, metadata=metadata
            )
            one.offer("list", f"r{number}", item_of(change))
        del metadata, change
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert one.waiting == count
    assert used <= one.bytes < 2 * used


async def test_what_changes_while_it_reads_is_read_again_and_no_row_goes_back() -> None:
    key = Key()
    one = subscription(key, max_items=1)
    for row_id in "ab":
        offer(one, key, row_id, "1")
    key.answer.clear()
    batches = aiter(one.batches())
    assert (await anext(batches)).keys() == {"a"}
    reading = asyncio.ensure_future(anext(batches))
    async with asyncio.timeout(PATIENCE_S):
        await key.reading.wait()
    offer(one, key, "b", "2")  # newer than the answer that is on its way
    key.answer.set()
    async with asyncio.timeout(PATIENCE_S):
        assert (await reading)["b"].value == "1"
        assert (await anext(batches))["b"].value == "2"
    assert not one.behind


async def test_what_was_read_is_not_offered_again_by_a_worker_that_lags() -> None:
    key = Key()
    one = subscription(key)
    first, second = key.put("a", "1"), key.put("a", "2")
    one.fall_behind(PLACE, Since(0, "h"))
    batches = aiter(one.batches())
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(batches) == {"a": second}
    for late in (first, second, deleted_item("list", 0, 1)):  # of which the read had the tombstones
        one.offer("list", "a", late, place=PLACE, history="h")
    assert (one.waiting, one.behind) == (0, 0), "no row goes back"
    one.offer("list", "a", first, place=PLACE, history="another")
    offer(one, key, "a", "3")
    assert one.waiting == 1
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(batches) == {"a": key.rows["a"]}


async def test_a_deletion_that_a_read_of_the_whole_partition_left_out_is_read() -> None:
    key = Key()
    key.whole = True
    one = subscription(key)
    key.put("a", "1")
    key.put("b", "1")
    gone = deleted_item("list", 0, key.revision + 1)
    key.revision += 1
    del key.rows["a"]
    one.fall_behind(PLACE, Since(0, ""))
    batches = aiter(one.batches())
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(batches)).keys() == {"b"}
    key.whole, key.rows["a"] = False, gone  # a read after a revision has tombstones
    one.offer("list", "a", gone, place=PLACE, history="h")
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(batches) == {"a": gone}


async def test_an_answer_that_is_older_than_an_earlier_one_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance whose database lags has answered: no row goes back, and none that it lacks is told to be deleted."""
    monkeypatch.setattr("ringcast_heartbeat_agent.dapr.subscription._RETRY_FIRST_S", 0.001)
    key = Key()
    one = subscription(key)
    batches = one.batches()

    async def told() -> dict[str, str]:
        async with asyncio.timeout(PATIENCE_S):
            return {name: held.value for name, held in (await anext(batches)).items()}

    key.put("a", "1")
    key.put("b", "1")
    one.fall_behind(PLACE, Since(0, "h"))
    assert await told() == {"a": "1", "b": "1"}
    before = dict(key.rows), key.revision
    key.put("a", "2")
    one.fall_behind(PLACE, Since(2, "h"))
    assert await told() == {"a": "2"}
    now = dict(key.rows), key.revision
    key.rows, key.revision = before
    one.fall_behind(PLACE, Since(0, "h"))
    reading = asyncio.ensure_future(told())
    async with asyncio.timeout(PATIENCE_S):
        while len(key.asked) < 4 and not reading.done():  # until it was asked again
            key.reading.clear()
            await key.reading.wait()
    assert not reading.done()
    key.rows, key.revision = now
    assert await reading == {"a": "2", "b": "1"}
    one.end()


async def test_an_outage_does_not_end_what_it_is_behind_with() -> None:
    key = Key()
    key.away = 2
    one = subscription(key, max_items=1)
    for row_id in "ab":
        offer(one, key, row_id, "1")
    assert await drained(one) == [{"a": "1"}, {"b": "1"}]
    assert len(key.asked) == 3


async def test_the_lowest_revision_counts_and_another_history_is_not_compared() -> None:
    key = Key()
    one = subscription(key)
    for since in (Since(7, "h"), Since(5, "h"), Since(9, "h"), Since(2, "other")):
        one.fall_behind(PLACE, since)
    key.put("a", "1")
    key.revision = 9
    key.rows["a"] = item("1", 9)
    assert await drained(one) == [{"a": "1"}]
    assert key.asked == [Since(5, "h")]


async def test_a_named_row_that_is_gone_is_told_by_a_whole_partition() -> None:
    key = Key()
    key.put("here", "1")
    key.whole = True
    one = subscription(key, "list/here", "list/gone")
    assert row_partition("gone", 1) == 0
    one.fall_behind(PLACE, Since(0, ""))
    async with asyncio.timeout(PATIENCE_S):
        batch = await anext(aiter(one.batches()))
    assert batch == {"list/here": key.rows["here"], "list/gone": deleted_item("list", 0, 1)}


async def test_updates_are_gathered_into_messages_of_bounded_size() -> None:
    one = subscription(max_items=1_000, max_bytes=100 * limits.MIB)
    for number in range(600):
        one.offer("list", f"r{number}", item("x"))
    for number in range(3):
        one.offer("list", f"large{number}", item("x" * 700_000))
    sizes = [len(batch) for batch in await drained(one)]
    assert sizes == [256, 256, 89, 1, 1]


async def test_the_end_reaches_a_reader_that_waits() -> None:
    one = subscription()
    reader = asyncio.create_task(drained(one))
    await asyncio.sleep(0)
    one.end(StoppedError("why"))
    with pytest.raises(StoppedError, match="why"):
        await reader


def test_keys_of_a_request() -> None:
    assert len(KeySelection([f"k{number % 100}/r{number}" for number in range(1_000)]).keys) == 100
    with pytest.raises(InvalidInputError, match="keys has 1001 entries: at most 1000 are allowed"):
        KeySelection([f"list/r{number}" for number in range(1_001)])
    for entry in ("", "no.dots", "list/", "list/" + "x" * 513, "k" * 65):
        wanted = KeySelection([entry, "one"])
        assert (wanted.impossible, wanted.keys, wanted.all) == ([entry], {"one"}, False)


@pytest.mark.parametrize("value", ["", "x", "ä" * 100, "x" * 127, "x" * 128, "x" * 20_000])
def test_the_size_of_an_item_is_that_on_the_wire(value: str) -> None:
    made = item_of(Change("s", "list", 7, "a", value, 12, metadata={"owner": value, "": "x"}))
    for name in ("a", "ä" * 200, "list/" + "x" * 500):
        message = pb.GetConfigurationResponse(
            items={name: pb.ConfigurationItem(value=made.value, version=made.version, metadata=made.metadata)}
        )
        assert wire_size(name, made) == message.ByteSize()
