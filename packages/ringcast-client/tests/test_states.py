"""Earlier states of a key and their differences over a real service, and over one that is older than the client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import grpc
import pytest
from ringcast_client import AsOf, ChangeKind, ConfigServiceClient, KeyedWrite, RowDifference, RowWrite
from ringcast_testkit import ConfigServiceProcess, until
from ringcast_wire import InvalidInputError, MismatchError
from ringcast_wire.key_ring import KeyRing, KeyRingDocument, make_key

DOCUMENT = KeyRingDocument(active="k1", keys={"k1": make_key(), "k2": make_key()}, encrypt=["*/list"])


async def _rows(client: ConfigServiceClient, store: str, as_of: AsOf, **words: Any) -> dict[str, str]:
    return {row.row_id: row.value async for row in client.list_as_of(store, "list", as_of, **words)}


async def _diff(client: ConfigServiceClient, store: str, *states: AsOf, **words: Any) -> list[RowDifference]:
    return [found async for found in client.diff(store, "list", *states, **words)]


async def _moment(client: ConfigServiceClient, store: str) -> datetime:
    """That of the newest write; the next one will be of another millisecond."""
    newest_ms = max([found.written_at_ms async for found in client.history(store, "list")])
    await until(lambda: time.time() * 1000 > newest_ms + 1)
    return datetime.fromtimestamp(newest_ms / 1000, UTC) + timedelta(microseconds=500)


async def test_states_and_their_differences(client: ConfigServiceClient, store: str) -> None:
    await client.commit(store, [KeyedWrite("list", "a", "1", {"by": "me"}), KeyedWrite("list", "b", "1")])
    then = await _moment(client, store)
    await client.commit(
        store, [KeyedWrite("list", "a", "2"), KeyedWrite("list", "b", delete=True), KeyedWrite("list", "c", "1")]
    )
    elsewhere = then.astimezone(timezone(timedelta(hours=14)))
    assert await _rows(client, store, then) == await _rows(client, store, elsewhere) == {"a": "1", "b": "1"}
    assert await _rows(client, store, None) == {"a": "2", "c": "1"}
    assert len(await _rows(client, store, then, limit=1)) == 1
    found = {one.row_id: one for one in await _diff(client, store, then)}
    assert {name: one.kind for name, one in found.items()} == {
        "a": ChangeKind.CHANGED,
        "b": ChangeKind.DELETED,
        "c": ChangeKind.ADDED,
    }
    before, after = found["a"].before, found["a"].after
    assert before is not None
    assert after is not None
    assert (before.value, before.metadata, after.value, after.metadata) == ("1", {"by": "me"}, "2", {})
    assert before.partition == after.partition == found["a"].partition
    assert after.version > before.version
    back = {one.row_id: (one.before, one.after) for one in await _diff(client, store, None, then)}
    assert back == {name: (one.after, one.before) for name, one in found.items()}
    assert await _diff(client, store, then, elsewhere) == []
    partition = found["c"].partition
    assert "c" in {one.row_id for one in await _diff(client, store, then, partition=partition)}
    assert await _rows(client, store, None, partition=(partition + 1) % 8) != await _rows(client, store, None)


@pytest.mark.parametrize(
    ("as_of", "sentence"),
    [
        (0, "is out of range: 1 to"),
        (True, "is neither the number of a release nor a datetime"),
        ("7", "is neither the number of a release nor a datetime"),
        (datetime(2026, 1, 1), "2026-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
    ],
)
async def test_what_is_no_state(client: ConfigServiceClient, store: str, as_of: Any, sentence: str) -> None:
    for field, call in (
        ("as_of", _rows(client, store, as_of)),
        ("before", _diff(client, store, as_of, None)),
        ("after", _diff(client, store, None, as_of)),
    ):
        with pytest.raises(InvalidInputError, match=f"^{field} .*{sentence}") as caught:
            await call
        assert caught.value.field == field


@pytest.mark.parametrize("year", [1, 1969, 9999])
async def test_moments_that_no_store_has_seen(client: ConfigServiceClient, store: str, year: int) -> None:
    await client.put(store, "list", "a", "1")
    for zone in (-23, 0, 23):
        with pytest.raises(InvalidInputError, match=r"is no time|is still to come"):
            await _rows(client, store, datetime(year, 6, 30, tzinfo=timezone(timedelta(hours=zone))))


async def test_values_are_compared_as_they_are_once_opened(service: ConfigServiceProcess, store: str) -> None:
    async with ConfigServiceClient(service.address, key_ring=KeyRing(DOCUMENT)) as client:
        rows = [RowWrite("a", "1"), RowWrite("b", "1")]
        _ = [batch async for batch in client.bulk_write(store, "list", rows)]
        then = await _moment(client, store)
        await client.put(store, "list", "b", "2")
    other = KeyRingDocument(active="k2", keys=DOCUMENT.keys, encrypt=DOCUMENT.encrypt)
    async with ConfigServiceClient(service.address, key_ring=KeyRing(other)) as client:
        assert (await client.reseal(store, "list")).rows == 2
        (found,) = await _diff(client, store, then)
        assert (found.row_id, found.before and found.before.value, found.after and found.after.value) == ("b", "1", "2")
        assert await _rows(client, store, then) == {"a": "1", "b": "1"}
        assert len(await _diff(client.as_stored, store, then)) == 2


@pytest.fixture
async def older() -> AsyncIterator[ConfigServiceClient]:
    """A client of a service that knows no call at all."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with ConfigServiceClient(f"127.0.0.1:{port}") as client:
        yield client
    await server.stop(None)


async def test_an_older_service_is_named_in_one_sentence(older: ConfigServiceClient) -> None:
    for name, call in (
        ("ListAsOf", _rows(older, "s", 1)),
        ("Diff", _diff(older, "s", 1)),
        ("GetStore", older.get_store("s")),
    ):
        with pytest.raises(MismatchError) as caught:
            await call
        said = f"config service {older.address} does not know the call {name}: it is older than this client"
        assert str(caught.value) == said
