"""``ringcast sync`` against real servers: the difference, the guards, an interruption and the run that finishes it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from subprocess import PIPE

from tests.integration.cli_process import COMMAND, Cli


def _revisions(cli: Cli, store: str) -> int:
    return len(cli.ok("history", store, "list").out.splitlines())


def test_a_file_again_with_one_line_removed_and_one_changed(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,value\n" + "".join(f"domain{number}.example,block\n" for number in range(3_000)))
    assert cli.ok("sync", store, "list", file).out.startswith(
        f"{store}/list: 3000 added, 0 changed, 0 deleted, 0 unchanged in "
    )
    file.write_text(
        "id,value\n"
        + "".join(f"domain{number}.example,block\n" for number in range(1, 2_999))
        + "domain2999.example,allow\nnew.example,block\n"
    )
    dry = cli.ok("sync", store, "list", file, "--dry-run")
    assert dry.out.splitlines() == [
        "+ new.example",
        "~ domain2999.example",
        "- domain0.example",
        f"{store}/list: 1 would be added, 1 would be changed, 1 would be deleted, 2998 unchanged "
        "(dry run: nothing is written)",
    ]
    assert _revisions(cli, store) == 3_000
    done = cli.ok("sync", store, "list", file, "--json").document
    assert (done["added"], done["changed"], done["deleted"], done["unchanged"], done["written"]) == (
        1,
        1,
        1,
        2998,
        True,
    )
    assert (done["first_added"], done["first_deleted"]) == (["new.example"], ["domain0.example"])
    assert _revisions(cli, store) == 3_003
    rows = cli.rows(store)
    assert len(rows) == 3_000
    assert ("domain0.example" in rows, rows["domain2999.example"]) == (False, "allow")


def test_a_dry_run_names_so_many_rows_of_each_kind(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"row{number}\n" for number in range(30)))
    lines = cli.ok("sync", store, "list", file, "--dry-run", "--show", "3").out.splitlines()
    assert [line[:5] for line in lines[:3]] == ["+ row"] * 3
    assert lines[3] == "+ … 27 more"
    assert len(lines) == 5
    document = cli.ok("sync", store, "list", file, "--dry-run", "--show", "0", "--json").document
    assert (document["added"], document["first_added"], document["written"]) == (30, [], False)
    assert cli.ok("store", "show", store, "--json").document["keys"] == [], "not even the key was written"


def test_mass_deletion_is_refused(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"row{number}\n" for number in range(10)))
    cli.ok("sync", store, "list", file)
    file.write_text("row0\nrow1\nrow2\nrow3\n")
    assert cli.refused("sync", store, "list", file) == (
        f"6 of 10 rows of {store}/list would be deleted, max_delete_share 0.5 allows 5 to be deleted: "
        "nothing is written (see --max-delete-share)"
    )
    dry = cli("sync", store, "list", file, "--dry-run")
    assert (dry.code, "without --dry-run this is refused" in dry.err) == (1, True)
    assert "6 would be deleted" in dry.out
    file.write_text("# nothing\n")
    said = cli.refused("sync", store, "list", file, "--max-delete-share", 1)
    assert said.endswith("allow_empty permits that: nothing is written (see --allow-empty)")
    assert len(cli.rows(store)) == 10
    cli.ok("sync", store, "list", file, "--allow-empty")
    assert cli.rows(store) == {}
    assert "max_delete_share 7.0 is out of range" in cli.refused("sync", store, "list", file, "--max-delete-share", 7)


def test_a_malformed_line_stops_before_anything_is_written(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    lines = [f"r{number},v" for number in range(2, 3_002)]
    file.write_text("\n".join(["id,value", *lines[:2_500], "only", *lines]) + "\n")
    assert cli.refused("sync", store, "list", file) == ("line 2502: has 1 columns, expected are 2; nothing is written")
    file.write_text("\n".join(["id,value", *lines[:2_500], f"{'r' * 513},v", *lines]) + "\n")
    said = cli.refused("sync", store, "list", file)
    assert said.startswith("line 2502: row_id 'rrr")
    assert said.endswith("; nothing is written")
    assert cli.ok("store", "show", store, "--json").document["keys"] == []
    assert cli("sync", store, "list", file, "--on-error", "skip").code == 2, "a row left out would be deleted"


def test_one_store_s_list_into_another(cli: Cli, store: str, tmp_path: Path) -> None:
    cli.ok("put", store, "list", "a", "1", "-m", "m=n")
    cli.ok("put", store, "list", "b", "2")
    cli.ok("delete", store, "list", "b")
    file = tmp_path / "rows.jsonl"
    file.write_text(cli.ok("list", store, "list", "--deleted", "--json").out)
    cli.ok("put", store, "other", "b", "3")
    cli.ok("put", store, "other", "c", "3")
    cli.ok("sync", store, "other", file, "--max-delete-share", 1)
    listed = cli.ok("list", store, "other", "--json").document
    assert (listed["row_id"], listed["value"], listed["metadata"]) == ("a", "1", {"m": "n"})


def test_an_unknown_store_is_found_out_before_the_input_is_read(cli: Cli) -> None:
    with subprocess.Popen(
        [*COMMAND, "sync", "nowhere", "list", "-", "--format", "text"], stdin=PIPE, stderr=PIPE, env=cli.env
    ) as syncing:
        assert syncing.wait(30) == 1
        assert syncing.stderr is not None
        assert b"there is no store 'nowhere'" in syncing.stderr.read()


def test_an_interrupt_while_reading_writes_nothing(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("kept\n")
    cli.ok("sync", store, "list", file)
    with subprocess.Popen(
        [*COMMAND, "sync", store, "list", "-", "--format", "text"], stdin=PIPE, stderr=PIPE, env=cli.env
    ) as syncing:
        assert syncing.stdin is not None
        assert syncing.stderr is not None
        # More than fits the pipe: that it is written means that the command reads.
        syncing.stdin.write(b"".join(b"row-%d\n" % number for number in range(50_000)))
        syncing.stdin.flush()
        syncing.send_signal(signal.SIGINT)
        assert syncing.wait(30) == 130
        assert syncing.stderr.read().decode() == "ringcast: interrupted; nothing is written\n"
    assert cli.rows(store) == {"kept": ""}


def test_killed_on_the_way_and_run_again(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"old-{number}\n" for number in range(2_000)))
    cli.ok("sync", store, "list", file)
    file.write_text("".join(f"new-{number}\n" for number in range(30_000)))
    with subprocess.Popen([*COMMAND, "sync", store, "list", file, "--max-delete-share", "1"], env=cli.env) as syncing:
        while _revisions_of(cli, store) < 3_000:
            assert syncing.poll() is None, "it was done too soon to be killed"
        syncing.kill()
    done = cli.ok("sync", store, "list", file, "--max-delete-share", "1", "--json").document
    assert done["unchanged"] + done["added"] == 30_000
    assert cli.rows(store) == {f"new-{number}": "" for number in range(30_000)}


def _revisions_of(cli: Cli, store: str) -> int:
    return len(cli("history", store, "list", "--limit", "3000").out.splitlines())


def test_errors_as_json(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("a\n")
    cli.ok("sync", store, "list", file)
    file.write_text("")
    error = json.loads(cli("sync", store, "list", file, "--json").err)["error"]
    assert (error["code"], error["field"]) == ("LIMIT_EXCEEDED", "allow_empty")


def test_the_progress_bar(cli: Cli, store: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"row-{number}\n" for number in range(5_000)))
    cli.env |= {"COLUMNS": "160", "FORCE_COLOR": "1"}
    result = cli.ok("sync", store, "list", file, "--progress")
    assert "rows/s" in result.err
    del cli.env["FORCE_COLOR"]
    assert cli.ok("sync", store, "list", file).err == "", "and none where nobody looks"
