"""``ringcast lag``: what real workers answer, and what is said of those that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
import pytest
from ringcast import Change, Mode, PoisonPolicy
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import Strategy, names
from ringcast_wire.reports import decode_report_request

from tests.integration.cli_process import Cli, Servers
from tests.integration.worker_bench import PARTITIONS, Bench, worker_bench


@pytest.fixture
async def bench(servers: Servers, cli: Cli, store_name: str) -> AsyncIterator[Bench]:
    async with worker_bench(servers, cli, store_name) as made:
        yield made


async def _lag(bench: Bench, *words: object) -> dict[str, Any]:
    """What the command says of the key `list`."""
    return await bench.told("lag", bench.store, "list", *words)


async def _lag_until(bench: Bench, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The same, again until it is so."""
    return await bench.told_until(condition, "lag", bench.store, "list")


@pytest.mark.parametrize("strategy", [Strategy.JUMP, Strategy.RING, Strategy.STICKY])
async def test_workers_that_share_a_key_have_all_of_it(bench: Bench, strategy: Strategy) -> None:
    await bench.create(strategy=strategy)
    await bench.fill()
    workers = [await bench.worker(name) for name in ("a", "b")]
    found = await _lag_until(bench, lambda lag: lag["converged"])
    assert (found["behind"], found["unowned"], found["silent"]) == (0, [], [])
    assert {each["worker_id"]: each["partitions"] for each in found["workers"]} == {
        worker.config.worker_id: len(worker.owned("list")) for worker in workers
    }
    assert sum(each["partitions"] for each in found["workers"]) == PARTITIONS
    text = await asyncio.to_thread(bench.cli.ok, "lag", bench.store)
    assert "all applied" in text.out


async def test_each_worker_of_a_full_store_has_every_partition(bench: Bench) -> None:
    await bench.create(mode=Mode.FULL)
    await bench.fill(5)
    for name in ("a", "b"):
        await bench.worker(name)
    found = await _lag_until(bench, lambda lag: lag["converged"])
    assert [(each["partitions"], each["behind"], each["phase"]) for each in found["workers"]] == [(8, 0, "active")] * 2


async def test_a_handler_that_does_not_return_is_behind(bench: Bench) -> None:
    await bench.create()
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handler(change: Change) -> None:
        begun.set()
        await gate.wait()

    await bench.worker("a", handler)
    written = await bench.client.put(bench.store, "list", "row", "value")
    await begun.wait()
    found = await _lag(bench)
    (worker,) = found["workers"]
    assert not found["converged"]
    assert (worker["behind"], worker["most_behind"]) == (1, written.partition)
    assert worker["oldest_s"] > 0
    assert worker["handler_s"] > 0
    gate.set()
    await _lag_until(bench, lambda lag: lag["converged"])


async def test_blocked_rows_and_errors_are_told(bench: Bench) -> None:
    await bench.create()

    async def handler(change: Change) -> None:
        raise ValueError("not this one")

    worker = await bench.worker("a", handler, handler_tries=1, poison_policy=PoisonPolicy.BLOCK)
    await bench.client.put(bench.store, "list", "row", "value")
    await worker.wait_until("list", lambda: bool(worker.blocked("list")), timeout_s=PATIENCE_S)
    (told,) = (await _lag(bench))["workers"]
    assert (told["blocked"], told["last_error"]) == (1, "row: ValueError('not this one')")


async def test_a_worker_that_is_halted_does_not_answer(bench: Bench) -> None:
    await bench.create()
    await bench.fill(5)
    other = await bench.worker("a")
    with bench.process("halted") as process:
        await until(lambda: len(other.owned("list")) < PARTITIONS)
        process.pause()
        found = await _lag(bench, "--patience", 0.3)
    assert not found["converged"]
    assert found["silent"] == [process.worker_id]
    assert {each["worker_id"]: each["problem"] for each in found["workers"]}[process.worker_id] == "it does not answer"
    assert len(found["unowned"]) == PARTITIONS - len(other.owned("list"))


async def test_nothing_owns_a_key_without_workers(bench: Bench) -> None:
    await bench.create()
    await bench.fill(1)
    found = await _lag(bench)
    assert (found["converged"], found["unowned"], found["workers"]) == (False, [*range(PARTITIONS)], [])


async def test_an_answer_that_can_not_be_read_is_told(bench: Bench) -> None:
    await bench.create()
    worker = await bench.worker("a")

    nc = await nats.connect(bench.servers.nats.url)

    async def answer(message: Any) -> None:
        request = decode_report_request(message.data)
        await nc.publish(names.reported_subject(bench.store, "list", "liar", request.round_id), b"nonsense")

    try:
        await nc.subscribe(names.report_subject(bench.store, "list"), cb=answer)
        await nc.flush()
        found = await _lag_until(bench, lambda lag: lag["unreadable"])
    finally:
        await nc.close()
    assert list(found["unreadable"]) == ["liar"]
    assert not found["converged"]
    assert worker.config.worker_id in [each["worker_id"] for each in found["workers"] if each["answered"]]


def test_a_key_that_is_not_there_is_refused(cli: Cli, store: str) -> None:
    assert "has no config key" in cli.refused("lag", store, "nothing")
    assert "does not exist" in cli.refused("lag", "nowhere", "list")
