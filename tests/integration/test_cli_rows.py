"""``ringcast store|put|get|delete|list|history`` against real servers: results, JSON, exit codes, sentences."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.integration.cli_process import COMMAND, Cli


def test_a_new_history(cli: Cli, store: str) -> None:
    before = cli.ok("store", "show", store, "--json").document["history_id"]
    assert before in cli.ok("store", "show", store).out
    after = cli.ok("store", "new-history", store, "--json").document["history_id"]
    assert after != before
    assert cli.ok("store", "show", store, "--json").document["history_id"] == after
    assert cli.refused("store", "new-history", "none") == "there is no store 'none'"


def test_stores(cli: Cli, store_name: str) -> None:
    made = cli.ok("store", "create", store_name, "--partitions", 4, "--mode", "full", "--strategy", "ring", "--json")
    assert made.document["partition_count"] == 4
    assert (made.document["mode"], made.document["strategy"]) == ("FULL", "ring")
    assert cli.ok("store", "create", store_name, "--partitions", 4, "--mode", "FULL", "--strategy", "ring").code == 0
    cli.ok("put", store_name, "list", "a", "value")
    shown = cli.ok("store", "show", store_name)
    assert "partitions  4" in shown.out
    assert "list" in shown.out
    assert cli.ok("--json", "store", "show", store_name).document["keys"] == [
        {"name": "list", "rows": 1, "bytes": 6, "deletion": None}
    ]
    listed = {store["name"]: store for store in cli.ok("store", "list", "--json").documents}
    assert listed[store_name]["mode"] == "FULL"
    assert store_name in cli.ok("store", "list").out
    assert cli.refused("store", "create", store_name, "--partitions", 5, "--mode", "full", "--strategy", "ring") == (
        f"store '{store_name}' exists with partition_count 4: it can't be created with partition_count 5"
    )


def test_roles(cli: Cli) -> None:
    """All other tests here go on as an admin of all stores."""
    me = "host:127.0.0.1"
    assert cli.ok("whoami").out == f"{me}\n"
    assert cli.ok("whoami", "--json").document == {
        "principal": me,
        "roles": [],
        "unrestricted": True,
        "groups": [],
        "expires_at_ms": 0,
    }
    first = "the first role has to be admin of the store '*', or nobody could grant another"
    assert cli.refused("role", "grant", "gateway", "writer", "deploy") == first
    assert cli.ok("role", "grant", "*", "admin", me).out == f"admin of * for {me}: granted\n"
    assert cli.ok("role", "grant", "gateway", "writer", "deploy", "--json").document == {
        "store": "gateway",
        "role": "writer",
        "principal": "deploy",
        "changed": True,
    }
    again = cli.ok("role", "grant", "gateway", "writer", "deploy").out
    assert again == "writer of gateway for deploy: not granted: it had it before\n"
    assert cli.ok("whoami").out == f"{me}\nadmin\tof *\n"
    assert "deploy" in cli.ok("role", "list").out
    (listed,) = cli.ok("role", "list", "gateway", "--principal", "deploy", "--json").documents
    assert (listed["role"], listed["granted_by"]) == ("writer", me)
    assert cli.ok("role", "revoke", "gateway", "writer", "deploy").out == "writer of gateway for deploy: revoked\n"
    assert cli("role", "revoke", "gateway", "writer", "deploy").code == 1
    assert "is the last admin of the store '*'" in cli.refused("role", "revoke", "*", "admin", me)


def test_the_audit_log(cli: Cli, store_name: str, tmp_path: Path) -> None:
    cli.ok("store", "create", store_name, "--partitions", 4, "--reason", "a new app")
    cli.ok("put", store_name, "k", "a", "secret", "--reason", "TICKET-1")
    listed = cli.ok("audit", "list", store_name).out.splitlines()
    assert ["\tWriteRows\t" in listed[0], "\tCreateStore\t" in listed[1]] == [True, True]
    assert listed[0].endswith("\tTICKET-1")
    assert "host:127.0.0.1" in listed[0]
    assert "secret" not in cli.ok("audit", "list", "--oldest", "--since", "1h").out
    (made,) = cli.ok("audit", "list", store_name, "--action", "CreateStore", "--json").documents
    assert (made["reason"], made["outcome"], made["store"]) == ("a new app", "done", store_name)
    file = tmp_path / "audit.jsonl"
    cli.ok("audit", "export", "--output", file)
    lines = file.read_text().splitlines()
    whole = cli.ok("audit", "verify", "--json").document
    assert (whole["checked"], whole["problem"]) == (len(lines), "")
    assert cli.ok("audit", "verify", "--file", file, "--anchor", whole["at"]).out.splitlines()[1].endswith(whole["at"])
    assert cli.ok("audit", "verify", "--anchor", whole["at"]).code == 0
    file.write_text("\n".join([*lines[:-1], lines[-1].replace("TICKET-1", "TICKET-2")]))
    changed = cli("audit", "verify", "--file", file)
    assert (changed.code, "does not fit the one before it" in changed.err) == (1, True)
    file.write_text("\n".join(lines[:-1]))
    assert cli("audit", "verify", "--file", file).code == 0
    assert "of the anchor is missing" in cli("audit", "verify", "--file", file, "--anchor", whole["at"]).err
    file.write_text("\n".join(lines[1:]))
    assert cli("audit", "verify", "--file", file).code == 0
    file.write_text("no entry")
    assert "line 1 is no entry of an audit log" in cli("audit", "verify", "--file", file).err
    assert "is not SEQ:HASH" in cli("audit", "verify", "--anchor", "7").err


def test_tokens_that_are_revoked(cli: Cli) -> None:
    assert cli.ok("token", "revoke", "--digest", f"sha256:{'a' * 64}").out == "1 tokens revoked\n"
    again = cli("token", "revoke", "--digest", "a" * 64)
    assert (again.code, again.out) == (1, "nothing revoked: they were revoked before\n")
    assert "has no token in this instance's file" in cli.refused("token", "revoke", "deploy")
    assert "one of principal and digest is needed" in cli("token", "revoke").err


def test_what_a_store_allows_is_set_and_shown(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "one")
    set_now = cli.ok("store", "policy", "set", store, "--max-rows", 1, "--releases-only", "--history-retention", "30d")
    shown = cli.ok("store", "policy", "show", store).out
    assert shown == set_now.out
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines()[2:]}
    assert shown.startswith(f"policies of {store}\n")
    assert (lines["max-rows"], lines["max-keys"]) == (["1", "1"], ["none", "1"])
    assert (lines["releases-only"], lines["history-retention"]) == (["yes"], ["30d"])
    cli.ok("store", "policy", "set", store, "--no-releases-only", "--history-retention", "none")
    found = cli.ok("store", "policy", "show", store, "--json").document
    assert (found["name"], found["rows"], found["keys"]) == (store, 1, 1)
    assert {name: value for name, value in found["policy"].items() if value is not None} == {"max_rows": 1}
    assert "max_rows" in cli.refused("put", store, "list", "b", "two")
    assert cli("store", "policy", "set", store).code == 2
    assert cli.refused("store", "policy", "show", "none-such") == "there is no store 'none-such'"


def test_a_row_from_put_to_delete(cli: Cli, store: str) -> None:
    put = cli.ok("put", store, "list", "a", "one", "-m", "why=test", "-m", "by=me=you", "--json").document
    assert (put["row_id"], put["version"]) == ("a", 1)
    assert cli.ok("put", store, "list", "a", "two\nlines").out == f"a is at version 2 of partition {put['partition']}\n"
    assert cli.ok("get", store, "list", "a").out == "two\nlines\n", "a value alone is printed as it is"
    (got,) = cli.ok("get", store, "list", "a", "--json").documents
    assert (got["value"], got["version"], got["deleted"], got["metadata"]) == ("two\nlines", 2, False, {})
    assert cli.ok("list", store, "list").out == "a\ttwo\\nlines\n", "and in a list on one line"
    long = cli.ok("list", store, "list", "--long").out
    assert long == f"{put['partition']}\t2\ta\ttwo\\nlines\n"
    assert cli.ok("delete", store, "list", "a", "--json").document["existed"] is True
    assert cli.ok("list", store, "list").out == ""
    assert cli.ok("list", store, "list", "--deleted").out == "a\t(deleted)\n"
    history = cli.ok("history", store, "list", "a", "--json").documents
    assert [(row["version"], row["value"], row["deleted"], row["metadata"]) for row in history] == [
        (1, "one", False, {"why": "test", "by": "me=you"}),
        (2, "two\nlines", False, {}),
        (3, "", True, {}),
    ]
    assert [line.split("\t")[2:] for line in cli.ok("history", store, "list", "--since", 1).out.splitlines()] == [
        ["2", "a", "two\\nlines", "host:127.0.0.1"],
        ["3", "a", "(deleted)", "host:127.0.0.1"],
    ]


def test_the_history_has_author_and_reason(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"row_id": "b", "value": "1"}\n')
    commit = tmp_path / "commit.jsonl"
    commit.write_text('{"key": "list", "row_id": "c", "value": "1"}\n')
    cli.ok("put", store, "list", "a", "1", "--reason", "by put")
    cli.ok("delete", store, "list", "a", "--reason", "by delete")
    cli.ok("import", store, "list", file, "--reason", "by import")
    cli.ok("commit", store, commit, "--reason", "by commit")
    cli.ok("sync", store, "list", file, "--reason", "by sync", "--max-delete-share", "1")
    found = cli.ok("history", store, "list", "--json").documents
    assert {(row["row_id"], row["deleted"], row["author"], row["reason"]) for row in found} == {
        ("a", False, "host:127.0.0.1", "by put"),
        ("a", True, "host:127.0.0.1", "by delete"),
        ("b", False, "host:127.0.0.1", "by import"),
        ("c", False, "host:127.0.0.1", "by commit"),
        ("c", True, "host:127.0.0.1", "by sync"),
    }
    assert cli.ok("history", store, "list", "b").out.split("\t")[3:] == ["b", "1", "host:127.0.0.1", "by import\n"]
    assert cli.refused("put", store, "list", "a", "1", "--reason", "x" * 513).endswith(
        "has 513 bytes: at most 512 are allowed"
    )


def test_conditions_and_repeats(cli: Cli, store: str) -> None:
    put = cli.ok("put", store, "list", "a", "1", "--if-absent", "--json").document
    place = f"{store}/list has row 'a' at version {put['version']}"
    assert cli.refused("put", store, "list", "a", "2", "--if-absent") == (
        f"{place}: no row was expected, nothing was written"
    )
    assert cli.refused("delete", store, "list", "a", "--if-version", 9) == (
        f"{place}: version 9 was expected, nothing was written"
    )
    wrong = cli.refused("put", store, "list", "a", "2", "--if-absent", "--if-version", 1)
    assert wrong == "if_version and if_absent are both given: a write takes one of them"
    repeated = ("put", store, "list", "a", "2", "--if-version", put["version"], "--idempotency-key", "once")
    assert cli.ok(*repeated).out == cli.ok(*repeated).out
    assert cli.refused("put", store, "list", "a", "3", "--idempotency-key", "once") == (
        f"idempotency_key 'once' was used in store '{store}' for another write: nothing was written"
    )
    gone = ("delete", store, "list", "a", "--idempotency-key", "gone", "--json")
    assert cli.ok(*gone).document == cli.ok(*gone).document


def test_rows_of_several_keys(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [
        {"key": "x", "row_id": "a", "value": "1", "if_absent": True},
        {"key": "y", "row_id": "a", "value": "2", "metadata": {"by": "me"}},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    done = cli.ok("commit", store, file, "--json", "--idempotency-key", "c").documents
    assert [(row["key"], row["row_id"], row["version"]) for row in done] == [("x", "a", 1), ("y", "a", 1)]
    assert cli.ok("commit", store, file, "--json", "--idempotency-key", "c").documents == done
    assert cli.refused("commit", store, file) == (
        f"{store}/x has row 'a' at version 1: no row was expected, nothing was written"
    )
    assert cli.ok("commit", store, "-", stdin='{"key": "y", "row_id": "a", "deleted": true}').out.startswith(
        "y\ta\tdeleted at version 2"
    )
    for text, said in (
        ("", "writes 0 is out of range: 1 to 1000 is allowed"),
        ("{}", "line 1: Object missing required field `key`"),
        ('{"key": "k", "row_id": "a"}', "line 1: either value or deleted is needed"),
        ('{"key": "k", "row_id": "a", "value": "1", "valeu": 1}', "line 1: Object contains unknown field `valeu`"),
        ('{"key": "k", "row_id": "a", "value": "1"}\n' * 1_001, "the file has more than 1000 rows"),
    ):
        assert cli.refused("commit", store, "-", stdin=text) == said


def test_an_import_is_repeated_by_its_job(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("a\nb\n")
    job = ("import", store, "list", file, "--job-id", "night")
    assert cli.ok(*job).out.endswith("2 written, 0 deleted, 0 unchanged, 0 skipped\n")
    cli.ok("delete", store, "list", "a")
    assert cli.ok(*job).out.endswith("2 written, 0 deleted, 0 unchanged, 0 skipped\n"), "what the first one reported"
    assert cli.ok("list", store, "list").out == "b\t\n"


def test_a_value_from_a_file_or_standard_input(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "value.txt"
    file.write_text("from a file ✓")
    cli.ok("put", store, "list", "a", "--file", file)
    cli.ok("put", store, "list", "b", "--file", "-", stdin="from a pipe")
    assert cli.ok("get", store, "list", "b", "a").out == "b\tfrom a pipe\na\tfrom a file ✓\n"
    file.write_bytes(b"caf\xe9")
    assert cli.refused("put", store, "list", "a", "--file", file) == (
        "value is not text: byte 0xe9 at offset 3 is not valid UTF-8"
    )
    file.write_bytes(b"x" * 1_048_577)
    assert cli.refused("put", store, "list", "a", "--file", file) == "value is too large: the limit is 1048576 bytes"
    assert cli.ok("get", store, "list", "a").out == "from a file ✓\n"


def test_rows_that_are_not_there(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1")
    result = cli("get", store, "list", "a", "b", "c")
    assert (result.code, result.out) == (1, "a\t1\n")
    assert result.err.splitlines() == [f"ringcast: row '{row}' is not in {store}/list" for row in "bc"]
    assert cli.refused("delete", store, "list", "b") == f"row 'b' is not in {store}/list: nothing was deleted"


def test_what_is_unknown(cli: Cli, store: str) -> None:
    for words in (
        ("put", "nowhere", "list", "a", "1"),
        ("get", "nowhere", "list", "a"),
        ("list", "nowhere", "list"),
        ("history", "nowhere", "list"),
        ("delete", "nowhere", "list", "a"),
        ("store", "show", "nowhere"),
        ("topology", "nowhere"),
    ):
        assert "store 'nowhere'" in cli.refused(*words), words
    for words in (
        ("get", store, "never", "a"),
        ("list", store, "never"),
        ("history", store, "never"),
        ("delete", store, "never", "a"),
    ):
        assert "key 'never'" in cli.refused(*words), words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("store", "create", "no spaces"), "store 'no spaces' is not a valid name: 1 to 64 characters of"),
        (("store", "create", "x" * 65), "is not a valid name: 1 to 64 characters"),
        (("store", "create", "s", "--partitions", 0), "partition_count 0 is out of range: 1 to 4096 partitions"),
        (("store", "create", "s", "--partitions", 4097), "partition_count 4097 is out of range: 1 to 4096"),
        (("store", "create", "s", "--inline-max-bytes", 4097), "inline_max_bytes 4097 is out of range: 0 to 4096"),
        (("put", "s", "no/slash", "a", "1"), "key 'no/slash' is not a valid name"),
        (("put", "s", "k", "", "1"), "row_id '' has 0 bytes: 1 to 512 bytes of UTF-8 are allowed"),
        (("put", "s", "k", "ü" * 300, "1"), "has 600 bytes: 1 to 512 bytes"),
        (("put", "s", "k", "a", "1", "-m", "m=" + "x" * 16_384), "metadata has 16385 bytes: at most 16384 are allowed"),
        (("list", "s", "k", "--partition", -1), "partition -1 is out of range: the store has partitions 0 to 4095"),
    ],
)
def test_bad_input_gets_one_sentence(cli: Cli, words: tuple[object, ...], said: str) -> None:
    assert said in cli.refused(*words)


def test_an_argument_that_is_not_text(cli: Cli, store: str) -> None:
    assert "row_id" in cli.refused("put", store, "list", b"\xff".decode("utf-8", "surrogateescape"), "1")
    assert "list" not in cli.ok("store", "show", store, "--json").out, "nothing was written, not even the key"


def test_errors_as_json(cli: Cli) -> None:
    result = cli("store", "create", "s", "--partitions", 0, "--json")
    assert (result.code, result.out) == (1, "")
    error = json.loads(result.err)["error"]
    assert (error["code"], error["field"]) == ("INVALID_INPUT", "partition_count")
    assert error["message"].startswith("partition_count 0 is out of range")
    assert json.loads(cli("list", "nowhere", "k", "--json").err)["error"]["code"] == "UNKNOWN_STORE"


def test_servers_that_are_down(tmp_path: Path) -> None:
    cli = Cli(tmp_path, service="127.0.0.1:1", servers="nats://127.0.0.1:1")
    for words in (("store", "list"), ("put", "s", "k", "a", "1"), ("list", "s", "k"), ("get", "s", "k", "a")):
        assert cli.refused(*words) == "config service 127.0.0.1:1 can't be reached: connection refused"
    assert cli.refused("topology", "s") == "NATS at nats://127.0.0.1:1 can't be reached: connection refused"


def test_a_reader_that_has_had_enough(cli: Cli, store: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text("".join(f"{number:050}\n" for number in range(20_000)))
    cli.ok("import", store, "list", rows)
    with subprocess.Popen([*COMMAND, "list", store, "list"], stdout=PIPE, stderr=PIPE, env=cli.env) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        assert len(listing.stdout.readline()) == 52
        listing.stdout.close()
        assert listing.stderr.read() == b""
        assert listing.wait(30) == 0
