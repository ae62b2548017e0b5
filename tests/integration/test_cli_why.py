"""``ringcast why``: where it says that a row is stuck, of real workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ringcast import Change, PoisonPolicy
from ringcast_testkit import PATIENCE_S, until

from tests.integration.cli_process import Cli, Servers
from tests.integration.worker_bench import PARTITIONS, Bench, worker_bench


@pytest.fixture
async def bench(servers: Servers, cli: Cli, store_name: str) -> AsyncIterator[Bench]:
    async with worker_bench(servers, cli, store_name) as made:
        await made.create()
        yield made


async def _why(bench: Bench, row_id: str, *words: object) -> dict[str, Any]:
    return await bench.told("why", bench.store, "list", row_id, *words)


async def _lines(bench: Bench, row_id: str) -> list[str]:
    found = await asyncio.to_thread(bench.cli.ok, "why", bench.store, "list", row_id)
    return found.out.splitlines()


async def test_a_row_that_is_applied_then_deleted_then_unknown(bench: Bench) -> None:
    worker = await bench.worker("a")
    for _ in range(2):
        written = await bench.client.put(bench.store, "list", "row", "value")
    await worker.wait_until("list", lambda: _version(worker.get("list", "row")) == written.version)
    words = ("why", bench.store, "list", "row")
    found = await bench.told_until(lambda why: why["conclusion"]["place"] == "nowhere", *words)
    worker_id = worker.config.worker_id
    assert found["conclusion"]["sentence"] == f"applied by {worker_id} at revision 2: nothing is stuck"
    assert (found["stored"]["version"], found["published"], found["owner"]) == (2, 2, worker_id)
    lines = await _lines(bench, "row")
    assert lines[0].startswith("stored     revision 2, written ")
    assert lines[1] == f"published  partition {written.partition} up to revision 2"
    assert lines[-1] == found["conclusion"]["sentence"]

    await bench.client.delete(bench.store, "list", "row")
    found = await bench.told_until(lambda why: why["conclusion"]["place"] == "no_row", *words)
    assert found["conclusion"]["sentence"].startswith("no such row: deleted at revision 3 by host:127.0.0.1, applied")
    assert (await _lines(bench, "other"))[-1].startswith("no such row: it was never written")


async def test_a_handler_that_does_not_return(bench: Bench) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handler(change: Change) -> None:
        begun.set()
        await gate.wait()

    worker = await bench.worker("a", handler)
    await bench.client.put(bench.store, "list", "row", "value")
    await begun.wait()
    found = (await _why(bench, "row"))["conclusion"]
    gate.set()
    assert (found["place"], found["worker_id"]) == ("handler", worker.config.worker_id)
    assert f"{worker.config.worker_id} has a handler call of row row that runs for " in found["sentence"]


@pytest.mark.parametrize("policy", [PoisonPolicy.BLOCK, PoisonPolicy.DEAD_LETTER])
async def test_a_row_that_its_handler_does_not_take(bench: Bench, policy: PoisonPolicy) -> None:
    async def handler(change: Change) -> None:
        raise ValueError("not this one")

    worker = await bench.worker("a", handler, handler_tries=1, poison_policy=policy)
    await bench.client.put(bench.store, "list", "row", "value")
    place = "blocked" if policy is PoisonPolicy.BLOCK else "dead_lettered"
    words = ("why", bench.store, "list", "row")
    found = await bench.told_until(lambda why: why["conclusion"]["place"] == place, *words)
    assert found["conclusion"]["worker_id"] == worker.config.worker_id
    (told,) = found["workers"]
    assert (told["row"]["failed_version"], told["row"]["error"]) == (1, "ValueError('not this one')")
    assert "ValueError('not this one')" in (await _lines(bench, "row"))[-1]


async def test_a_worker_that_is_halted(bench: Bench) -> None:
    other = await bench.worker("a")
    with bench.process("halted") as process:
        await until(lambda: len(other.owned("list")) < PARTITIONS)
        process.pause()
        row_id = await _row_of_another(bench, other.owned("list"))
        found = await _why(bench, row_id, "--patience", 0.3)
    sentence = f"{process.worker_id}, which owns partition {found['partition']}, does not answer: see whether process "
    assert found["conclusion"]["sentence"].startswith(sentence)
    assert (found["conclusion"]["place"], found["silent"]) == ("worker", [process.worker_id])


async def test_no_worker(bench: Bench) -> None:
    written = await bench.client.put(bench.store, "list", "row", "value")
    words = ("why", bench.store, "list", "row")
    found = await bench.told_until(lambda why: why["published"] == 1, *words)
    sentence = f"no worker owns partition {written.partition}: start a worker of key list"
    assert found["conclusion"] == {"place": "owner", "sentence": sentence, "worker_id": None}


async def test_a_service_or_nats_that_is_away(bench: Bench) -> None:
    await bench.client.put(bench.store, "list", "row", "value")
    assert (await _why(bench, "row", "--service", "127.0.0.1:1"))["conclusion"]["place"] == "service"
    found = await _why(bench, "row", "--servers", "nats://127.0.0.1:1")
    assert (found["conclusion"]["place"], found["stored"]["version"]) == ("nats", 1)
    words = ("why", bench.store, "list", "row", "--service", "127.0.0.1:1", "--servers", "nats://127.0.0.1:1")
    assert "can't be reached" in await asyncio.to_thread(bench.cli.refused, *words)


async def test_the_release_that_a_row_came_by(bench: Bench, tmp_path: Path) -> None:
    taken: list[tuple[str, int]] = []

    async def handler(change: Change) -> None:
        taken.append((change.row_id, change.release))

    worker = await bench.worker("a", handler)
    written = await bench.client.put(bench.store, "list", "row", "value")
    await worker.wait_for("list", written.partition, written.version)
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\nrow,other\n")
    staged = ("release", "stage", bench.store, "--key", f"list={file}")
    await asyncio.to_thread(bench.cli.ok, *staged)
    found = await _why(bench, "row")
    assert (found["release"], found["awaited_releases"][0]["number"]) == (None, 1)
    assert (await _lines(bench, "row"))[1] == "release    1, staged: it has not changed the row yet"

    await bench.client.publish_release(bench.store, 1)
    words = ("why", bench.store, "list", "row")
    found = await bench.told_until(
        lambda why: why["stored"]["version"] == 2 and why["conclusion"]["place"] == "nowhere", *words
    )
    assert (found["release"]["number"], found["awaited_releases"]) == (1, [])
    assert found["workers"][0]["row"]["release"] == 1
    assert taken == [("row", 0), ("row", 1)]
    await bench.client.wait_for_release(bench.store, 1, timeout_s=PATIENCE_S)
    assert (await _lines(bench, "row"))[1] == "release    1, published, proven"

    await bench.client.undo_release(bench.store, 1)
    found = await bench.told_until(
        lambda why: why["stored"]["version"] == 3 and why["conclusion"]["place"] == "nowhere", *words
    )
    assert found["workers"][0]["row"]["release"] == 0
    assert (await _lines(bench, "row"))[1] == "release    1, undone by this write"
    await bench.client.put(bench.store, "list", "row", "newer")
    assert (await _why(bench, "row"))["release"] is None


def test_a_key_that_is_not_there_is_refused(cli: Cli, store: str) -> None:
    assert "has no config key" in cli.refused("why", store, "nothing", "row")
    assert "there is no store" in cli.refused("why", "nowhere", "list", "row")


def _version(row: Any) -> int:
    return 0 if row is None else row.version


async def _row_of_another(bench: Bench, partitions: frozenset[int]) -> str:
    """A row that is written now, in none of these partitions."""
    for number in range(100):
        written = await bench.client.put(bench.store, "list", f"row{number}", "value")
        if written.partition not in partitions:
            return f"row{number}"
    raise AssertionError("100 rows are all in partitions of one worker")
