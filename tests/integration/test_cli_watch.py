"""``ringcast watch`` and ``topology``: real workers, what they hear and what they own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ringcast_core import assign_jump
from ringcast_testkit import ManagedProcess

from tests.integration.cli_process import Cli

PARTITIONS = 16


@pytest.fixture
def store(cli: Cli, store_name: str) -> str:
    cli.ok("store", "create", store_name, "--partitions", PARTITIONS)
    return store_name


@contextmanager
def _watch(cli: Cli, *words: object) -> Iterator[ManagedProcess]:
    process = cli.start("watch", *words)
    try:
        yield process
    finally:
        process.kill()


def _heard(process: ManagedProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in list(process.log) if line.startswith("{")]


def test_the_rows_that_are_there_and_then_each_change(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1", "-m", "m=n")
    cli.ok("put", store, "other", "b", "1")
    with _watch(cli, store, "list", "other", "--json") as watch:
        # Before both are there a row may come with its whole partition, which does not say when it was written.
        watch.wait_until(lambda: len(_heard(watch)) == 2)
        cli.ok("put", store, "other", "b", "2")
        cli.ok("delete", store, "list", "a")
        watch.wait_until(lambda: len(_heard(watch)) == 4)
        watch.signal(signal.SIGINT)
        assert watch.wait() == 0
        heard = _heard(watch)
    (first,) = [row for row in heard[:2] if row["key"] == "list"]
    assert (first["key"], first["row_id"], first["value"], first["metadata"]) == ("list", "a", "1", {"m": "n"})
    by_key = {change["key"]: change for change in heard[2:]}
    assert (by_key["other"]["row_id"], by_key["other"]["value"], by_key["other"]["deleted"]) == ("b", "2", False)
    assert (by_key["list"]["row_id"], by_key["list"]["value"], by_key["list"]["deleted"]) == ("a", None, True)
    assert by_key["other"]["committed_at_ms"] > 0


def test_for_people_without_what_was_there_and_with_an_end(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1")
    with _watch(cli, store, "list", "--skip-initial", "--limit", 2, "--worker-id", "me") as watch:
        watch.wait_until(lambda: "me is ready\n" in watch.log)
        cli.ok("put", store, "list", "b", "two\nlines")
        watch.wait_until(lambda: len(watch.log) == 2)
        cli.ok("delete", store, "list", "a")
        assert watch.wait() == 0
        lines = [line.rstrip("\n").split("\t") for line in watch.log if "\t" in line]
    assert [line[1:2] + line[4:] for line in lines] == [["list", "put", "b", "two\\nlines"], ["list", "delete", "a"]]


def test_who_owns_what(cli: Cli, store: str) -> None:
    assert cli.ok("topology", store).out == f"{store} has no workers\n"
    assert f"store '{store}' has no config key 'list'" in cli.refused("topology", store, "list")
    cli.ok("put", store, "list", "a", "1")
    assert "no workers" in cli.ok("topology", store, "list").out
    with (
        _watch(cli, store, "list", "--worker-id", "one") as one,
        _watch(cli, store, "list", "--worker-id", "two") as two,
    ):
        one.wait_until(lambda: "one is ready\n" in one.log)
        two.wait_until(lambda: "two is ready\n" in two.log)
        (document,) = cli.ok("topology", store, "--json").documents
        assert (document["key"], document["mode"], document["partition_count"]) == ("list", "PARTITIONED", PARTITIONS)
        by_slot = {member["slot"]: member["worker_id"] for member in document["members"]}
        assert sorted(by_slot.values()) == ["one", "two"]
        assert document["owners"] == [by_slot[slot] for slot in assign_jump(PARTITIONS, sorted(by_slot), 1.25)]
        pids = {member["worker_id"]: member["pid"] for member in document["members"]}
        assert pids == {"one": one.pid, "two": two.pid}
        table = cli.ok("topology", store, "list").out
        assert f"{PARTITIONS} of {PARTITIONS} partitions owned" in table
        assert str(one.pid) in table
        one.signal(signal.SIGTERM)
        assert one.wait() == 0
        left = cli.ok("topology", store, "list", "--json").document
        assert set(left["owners"]) == {"two"}


def test_a_key_that_nobody_has_written_to_is_said_and_waited_for(cli: Cli, store: str) -> None:
    with _watch(cli, store, "list", "--limit", 1) as watch:
        watch.wait_until(
            lambda: any(
                f"nothing was ever written to the partitions of {store}/list" in line for line in list(watch.log)
            )
        )
        cli.ok("put", store, "list", "a", "1")
        assert watch.wait() == 0


def test_a_full_store_has_no_owners(cli: Cli, store_name: str) -> None:
    cli.ok("store", "create", store_name, "--mode", "full")
    cli.ok("put", store_name, "list", "a", "1")
    for _ in range(2):
        assert cli.ok("watch", store_name, "list", "--limit", 1, "--json").document["row_id"] == "a"
    assert "every worker holds every partition" in cli.ok("topology", store_name, "list").out


def test_what_is_refused(cli: Cli, store: str, tmp_path: Path) -> None:
    assert "store 'nowhere' does not exist" in cli.refused("watch", "nowhere", "list")
    assert "key 'no spaces' is not a valid name" in cli.refused("watch", store, "no spaces")
    assert "worker_id 'a b' is not a valid name" in cli.refused("watch", store, "list", "--worker-id", "a b")
    assert cli("watch", store).code == 2
    with _watch(cli, store, "list", "--worker-id", "taken") as watch:
        watch.wait_until(lambda: "taken is ready\n" in watch.log)
        said = cli.refused("watch", store, "list", "--worker-id", "taken")
        assert f"worker id 'taken' is in use by process {watch.pid}" in said
    down = Cli(tmp_path, servers="nats://127.0.0.1:1", timeout_s="1")
    assert "NATS at nats://127.0.0.1:1" in down.refused("watch", store, "list")
