"""``ringcast store update|delete|restore`` and ``ringcast key …`` against real servers."""

from __future__ import annotations

import json

from ringcast_testkit import PATIENCE_S

from tests.integration.cli_process import Cli


def test_what_may_change(cli: Cli, store: str) -> None:
    assert "values up to 7 bytes" in cli.ok("store", "update", store, "--inline-max-bytes", 7).out
    assert cli.ok("store", "show", store, "--json").document["inline_max_bytes"] == 7
    said = cli.refused("store", "update", store, "--inline-max-bytes", 5_000)
    assert said == "inline_max_bytes 5000 is out of range: 0 to 4096 is allowed"


def test_a_store_deleted_and_restored(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1")
    said = cli.ok("store", "delete", store, "--yes").out
    assert said.startswith(f"store {store} is deleted; it can be restored until 20")
    for words in (("get", store, "list", "a"), ("put", store, "list", "a", "2"), ("store", "show", store)):
        assert cli.refused(*words).startswith(f"store '{store}' was deleted at 20")
    assert "can be restored until" in cli.refused("store", "create", store, "--partitions", 8)
    error = json.loads(cli("list", store, "list", "--json").err)["error"]
    assert (error["code"], error["field"]) == ("STORE_DELETED", "store")
    assert store not in cli.ok("store", "list").out
    (row,) = [line for line in cli.ok("store", "list", "--deleted").out.splitlines() if store in line]
    assert "+00:00" in row
    cli.ok("store", "restore", store)
    assert cli.ok("get", store, "list", "a").out == "1\n"
    cli.ok("put", store, "list", "a", "2")


def test_a_store_purged_and_created_again(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1")
    assert (
        cli.ok("store", "delete", store, "--yes", "--purge", "--grace", 0).out
        == f"store {store} is purged: its name is free\n"
    )
    assert cli.refused("store", "restore", store) == f"there is no store '{store}'"
    cli.ok("store", "create", store, "--partitions", 4)
    assert cli.ok("key", "list", store, "--deleted", "--json").documents == []
    cli.ok("put", store, "list", "a", "2")
    watched = cli.ok("watch", store, "list", "--limit", 1, "--json").document
    assert (watched["row_id"], watched["value"]) == ("a", "2")


def test_keys(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1")
    cli.ok("put", store, "typo", "a", "1")
    assert cli.ok("key", "delete", store, "typo", "--yes").out.startswith(f"key {store}/typo is deleted; it can be")
    assert [key["name"] for key in cli.ok("key", "list", store, "--json").documents] == ["list"]
    listed = cli.ok("key", "list", store, "--deleted", "--json").documents
    assert [(key["name"], key["deletion"] is None) for key in listed] == [("list", True), ("typo", False)]
    assert cli.refused("put", store, "typo", "a", "2").startswith(f"config key 'typo' of store '{store}' was deleted")
    assert cli.ok("key", "restore", store, "typo").out == f"key {store}/typo is there again, with 1 rows\n"
    cli.ok("put", store, "typo", "a", "2")
    cli.ok("key", "delete", store, "typo", "--yes", "--purge", "--grace", 0)
    assert "has no config key 'typo'" in cli.refused("key", "restore", store, "typo")
    cli.ok("put", store, "typo", "b", "3")
    assert cli.ok("list", store, "typo").out == "b\t3\n"


def test_a_purge_waits_until_workers_have_heard_of_the_deletion(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1")
    watch = cli.start("watch", store, "list", "--json")
    try:
        watch.wait_until(lambda: any(line.startswith("{") for line in list(watch.log)))
        done = cli.ok("key", "delete", store, "list", "--yes", "--purge")
        assert "purging in 15 s, when workers have learned of it" in done.err
        assert watch.wait(PATIENCE_S) == 1
    finally:
        watch.kill()
    assert any(f"config key 'list' of store '{store}' was deleted at" in line for line in watch.log)


def test_a_deletion_is_confirmed(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1")
    for words, typed in ((("store", "delete", store), "y\n"), (("key", "delete", store, "list"), "")):
        result = cli(*words, stdin=typed)
        assert result.code == 1
        assert "not confirmed: nothing is deleted" in result.err
    assert cli.ok("get", store, "list", "a").out == "1\n"
    assert cli.ok("key", "delete", store, "list", stdin="list\n").out.startswith(f"key {store}/list is deleted")
    assert cli.ok("store", "delete", store, stdin=f"{store}\n").out.startswith(f"store {store} is deleted")


def test_what_is_not_there(cli: Cli, store: str) -> None:
    assert cli.refused("store", "delete", "nowhere", "--yes") == "there is no store 'nowhere'"
    assert cli.refused("key", "delete", store, "nothing", "--yes") == f"store '{store}' has no config key 'nothing'"
    assert cli.ok("store", "restore", store).out.startswith("store "), "it is there: nothing to do"
