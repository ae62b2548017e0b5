"""Duplicates that show a record that went back: none of them is forgotten."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from nats.js.errors import NotFoundError
from ringcast_config_service.histories import Histories
from ringcast_config_service.repository import OutboxRecord
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
