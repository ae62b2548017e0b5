"""``ringcast top`` and the workers of ``ringcast cluster list``: what workers say, and what is said of the others."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ringcast import Change, Mode, PoisonPolicy
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import Strategy, check_row

from tests.integration.cli_process import Cli, Servers
from tests.integration.worker_bench import PARTITIONS, Bench, worker_bench


@pytest.fixture
async def bench(servers: Servers, cli: Cli, store_name: str) -> AsyncIterator[Bench]:
    async with worker_bench(servers, cli, store_name) as made:
        yield made


async def top(bench: Bench, *words: object) -> dict[str, Any]:
    """One picture of the workers of the store, by worker id."""
    found = await bench.told("top", "--once", "--every", 0.3, "--store", bench.store, *words)
    return {**found, "workers": {each["id"]: each for each in found["workers"]}}


@pytest.mark.parametrize("strategy", [Strategy.JUMP, Strategy.STICKY])
async def test_each_worker_has_its_partitions_and_its_rate(bench: Bench, strategy: Strategy) -> None:
    await bench.create(strategy=strategy)
    await bench.fill()
    workers = [await bench.worker(name) for name in ("a", "b")]
    await until(lambda: sum(len(worker.owned("list")) for worker in workers) == PARTITIONS)
    writing = asyncio.create_task(fill_for_ever(bench))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await top(bench)
                if sum(each["applied_per_s"] for each in found["workers"].values()) > 0:
                    break
    finally:
        writing.cancel()
        await asyncio.wait([writing])
    assert found["fleet"]["whole"]
    assert {name: each["partitions"] for name, each in found["workers"].items()} == {
        worker.config.worker_id: len(worker.owned("list")) for worker in workers
    }
    assert {each["state"] for each in found["workers"].values()} == {"active"}
    assert all(each["pid"] and each["host"] and each["answered"] for each in found["workers"].values())


async def test_each_worker_says_how_many_rows_and_bytes_it_holds(bench: Bench) -> None:
    await bench.create()
    await bench.fill()
    await bench.client.put(bench.store, "list", "grün", "value", {"owner": "abuse"})
    await bench.client.put(bench.store, "list", "row1", "a longer value than before")
    await bench.client.delete(bench.store, "list", "row0")
    workers = [await bench.worker(name) for name in ("a", "b")]
    await until(lambda: sum(len(worker.owned("list")) for worker in workers) == PARTITIONS)
    found = (await top(bench))["workers"]
    (key,) = (await bench.client.get_store(bench.store)).keys
    assert (sum(each["rows"] for each in found.values()), key.rows) == (40, 40)
    assert sum(each["row_bytes"] for each in found.values()) == key.bytes
    assert all(each["rows"] < 40 for each in found.values())
    for worker in workers:
        rows = list(worker.rows("list"))
        told = found[worker.config.worker_id]
        assert told["rows"] == len(rows)
        assert told["row_bytes"] == sum(check_row(row.row_id, row.value, row.metadata) for row in rows)
    text = (await asyncio.to_thread(bench.cli.ok, "top", "--once", "--every", 0.2, "--store", bench.store)).out
    head, *lines = (line.split() for line in text.splitlines() if line.startswith(("store ", f"{bench.store} ")))
    shown = {line[1]: line[head.index("rows") : head.index("bytes") + 1] for line in lines}
    assert shown == {name: [str(each["rows"]), str(each["row_bytes"])] for name, each in found.items()}


async def fill_for_ever(bench: Bench) -> None:
    """Writes until cancelled."""
    while True:
        await bench.fill(10)


async def test_a_worker_that_is_halted_is_not_heard_and_the_fleet_not_whole(bench: Bench) -> None:
    await bench.create()
    await bench.fill(5)
    other = await bench.worker("a")
    with bench.process("halted") as process:
        await until(lambda: len(other.owned("list")) < PARTITIONS)
        process.pause()
        found = await top(bench, "--patience", 0.3)
        text = (await asyncio.to_thread(bench.cli.ok, "top", "--once", "--every", 0.2, "--patience", 0.3)).out
        process.resume()
    silent = found["workers"][process.worker_id]
    assert (silent["state"], silent["answered"], silent["problem"]) == ("unknown", False, "it does not answer")
    assert not found["fleet"]["whole"]
    assert found["fleet"]["missing"] == [f"{bench.store}/list: no answer of {process.worker_id}"]
    assert found["fleet"]["unowned"] == {f"{bench.store}/list": PARTITIONS - len(other.owned("list"))}
    assert text.startswith("PARTLY HEARD: ")
    assert f"{bench.store}/list: no answer of {process.worker_id}" in text


async def test_rows_that_are_blocked_are_counted_and_not_behind(bench: Bench) -> None:
    await bench.create()

    async def handler(change: Change) -> None:
        raise ValueError("not this one")

    await bench.client.put(bench.store, "list", "row", "value")
    worker = await bench.worker("a", handler, handler_tries=1, poison_policy=PoisonPolicy.BLOCK)
    await worker.wait_until("list", lambda: bool(worker.blocked("list")), timeout_s=PATIENCE_S)
    (told,) = (await top(bench))["workers"].values()
    assert (told["blocked"], told["behind"], told["keys"]) == (1, 0, ["list"])


async def test_a_worker_of_a_store_of_mode_full_that_is_halted_is_missing(bench: Bench) -> None:
    await bench.create(mode=Mode.FULL)
    await bench.fill(3)
    await bench.worker("a")
    with bench.process("halted") as process:
        async with asyncio.timeout(PATIENCE_S):
            while len((found := await top(bench))["workers"]) < 2:
                pass
        assert [each["partitions"] for each in found["workers"].values()] == [PARTITIONS] * 2
        process.pause()
        found = await top(bench)
        assert not found["fleet"]["whole"]
        assert process.worker_id in found["fleet"]["missing"][0]


def test_without_a_config_service_nothing_is_shown_as_whole(cli: Cli) -> None:
    found = cli.ok("top", "--once", "--every", "0.2", "--json", "--service", "127.0.0.1:9", "--timeout", "0.5").document
    assert (found["workers"], found["fleet"]["whole"]) == ([], False)
    (why,) = found["fleet"]["missing"]
    assert why.startswith("it is not known which stores and keys there are: ")


def test_a_store_that_is_not_there_is_said(cli: Cli) -> None:
    for words in (("--once",), ()):
        assert cli.refused("top", *words, "--every", "0.2", "--store", "nowhere") == "there is no store 'nowhere'"


async def test_it_goes_on_until_ctrl_c(bench: Bench) -> None:
    await bench.create()
    await bench.fill(3)
    await bench.worker("a")
    watch = bench.cli.start("top", "--json", "--every", "0.2", "--store", bench.store)
    try:
        await until(lambda: len(list(watch.log)) > 2)
        watch.signal(signal.SIGINT)
        assert await asyncio.to_thread(watch.wait) == 0
    finally:
        watch.kill()
    last = json.loads(list(watch.log)[-1])
    assert [each["id"] for each in last["workers"]] == [f"{bench.store}-a"]
    assert last["fleet"]["whole"]
