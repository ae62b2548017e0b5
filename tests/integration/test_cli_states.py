"""``ringcast list --as-of-…`` and ``ringcast diff`` against real servers: results, JSON, exit codes, sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ringcast_testkit import until

from tests.integration.cli_process import Cli, Servers


def _publish(cli: Cli, store: str, directory: Path, rows: dict[str, str]) -> None:
    """Publishes what makes the key `list` equal to these rows."""
    file = directory / "rows.csv"
    file.write_text("row_id,value\n" + "".join(f"{row_id},{value}\n" for row_id, value in rows.items()))
    staged = cli.ok("release", "stage", store, "--key", f"list={file}", "--max-delete-share", 1, "--json")
    cli.ok("release", "publish", store, staged.document["release"]["number"])


async def _moment(cli: Cli, store: str) -> str:
    """That of the newest write; the next one will be of another millisecond."""
    newest_ms = max(row["written_at_ms"] for row in cli.ok("history", store, "list", "--json").documents)
    await until(lambda: time.time() * 1000 > newest_ms + 1)
    return datetime.fromtimestamp(newest_ms / 1000, UTC).isoformat()


@pytest.fixture(params=["partitioned", "full"])
def either_store(cli: Cli, store_name: str, request: pytest.FixtureRequest) -> str:
    """A store of either mode."""
    while cli("store", "create", store_name, "--partitions", 4, "--mode", request.param).code:
        pass  # on a busy machine NATS may not make the streams in time
    return store_name


async def test_states_of_a_key(cli: Cli, either_store: str, tmp_path: Path) -> None:
    store = either_store
    _publish(cli, store, tmp_path, {"a": "1", "b": "1", "c": "1"})
    cli.ok("put", store, "list", "direct", "x\ty", "-m", "by=me")
    at = await _moment(cli, store)
    _publish(cli, store, tmp_path, {"a": "2", "c": "1", "d": "2"})
    cli.ok("put", store, "list", "c", "1", "-m", "by=you")
    first, second, then = {"a": "1", "b": "1", "c": "1"}, {"a": "2", "c": "1", "d": "2"}, {"direct": "x\ty"}

    def rows(*words: object) -> dict[str, str]:
        return {row["row_id"]: row["value"] for row in cli.ok("list", store, "list", "--json", *words).documents}

    assert rows("--as-of-release", 1) == first
    assert rows("--as-of-release", 2) == second
    assert rows("--as-of-time", at) == first | then
    by_partition = [rows("--as-of-time", at, "--partition", one) for one in range(4)]
    assert {row: value for part in by_partition for row, value in part.items()} == first | then
    long = cli.ok("list", store, "list", "--as-of-time", at, "--long").out.splitlines()
    assert [line.split("\t")[2:] for line in long if "direct" in line] == [["direct", "x\\ty", "by=me"]]
    assert len(cli.ok("list", store, "list", "--as-of-release", 1, "--limit", 2).out.splitlines()) == 2

    def lines(*words: object) -> list[str]:
        return sorted(cli.ok("diff", store, "list", *words).out.splitlines())

    assert lines("--from", 1, "--to", 2) == ["+ d: 2", "- b: 1", "~ a: 1 -> 2"]
    assert lines("--from", 2, "--to", 1) == ["+ b: 1", "- d: 2", "~ a: 2 -> 1"]
    assert lines("--from", at, "--to", 1) == ["- direct: x\\ty (by=me)"]
    assert lines("--from", 2) == lines("--from", 2, "--to", "now") == ["~ c: 1 ( -> by=you)"]
    assert lines("--from", 2, "--to", 2) == []
    assert len(lines("--from", 1, "--to", 2, "--limit", 2)) == 2
    found = {one["row_id"]: one for one in cli.ok("diff", store, "list", "--from", 1, "--to", 2, "--json").documents}
    assert {name: one["kind"] for name, one in found.items()} == {"a": "changed", "b": "deleted", "d": "added"}
    assert (found["a"]["before"]["value"], found["a"]["after"]["value"]) == ("1", "2")
    assert found["b"]["after"] is None
    assert found["d"]["before"] is None
    assert {found["a"]["partition"]} == {found["a"][state]["partition"] for state in ("before", "after")}
    cli.ok("release", "undo", store, 2)
    assert rows("--as-of-release", 2) == second
    assert lines("--from", at) == ["~ c: 1 ( -> by=you)"], "the undo has left what another client wrote"


def test_what_is_refused(cli: Cli, store: str, tmp_path: Path) -> None:
    cli.ok("put", store, "list", "a", "1")
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\na,2\n")
    cli.ok("release", "stage", store, "--key", f"list={file}")
    what = f"what {store}/list had when release 1 was published can't be read"
    none = "is no state: it must be the number of a release, now, or a time like 30m, 2h, 7d or 2026-11-22T14:30"
    lists: list[tuple[tuple[object, ...], str]] = [
        (("--as-of-release", 9), f"store '{store}' has no release 9"),
        (("--as-of-release", 1), f"{what}: the release is staged"),
        (("--as-of-time", "9999-01-01"), "time 9999-01-01 00:00:00 UTC is still to come: the database's clock says "),
        (("--as-of-time", "2001-01-01"), f"time 2001-01-01 00:00:00 UTC is before store '{store}' was created at "),
        (("--as-of-time", "yesterday"), "as_of_time 'yesterday' is not a time: it must be like 30m, 2h, 7d or "),
        (("--as-of-time", ""), "as_of_time '' is not a time"),
        (("--as-of-time", "99999999d"), "time 1970-01-01 00:00:00 UTC is before store"),
    ]
    for words, said in lists:
        assert cli.refused("list", store, "list", *words).startswith(said)
    diffs: list[tuple[tuple[object, ...], str]] = [
        (("--from", 9), f"store '{store}' has no release 9"),
        (("--from", "now", "--to", 9), f"store '{store}' has no release 9"),
        (("--from", 1), f"{what}: the release is staged"),
        (("--from", "then"), f"from 'then' {none}"),
        (("--from", "-1"), f"from '-1' {none}"),
        (("--from", "now", "--to", ""), f"to '' {none}"),
        (("--from", "9" * 19), f"from '{'9' * 19}' {none}"),
        (("--from", "now", "--partition", 8), "partition 8"),
    ]
    for words, said in diffs:
        assert cli.refused("diff", store, "list", *words).startswith(said)
    assert cli.refused("diff", store, "none", "--from", "now") == f"store '{store}' has no config key 'none'"
    cli.ok("store", "create", f"{store}-2", "--partitions", 8)
    cli.ok("put", f"{store}-2", "list", "a", "1")
    assert cli.refused("list", f"{store}-2", "list", "--as-of-release", 1) == f"store '{store}-2' has no release 1"
    wrong: list[tuple[object, ...]] = [
        ("list", store, "list", "--as-of-release", 1, "--as-of-time", "2h"),
        ("list", store, "list", "--as-of-release", 1, "--deleted"),
        ("list", store, "list", "--as-of-release", 0),
        ("list", store, "list", "--as-of-release", "last"),
        ("diff", store, "list"),
    ]
    for words in wrong:
        assert cli(*words).code == 2


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A service that forgets revisions at once."""
    options = ("--history-retention", "1s", "--compaction-interval", "1s")
    with Servers(tmp_path_factory.mktemp("forgetful"), *options) as started:
        yield started


async def test_what_the_history_has_no_more_is_refused(forgetful: Servers, store_name: str, tmp_path: Path) -> None:
    cli = forgetful.cli(tmp_path)
    cli.ok("store", "create", store_name, "--partitions", 1)
    _publish(cli, store_name, tmp_path, {"a": "1", "b": "1"})
    at = await _moment(cli, store_name)
    cli.ok("put", store_name, "list", "a", "2")
    await until(lambda: len(cli.ok("history", store_name, "list").out.splitlines()) == 2)
    gone = "can't be read any more: its history goes back to "
    assert gone in cli.refused("list", store_name, "list", "--as-of-time", at)
    for state in (at, "1"):
        assert gone in cli.refused("diff", store_name, "list", "--from", state)
        assert gone in cli.refused("diff", store_name, "list", "--from", "now", "--to", state)
    assert gone in cli.refused("list", store_name, "list", "--as-of-release", 1)
