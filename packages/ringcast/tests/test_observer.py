"""A worker that observes: it sees everything, and takes part in nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nats
import pytest
from nats.js.errors import KeyNotFoundError
from ringcast import Mode
from ringcast_testkit import PATIENCE_S
from ringcast_wire import names

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store


@pytest.mark.parametrize("mode", [Mode.PARTITIONED, Mode.FULL])
async def test_it_follows_every_partition_beside_the_workers_that_share_them(store: Store, mode: Mode) -> None:
    await store.create(mode=mode)
    rows = {f"r{number}" for number in range(20)}
    for row_id in rows:
        await store.put(row_id, "1")
    seen: dict[str, str | None] = {}
    async with store.worker() as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        everything = worker.owned("list")
        async with store.worker(
            "observer", observe=True, handler=lambda change: seen.update({change.row_id: change.value})
        ) as observer:
            await observer.wait_ready(timeout_s=PATIENCE_S)
            assert observer.owned("list") == everything
            assert seen.keys() == rows
            partition, version = await store.put("r7", "2")
            await observer.wait_for("list", partition, version, timeout_s=PATIENCE_S)
            assert seen["r7"] == "2"
            assert observer.history("list") == worker.history("list") != ""
            assert observer.health().ready
            assert worker.owned("list") == everything, "nothing was given away"
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)


async def test_it_takes_no_lease_so_that_the_next_one_under_its_name_waits_for_none(store: Store) -> None:
    """A process that was killed has left nothing that another one has to wait for."""
    await store.create()
    await store.put("a", "1")
    async with store.worker("observer", observe=True) as observer:
        await observer.wait_ready(timeout_s=PATIENCE_S)
        nc = await nats.connect(store.nats_url)
        try:
            leases = await nc.jetstream().key_value(names.LEASES_BUCKET)
            with pytest.raises(KeyNotFoundError):
                await leases.get(observer.config.worker_id)
        finally:
            await nc.close()
