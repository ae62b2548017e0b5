"""The pipeline against a real service: raw files in, a list out, and what must not happen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark_ringcast import pipeline
from pyspark_ringcast.pipeline._cli import run as run_command
from pyspark_ringcast.pipeline._session import clear_error
from ringcast_wire import InvalidInputError, RevisionGoneError, RingcastError, UnavailableError
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py

LINES = [f"10.{number // 256}.{number % 256}.0/24,owner {number},{number}" for number in range(400)]


def document_of(store: Store, path: Path, **tables: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "source": {"paths": [str(path)], "format": "csv"},
        "row": {"row_id": "network", "value": "owner", "metadata": {"number": "asn"}},
        "target": store.options | {"timeout_s": 10.0},
        "columns": {
            "network": {"normalise": ["strip", "lower"], "validate": ["ip_network"]},
            "owner": {"normalise": ["nfc"]},
            "asn": {"validate": [{"range": {"min": 0, "max": 100_000}}]},
        },
    }
    for name, settings in tables.items():
        document[name] = document.get(name, {}) | settings
    return document


def spec_of(store: Store, path: Path, **tables: dict[str, Any]) -> pipeline.Spec:
    return pipeline.parse_spec(document_of(store, path, **tables))


@pytest.fixture
def ranges(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "ranges.csv", LINES)


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["network,owner,asn", *lines]) + "\n", encoding="utf-8")
    return path


def rows_of(lines: list[str]) -> dict[str, str]:
    return dict(line.split(",")[:2] for line in lines)


def test_load_then_change(spark: SparkSession, store: Store, ranges: Path, tmp_path: Path) -> None:
    """Exactly the difference is written, rejected rows stay as they are, and a repeat changes nothing."""
    first = pipeline.make_plan(spark, spec_of(store, ranges))  # kept by Spark, while the file changes
    report = pipeline.apply_plan(spark, first)
    assert (first.plan.adds, first.plan.diff_rows, first.plan.live_rows) == (400, 400, 0)
    assert (report.written, report.verified) == (400, 400)
    assert store.rows() == rows_of(LINES)
    heads = store.heads()

    wrong = ["10.0.1.1/24,host bits,1", "10.0.9.0/24,owner,many", ",no id,1", "10.0.10.0/24,two columns"]
    broken = {"10.0.1.0/24", "10.0.9.0/24", "10.0.10.0/24"}
    kept = [line for line in LINES[:-3] if line.split(",")[0] not in broken | {"10.0.5.0/24", "10.0.6.0/24"}]
    conflict = ["10.0.6.0/24,one,6", "10.0.6.0/24,other,6"]
    write_lines(ranges, [*kept, *wrong, *conflict, "10.0.5.0/24,Owne\u0301,5", "10.9.9.0/24 ,new,1"])
    planned = pipeline.make_plan(spark, spec_of(store, ranges, guards={"max_rejected_share": 0.1}))
    found = planned.plan
    assert (found.input.read, found.input.rejected, found.input.conflicts) == (len(kept) + 8, 6, 1)
    # A row that was rejected is not missing, as long as one can tell which it was.
    assert (found.adds, found.updates, found.deletes, found.input.held) == (1, 1, 4, 3)
    assert planned.rejects is not None
    pipeline.write_rejects(planned.rejects, str(tmp_path / "rejects"), "json")
    reported = read_json(tmp_path / "rejects")
    assert {(row.get("row_id"), row["field"], row["reason"]) for row in reported} == {
        ("10.0.1.1/24", "network", "is not an IP network such as 10.0.0.0/8 or 2001:db8::/32"),
        ("10.0.9.0/24", "asn", "is not a number"),
        (None, "row_id", "is missing"),
        ("10.0.10.0/24", "", "can't be read as csv"),
        ("10.0.6.0/24", "row_id", "stands for 2 rows that are not alike"),
    }
    report = pipeline.apply_plan(spark, planned)
    assert (report.written, report.verified) == (found.diff_rows, found.after.rows)
    assert sum(store.heads()) == sum(heads) + found.diff_rows
    rows = store.rows()
    assert rows["10.0.5.0/24"] == "Own\u00e9"
    assert (rows["10.0.6.0/24"], rows["10.0.9.0/24"], rows["10.9.9.0/24"]) == ("owner 6", "owner 9", "new")
    again = pipeline.apply_plan(spark, planned)
    assert again.written == 0
    planned.release()
    first.release()


def apply_now(spark: SparkSession, spec: pipeline.Spec) -> tuple[pipeline.Plan, pipeline.ApplyReport]:
    planned = pipeline.make_plan(spark, spec)
    try:
        return planned.plan, pipeline.apply_plan(spark, planned)
    finally:
        planned.release()


def read_json(directory: Path) -> list[dict[str, Any]]:
    lines = [line for path in directory.glob("*.json") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def test_a_saved_plan(spark: SparkSession, store: Store, ranges: Path, tmp_path: Path) -> None:
    """Reviewed later, applied half, applied whole, applied again; refused once somebody else has written."""
    store.write_rows(rows_of(LINES[:200]))
    path = str(tmp_path / "plan")
    planned = pipeline.make_plan(spark, spec_of(store, ranges))
    pipeline.save_plan(planned, path)
    planned.release()
    with pytest.raises(InvalidInputError, match=r"plan .* exists: give a path that does not exist"):
        pipeline.save_plan(planned, path)
    assert pipeline.read_plan(path) == planned.plan
    loaded = pipeline.load_plan(spark, path)
    assert loaded.plan == planned.plan
    assert (loaded.plan.adds, loaded.plan.updates) == (200, 200)  # rows from beside the pipeline have no metadata

    # A job that died on the way wrote some of it.
    store.put("10.0.250.0/24", "owner 250", number="250")
    report = pipeline.apply_plan(spark, loaded)
    assert (report.written, report.verified) == (399, 400)
    heads = store.heads()
    assert pipeline.apply_plan(spark, loaded).written == 0
    assert store.heads() == heads

    # What the plan says of this row is no longer what is there.
    store.put("10.0.250.0/24", "somebody else's")
    with pytest.raises(pipeline.StalePlanError, match=r"was written to after the plan was made: .* plan again"):
        pipeline.apply_plan(spark, loaded)
    assert store.rows()["10.0.250.0/24"] == "somebody else's"

    for file in (tmp_path / "plan" / "changes").glob("part-*"):
        file.unlink()
    with pytest.raises(InvalidInputError, match="is damaged: it has 0 rows with checksum 0, and 400 with"):
        pipeline.load_plan(spark, path)


def test_what_deletes_too_much_is_refused(spark: SparkSession, store: Store, ranges: Path, tmp_path: Path) -> None:
    store.write_rows(rows_of(LINES))
    heads = store.heads()
    write_lines(ranges, LINES[:300])
    planned = pipeline.make_plan(spark, spec_of(store, ranges, row={"metadata": {}}))
    assert (planned.plan.deletes, planned.plan.updates) == (100, 0)
    with pytest.raises(pipeline.PlanRefusedError, match=r"deletes 100 of 400 rows, 25.0%: max_delete_share is 10.0%"):
        pipeline.apply_plan(spark, planned)
    planned.release()

    empty = write_lines(tmp_path / "empty.csv", [])
    everything = {"max_delete_share": 1.0}
    planned = pipeline.make_plan(spark, spec_of(store, empty, guards=everything))
    with pytest.raises(pipeline.PlanRefusedError, match=r"it would leave .* without a row: allow_empty permits that"):
        pipeline.apply_plan(spark, planned)
    planned.release()
    assert store.heads() == heads

    merged, report = apply_now(spark, spec_of(store, ranges, row={"metadata": {}}, target={"mode": "merge"}))
    assert (merged.deletes, report.written, report.verified) == (0, 0, 400)
    plan, report = apply_now(spark, spec_of(store, ranges, row={"metadata": {}}, guards={"max_delete_share": 0.25}))
    assert (plan.deletes, report.written) == (100, 100)
    assert store.rows() == rows_of(LINES[:300])


def test_formats(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """JSON lines with a broken one, and text with comments."""
    lines = ['{"network": "10.0.0.0/8", "owner": 7, "asn": 1}', '{"network": ', '{"network": "11.0.0.0/8", "asn": 2}']
    (tmp_path / "rows.json").write_text("\n".join(lines))
    spec = spec_of(store, tmp_path / "rows.json", source={"format": "json"})
    checked = pipeline.read_checked(spark, spec)
    found = {row.row_id: (row.value, len(row.problems)) for row in checked.rows.collect()}
    assert found == {"10.0.0.0/8": ("7", 0), "11.0.0.0/8": (None, 1), None: (None, 1)}
    assert {row.reason for row in checked.rejects().collect()} == {"can't be read as json", "is missing"}

    (tmp_path / "list.txt").write_text("# a list\nExample.com\n\n  example.org \n")
    text = {
        "source": {"paths": [str(tmp_path / "*.txt")], "format": "text"},
        "row": {"row_id": "line", "value_text": "block"},
        "target": {"store": store.name, "key": "domains"},
        "columns": {"line": {"normalise": ["strip", "lower"]}},
    }
    checked = pipeline.read_checked(spark, pipeline.parse_spec(text))
    assert {(row.row_id, row.value) for row in checked.rows.collect()} == {
        ("example.com", "block"),
        ("example.org", "block"),
    }


@pytest.mark.parametrize(
    ("tables", "kind", "sentence"),
    [
        ({"source": {"paths": ["nowhere.csv"]}}, InvalidInputError, "source path .*nowhere.csv' does not exist"),
        ({"source": {"paths": ["nowhere*.csv"]}}, InvalidInputError, "can't be read: .*PATH_NOT_FOUND"),
        ({"row": {"value": "ownr"}}, InvalidInputError, "column 'ownr' is not in the input: there are network, owner"),
        ({"columns": {"asm": {}}}, InvalidInputError, "column 'asm' is not in the input"),
        ({"target": {"store": "nowhere"}}, RingcastError, "nowhere"),
        ({"target": {"service": "127.0.0.1:1", "timeout_s": 0.3}}, UnavailableError, "127.0.0.1:1"),
        ({"target": {"servers": "nats://127.0.0.1:1", "timeout_s": 0.3}}, UnavailableError, "can't be reached"),
    ],
)
def test_bad_input(
    spark: SparkSession, store: Store, ranges: Path, tables: Any, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        pipeline.make_plan(spark, spec_of(store, ranges, **tables))


def test_a_read_that_the_store_has_left_behind(spark: SparkSession, store: Store) -> None:
    """Spark's error is a traceback of some pages: what a person gets is the sentence in it."""
    store.put("a", "1")
    frame = store.load()
    store.stub.NewHistory(pb.NewHistoryRequest(name=store.name))
    with pytest.raises(AnalysisException) as caught:
        frame.collect()
    error = clear_error(caught.value)
    assert isinstance(error, RevisionGoneError)
    assert re.fullmatch(
        r"revision 1 of partition \d+ of .* is of another history: .*; make the DataFrame .*", str(error)
    )


def test_export(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """A snapshot, the history, and what came after it."""
    store.write_rows({f"r{number}": "1" for number in range(100)})
    store.put("r1", "2", why="é")
    store.delete("r2")
    target = pipeline.Target(**store.options | {"timeout_s": 10.0})
    snapshot = pipeline.export_snapshot(spark, target, str(tmp_path / "snapshot"))
    assert (snapshot.rows, snapshot.heads) == (99, store.heads())
    rows = spark.read.parquet(str(tmp_path / "snapshot/rows")).collect()
    assert {row.row_id: row.value for row in rows} == store.rows()
    with pytest.raises(InvalidInputError, match="exists"):
        pipeline.export_snapshot(spark, target, str(tmp_path / "snapshot"))

    history = pipeline.export_history(spark, target, str(tmp_path / "history"))
    assert history.rows == 102
    store.put("r3", "3")
    later = pipeline.export_history(spark, target, str(tmp_path / "later"), since=history.heads)
    assert later.rows == 1
    assert pipeline.read_export(str(tmp_path / "later")) == later
    revisions = spark.read.parquet(str(tmp_path / "history/revisions"), str(tmp_path / "later/revisions")).collect()
    assert len({(row.partition, row.version) for row in revisions}) == 103 == sum(store.heads())
    assert [row.deleted for row in sorted(revisions, key=lambda row: row.version) if row.row_id == "r2"] == [
        False,
        True,
    ]
    assert {row.value: row.metadata for row in revisions if row.row_id == "r1"} == {"1": None, "2": {"why": "é"}}
    assert all(row.written_at.year >= 2024 for row in revisions)
    assert {(row.author, row.reason) for row in revisions} == {("host:127.0.0.1", None)}

    nothing = msgspec.structs.replace(target, key="never-written")
    assert pipeline.export_snapshot(spark, nothing, str(tmp_path / "empty")).rows == 0
    assert pipeline.export_history(spark, nothing, str(tmp_path / "no-history")).rows == 0


def test_the_command(
    spark: SparkSession, store: Store, ranges: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plan, review, apply, and a plan that is refused; it uses the session that runs already."""
    assert spark.getActiveSession() is not None
    spec = tmp_path / "ranges.toml"
    spec.write_text(
        '[source]\npaths = ["ranges.csv"]\nformat = "csv"\n[row]\nrow_id = "network"\nvalue = "owner"\n'
        f'[target]\nstore = "{store.name}"\nkey = "list"\nservers = "{store.nats_url}"\nservice = "{store.address}"\n'
    )
    plan = str(tmp_path / "plan")
    assert run_command(["plan", str(spec), plan]) == 0
    assert run_command(["show", plan]) == 0
    shown = capsys.readouterr().out
    assert shown.count("add                400") == 2
    assert "it may be applied" in shown
    assert run_command(["apply", plan, "--reason", "x" * 513]) == 1
    assert "has 513 bytes: at most 512 are allowed" in capsys.readouterr().err
    assert not store.stub.GetStore(pb.GetStoreRequest(name=store.name)).keys
    assert run_command(["--json", "apply", plan, "--reason", "first release"]) == 0
    assert {revision.reason for revision in store.revisions()} == {"first release"}
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["verified"], report["rejected"]) == (400, 400, 0)

    store.put("203.0.113.0/24", "somebody else's")
    assert run_command(["apply", plan]) == 4
    assert "was written to after the plan was made: 16 partitions moved" in capsys.readouterr().err
    other = tmp_path / "other.toml"
    other.write_text(spec.read_text().replace('key = "list"', 'key = "other"'))
    assert run_command(["apply", plan, "--replan", str(other)]) == 1
    assert f"replan is for {store.name}/other, and the plan for {store.name}/list" in capsys.readouterr().err
    assert run_command(["apply", plan, "--replan", str(spec), "--reason", "not ours"]) == 0
    assert "1 rows written" in capsys.readouterr().out
    assert [one.row.deleted for one in store.revisions() if one.reason == "not ours"] == [True]
    assert store.rows() == rows_of(LINES)

    write_lines(ranges, LINES[:200])
    assert run_command(["run", str(spec)]) == 4
    said = capsys.readouterr()
    assert "REFUSED   it deletes 200 of 400 rows" in said.out
    assert said.err.startswith(f"ringcast-pipeline: the plan for {store.name}/list is refused: it deletes 200 of 400")
    assert len(store.rows()) == 400
    assert run_command(["export", store.name, "list", str(tmp_path / "out"), "--service", "127.0.0.1:1"]) == 1
    assert "Traceback" not in capsys.readouterr().err
    words = ["--json", "capacity", "--rows", "1000", "--partitions", "64", "--workers", "4", "--then-workers", "5"]
    assert run_command(words) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["rows"] == 1000
    assert 0 < figures["moved_share"] < 0.6
