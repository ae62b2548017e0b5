"""Answers on their way to a process fit into one budget, and a fetch that is given up is cancelled at the service."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress

import nats
import pytest
from nats.aio.msg import Msg
from ringcast._config import WorkerConfig
from ringcast._connection import Connection
from ringcast._fetch import FetchClient
from ringcast._fetch_budget import BUDGET_BYTES, FetchBudget
from ringcast._log import Log
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_wire import UnavailableError, limits, names


def subject(what: int | str, key: str = "k") -> str:
    return names.fetch_subject("s", key, what)


async def taking(budget: FetchBudget, what: str, order: list[str], may_end: asyncio.Event) -> None:
    async with budget.taken(what):
        order.append(what)
        await may_end.wait()


async def begun(*coroutines: asyncio.Task[None]) -> None:
    """Lets tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_whole_key_at_a_time_and_what_comes_later_does_not_overtake_it() -> None:
    budget, may_end = FetchBudget(), asyncio.Event()
    order: list[str] = []
    tasks = [
        asyncio.create_task(taking(budget, what, order, may_end))
        for what in (subject("full"), subject("full", "j"), subject(0), subject("heads"))
    ]
    await begun(*tasks)
    assert order == [subject("full"), subject("heads")], "head revisions wait for nothing"
    may_end.set()
    await asyncio.gather(*tasks)
    assert order[2:] == [subject("full", "j"), subject(0)]


async def test_partitions_are_reckoned_with_what_those_of_their_key_had() -> None:
    budget, may_end = FetchBudget(), asyncio.Event()
    order: list[str] = []
    tasks = [asyncio.create_task(taking(budget, subject(number), order, may_end)) for number in range(20)]
    await begun(*tasks)
    assert len(order) == BUDGET_BYTES // limits.MAX_PARTITION_BYTES
    budget.answered(subject(0), limits.MIB)
    may_end.set()
    await asyncio.gather(*tasks)
    may_end.clear()
    order.clear()
    tasks = [asyncio.create_task(taking(budget, subject(number), order, may_end)) for number in range(100)]
    await begun(*tasks)
    assert len(order) == BUDGET_BYTES // (2 * limits.MIB + 64 * limits.KIB)
    may_end.set()
    await asyncio.gather(*tasks)


async def test_one_that_is_cancelled_while_it_waits_leaves_its_place() -> None:
    budget, may_end = FetchBudget(), asyncio.Event()
    order: list[str] = []
    first, second, third = (
        asyncio.create_task(taking(budget, subject("full", key), order, may_end)) for key in ("a", "b", "c")
    )
    await begun(first)
    second.cancel()
    await begun(second)
    first.cancel()
    await begun(first)
    assert order == [subject("full", "a"), subject("full", "c")]
    third.cancel()
    for task in (first, second, third):
        with suppress(asyncio.CancelledError):
            await task
    async with asyncio.timeout(PATIENCE_S), budget.taken(subject("full")):
        pass


async def test_the_budget_is_one_for_all_workers_of_a_process() -> None:
    assert FetchBudget.of_process() is FetchBudget.of_process()


@pytest.mark.parametrize("why", ["silence", "cancelled"])
async def test_a_fetch_that_is_given_up_is_cancelled_at_the_service(
    service_nats: NatsServer, store_name: str, why: str
) -> None:
    config = WorkerConfig(store="s", keys=("k",), servers=(service_nats.url,), worker_id=store_name)
    asked: asyncio.Queue[Msg] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        service = await nats.connect(service_nats.url)
        stack.push_async_callback(service.close)
        await service.subscribe(f"config.fetch.{store_name}.*.*", cb=asked.put)
        await service.flush()
        connection = await stack.enter_async_context(Connection.open(config, Log(logging.getLogger("ringcast"))))
        timeout_s = 0.2 if why == "silence" else PATIENCE_S
        client = await stack.enter_async_context(FetchClient.open(connection, timeout_s))
        task = asyncio.create_task(client.request(names.fetch_subject(store_name, "k", names.FETCH_FULL)))
        async with asyncio.timeout(PATIENCE_S):
            first = await asked.get()
            if why == "cancelled":
                task.cancel()
            with pytest.raises(UnavailableError if why == "silence" else asyncio.CancelledError):
                await task
            second = await asked.get()
        assert second.subject == names.fetch_subject(store_name, "k", names.FETCH_CANCEL)
        assert second.data.decode() == (first.headers or {})[names.HEADER_FETCH_ID]
        async with asyncio.timeout(PATIENCE_S), client._budget.taken(first.subject):
            pass
