"""``ringcast dead-letters`` against real servers, and workers that give changes up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ringcast import Change, PoisonPolicy, Worker
from ringcast_testkit import PATIENCE_S

from tests.integration.cli_process import Cli, Result, Servers


@pytest.fixture
def store(cli: Cli, store_name: str) -> str:
    cli.ok("store", "create", store_name, "--partitions", 4)
    return store_name


class Picky:
    """A handler that refuses what it is told to refuse."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.took: list[tuple[str, str | None, int]] = []

    def __call__(self, change: Change) -> None:
        if change.row_id in self.refused:
            raise ValueError(f"not {change.row_id}")
        self.took.append((change.row_id, change.value, change.version))


@asynccontextmanager
async def following(servers: Servers, store: str, handler: Picky, **settings: Any) -> AsyncIterator[Worker]:
    """A worker of the key `list` that has what it owns."""
    settings = {
        "worker_id": f"{store}-w",
        "keys": ["list"],
        "handler_tries": 1,
        "poison_policy": PoisonPolicy.DEAD_LETTER,
        **settings,
    }
    async with Worker(servers=servers.nats.url, store=store, handler=handler, **settings) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        yield worker


async def ok(cli: Cli, *words: object) -> Result:
    return await asyncio.to_thread(cli.ok, "dead-letters", *words)


async def test_what_a_worker_gave_up_is_listed_and_discarded(servers: Servers, cli: Cli, store: str) -> None:
    for row_id in ("a", "b", "fine"):
        await asyncio.to_thread(cli.ok, "put", store, "list", row_id, f"value of {row_id}", "-m", "by=desk")
    async with following(servers, store, Picky("a", "b", "c\x1b[0m")) as worker:
        first = (await ok(cli, "list", store, "--json")).documents
        assert sorted(letter["row_id"] for letter in first) == ["a", "b"]
        await asyncio.to_thread(cli.ok, "put", store, "list", "c\x1b[0m", "3")
        await asyncio.to_thread(cli.ok, "delete", store, "list", "a")
        await worker.wait_until("list", lambda: worker.stats().dead_letters == 4, timeout_s=PATIENCE_S)
    listed = (await ok(cli, "list", store, "--json", "--values", "--oldest")).documents
    assert [letter["number"] for letter in listed] == [1, 2, 3, 4]
    last = listed[3]
    assert (last["row_id"], last["deleted"], last["value"]) == ("a", True, None)
    assert (last["error"], last["worker_id"], last["group"]) == ("ValueError('not a')", f"{store}-w", "")
    assert (last["tries"], last["replays"], last["unreadable"]) == (1, 0, "")
    (of_b,) = (letter for letter in listed if letter["row_id"] == "b")
    assert (of_b["value"], of_b["metadata"]) == ("value of b", {"by": "desk"})

    table = (await ok(cli, "list", store)).out
    heading, _, *lines = table.splitlines()
    assert heading.split() == [
        "number", "time", "key", "row", "partition", "revision", "owner", "tries", "replays", "error",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines] == ["4", "3", "2", "1"]
    assert "a (deleted)" in lines[0]
    assert "c\\x1b[0m" in lines[1]
    assert "ValueError('not b')" in table
    row = (await ok(cli, "list", store, "--key", "list", "--row", "a", "--since", "1h", "--json")).documents
    assert [letter["row_id"] for letter in row] == ["a", "a"]

    def discard() -> None:
        group = ("dead-letters", "discard", store)
        assert cli.ok(*group, 1, 1, 77).out == "1 dead letters are discarded, 1 were not there\n"
        asked = cli(*group, "--key", "list", stdin="2\n")
        assert (asked.code, left()) == (1, 3)
        assert "Discards 3 dead letters of" in asked.err
        assert "not confirmed: nothing is discarded" in asked.err
        assert cli.ok(*group, 4, "--json").document == {"store": store, "discarded": 1, "not_there": 0}
        assert cli.ok(*group, "--all", stdin="2\n").out == "2 dead letters are discarded\n"
        assert cli.ok("dead-letters", "list", store).out == "no dead letters\n"

    def left() -> int:
        return len(cli.ok("dead-letters", "list", store, "--json").documents)

    await asyncio.to_thread(discard)


async def test_rows_are_replayed(servers: Servers, cli: Cli, store: str) -> None:
    handler = Picky("a", "b", "c")
    async with following(servers, store, handler) as worker:
        for row_id in ("a", "b", "c"):
            await asyncio.to_thread(cli.ok, "put", store, "list", row_id, "1")
        await worker.wait_until("list", lambda: worker.stats().dead_letters == 3, timeout_s=PATIENCE_S)
        planned = (await ok(cli, "replay", store, "--key", "list", "--max", 2, "--dry-run")).out.splitlines()
        assert planned[-1] == "2 would be replayed; there are more than 2 (--max)"
        assert len(planned) == 5
        assert handler.took == []
        handler.refused = {"b"}

        def replay(*words: object) -> Result:
            return cli("dead-letters", "replay", store, *words)

        done = await asyncio.to_thread(replay, "--all")
        assert (done.code, done.err) == (1, "")
        *lines, total = done.out.splitlines()
        assert set(total.split(", ")) == {"2 handled", "1 failed again"}
        by_row = {line.split("\t")[2]: line.split("\t") for line in lines}
        of_a = f"handled at version {worker.get('list', 'a').version} by {store}-w"  # type: ignore[union-attr]
        assert by_row["a"][1:] == ["list", "a", of_a]
        assert by_row["b"][3].endswith(": ValueError('not b')")
        (left,) = (await ok(cli, "list", store, "--json")).documents
        assert (left["row_id"], left["replays"], left["number"]) == ("b", 1, 4)
        handler.refused.clear()
        result = (await ok(cli, "replay", store, 4, "--json")).document
        assert (result["number"], result["outcome"], result["worker_id"]) == (4, "handled", f"{store}-w")
    assert sorted(row_id for row_id, _, _ in handler.took) == ["a", "b", "c"]
