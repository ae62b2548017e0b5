"""A key made equal to a list of rows: what is compared, what is written, and what is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ringcast_client import (
    ConfigServiceClient,
    InvalidRowError,
    RowRecord,
    RowWrite,
    SyncPhase,
    SyncProgress,
    SyncRefusedError,
)
from ringcast_client._sync.spool import Spool
from ringcast_core import row_partition
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import InvalidInputError, UnavailableError, UnknownStoreError

Content = dict[str, tuple[str, dict[str, str]]]


class Store(NamedTuple):
    """A store of a test's own."""

    name: str
    client: ConfigServiceClient


@pytest.fixture
async def store(shared_service: ConfigServiceProcess, store_name: str) -> AsyncIterator[Store]:
    """A store that no other test uses."""
    async with ConfigServiceClient(shared_service.address) as client:
        await client.create_store(store_name, partition_count=8)
        yield Store(store_name, client)


def _rows(content: Content) -> list[RowWrite]:
    return [RowWrite(row_id, value, metadata) for row_id, (value, metadata) in content.items()]


def _plain(row_ids: Iterable[int], value: str = "v") -> list[RowWrite]:
    return [RowWrite(f"row{number}", value) for number in row_ids]


async def _content(store: Store) -> Content:
    return {row.row_id: (row.value, row.metadata) async for row in store.client.list(store.name, "list")}


async def _sync(store: Store, rows: Iterable[RowWrite], **options: object) -> tuple[int, int, int, int]:
    result = await store.client.sync(store.name, "list", rows, **options)  # type: ignore[arg-type]
    return result.added, result.changed, result.deleted, result.unchanged


async def test_only_what_differs_is_written(store: Store) -> None:
    assert await _sync(store, _plain(range(3_000))) == (3_000, 0, 0, 0), "the first row makes the key"
    before = await store.client.heads(store.name, "list")
    wanted = [*_plain(range(1, 2_999)), RowWrite("row7", "other"), RowWrite("row8", "v", {"m": "n"}), RowWrite("new")]
    result = await store.client.sync(store.name, "list", wanted)
    assert (result.added, result.changed, result.deleted, result.unchanged) == (1, 2, 2, 2_996)
    assert (result.first_added, set(result.first_changed)) == (("new",), {"row7", "row8"})
    assert (set(result.first_deleted), result.rows, result.written) == ({"row0", "row2999"}, 2_999, True)
    assert sum(await store.client.heads(store.name, "list")) - sum(before) == 5, "a revision a difference, no more"
    assert await _content(store) == {row.row_id: (row.value, row.metadata) for row in wanted}
    assert await _sync(store, wanted) == (0, 0, 0, 2_999)


async def test_a_dry_run_writes_nothing(store: Store) -> None:
    await _sync(store, _plain(range(10)))
    heads = await store.client.heads(store.name, "list")
    result = await store.client.sync(store.name, "list", _plain(range(4, 12), "w"), dry_run=True, first_rows=2)
    assert (result.added, result.changed, result.deleted, result.unchanged) == (2, 6, 4, 0)
    assert [len(first) for first in (result.first_added, result.first_changed, result.first_deleted)] == [2, 2, 2]
    assert (result.written, result.refusal) == (False, None)
    result = await store.client.sync(store.name, "list", [], dry_run=True)
    assert result.refusal is not None
    assert await store.client.heads(store.name, "list") == heads


async def test_mass_deletion_is_refused_before_anything_is_written(store: Store) -> None:
    await _sync(store, _plain(range(10)))
    heads = await store.client.heads(store.name, "list")
    wanted = [*_plain(range(6, 10)), RowWrite("new")]
    with pytest.raises(SyncRefusedError, match=r"6 of 10 rows of .*/list would be deleted.* allows 5 to be") as error:
        await _sync(store, wanted)
    assert error.value.field == "max_delete_share"
    with pytest.raises(SyncRefusedError, match="the input has no rows, so that all 10 rows of") as error:
        await _sync(store, [RowWrite("row1", delete=True)], max_delete_share=1.0)
    assert error.value.field == "allow_empty"
    with pytest.raises(SyncRefusedError, match="allows 0 to be"):
        await _sync(store, _plain(range(9)), max_delete_share=0)
    assert await store.client.heads(store.name, "list") == heads
    assert await _sync(store, wanted, max_delete_share=0.6) == (1, 0, 6, 4)
    assert await _sync(store, [], allow_empty=True) == (0, 0, 5, 0)
    assert await _content(store) == {}
    assert await _sync(store, []) == (0, 0, 0, 0), "nothing is there that could be deleted"


async def test_what_others_write_meanwhile_is_left_alone_and_reported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the comparison and the writes: a row to change, one to delete, one to add, one deleted as wanted."""
    await _sync(store, _plain(range(2_600)))
    wanted = [*_plain(range(2_600), "w")[3:], *_plain(range(5_000, 5_100))]
    loop = asyncio.get_running_loop()

    async def meddle() -> None:
        async with ConfigServiceClient(store.client.address) as other:
            await other.put(store.name, "list", "row100", "theirs")
            await other.put(store.name, "list", "row0", "theirs")
            await other.delete(store.name, "list", "row1")
            await other.put(store.name, "list", "row5000", "theirs")
            await other.put(store.name, "list", "untouched", "theirs")

    def on_progress(progress: SyncProgress) -> None:
        if progress == SyncProgress(SyncPhase.WRITING, 0, 2_700):
            meddled.append(loop.create_task(meddle()))

    meddled: list[asyncio.Task[None]] = []
    original = store.client.bulk_write

    def after_the_others(*args: Any, **options: Any) -> Any:
        async def results() -> AsyncIterator[Any]:
            await meddled[0]
            async for result in original(*args, **options):
                yield result

        return results()

    with monkeypatch.context() as patched:
        patched.setattr(store.client, "bulk_write", after_the_others)
        result = await store.client.sync(store.name, "list", wanted, on_progress=on_progress)
    assert (result.conflicts, set(result.first_conflicts)) == (3, {"row100", "row0", "row5000"})
    content = await _content(store)
    for name in ("row100", "row0", "row5000", "untouched"):
        assert content.pop(name) == ("theirs", {})
    expected: Content = {row.row_id: (row.value, {}) for row in wanted if row.row_id not in ("row100", "row5000")}
    assert content == expected, "everything else is as wanted"
    again = await store.client.sync(store.name, "list", wanted)
    assert (again.added, again.changed, again.deleted, again.conflicts) == (0, 2, 2, 0)


async def test_the_later_of_two_rows_with_one_id_counts(store: Store) -> None:
    rows = [RowWrite("a", "1"), RowWrite("b", "1"), RowWrite("a", "2"), RowWrite("b", delete=True), RowWrite("c")]
    assert await _sync(store, [*rows, RowWrite("c", delete=True), RowWrite("c", "3")]) == (2, 0, 0, 0)
    assert await _content(store) == {"a": ("2", {}), "c": ("3", {})}


async def test_a_row_at_fault_stops_it_before_anything_is_written(store: Store) -> None:
    def rows() -> Iterator[RowWrite]:
        yield from _plain(range(2_500))
        yield RowWrite("x" * 513)
        raise AssertionError("nothing after it is read")

    with pytest.raises(InvalidRowError) as error:
        await _sync(store, rows())
    assert error.value.index == 2_500
    assert (await store.client.get_store(store.name)).keys == ()


@pytest.mark.parametrize("condition", [{"if_version": 1}, {"if_absent": True}, {"if_version": 1, "delete": True}])
async def test_a_row_with_a_condition_is_refused(store: Store, condition: dict[str, Any]) -> None:
    """It would not be looked at: what is written is decided by the comparison."""
    with pytest.raises(InvalidRowError, match="row 'a' has a condition") as error:
        await _sync(store, [RowWrite("b", "1"), RowWrite("a", "1", **condition)])
    assert (error.value.index, error.value.field) == (1, next(iter(condition)))


async def test_an_asynchronous_source_and_progress(store: Store) -> None:
    async def rows() -> AsyncIterator[RowWrite]:
        for row in _plain(range(2_500)):
            yield row

    seen: list[SyncProgress] = []
    await store.client.sync(store.name, "list", rows(), on_progress=seen.append)
    assert [step.done for step in seen if step.phase is SyncPhase.READING] == [1_000, 2_000, 2_500]
    assert seen[-1] == SyncProgress(SyncPhase.WRITING, 2_500, 2_500)


async def test_options_out_of_range_and_a_store_that_is_not_there(store: Store) -> None:
    for options in ({"max_delete_share": 1.1}, {"max_delete_share": -0.1}, {"first_rows": -1}, {"first_rows": 1_001}):
        with pytest.raises(InvalidInputError, match="is out of range"):
            await _sync(store, [], **options)
    with pytest.raises(UnknownStoreError):
        await store.client.sync("nowhere", "list", [])


async def test_a_service_that_dies_on_the_way_and_the_sync_run_again(
    service_nats: NatsServer, tmp_path: Path, store_name: str
) -> None:
    """The second run finishes what the first has left."""
    wanted = _plain(range(5_000))
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=service_nats.url, database=database) as service:
        async with ConfigServiceClient(service.address, timeout_s=5) as client:
            await client.create_store(store_name, partition_count=8)

            def kill(progress: SyncProgress) -> None:
                if progress.phase is SyncPhase.WRITING and progress.done == 2_000:
                    service.kill()

            with pytest.raises(UnavailableError):
                await client.sync(store_name, "list", wanted, on_progress=kill)
            await asyncio.to_thread(service.restart)
            result = await client.sync(store_name, "list", wanted)
            assert 2_000 <= result.unchanged < 5_000
            assert result.added == 5_000 - result.unchanged
            assert len([row async for row in client.list(store_name, "list")]) == 5_000


@pytest.mark.parametrize("seed", range(30))
def test_the_comparison_against_a_model(seed: int) -> None:
    chance = random.Random(seed)
    partitions = chance.choice([1, 3, 8])

    def content() -> Content:
        picked = chance.sample(range(60), chance.randrange(60))
        return {
            f"zeile-ä{number}": (chance.choice("ab"), chance.choice([{}, {"m": "1", "k": "2"}, {"k": "2", "m": "1"}]))
            for number in picked
        }

    current, wanted = content(), content()
    spool = Spool(partitions)
    rows = _rows(wanted)
    spool.add_wanted([*_rows(content()), *(RowWrite(f"zeile-ä{number}", delete=True) for number in range(60)), *rows])
    spool.sort()
    places = ((row_partition(row_id, partitions), row_id) for row_id in current)
    listed = [RowRecord(row_id, current[row_id][0], 1, place, False, current[row_id][1]) for place, row_id in places]
    chance.shuffle(listed)  # the order of a database with another collation
    for start in range(0, len(listed), 7):
        spool.add_current(listed[start : start + 7])
    difference = spool.difference()
    assert difference.added == len(wanted.keys() - current.keys())
    assert difference.deleted == len(current.keys() - wanted.keys())
    assert difference.changed == sum(current[name] != wanted[name] for name in current.keys() & wanted.keys())
    spool.plan()
    planned = list(spool.planned())
    assert [write.place for write in planned] == list(range(1, len(planned) + 1))
    assert [*spool.planned(limit=7), *spool.planned(after=7)] == planned
    assert all((write.version is None) == (write.row.row_id not in current) for write in planned)
    result, writes = dict(current), [write.row for write in planned]
    assert len(writes) == difference.writes
    for row in writes:
        if row.delete:
            del result[row.row_id]
        else:
            result[row.row_id] = (row.value, dict(row.metadata))
    assert result == wanted
    added, changed, deleted = spool.first(1_000)
    assert (len(added), len(changed), len(deleted)) == (difference.added, difference.changed, difference.deleted)
    spool.close()
    spool.close()
    with pytest.raises(RuntimeError):
        spool.difference()
