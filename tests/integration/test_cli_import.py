"""``ringcast import`` against real servers: the formats, bad input of every kind, and what is written in the end."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from pathlib import Path
from subprocess import PIPE

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ringcast_client import DEFAULT_TIMEOUT_S
from ringcast_config_service.writes.rates import STREAM_WAIT_S
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import limits

from tests.integration.cli_process import COMMAND, Cli


def _lines(count: int, bad: dict[int, str] | None = None) -> str:
    """CSV rows r2, r3 … named after their lines (the header is line 1); ``bad`` replaces lines."""
    good = {number: f"r{number},v{number}" for number in range(2, count + 2)}
    return "\n".join(["id,value", *(good | (bad or {})).values()]) + "\n"


def test_what_a_store_is_too_slow_for_is_refused_before_an_import_gives_up() -> None:
    """Otherwise an import knows of no wait, and fails."""
    assert 2 * STREAM_WAIT_S <= DEFAULT_TIMEOUT_S


def test_csv_and_its_summary(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([["why", "row_id", "value"], ["a", "1", 'x "y", z'], ["b", "2", "two\nlines"]])
    result = cli.ok("import", store, "list", file, "--metadata-column", "why")
    assert result.out.startswith(f"2 rows to {store}/list in ")
    assert result.out.endswith("2 written, 0 deleted, 0 unchanged, 0 skipped\n")
    assert cli.rows(store) == {"1": 'x "y", z', "2": "two\nlines"}
    assert cli.ok("get", store, "list", "2", "--json").document["metadata"] == {"why": "b"}
    again = cli.ok("import", store, "list", file, "--json").document
    assert (again["rows"], again["written"], again["complete"]) == (2, 2, True), "without the metadata now"
    assert again["rows_per_s"] > 0


def test_json_lines_take_back_what_list_gives(cli: Cli, store: str, tmp_path: Path) -> None:
    cli.ok("put", store, "list", "a", "1", "-m", "m=n")
    cli.ok("put", store, "list", "b", "2")
    cli.ok("delete", store, "list", "b")
    listed = cli.ok("list", store, "list", "--deleted", "--json").out
    cli.ok("put", store, "list", "b", "3")
    file = tmp_path / "rows.jsonl"
    file.write_text(listed + '{"id": "never", "deleted": true}\n')
    done = cli.ok("import", store, "list", file, "--json").document
    assert (done["rows"], done["written"], done["deleted"], done["unchanged"]) == (3, 0, 1, 2)
    assert cli.rows(store) == {"a": "1"}
    assert cli.ok("get", store, "list", "a", "--json").document["metadata"] == {"m": "n"}


def test_conditions_in_json_lines(cli: Cli, store: str) -> None:
    cli.ok("put", store, "list", "a", "1")
    refused = f"{store}/list has row 'a' at version 1: no row was expected, nothing was written; nothing is written"
    lines = '{"id": "b", "value": "2"}\n{"id": "a", "value": "2", "if_absent": true}\n'
    assert cli.refused("import", store, "list", "-", "--format", "jsonl", stdin=lines) == refused
    assert cli.rows(store) == {"a": "1"}
    for wrong, said in (
        ('"if_version": 0', "line 1: if_version 0 is out of range"),
        ('"if_version": 1, "if_absent": true', "line 1: "),
    ):
        line = f'{{"id": "a", "value": "2", {wrong}}}\n'
        assert cli.refused("import", store, "list", "-", "--format", "jsonl", stdin=line).startswith(said)
    line = '{"id": "a", "value": "2", "if_version": 1}\n'
    assert cli.refused("sync", store, "list", "-", "--format", "jsonl", stdin=line).startswith(
        "line 1: row 'a' has a condition (if_version): a sync compares the rows itself"
    )
    cli.ok("import", store, "list", "-", "--format", "jsonl", stdin=line)
    assert cli.rows(store) == {"a": "2"}


def test_text_from_standard_input(cli: Cli, store: str) -> None:
    cli.ok("import", store, "list", "-", "--format", "text", "--value", "yes", stdin="# no\n\n a \r\nb\n")
    assert cli.rows(store) == {"a": "yes", "b": "yes"}


def test_parquet_from_a_file_and_from_standard_input(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    ids = [f"row-{number}" for number in range(3_000)]
    pq.write_table(pa.table({"id": ids, "value": [f"v{i}" for i in ids]}), file)
    assert cli.ok("import", store, "list", file, "--json").document["written"] == 3_000
    assert cli.rows(store) == {row_id: f"v{row_id}" for row_id in ids}
    done = cli.ok("import", store, "list", "-", "--format", "parquet", "--json", stdin=file.read_bytes())
    assert (done.document["written"], done.document["unchanged"]) == (0, 3_000)


def test_rows_that_are_as_the_file_has_them_are_left_alone(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"domain{number}.example\n" for number in range(3_000)))
    cli.ok("import", store, "list", file)
    before = cli.ok("history", store, "list").out
    file.write_text("".join(f"domain{number}.example\n" for number in range(1, 3_001)))
    done = cli.ok("import", store, "list", file, "--json").document
    assert (done["written"], done["unchanged"]) == (1, 2_999)
    assert len(cli.ok("history", store, "list").out.splitlines()) == len(before.splitlines()) + 1
    done = cli.ok("import", store, "list", file, "--write-unchanged", "--json").document
    assert (done["written"], done["unchanged"]) == (3_000, 0)


def test_a_malformed_line_stops_and_everything_before_its_batch_is_written(
    cli: Cli, store: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(_lines(3_000, {2_500: "r2500,v,extra"}))
    assert cli.refused("import", store, "list", file) == (
        "line 2500: has 3 columns, expected are 2; everything up to line 2001 is written (2000 rows), nothing after it"
    )
    assert cli.rows(store) == {f"r{number}": f"v{number}" for number in range(2, 2_002)}


def test_a_row_that_breaks_a_rule_stops_alike(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(_lines(1_500, {1_300: f"{'r' * 513},v"}))
    said = cli.refused("import", store, "list", file)
    assert said.startswith("line 1300: row_id 'rrrr")
    assert said.endswith(
        " has 513 bytes: 1 to 512 bytes of UTF-8 are allowed; "
        "everything up to line 1001 is written (1000 rows), nothing after it"
    )
    assert len(cli.rows(store)) == 1_000
    result = cli("import", store, "list", file, "--json")
    assert (result.code, result.document["complete"], result.document["last_written"]) == (1, False, 1001)
    assert json.loads(result.err)["error"]["code"] == "INVALID_INPUT"


def test_skipping_names_each_line_and_goes_on(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    bad = {5: "only", 1_200: f"{'r' * 513},v", 1_201: "un,quo,ted"}
    file.write_text(_lines(1_200, bad))
    result = cli("import", store, "list", file, "--on-error", "skip")
    assert result.code == 3
    assert sorted(line[:40] for line in result.err.splitlines()) == [
        "ringcast: skipped line 1200: row_id 'rrr",
        "ringcast: skipped line 1201: has 3 colum",
        "ringcast: skipped line 5: has 1 columns,",
    ]
    assert result.out.endswith("1197 written, 0 deleted, 0 unchanged, 3 skipped\n")
    assert cli.rows(store) == {f"r{n}": f"v{n}" for n in range(2, 1_202) if n not in bad}


def test_nothing_behind_a_broken_quote_is_written(cli: Cli, store: str, tmp_path: Path) -> None:
    """Not even where malformed lines are skipped: what follows may be the inside of a value."""
    file = tmp_path / "rows.csv"
    file.write_text(_lines(3_000, {2_500: 'r2500,"one "and"', 2_501: 'second line",x'}))
    assert cli.refused("import", store, "list", file, "--on-error", "skip") == (
        f"file {file}, line 2500: is malformed: ',' expected after '\"'; "
        "everything up to line 2001 is written (2000 rows), nothing after it"
    )
    assert cli.rows(store) == {f"r{number}": f"v{number}" for number in range(2, 2_002)}
    assert "line 2500: is malformed" in cli.refused("sync", store, "list", file, "--max-delete-share", "1")
    assert len(cli.rows(store)) == 2_000


def test_many_skipped_lines_are_counted_not_listed(cli: Cli, store: str) -> None:
    lines = "\n".join(["not json"] * 50 + ['{"id": "a", "value": "b"}'])
    result = cli("import", store, "list", "-", "--format", "jsonl", "--on-error", "skip", stdin=lines)
    assert result.code == 3
    assert len(result.err.splitlines()) == 21
    assert result.err.splitlines()[-1] == "ringcast: skipped 30 more (the first 20 are listed)"
    assert cli.rows(store) == {"a": "b"}


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("latin.txt", "good\nschön\n".encode("latin-1"), "line 2: is not UTF-8: byte 0xf6 at position 4"),
        ("utf16.txt", "good\n".encode("utf-16"), "line 1: is not UTF-8: byte 0xff at position 1"),
        ("utf16.csv", "id,value\na,b\n".encode("utf-16"), "line 1: is not UTF-8: byte 0xff at position 1"),
        ("nul.txt", b"a\0b\n", "line 1: row_id 'a\\x00b' has a NUL character"),
        ("array.jsonl", b'[{"id": "a"}]\n', "line 1: is not a JSON object: Expected `object`, got `array`"),
        ("number.jsonl", b'{"id": "a", "value": 5}\n', "line 1: value 5 is of type int: it must be text"),
        ("large.txt", b"x" * (limits.MAX_ROW_BYTES + 5), "line 1: row_id 'xxx"),
        ("endless.txt", b"x" * (5 * limits.MAX_ROW_BYTES), "line 1: is too long: at most 4194304 bytes are allowed"),
        ("columns.csv", b"a,b\n1,2\n", "has no column 'row_id' or 'id', only 'a, b': name it with --id-column"),
        ("text.parquet", b"id,value\na,b\n", "is not a Parquet file, or is truncated"),
        ("empty.parquet", b"", "is not a Parquet file, or is truncated"),
    ],
)
def test_input_that_can_t_be_read(cli: Cli, store: str, tmp_path: Path, name: str, data: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    assert said in cli.refused("import", store, "list", file)
    assert cli.ok("store", "show", store, "--json").document["keys"] == [], "nothing was written, not even the key"


def test_a_truncated_parquet_file_writes_nothing(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [str(n) for n in range(5_000)], "value": ["v"] * 5_000}), file)
    file.write_bytes(file.read_bytes()[:-100])
    assert "is not a Parquet file, or is truncated" in cli.refused("import", store, "list", file)
    assert cli.ok("store", "show", store, "--json").document["keys"] == []


def test_a_damaged_parquet_file_says_what_is_written(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    ids = [f"row{number:06d}" for number in range(20_000)]
    table = pa.table({"id": ids, "value": ["v"] * len(ids)})
    pq.write_table(table, file, row_group_size=2_000, compression="none", use_dictionary=False)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20_000] = b"\xff" * 20_000
    file.write_bytes(bytes(data))
    result = cli("import", store, "list", file, "--json", "--on-error", "skip")
    assert result.code == 1
    error = json.loads(result.err)["error"]["message"]
    assert "is damaged after row " in error
    written = result.document["last_written"]
    assert f"everything up to row {written} is written ({written} rows), nothing after it" in error
    assert written % 1_000 == 0
    assert 0 < written < len(ids)
    assert sorted(cli.rows(store)) == ids[:written]


def test_files_that_are_not_there(cli: Cli, store: str, tmp_path: Path) -> None:
    assert cli.refused("import", store, "list", tmp_path / "none.csv") == f"file '{tmp_path}/none.csv' does not exist"
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    assert cli.refused("import", store, "list", folder) == f"file '{folder}' is a directory"


def test_wrong_usage(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.dat"
    file.write_text("a\n")
    for words, said in (
        ((file,), "is unknown (known are"),
        (("-",), "give the --format of standard input"),
        ((file, "--format", "xml"), "Invalid value for '--format'"),
        ((file, "--format", "csv", "--delimiter", "ab"), "is not one character"),
        ((file, "--format", "csv", "--on-error", "cry"), "Invalid value for '--on-error'"),
        ((), "Missing argument 'FILE'"),
    ):
        result = cli("import", store, "list", *words)
        assert result.code == 2
        assert said in " ".join(result.err.split())


def test_an_unknown_store_is_found_out_before_the_input_is_read(cli: Cli) -> None:
    with subprocess.Popen(
        [*COMMAND, "import", "nowhere", "list", "-", "--format", "text"], stdin=PIPE, stderr=PIPE, env=cli.env
    ) as importing:
        # Standard input is still open, and nothing came from it.
        assert importing.wait(30) == 1
        assert importing.stderr is not None
        assert b"there is no store 'nowhere'" in importing.stderr.read()


def test_a_service_that_is_down(tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("a\n")
    cli = Cli(tmp_path, service="127.0.0.1:1")
    assert cli.refused("import", "s", "list", file) == (
        "config service 127.0.0.1:1 can't be reached: connection refused"
    )


def test_a_service_that_dies_on_the_way(tmp_path: Path, nats_server: NatsServer) -> None:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database) as service:
        cli = Cli(tmp_path, service=service.address, timeout_s="5")
        cli.ok("store", "create", "s", "--partitions", 8)
        with subprocess.Popen(
            [*COMMAND, "import", "s", "list", "-", "--format", "text"], stdin=PIPE, stderr=PIPE, env=cli.env
        ) as importing:
            assert importing.stdin is not None
            assert importing.stderr is not None
            importing.stdin.write(b"".join(b"first-%d\n" % number for number in range(2_000)))
            importing.stdin.flush()
            while len(cli("list", "s", "list").out.splitlines()) < 2_000:
                pass
            service.kill()
            importing.stdin.write(b"".join(b"second-%d\n" % number for number in range(2_000)))
            importing.stdin.close()
            said = importing.stderr.read().decode()
            assert importing.wait(30) == 1
        assert "everything up to line 2000 is written (2000 rows)" in said
        assert "lines 2001 to " in said
        assert "were on their way and may be written" in said
        service.restart()
        rows = cli.ok("list", "s", "list").out.splitlines()
        assert len([row for row in rows if row.startswith("first-")]) == 2_000
        assert len(rows) % 1_000 == 0, "a batch is written whole or not at all"


def test_an_interrupt_says_what_is_written(cli: Cli, store: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "import", store, "list", "-", "--format", "text"], stdin=PIPE, stderr=PIPE, env=cli.env
    ) as importing:
        assert importing.stdin is not None
        assert importing.stderr is not None
        importing.stdin.write(b"".join(b"row-%d\n" % number for number in range(1_500)))
        importing.stdin.flush()
        while len(cli("list", store, "list").out.splitlines()) < 1_000:
            pass
        importing.send_signal(signal.SIGINT)
        assert importing.wait(30) == 130
        said = importing.stderr.read().decode()
    assert said == "ringcast: interrupted; everything up to line 1000 is written (1000 rows), nothing after it\n"
    assert len(cli.rows(store)) == 1_000


def test_the_progress_bar(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"row-{number}\n" for number in range(5_000)))
    cli.env["COLUMNS"] = "160"
    result = cli.ok("import", store, "list", file, "--progress")
    assert "rows/s" in result.err + result.out
    assert cli.ok("import", store, "list", file).err == "", "and none where nobody looks"
