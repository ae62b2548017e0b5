"""The disks of the servers that keep events are really full: leases and members, which are elsewhere, go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsCluster, SmallDisk, until
from ringcast_wire import limits, names

STORE, KEY = "s", "k"
REFRESHES = 2
PROBES = 20
PROBE = {names.LEASES_BUCKET: "probe", names.nodes_bucket(STORE): names.node_key(KEY, "probe")}


def held(worker: Worker) -> dict[str, str]:
    return {row.row_id: row.value for row in worker.rows(KEY)}


async def test_leases_go_on_while_events_can_not_be_stored(tmp_path: Path) -> None:
    """Nothing is lost: writes are acknowledged, and their events wait in the database."""
    if not SmallDisk.supported():
        pytest.skip("no right to make a mount namespace here")
    with SmallDisk(tmp_path / "disk", 64 * limits.MIB) as disk:
        full = ("n0", "n1")
        store_dirs = {name: {"store_dir": str(disk.path / name), "max_file_store": 1 << 40} for name in full}
        of_one: dict[str, dict[str, Any]] = {
            "n2": {"server_tags": ["keeps:leases"]},
            **{name: {"server_tags": ["keeps:data"], "jetstream": store_dirs[name]} for name in full},
        }
        options = ("--lease-tags", "keeps:leases", "--data-tags", "keeps:data")
        with (
            NatsCluster(tmp_path / "nats", of_one=of_one, prefixes=dict.fromkeys(full, disk.prefix)) as cluster,
            ConfigServiceProcess(tmp_path, nats_url=cluster.url, options=options) as service,
        ):
            async with ConfigServiceClient(service.address) as client:
                await client.create_store(STORE, partition_count=4)
                await client.put(STORE, KEY, "before", "1")
            async with (
                ConfigServiceClient(service.address) as client,
                Worker(servers=cluster.url, store=STORE, keys=[KEY], worker_id="w1") as worker,
                await nats.connect(cluster.urls[2]) as connection,
            ):
                async with asyncio.timeout(PATIENCE_S):
                    await worker.wait_until(KEY, lambda: held(worker) == {"before": "1"})
                js = connection.jetstream(timeout=2)
                events = (await js.stream_info(names.notify_stream(STORE))).cluster
                assert events is not None
                assert events.leader in full

                async def refreshes() -> int:
                    """The revision of the lease: it rises with each refresh."""
                    found = await js.get_last_msg(f"KV_{names.LEASES_BUCKET}", f"$KV.{names.LEASES_BUCKET}.w1")
                    assert found.seq is not None
                    return found.seq

                async def is_refused() -> bool:
                    """Whether the stream of events takes no event: this one is of a key that nobody has."""
                    try:
                        await js.publish(names.notify_subject(STORE, "probe", 0), bytes(limits.CHUNK_HEADROOM_BYTES))
                    except (nats.errors.Error, nats.js.errors.Error):
                        return True
                    return False

                disk.fill()
                rows = {f"r{number}": str(number) for number in range(20)}
                for row_id, value in rows.items():
                    await client.put(STORE, KEY, row_id, value)
                await until(is_refused)
                before = await refreshes()

                async def has_refreshed() -> bool:
                    return await refreshes() >= before + REFRESHES

                await until(has_refreshed)
                for bucket in (names.LEASES_BUCKET, names.nodes_bucket(STORE)):
                    for _ in range(PROBES):  # more than fits into what a file has already
                        await js.publish(f"$KV.{bucket}.{PROBE[bucket]}", bytes(limits.MAX_RECORD_BYTES // 2))
                assert worker.health().ready
                disk.free()
                for name in full:
                    await asyncio.to_thread(cluster.servers[name].restart)

                async def has_all_events() -> bool:
                    try:
                        found = await js.stream_info(names.notify_stream(STORE))
                    except (nats.errors.Error, nats.js.errors.Error):
                        return False
                    return found.state.messages >= 1 + len(rows)

                await until(has_all_events)
                async with asyncio.timeout(PATIENCE_S):
                    await worker.wait_until(KEY, lambda: held(worker) == rows | {"before": "1"})
