"""Reads of a key as it was, as a client sees them: what they give, and what is refused with which sentence."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from ringcast_config_service.grpc import lists
from ringcast_testkit import until
from ringcast_wire import ErrorCode
from ringcast_wire.grpc import pb

Running = Any  # of conftest.py
RELEASE = pb.KeyState(release=1)
NOW = pb.KeyState()


@pytest.fixture
async def service(start: Any, nats_url: str, database: str) -> AsyncIterator[Running]:
    """An instance on each database."""
    async with start(nats_url, database) as found:
        yield found


async def rows(service: Running, store: str, state: pb.KeyState, **words: Any) -> dict[str, str]:
    request = pb.ListAsOfRequest(store=store, key="k", state=state, **words)
    return {row.row_id: row.value async for page in service.stub.ListAsOf(request) for row in page.rows}


async def diff(service: Running, store: str, before: pb.KeyState, after: pb.KeyState, **words: Any) -> dict[str, Any]:
    request = pb.DiffRequest(store=store, key="k", before=before, after=after, **words)
    found = [one async for page in service.stub.Diff(request) for one in page.rows]
    return {
        (one.before if one.HasField("before") else one.after).row_id: tuple(
            getattr(one, name).value if one.HasField(name) else None for name in ("before", "after")
        )
        for one in found
    }


async def stage(service: Running, store: str, stage_id: str, *writes: pb.RowWrite) -> None:
    rows = [pb.KeyedWrite(key="k", row=write) for write in writes]
    await service.stub.StageRelease(pb.StageReleaseRequest(store=store, stage_id=stage_id, rows=rows, complete=True))


async def reaches(service: Running, store: str, state: pb.ReleaseState) -> None:
    async def is_there() -> bool:
        found = await service.stub.GetRelease(pb.GetReleaseRequest(store=store, number=1))
        return bool(found.state == state)

    await until(is_there)


async def state_now(service: Running, store: str) -> pb.KeyState:
    """By the time of the newest write; the next one will be of another millisecond."""
    history = service.stub.History(pb.HistoryRequest(store=store, key="k"))
    newest_ms = max([one.written_at_ms async for page in history for one in page.revisions])
    await until(lambda: time.time() * 1000 > newest_ms + 1)
    return pb.KeyState(time_ms=newest_ms)


@pytest.mark.parametrize("mode", [pb.MODE_PARTITIONED, pb.MODE_FULL])
async def test_states_and_what_differs(service: Running, store_name: str, mode: pb.Mode) -> None:
    await service.create(store_name, 4, mode=mode)
    await service.put(store_name, "a", "1")
    await service.put(store_name, "b", "1")
    first = await state_now(service, store_name)
    await stage(service, store_name, "one", pb.RowWrite(row_id="a", value="2", if_version=1), put_new("c"))
    await service.stub.PublishRelease(pb.PublishReleaseRequest(store=store_name, number=1))
    await reaches(service, store_name, pb.RELEASE_STATE_PUBLISHED)
    await state_now(service, store_name)
    await service.stub.Delete(pb.DeleteRequest(store=store_name, key="k", row_id="b"))
    assert await rows(service, store_name, first) == {"a": "1", "b": "1"}
    assert await rows(service, store_name, RELEASE) == {"a": "2", "b": "1", "c": "v"}
    assert await rows(service, store_name, NOW) == {"a": "2", "c": "v"}
    assert await diff(service, store_name, first, RELEASE) == {"a": ("1", "2"), "c": (None, "v")}
    assert await diff(service, store_name, RELEASE, NOW) == {"b": ("1", None)}
    assert await diff(service, store_name, NOW, first) == {"a": ("2", "1"), "b": (None, "1"), "c": ("v", None)}
    assert await diff(service, store_name, NOW, NOW) == {}
    assert len(await diff(service, store_name, NOW, first, limit=2)) == 2
    by_partition = [await rows(service, store_name, RELEASE, partition=one) for one in range(4)]
    assert {row: value for part in by_partition for row, value in part.items()} == {"a": "2", "b": "1", "c": "v"}


def put_new(row_id: str) -> pb.RowWrite:
    return pb.RowWrite(row_id=row_id, value="v", if_absent=True)


async def test_states_that_can_not_be_read(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "a", "1")
    await service.create(other := f"{store_name}-2")
    await service.put(other, "a", "1")
    await stage(service, store_name, "one", put_new("b"))

    async def refused(state: pb.KeyState, match: str, code: ErrorCode = ErrorCode.INVALID_INPUT, **where: Any) -> None:
        words = {"store": store_name, "key": "k", **where}
        await service.is_refused(service.stub.ListAsOf(pb.ListAsOfRequest(state=state, **words)).read(), match, code)
        for before, after in ((state, NOW), (NOW, state)):
            call = service.stub.Diff(pb.DiffRequest(before=before, after=after, **words))
            await service.is_refused(call.read(), match, code)

    condition = ErrorCode.CONDITION_FAILED
    await refused(RELEASE, "when release 1 was published can't be read: the release is staged", condition)
    await refused(RELEASE, "has no release 1", store=other)
    for number in (0, -1, 2, 2**63 - 1):
        await refused(pb.KeyState(release=number), f"has no release {number}")
    waves = pb.PublishReleaseRequest(
        store=store_name, number=1, waves=[50, 100], gate=pb.ReleaseGate(bake_ms=86_400_000, patience_ms=86_400_000)
    )
    await service.stub.PublishRelease(waves)
    await service.stub.PauseRelease(pb.ChangeReleaseRequest(store=store_name, number=1))
    await refused(RELEASE, "can't be read: the release is publishing", condition)
    hour = 3_600_000
    now_ms = int(time.time() * 1000)
    await refused(pb.KeyState(time_ms=now_ms + hour), "time .* UTC is still to come: the database's clock says .* UTC")
    await refused(pb.KeyState(time_ms=now_ms - hour), f"is before store '{store_name}' was created at .* UTC")
    await refused(pb.KeyState(time_ms=0), "time 1970-01-01 00:00:00 UTC is before store")
    for none in (-1, -(2**63), 2**63 - 1, 253_402_300_800_000):
        await refused(pb.KeyState(time_ms=none), f"time_ms {none} is no time: 0 to 253402300799999 is allowed")
    await refused(NOW, "partition 8 .*0 to 7", partition=8)
    await refused(NOW, "there is no store", ErrorCode.UNKNOWN_STORE, store="none")
    await refused(NOW, "has no config key 'none'", ErrorCode.UNKNOWN_KEY, key="none")
    await refused(pb.KeyState(time_ms=now_ms), "key 'no key!' ", key="no key!")
    await service.stub.DeleteKey(pb.DeleteKeyRequest(store=store_name, key="k"))
    await refused(NOW, "config key 'k' .* was deleted at", ErrorCode.KEY_DELETED)


async def test_a_key_that_was_made_again_has_nothing_of_the_one_before(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "a", "1")
    then = await state_now(service, store_name)
    await service.stub.DeleteKey(pb.DeleteKeyRequest(store=store_name, key="k", purge=True))
    await service.put(store_name, "b", "1")
    assert await rows(service, store_name, then) == {}
    assert await diff(service, store_name, then, NOW) == {"b": (None, "1")}


async def test_a_slow_reader_gets_one_state_from_several_snapshots(
    start: Any, nats_url: str, database: str, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others write meanwhile is in none of them, nor in what is compared with the state at the beginning."""
    monkeypatch.setattr(lists, "_SLOW_S", 0.01)
    ids = [f"r{number:03}" for number in range(160)]
    async with start(nats_url, database) as service:
        await service.create(store_name, 4)
        await fill(service, store_name, ids, "1")
        then = await state_now(service, store_name)
        await fill(service, store_name, ids[::2], "2")
        where: dict[str, Any] = {"store": store_name, "key": "k"}
        listed = service.stub.ListAsOf(pb.ListAsOfRequest(**where, state=then))
        compared = service.stub.Diff(pb.DiffRequest(**where, before=then))
        pages, differ = [await listed.read()], [await compared.read()]
        await fill(service, store_name, ids, "3")
        for call, answers in ((listed, pages), (compared, differ)):
            while (page := await call.read()) is not grpc.aio.EOF:
                answers.append(page)
    found = [row for page in pages for row in page.rows]
    assert sorted(row.row_id for row in found) == ids
    assert {row.value[0] for row in found} == {"1"}
    rows = [one for page in differ for one in page.rows]
    assert sorted(one.before.row_id for one in rows) == ids[::2]
    assert {(one.before.value[0], one.after.value[0]) for one in rows} == {("1", "2")}


async def fill(service: Running, store: str, ids: list[str], value: str) -> None:
    """Rows that are together far more than what a client has room for that does not read."""
    for first in range(0, len(ids), 20):
        await service.write(
            store, [pb.RowWrite(row_id=one, value=value + "x" * 80_000) for one in ids[first : first + 20]]
        )
