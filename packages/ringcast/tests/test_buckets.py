"""What coordination relies on in a bucket, whatever keeps it: here on a real NATS server."""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import ringcast
from ringcast._bus.buckets import Bucket, Buckets, ConflictError
from ringcast._bus.bus import TRANSIENT, connected
from ringcast._bus.kv import NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._protocol.kv_mirror import Entry, KvMirror
from ringcast_testkit import PATIENCE_S, NatsServer, TcpProxy, end_task
from ringcast_wire import names

LOG = worker_log(logging.getLogger("ringcast"))
ONE, TWO, OTHER = names.state_key("list", "one"), names.state_key("list", "two"), names.state_key("other", "one")


@asynccontextmanager
async def opened(port: int, store: str) -> AsyncIterator[Buckets]:
    """Over a connection of its own."""
    config = WorkerConfig(store=store, keys=("list",), servers=(f"nats://127.0.0.1:{port}",), worker_id="w")
    async with connected(NatsBus.prepared, config, LOG) as bus:
        yield NatsBuckets(bus)


@pytest.fixture
async def buckets(shared_nats: NatsServer, store_of_owners: str) -> AsyncIterator[Buckets]:
    async with opened(shared_nats.port, store_of_owners) as found:
        yield found


@pytest.fixture
def bucket(buckets: Buckets, store_of_owners: str) -> Bucket:
    return buckets.bucket(names.owners_bucket(store_of_owners))


class Watched:
    """A mirror that a watch keeps."""

    def __init__(self) -> None:
        self.mirror = KvMirror()
        self.changes = 0
        self._changed = asyncio.Event()

    def change(self) -> None:
        self.changes += 1
        self._changed.set()

    def values(self) -> dict[str, bytes | None]:
        return {key: entry.value for key, entry in self.mirror.entries.items()}

    async def until(self, values: dict[str, bytes | None]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.values() != values or not self.mirror.complete:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def watching(bucket: Bucket, *patterns: str) -> AsyncIterator[Watched]:
    watched = Watched()
    task = asyncio.create_task(bucket.watch("watch-w", patterns, watched.mirror, watched.change, LOG).run())
    try:
        yield watched
    finally:
        await end_task(task)


async def test_a_write_may_name_the_newest_of_several_keys(bucket: Bucket) -> None:
    """A table that was written and lost in between leaves nothing by which its own key could be compared."""
    term, table, both = names.term_key("list"), names.table_key("list"), names.lead_keys("list")
    first = await bucket.put(term, b"a", last=0)
    second = await bucket.put(term, b"b", last=first)
    await bucket.put(names.term_key("other"), b"c", last=0)
    await bucket.put(ONE, b"d", last=0)
    for last in (0, first):
        with pytest.raises(ConflictError):
            await bucket.put(table, b"late", last=last, among=both)
    third = await bucket.put(table, b"in time", last=second, among=both)
    assert await bucket.get(table) == Entry(third, b"in time")
    with pytest.raises(ConflictError):
        await bucket.put(table, b"late", last=second, among=both)


async def test_a_bucket_exists_or_not(bucket: Bucket, buckets: Buckets) -> None:
    assert await bucket.exists()
    assert not await buckets.bucket("nobody_made_this").exists()


async def test_of_many_that_create_a_key_one_succeeds(bucket: Bucket) -> None:
    results = await asyncio.gather(*(bucket.put(ONE, b"%d" % n, last=0) for n in range(20)), return_exceptions=True)
    won = [n for n, result in enumerate(results) if isinstance(result, int)]
    assert len(won) == 1
    assert sum(isinstance(result, ConflictError) for result in results) == 19
    assert await bucket.get(ONE, newest=True) == Entry(results[won[0]], b"%d" % won[0])  # type: ignore[arg-type]


async def test_a_write_names_what_stands_there_and_revisions_rise_over_all_keys(bucket: Bucket) -> None:
    first = await bucket.put(ONE, b"1", last=0)
    other = await bucket.put(TWO, b"1", last=0)
    second = await bucket.put(ONE, b"2", last=first)
    assert first < other < second
    for wrong in (0, first, second + 1):
        with pytest.raises(ConflictError):
            await bucket.put(ONE, b"3", last=wrong)
        with pytest.raises(ConflictError):
            await bucket.delete(ONE, last=wrong)
    assert await bucket.get(ONE, newest=True) == Entry(second, b"2")


async def test_a_deletion_keeps_out_what_was_written_before_it(bucket: Bucket) -> None:
    assert await bucket.get(ONE) is None
    first = await bucket.put(ONE, b"1", last=0)
    marker = await bucket.delete(ONE, last=first)
    assert await bucket.get(ONE, newest=True) == Entry(marker, None)
    for late in (0, first):  # of a process that does not know of the deletion
        with pytest.raises(ConflictError):
            await bucket.put(ONE, b"late", last=late)
    assert await bucket.put(ONE, b"2", last=marker) > marker


async def test_what_was_never_written_can_be_deleted_to_keep_a_write_out_that_is_on_its_way(bucket: Bucket) -> None:
    marker = await bucket.delete(ONE, last=0)
    with pytest.raises(ConflictError):
        await bucket.put(ONE, b"late", last=0)
    assert await bucket.get(ONE, newest=True) == Entry(marker, None)


async def test_a_marker_can_be_replaced_by_another_one(bucket: Bucket) -> None:
    """As of a registration: calls may run, and then they don't any more."""
    marker = await bucket.delete(ONE, last=await bucket.put(ONE, b"1", last=0), may_call=True)
    again = await bucket.delete(ONE, last=marker)
    assert await bucket.get(ONE, newest=True) == Entry(again, None)


async def test_several_keys_are_read_at_one_moment(bucket: Bucket) -> None:
    """One is counted up before the other, so that the first is never behind in what is there at one moment."""
    assert await bucket.read([ONE, TWO], "states") == {}
    one, two = await bucket.put(ONE, b"0", last=0), await bucket.put(TWO, b"0", last=0)
    await bucket.delete(OTHER, last=await bucket.put(OTHER, b"x", last=0))

    async def count() -> None:
        nonlocal one, two
        for number in range(1, 100):
            one = await bucket.put(ONE, b"%d" % number, last=one)
            two = await bucket.put(TWO, b"%d" % number, last=two)

    counting = asyncio.create_task(count())
    async with bucket.reading("states") as reader:
        while not counting.done():
            found = await reader.read([ONE, TWO, OTHER, names.state_key("list", "never")])
            assert found.keys() == {ONE, TWO, OTHER}
            assert found[OTHER].data is None
            first, second = (int(found[key].data or b"") for key in (ONE, TWO))
            assert first - 1 <= second <= first
    await counting
    found = await bucket.read([ONE, TWO], "states")
    assert [(entry.sequence, entry.data) for entry in found.values()] == [(one, b"99"), (two, b"99")]
    assert found[ONE].stored_s <= found[TWO].stored_s


async def test_a_watch_begins_with_all_that_matches_and_goes_on_with_changes(bucket: Bucket) -> None:
    first = await bucket.put(ONE, b"1", last=0)
    marker = await bucket.delete(TWO, last=await bucket.put(TWO, b"1", last=0))
    await bucket.put(OTHER, b"1", last=0)
    async with watching(bucket, "list.>") as watched:
        await watched.until({ONE: b"1", TWO: None})
        assert [watched.mirror.revision(key) for key in (ONE, TWO)] == [first, marker]
        second = await bucket.put(ONE, b"2", last=first)
        await watched.until({ONE: b"2", TWO: None})
        assert watched.mirror.revision(ONE) == second
        await bucket.delete(ONE, last=second)
        await watched.until({ONE: None, TWO: None})


async def test_a_watch_of_nothing_is_complete(bucket: Bucket) -> None:
    async with watching(bucket, "list.>") as watched:
        await watched.until({})
        assert watched.changes == 1


async def test_what_a_watch_has_missed_it_has_once_the_connection_is_back(
    bucket: Bucket, shared_nats: NatsServer, store_of_owners: str
) -> None:
    revision = await bucket.put(ONE, b"1", last=0)
    with TcpProxy(shared_nats.port) as proxy:
        async with (
            opened(proxy.port, store_of_owners) as far,
            watching(far.bucket(bucket.name), "list.>") as watched,
        ):
            await watched.until({ONE: b"1"})
            proxy.cut()
            revision = await bucket.put(ONE, b"2", last=revision)
            await bucket.put(TWO, b"1", last=0)
            with pytest.raises(TRANSIENT):
                await far.bucket(bucket.name).read([ONE], "states")
            proxy.resume()
            await watched.until({ONE: b"2", TWO: b"1"})


def _taken_from_the_bus() -> Iterator[tuple[str, str]]:
    """What modules of coordination import from the room of the bus: module and name."""
    for path in (Path(ringcast.__file__).parent / "_coordination").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ringcast._bus."):
                yield from (
                    (path.stem, f"{node.module}.{name.name}".removeprefix("ringcast._bus.")) for name in node.names
                )


def test_what_takes_part_in_a_store_does_not_know_what_keeps_its_records() -> None:
    taken = set(_taken_from_the_bus())
    assert ("lease", "buckets.Buckets") in taken
    # Errors are the same whatever keeps them; the settings of a store are read over a connection that is made for it.
    errors = {f"bus.{name}" for name in ("TRANSIENT", "NoJetStreamError", "translated")} | {"refusals.RefusedError"}
    others = {(module, name) for module, name in taken if not name.startswith("buckets.") and name not in errors}
    assert others == {("store_settings", "bus.Bus")}
