"""``ringcast schema`` against a real service: what it prints, its exit codes, and what others may do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ringcast_testkit.protoc import descriptor_set
from ringcast_wire import limits

from tests.integration.cli_process import Cli

SMALL = json.dumps({"type": "integer", "maximum": 9})


@pytest.fixture
def store(cli: Cli, store_name: str) -> str:
    cli.ok("store", "create", store_name, "--partitions", 4)
    return store_name


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(SMALL)
    return path


def test_a_schema_from_its_registration_to_its_end(cli: Cli, store: str, small: Path) -> None:
    said = cli.ok("schema", "register", store, "k", small, "--reason", "caps")
    assert said.out == f"version 1 of the schema of {store}/k: enforce\n"
    again = cli.ok("schema", "register", store, "k", "-", "--json", stdin=SMALL).document
    assert (again["version"], again["kind"], again["mode"], again["reason"]) == (1, "json-schema", "enforce", "caps")
    refused = cli("put", store, "k", "a", "10")
    sentence = f"row 'a' of {store}/k breaks version 1 of its schema as a whole (rule /maximum): "
    assert (refused.code, refused.err) == (
        1,
        f"ringcast: {sentence}the value is greater than the maximum of 9: '10'\n",
    )
    cli.ok("put", store, "k", "a", "9")
    assert cli.ok("schema", "mode", store, "k", "off").out == f"version 1 of the schema of {store}/k: off\n"
    cli.ok("put", store, "k", "a", "10")
    found = cli("schema", "mode", store, "k", "enforce")
    assert found.code == 1
    assert f"1 row breaks the schema, so it can't be enforced for {store}/k, nothing is changed: 'a'" in found.err
    shown = cli.ok("schema", "show", store, "k")
    assert shown.out == SMALL + "\n"
    assert shown.err.startswith(f"version 1 of {store}/k: json-schema, off, by ")
    actions = [entry["action"] for entry in cli.ok("audit", "list", store, "--json").documents]
    assert sorted(action for action in actions if "Schema" in action) == ["RegisterSchema", "SetSchemaMode"]


def test_a_check_names_rows_and_changes_nothing(cli: Cli, store: str, small: Path) -> None:
    rows = "".join(f"r{number:02},{number}\n" for number in range(40))
    cli.ok("import", store, "k", "-", "--format", "csv", stdin=f"row_id,value\n{rows}")
    found = cli("schema", "check", store, "k", small)
    lines = found.out.splitlines()
    assert (found.code, len(lines), lines[-1]) == (3, 11, f"40 rows of {store}/k: 30 break the schema")
    assert all("as a whole (rule /maximum): the value is greater than the maximum of 9: '" in row for row in lines[:-1])
    report = cli("schema", "check", store, "k", small, "--json").document
    assert (report["rows"], report["broken"], len(report["first"])) == (40, 30, 10)
    none = cli("schema", "check", store, "k")
    assert (none.code, none.err) == (1, f"ringcast: {store}/k has no schema\n")
    cli.ok("schema", "register", store, "k", "-", stdin='{"type": "integer"}')
    assert cli.ok("schema", "check", store, "k").out == f"40 rows of {store}/k: 0 break the schema\n"


def test_versions_are_listed(cli: Cli, store: str, small: Path, tmp_path: Path) -> None:
    pattern = tmp_path / "word.txt"
    pattern.write_text("[a-z]+\r\n")
    cli.ok("schema", "register", store, "words", pattern, "--kind", "regex", "--mode", "warn")
    cli.ok("schema", "register", store, "k", "-", stdin="{}")
    cli.ok("schema", "register", store, "k", small)
    keys = [
        (each["key"], each["version"], each["mode"]) for each in cli.ok("schema", "list", store, "--json").documents
    ]
    assert keys == [("k", 2, "enforce"), ("words", 1, "warn")]
    versions = cli.ok("schema", "list", store, "k").out.splitlines()
    assert [line.split()[:4] for line in versions[2:]] == [
        ["k", "2", "json-schema", "enforce"],
        ["k", "1", "json-schema", "replaced"],
    ]
    assert cli.ok("schema", "show", store, "words", "--json").document["definition"] == "[a-z]+"
    assert cli.ok("schema", "show", store, "k", "--version", 1).out == "{}\n"


def test_an_avro_schema(cli: Cli, store: str, tmp_path: Path) -> None:
    fee = tmp_path / "fee.avsc"
    note = {"name": "note", "type": ["null", "string"], "default": None}
    fields = [{"name": "cents", "type": "int"}, note]
    fee.write_text(json.dumps({"type": "record", "name": "Fee", "fields": fields}))
    data = 'row_id,value\na,"{""cents"": 1}"\nb,"{""cents"": ""x""}"\n'
    here = cli("schema", "validate", "-", "--format", "csv", "--schema", fee, "--kind", "avro", stdin=data)
    wrong = "at /cents: the value is not of type \"integer\": 'x'"
    assert (here.code, here.out) == (3, f"line 3: 'b' {wrong}\n2 rows: 1 break the schema\n")
    cli.ok("schema", "register", store, "k", fee, "--kind", "avro")
    refused = cli("put", store, "k", "b", '{"cents": "x"}')
    assert (refused.code, refused.err) == (
        1,
        f"ringcast: row 'b' of {store}/k breaks version 1 of its schema {wrong}\n",
    )
    skipped = cli("import", store, "k", "-", "--format", "csv", "--on-error", "skip", stdin=data)
    assert (skipped.code, "1 written, 0 deleted, 0 unchanged, 1 skipped" in skipped.out) == (3, True)
    cli.ok("put", store, "k", "c", '{"cents": 2, "note": {"string": "x"}}')
    fee.write_text(fee.read_text().replace("cents", "dollars"))
    found = cli("schema", "check", store, "k", fee, "--kind", "avro")
    assert (found.code, found.out.splitlines()[-1]) == (3, f"2 rows of {store}/k: 2 break the schema")
    assert cli.ok("schema", "list", store).out.splitlines()[-1].split()[:4] == ["k", "1", "avro", "enforce"]


def test_versions_are_held_to_a_compatibility(cli: Cli, store: str) -> None:
    closed = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    more = closed | {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    words = "--compatibility", "backward"
    said = cli.ok("schema", "register", store, "k", "-", *words, stdin=json.dumps(closed))
    assert said.out == f"version 1 of the schema of {store}/k: enforce, backward compatible\n"
    cli.ok("schema", "register", store, "k", "-", stdin=json.dumps(more))
    back = cli("schema", "register", store, "k", "-", stdin=json.dumps(closed))
    assert (back.code, back.err) == (
        1,
        f"ringcast: definition can't be version 3 of the schema of {store}/k, which has the compatibility backward: "
        "it can't read all values of version 2: at /properties/b: it is not accepted\n",
    )
    found = cli.ok("schema", "mode", store, "k", "--compatibility", "none")
    assert found.out == f"version 2 of the schema of {store}/k: enforce\n"
    assert cli.ok("schema", "register", store, "k", "-", "--json", stdin=json.dumps(closed)).document["version"] == 3
    listed = cli.ok("schema", "list", store, "k", "--json").documents
    assert [(each["version"], each["compatibility"]) for each in listed] == [(3, "none"), (2, None), (1, None)]
    nothing = cli("schema", "mode", store, "k")
    assert (nothing.code, "one of MODE and --compatibility is needed" in nothing.err) == (2, True)


def test_a_protobuf_schema_is_what_protoc_writes(cli: Cli, store: str, tmp_path: Path) -> None:
    text = 'syntax = "proto3"; package acme; import "google/protobuf/duration.proto"; '
    text += "message Rule { int32 limit = 1; google.protobuf.Duration every = 2; } message Other {}"
    made = tmp_path / "rule.bin"
    made.write_bytes(descriptor_set(text))
    words = (made, "--kind", "protobuf", "--message", "acme.Rule")
    said = cli.ok("schema", "register", store, "k", *words, "--compatibility", "full")
    assert said.out == f"version 1 of the schema of {store}/k: enforce, full compatible\n"
    shown = cli.ok("schema", "show", store, "k").out
    assert cli.ok("schema", "register", store, "k", "-", "--kind", "protobuf", stdin=shown).out == said.out
    data = 'row_id,value\na,"{""limit"": 1}"\nb,"{""every"": 5}"\n'
    sentence = "'b' at /every (rule acme.Rule.every): the value is no duration as 1.5s: 5"
    for of in (("--schema", *words), ("--of", f"{store}/k")):
        found = cli("schema", "validate", "-", "--format", "csv", *of, stdin=data)
        assert (found.code, found.out) == (3, f"line 3: {sentence}\n2 rows: 1 break the schema\n")
    skipped = cli("import", store, "k", "-", "--format", "csv", "--on-error", "skip", stdin=data)
    assert (skipped.code, sentence.removeprefix("'b' ") in skipped.err) == (3, True)
    made.write_bytes(descriptor_set(text.replace("int32", "int64")))
    refused = cli("schema", "check", store, "k", *words)
    assert "version 1 can't read all of its values: at acme.Rule.limit: int64 can't be read as int32" in refused.out


def test_a_descriptor_set_needs_the_name_of_a_message_in_it(cli: Cli, store: str, tmp_path: Path) -> None:
    made = tmp_path / "rule.bin"
    made.write_bytes(descriptor_set('syntax = "proto3"; message Rule {}'))
    words = ("schema", "register", store, "k", made)
    none = cli(*words, "--kind", "protobuf")
    assert (none.code, none.err) == (
        1,
        f"ringcast: file {made} is not as `ringcast schema show` prints it: of a descriptor set say with --message "
        "which message values are\n",
    )
    other = cli(*words, "--kind", "protobuf", "--message", "Cap")
    assert (other.code, "it has no message 'Cap', but 'Rule'" in other.err) == (1, True)
    kind = cli(*words, "--message", "Rule")
    assert (kind.code, "--message is for --kind protobuf, not json-schema" in kind.err) == (2, True)


def test_a_file_is_validated_here(cli: Cli, store: str, small: Path) -> None:
    data = "row_id,value\n" + "".join(f"r{number},{number}\n" for number in range(30)) + "bad,line,here\n"
    found = cli("schema", "validate", "-", "--format", "csv", "--schema", small, stdin=data)
    lines = found.out.splitlines()
    assert (found.code, len(lines), lines[-1]) == (3, 11, "30 rows: 20 break the schema, 1 malformed")
    rule = "as a whole (rule /maximum): the value is greater than the maximum of 9: '10'"
    assert lines[0] == f"line 12: 'r10' {rule}"
    cli.ok("schema", "register", store, "k", small)
    good = "row_id,value\na,1\n"
    found = cli("schema", "validate", "-", "--format", "csv", "--of", f"{store}/k", "--json", stdin=good)
    assert (found.code, found.document) == (0, {"rows": 1, "broken": 0, "malformed": 0, "first": []})
    deleted = cli(
        "schema", "validate", "-", "--format", "jsonl", "--schema", small, stdin='{"id": "a", "deleted": true}'
    )
    assert (deleted.code, deleted.out) == (0, "1 row: 0 break the schema\n")
    assert not cli.ok("store", "show", store, "--json").document["keys"], "nothing is written"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("register", "s", "k", "none.json"), 1, "file 'none.json' does not exist"),
        (("register", "s", "k", "-", "--kind", "xsd"), 2, "'xsd' is not one of 'json-schema', 'regex', 'avro'"),
        (("mode", "s", "k", "loud"), 2, "'loud' is not one of 'enforce', 'warn', 'off'"),
        (("validate", "-", "--format", "csv"), 2, "one of --schema and --of is needed"),
        (("validate", "-", "--format", "csv", "--of", "s"), 2, "'s' is not STORE/KEY"),
        (
            ("validate", "-", "--format", "csv", "--schema", "-"),
            1,
            "definition is no schema that can be used: it has 0",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, words: tuple[str, ...], code: int, said: str) -> None:
    found = cli("schema", *words)
    assert found.code == code
    assert said in found.err


def test_a_schema_that_is_too_large_or_no_text_is_refused_unsent(cli: Cli, store: str) -> None:
    large = cli("schema", "register", store, "k", "-", stdin=b"x" * (limits.MAX_SCHEMA_BYTES + 1))
    assert (large.code, large.err) == (
        1,
        f"ringcast: file standard input is too large for a schema: {limits.MAX_SCHEMA_BYTES} bytes are allowed\n",
    )
    binary = cli("schema", "register", store, "k", "-", stdin=b"\xff")
    assert (binary.code, binary.err) == (1, "ringcast: file standard input is not UTF-8\n")


def test_rejected_rows_of_an_import_and_a_release_say_which_rule(cli: Cli, store: str, small: Path) -> None:
    cli.ok("schema", "register", store, "k", small)
    data = "row_id,value\na,1\nb,10\n"
    skipped = cli("import", store, "k", "-", "--format", "csv", "--on-error", "skip", stdin=data)
    assert skipped.code == 3
    assert "1 written, 0 deleted, 0 unchanged, 1 skipped" in skipped.out
    rule = f"row 'b' of {store}/k breaks version 1 of its schema as a whole (rule /maximum)"
    assert rule in skipped.err
    for command in (("import", store, "k", "-"), ("sync", store, "k", "-")):
        found = cli(*command, "--format", "csv", stdin=data)
        assert found.code == 1
        assert rule in found.err
    staged = cli("release", "stage", store, "--key", "k=-", "--format", "csv", stdin=data)
    assert staged.code == 1
    assert rule in staged.err
