"""A watch on a bucket that keeps an entry which should have ended, as some servers of a cluster do."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ringcast._buckets import Bucket, BucketWatch
from ringcast._config import WorkerConfig
from ringcast._connection import Connection
from ringcast._log import Log
from ringcast._machine.membership import Mirror
from ringcast_testkit import PATIENCE_S, NatsServer

WITHIN_S = 1.0


async def test_an_entry_that_nobody_writes_again_is_dropped_though_the_server_keeps_it(
    service_nats: NatsServer, store_name: str
) -> None:
    config = WorkerConfig(store="s", keys=("k",), servers=(service_nats.url,), worker_id=store_name)
    log = Log(logging.getLogger("ringcast"))
    async with Connection.open(config, log) as connection:
        await connection.js.create_key_value(bucket=store_name, direct=True)  # no entry of it ever ends
        bucket = Bucket(connection, store_name)
        await bucket.put("dead", b"1", last=0)
        mirror, changed, seen = Mirror(), asyncio.Event(), False
        watch = BucketWatch(connection, bucket, "watch", [">"], mirror, changed.set, log, refreshed_within_s=WITHIN_S)
        watching = asyncio.create_task(watch.run())
        try:
            revision = 0
            async with asyncio.timeout(PATIENCE_S):
                while "dead" in mirror.entries or not seen:
                    seen = seen or {"dead", "alive"} <= mirror.entries.keys()
                    revision = await bucket.put("alive", b"1", last=revision)
                    changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(WITHIN_S / 5):  # as often as it is written again
                            await changed.wait()
            assert "alive" in mirror.entries
            kept = await bucket.get("dead")
            assert kept is not None
            await bucket.put("dead", b"2", last=kept.revision)
            async with asyncio.timeout(PATIENCE_S):
                while "dead" not in mirror.entries:  # it lives again
                    changed.clear()
                    await changed.wait()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
