"""A report of ended leases whose write is not answered: the partitions of the dead move all the same."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, History, NatsServer, WorkerProcess
from ringcast_wire import names

PARTITIONS = 16


async def test_a_report_that_hangs_holds_no_assignment_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server gives reports of one worker to a subscriber that does not answer, in the place of the bucket."""
    caplog.set_level(logging.DEBUG, "ringcast")
    lost = asyncio.Event()
    report = f"$KV.{names.nodes_bucket('s')}.{names.ended_key('stays')}"

    async def lose(msg: Msg) -> None:
        lost.set()

    with (
        NatsServer(tmp_path / "nats", mappings={report: "lost"}) as server,
        ConfigServiceProcess(tmp_path, nats_url=server.url, database=f"sqlite:{tmp_path / 'r.db'}") as service,
    ):
        nc = await nats.connect(server.url)
        await nc.subscribe("lost", cb=lose)
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("s", partition_count=PARTITIONS)
        owned: list[bool] = []

        def on_assigned(key: str, partitions: frozenset[int]) -> None:
            owned.append(all(getattr(record, "event", "") != "report.failed" for record in caplog.records))

        dies = WorkerProcess("dies", servers=server.url, store="s", keys=("k",), history=History())
        with dies:
            async with Worker(
                servers=server.url, store="s", keys=["k"], worker_id="stays", on_assigned=on_assigned
            ) as w:
                async with asyncio.timeout(PATIENCE_S):
                    await w.wait_until("k", lambda: 0 < len(w.owned("k")) < PARTITIONS)
                    dies.kill()
                    await w.wait_until("k", lambda: len(w.owned("k")) == PARTITIONS)
                    while len(owned) < 2:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    await lost.wait()
                assert owned[-1], "they were taken over before the first report was given up"
        await nc.close()
