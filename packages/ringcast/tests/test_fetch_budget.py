"""Answers on their way to a process fit into one budget, and a fetch that is given up is cancelled at the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import nats
import pytest
from nats.aio.msg import Msg
from ringcast._bus.budget import BUDGET_BYTES, FetchBudget, Size, _lane_of
from ringcast._bus.bus import connected
from ringcast._bus.nats_bus import NatsBus
from ringcast._bus.requests import FetchClient
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_wire import UnavailableError, limits, names


def subject(what: int | str, key: str = "k") -> str:
    return names.fetch_subject("s", key, what)


async def taking(budget: FetchBudget, what: str, order: list[str], may_end: asyncio.Event) -> None:
    async with budget.reserved(what):
        order.append(what)
        await may_end.wait()


async def begun() -> None:
    """Lets tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


class Asking:
    """Fetches that take their bytes, and keep them until told."""

    def __init__(self) -> None:
        self.budget = FetchBudget()
        self.order: list[str] = []
        self._tasks: dict[str, list[tuple[asyncio.Task[None], asyncio.Event]]] = {}

    async def ask(self, *subjects: str) -> list[str]:
        """Asks; returns which were admitted now."""
        before = len(self.order)
        for what in subjects:
            may_end = asyncio.Event()
            task = asyncio.create_task(taking(self.budget, what, self.order, may_end))
            self._tasks.setdefault(what, []).append((task, may_end))
        await begun()
        return self.order[before:]

    async def end(self, *subjects: str) -> list[str]:
        """These fetches are answered; returns which were admitted now."""
        before = len(self.order)
        for what in subjects:
            task, may_end = self._tasks[what].pop(0)
            may_end.set()
            await task
        await begun()
        return self.order[before:]

    async def cancel(self, what: str) -> list[str]:
        before = len(self.order)
        task, _ = self._tasks[what].pop(0)
        task.cancel()
        await begun()
        return self.order[before:]

    async def end_all(self) -> None:
        while any(self._tasks.values()):
            await self.end(*[what for what, tasks in self._tasks.items() for _ in tasks])


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    """Ends what is left; whatever was done before, the whole budget must be free then."""
    asking = Asking()
    yield asking
    await asking.end_all()
    assert asking.budget._free == BUDGET_BYTES
    assert not asking.budget._waiting


async def test_the_parts_of_the_budget_fit_together() -> None:
    assert sum(BUDGET_BYTES.values()) == 64 * limits.MIB
    assert BUDGET_BYTES[Size.WHOLE] == limits.MAX_FULL_BYTES
    assert BUDGET_BYTES[Size.LARGE] >= limits.MAX_PARTITION_BYTES


async def test_one_whole_key_at_a_time_beside_others(asking: Asking) -> None:
    assert await asking.ask(subject("full"), subject("full", "j"), subject("heads")) == [
        subject("full"),
        subject("heads"),
    ]
    assert await asking.ask(subject(0, "i")) == [subject(0, "i")], "one of unknown size has room beside a whole key"
    assert await asking.ask(subject(1, "i"), subject("batch", "i")) == [subject("batch", "i")]
    assert await asking.end(subject("full")) == [subject("full", "j")]


async def test_large_answers_leave_room_for_small_ones(asking: Asking) -> None:
    asking.budget.record_size(subject(0, "small"), 10 * limits.KIB)
    await asking.ask(subject("full"), *(subject(number, "large") for number in range(20)))
    small = [subject(number, "small") for number in range(20)]
    assert await asking.ask(*small, subject("batch", "large")) == [*small, subject("batch", "large")]


async def test_a_whole_key_is_not_kept_waiting_by_those_that_take_of_its_room(asking: Asking) -> None:
    large = [subject(number, "large") for number in range(20)]
    first = await asking.ask(*large)
    assert len(first) == (BUDGET_BYTES[Size.WHOLE] // (8 * limits.MIB)) + BUDGET_BYTES[Size.LARGE] // (8 * limits.MIB)
    assert await asking.ask(subject("full")) == []
    admitted = [what for ended in first[:-1] for what in await asking.end(ended)]
    admitted += await asking.end(first[-1])
    assert subject("full") in admitted
    assert len(admitted) < len(first), "what comes after it takes no more of its room"


async def test_keys_take_turns(asking: Asking) -> None:
    many = [subject(number, "many") for number in range(10)]
    assert await asking.ask(subject("full")) == [subject("full")]
    assert await asking.ask(*many) == many[:1]
    assert await asking.ask(subject(0, "few")) == []
    assert await asking.end(many[0]) == [many[1]]
    assert await asking.end(many[1]) == [subject(0, "few")]
    assert await asking.end(subject(0, "few")) == [many[2]]


async def test_partitions_are_reckoned_with_what_those_of_their_key_had(asking: Asking) -> None:
    numbers = [subject(number) for number in range(100)]
    assert len(await asking.ask(*numbers)) == 7, "of unknown size"
    asking.budget.record_size(numbers[0], 2 * limits.MIB)
    each = 4 * limits.MIB + 64 * limits.KIB
    await asking.end(*numbers[:7])
    under_way = len(asking.order) - 7
    assert under_way == BUDGET_BYTES[Size.WHOLE] // each + BUDGET_BYTES[Size.LARGE] // each
    asking.budget.record_size(numbers[0], 1 * limits.MIB)
    assert asking.budget._reckon(_lane_of(numbers[0])) == (Size.LARGE, each), "the largest counts"


async def test_one_that_is_cancelled_while_it_waits_leaves_its_place(asking: Asking) -> None:
    assert await asking.ask(*(subject("full", key) for key in "abc")) == [subject("full", "a")]
    assert await asking.cancel(subject("full", "b")) == []
    assert await asking.cancel(subject("full", "a")) == [subject("full", "c")]


async def test_one_that_is_cancelled_as_its_turn_comes_gives_it_on() -> None:
    budget, may_end = FetchBudget(), asyncio.Event()
    order: list[str] = []
    first, second, third = (
        asyncio.create_task(taking(budget, subject("full", key), order, may_end)) for key in ("a", "b", "c")
    )
    await begun()
    may_end.set()
    second.cancel()
    await asyncio.wait([first, second, third])
    assert order == [subject("full", "a"), subject("full", "c")]
    assert budget._free == BUDGET_BYTES


async def test_one_that_is_cancelled_as_its_turn_comes_and_passes_to_others_of_its_key() -> None:
    """Those are admitted, and wait, before the cancelled one runs again and looks for its place."""
    budget, order = FetchBudget(), list[str]()
    may_end = [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(taking(budget, subject("full"), order, event)) for event in may_end]
    await begun()
    may_end[0].set()
    tasks[1].cancel()
    for event in may_end[2:]:
        await begun()
        event.set()
    done, _ = await asyncio.wait(tasks)
    assert [task for task in done if not task.cancelled() and task.exception()] == []
    assert (tasks[1].cancelled(), len(order)) == (True, 3)
    assert (budget._free, len(budget._waiting)) == (BUDGET_BYTES, 0)


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
        connection = await stack.enter_async_context(
            connected(NatsBus.prepared, config, worker_log(logging.getLogger("ringcast")))
        )
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
        async with asyncio.timeout(PATIENCE_S), client._budget.reserved(first.subject):
            pass
