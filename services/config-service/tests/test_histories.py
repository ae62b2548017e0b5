"""Duplicates that show a record that went back: none of them is forgotten."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from nats.js.errors import NotFoundError
from ringcast_config_service.histories import Histories
from ringcast_config_service.repository import OutboxRecord, history_ordinal, new_history_id
from ringcast_config_service.telemetry import Telemetry
from ringcast_testkit import PATIENCE_S
from ringcast_wire import names

Bench = Any  # of conftest.py


async def test_a_duplicate_that_comes_while_another_store_is_looked_at_is_looked_at_too(
    sqlite_bench: Bench, new_store: Any, store_name: str
) -> None:
    """All stores of a record that went back have their first duplicates at about the same time."""
    stores = [f"{store_name}{number}" for number in range(3)]
    for store in stores:
        await sqlite_bench.repo.stores.create_store(new_store(store))
    looked_at: list[str] = []
    done = asyncio.Event()

    async def get_msg(stream: str, **_: object) -> None:
        looked_at.append(stream)
        if len(looked_at) == 1:
            for store in stores[1:]:
                histories.duplicate(OutboxRecord(1, f"config.notify.{store}.k.0", "id", b""), 1)
        if len(looked_at) == len(stores):
            done.set()
        raise NotFoundError

    js: Any = SimpleNamespace(get_msg=get_msg)
    provisioner: Any = None
    histories = Histories(js, sqlite_bench.repo, provisioner, Telemetry())
    histories.duplicate(OutboxRecord(1, f"config.notify.{stores[0]}.k.0", "id", b""), 1)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(histories.run())
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
        running.cancel()
    assert sorted(looked_at) == sorted(names.notify_stream(store) for store in stores)


async def test_instances_that_miss_a_stream_at_the_same_time_begin_one_history(sqlite_bench: Bench) -> None:
    """Each new history has workers fetch everything."""
    repo, store = sqlite_bench.repo, sqlite_bench.store
    await sqlite_bench.group([sqlite_bench.request({"r": "1"})])
    provisioner: Any = SimpleNamespace(check_now=lambda: None)
    instances = [Histories(SimpleNamespace(), repo, provisioner, Telemetry()) for _ in range(2)]  # type: ignore[arg-type]
    records = [await each.before_events(store) for each in instances]
    assert records[0].history_id != store.history_id
    assert records[1].history_id == records[0].history_id
    later = Histories(SimpleNamespace(), repo, provisioner, Telemetry())  # type: ignore[arg-type]
    assert (await later.before_events(records[0])).history_id != records[0].history_id


class LastEvents:
    """A stream of which the service reads the last event of each partition."""

    def __init__(self, *events: tuple[int, int, str]) -> None:
        """Of each: partition, revision and history."""
        self._messages = [
            SimpleNamespace(
                subject=names.notify_subject("s", "k", partition),
                headers={names.HEADER_MSG_ID: names.event_msg_id("s", "k", partition, revision, history)},
            )
            for partition, revision, history in events
        ]

    async def add_consumer(self, _stream: str, _config: object) -> Any:
        return SimpleNamespace(name="c", num_pending=len(self._messages))

    async def pull_subscribe_bind(self, **_: object) -> Any:
        return self

    async def fetch(self, _batch: int, timeout: float) -> list[Any]:  # as the library has it
        assert timeout
        return self._messages

    async def unsubscribe(self) -> None:
        pass

    async def delete_consumer(self, _stream: str, _name: str) -> None:
        pass


async def test_an_event_of_a_later_history_shows_a_record_that_went_back(sqlite_bench: Bench) -> None:
    """As when one backup is restored twice: new writes have taken the place of all events that would show it."""
    repo, store = sqlite_bench.repo, sqlite_bench.store
    await sqlite_bench.group([sqlite_bench.request({"r": "1"})])
    provisioner: Any = SimpleNamespace(check_now=lambda: None)

    async def after(*events: tuple[int, int, str]) -> str:
        js: Any = LastEvents(*events)
        await Histories(js, repo, provisioner, Telemetry()).open("s")
        return str((await repo.stores.get_record("s")).history_id)

    partition = next(iter(sqlite_bench.request({"r": "1"}).partitions))
    first = (await repo.reader.heads("s", "k")).history
    assert await after((partition, 1, first)) == store.history_id
    second = await after((partition, 1, new_history_id(7)))
    assert history_ordinal(second) == 8, "the next one is later than any that was seen"
    assert await after((partition, 5, first)) == second, "an event of an earlier history shows nothing"
    later = (await repo.reader.heads("s", "k")).history
    assert history_ordinal(later) == 8
    assert await after((partition, 1, later)) == second
    assert history_ordinal(await after((partition, 2, later))) == 9
