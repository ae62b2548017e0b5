"""What of the pipeline needs no Spark: specifications, the arithmetic of plans and moves, errors of the command."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from pyspark_ringcast import pipeline
from pyspark_ringcast._common.options import _LOGIN, SERVICE_FILES
from pyspark_ringcast.pipeline import _rules as rules
from pyspark_ringcast.pipeline._cli import cli, run
from pyspark_ringcast.pipeline._plan import Content, InputReport, PartitionPlan, decode_plan, encode_plan, skew
from pyspark_ringcast.pipeline._settings import PLACE
from pyspark_ringcast.pipeline._target import LOGIN_FILES
from ringcast_wire import InvalidInputError, ProtocolError, Strategy, limits

TOML = """
[source]
paths = ["ranges/*.csv", "s3://bucket/x.csv"]
format = "csv"
options = { sep = ";" }

[row]
row_id = "network"
value = "owner"
metadata = { country = "cc" }

[columns.network]
normalise = ["strip", "lower", { replace = { regex = "x", to = "y" } }, { default = "0.0.0.0/0" }]
validate = ["required", "ip_network", { length = { max = 43 } }, { regex = ".*/.*" }]

[columns.owner]
normalise = ["nfc"]
validate = [{ one_of = ["a", "b"] }, { range = { min = 1 } }]

[dedup]
keep = "greatest"
by = "updated"
compare_as = "timestamp"

[target]
store = "gateway"
key = "networks"

[guards]
max_delete_share = 0.5
"""


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "ranges.toml"
    path.write_text(TOML, encoding="utf-8")
    return path


def document(**tables: Any) -> dict[str, Any]:
    return {
        "source": {"paths": ["a.csv"], "format": "csv"},
        "row": {"row_id": "id", "value": "v"},
        "target": {"store": "gateway", "key": "list"},
        **tables,
    }


def test_a_specification_is_read(spec_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pipeline.read_spec(spec_file)
    assert spec.source.paths == [str(spec_file.parent / "ranges/*.csv"), "s3://bucket/x.csv"]
    assert spec.used_columns() == ["network", "owner", "cc", "updated"]
    assert spec.columns["network"].normalise == [
        rules.Strip(),
        rules.Lower(),
        rules.Replace(regex="x", to="y"),
        rules.Default(value="0.0.0.0/0"),
    ]
    assert spec.columns["network"].validate[2:] == [rules.Length(max=43), rules.Regex(value=".*/.*")]
    assert spec.columns["owner"].normalise == [rules.Unicode(form="NFC")]
    assert (spec.dedup.by, spec.guards.max_delete_share, spec.guards.max_rejected_share) == ("updated", 0.5, 0.01)
    # Resolved here: the processes that Spark starts may have another environment.
    monkeypatch.setenv("RINGCAST_SERVICE", "there:1")
    monkeypatch.delenv("RINGCAST_SERVERS", raising=False)
    place = {"servers": "nats://127.0.0.1:4222", "service": "there:1"}
    assert spec.target.options() == {"store": "gateway", "key": "networks", **place}


def test_overrides_win(spec_file: Path) -> None:
    spec = pipeline.read_spec(spec_file, {"target": {"store": "other"}, "source": {"paths": ["b.csv"]}})
    assert (spec.target.store, spec.target.key) == ("other", "networks")
    assert spec.source.paths == [str(spec_file.parent / "b.csv")]


def test_how_to_log_in(spec_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a specification are relative to it, those of a flag to the working directory, which must win."""
    monkeypatch.chdir(tmp_path)
    for name in ("RINGCAST_USER", "RINGCAST_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    moved = spec_file.rename(directory / spec_file.name)
    files = 'service_tls_ca_file = "ca.pem"\nservice_token_file = "/etc/token"\ntls_ca_file = "nats.pem"\n'
    moved.write_text(TOML.replace('key = "networks"\n', f'key = "networks"\nuser = "spark"\n{files}'))
    done = CliRunner().invoke(cli, ["--json", "check", str(moved), "--tls-ca-file", "other.pem"])
    target = json.loads(done.output)["target"]
    assert target["service_tls_ca_file"] == str(directory / "ca.pem")
    assert (target["service_token_file"], target["tls_ca_file"]) == ("/etc/token", str(tmp_path / "other.pem"))
    (directory / "nats.pem").touch()
    spec = pipeline.read_spec(moved)
    with pytest.raises(InvalidInputError, match="user is given without password"):
        spec.target.options()
    monkeypatch.setenv("RINGCAST_PASSWORD", "hunter2")
    options = spec.target.options()
    assert (options["user"], options["password"]) == ("spark", "hunter2")  # Spark hides what is called so
    assert options["service_token_file"] == "/etc/token"
    assert "hunter2" not in repr(spec) + msgspec.json.encode(spec).decode()
    assert "hunter2" not in encode_plan(plan(target=spec.target)).decode()


def test_a_target_takes_what_the_connector_takes() -> None:
    """The key ring's file, and every login but the password, which would be written down with it."""
    fields = set(pipeline.Target.__struct_fields__)
    assert fields - {"store", "key", "servers", "service", "timeout_s", "key_ring", "mode"} == {
        *_LOGIN,
        *SERVICE_FILES,
    } - {"password"}
    assert set(LOGIN_FILES) == {name for name in fields if name.endswith("_file")} | {"key_ring"}
    assert fields - {"store", "key", "mode"} == set(PLACE)


@pytest.mark.parametrize(
    "target",
    [
        {"user": "u", "password": "hunter2"},
        {"servers": "nats://u:hunter2@a:4222"},
        {"servers": "nats://a, u:hunter2@b"},
    ],
)
def test_no_specification_has_a_password(target: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="password") as caught:
        pipeline.parse_spec(document(target={"store": "gateway", "key": "list", **target}))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"sauce": {}}, "unknown field `sauce`"),
        ({"source": {"paths": ["a"], "format": "xml"}}, "source.format: Invalid enum value 'xml'"),
        ({"source": {"paths": [], "format": "csv"}}, "source.paths has 0 entries: 1 to 1000 are allowed"),
        ({"source": {"format": "csv"}}, "source: Object missing required field `paths`"),
        ({"row": {"row_id": "id"}}, "row: either value (a column) or value_text must be given"),
        ({"row": {"row_id": "id", "value": "v", "value_text": "x"}}, "row: either value"),
        ({"target": {"store": "a.b", "key": "list"}}, "store 'a.b' is not a valid name"),
        ({"target": {"store": "gateway", "key": "list", "mode": "append"}}, "target.mode: Invalid enum value 'append'"),
        ({"columns": {"v": {"validate": ["ip_netwrok"]}}}, "columns.v.validate: 'ip_netwrok' is unknown: there are"),
        ({"columns": {"v": {"normalise": ["required"]}}}, "columns.v.normalise: 'required' is unknown"),
        ({"columns": {"v": {"validate": [{"length": {"mx": 3}}]}}}, "columns.v.validate: length object contains unk"),
        ({"columns": {"v": {"validate": [{"length": {"min": 3, "max": 2}}]}}}, "length has max 2 below min 3"),
        ({"columns": {"v": {"validate": [{"range": {}}]}}}, "range has neither min nor max"),
        ({"columns": {"v": {"validate": ["regex"]}}}, "columns.v.validate: regex lacks its parameter"),
        ({"columns": {"v": {"validate": [{"required": True}]}}}, "required takes no parameters"),
        ({"columns": {"v": {"validate": [{"one_of": []}]}}}, "one_of has 0 values: 1 to 10000 are allowed"),
        ({"columns": {"v": {"validate": [{"regex": "x" * 4097}]}}}, "regex has 4097 characters: 1 to 4096"),
        ({"columns": {"v": {"validate": ["required"] * 33}}}, "columns.v.validate has 33 rules: at most 32"),
        ({"columns": {"v": {"validate": [7]}}}, "columns.v.validate has 7: it must be a name or a table of one name"),
        ({"dedup": {"keep": "least"}}, "dedup: by and keep = greatest or least go together"),
        ({"guards": {"max_delete_share": 10}}, "guards.max_delete_share is 10.0: 0 to 1 is allowed"),
        ({"guards": {"max_rejected_share": -0.1}}, "guards.max_rejected_share is -0.1"),
    ],
)
def test_a_wrong_specification_is_refused(tables: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        pipeline.parse_spec(document(**tables))
    assert sentence in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    with pytest.raises(InvalidInputError, match=r"x\.toml can't be read: No such file"):
        pipeline.read_spec(path)
    path.write_text("[source")
    with pytest.raises(InvalidInputError, match=r"x\.toml is not valid TOML"):
        pipeline.read_spec(path)
    path.write_bytes(b"# " + b"x" * 300_000)
    with pytest.raises(InvalidInputError, match="larger than 262144 bytes"):
        pipeline.read_spec(path)


def plan(*, live: int = 100, read: int = 100, rejected: int = 0, **more: Any) -> pipeline.Plan:
    partitions = more.pop("partitions", [PartitionPlan(0, 60, 600, 5, 2, 3), PartitionPlan(1, 40, 400, 0, 0, 1)])
    return pipeline.Plan(
        target=more.pop("target", pipeline.Target(store="gateway", key="list")),
        heads=[7, 9],
        written=True,
        input=InputReport(read=read, rejected=rejected, duplicates=0, conflicts=0, held=0),
        live_rows=live,
        partitions=partitions,
        changes=Content(11, -5),
        after=more.pop("after", Content(100, 12)),
        made_at=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        **more,
    )


def test_the_arithmetic_of_a_plan() -> None:
    found = plan()
    assert (found.adds, found.updates, found.deletes, found.diff_rows) == (5, 2, 4, 11)
    assert found.delete_share == 0.04
    assert found.skew == 1.2
    assert (plan(live=0).delete_share, skew([]), skew([0, 0])) == (0.0, 1.0, 1.0)
    assert pipeline.refusals(found, pipeline.Guards()) == []


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (plan(live=39), "it deletes 4 of 39 rows, 10.3%: max_delete_share is 10.0%"),
        (plan(rejected=2), "2 of 100 rows were rejected, 2.0%: max_rejected_share is 1.0%"),
        (plan(after=Content(0, 0)), "it would leave gateway/list without a row: allow_empty permits that"),
        (
            plan(partitions=[PartitionPlan(3, 9, limits.MAX_PARTITION_BYTES + 1, 0, 0, 0)]),
            "partition 3 would have 8388609 bytes: the limit is 8388608; a store of more partitions than 2 is needed",
        ),
    ],
)
def test_a_plan_that_goes_too_far(found: pipeline.Plan, sentence: str) -> None:
    assert pipeline.refusals(found, pipeline.Guards()) == [sentence]
    with pytest.raises(pipeline.PlanRefusedError, match="the plan for gateway/list is refused: "):
        pipeline.check_plan(found)
    assert sentence in pipeline.describe_plan(found)


def test_the_limits_of_a_plan_can_be_moved() -> None:
    guards = pipeline.Guards(max_delete_share=1.0, max_rejected_share=1.0, allow_empty=True)
    pipeline.check_plan(plan(live=4, rejected=100, after=Content(0, 0)), guards)
    # At the limit is within it.
    pipeline.check_plan(plan(live=40))
    pipeline.check_plan(plan(rejected=1))


def test_a_plan_travels_as_json() -> None:
    found = plan()
    assert decode_plan(encode_plan(found)) == found
    with pytest.raises(InvalidInputError, match="the plan can't be read"):
        decode_plan(b'{"target": {}}')
    with pytest.raises(ProtocolError, match="the plan has format 2: this build reads 1"):
        decode_plan(encode_plan(plan(format=2)))


def test_the_arithmetic_of_a_move() -> None:
    flows = {(0, 0): 30, (0, 2): 20, (1, 1): 40, (1, 2): 10}
    report = pipeline.move_report(flows, [0, 1], [0, 1, 2])
    assert (report.rows, report.moved_rows, report.moved_share) == (100, 30, 0.3)
    assert report.ideal_share == pytest.approx(1 / 3)
    assert report.load_before == 1.0
    assert report.load_after == pytest.approx(1.2)
    gone = pipeline.move_report({(0, 1): 5, (1, 1): 5}, [0, 1], [1])
    assert (gone.moved_share, gone.ideal_share, gone.load_after) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_owners_are_slots(strategy: Strategy) -> None:
    workers = (0, 3, 5)
    layout = pipeline.Layout(partitions=64, workers=workers, strategy=strategy)
    assert set(layout.owners()) == set(workers)
    assert len(layout.owners()) == 64
    with pytest.raises(InvalidInputError, match="workers are 0: 1 to 200"):
        pipeline.Layout(partitions=64, workers=()).owners()
    with pytest.raises(InvalidInputError, match="4097"):
        pipeline.Layout(partitions=4097, workers=workers).owners()


@pytest.mark.parametrize("then", [(0, 1, 2, 3, 4), (0, 2, 3), (0, 1, 2, 3)])
def test_exclusive_ownership_moves_as_little_as_can_be(then: tuple[int, ...]) -> None:
    """From owners of its own, and from those that another strategy had: even in the end, and no row moves in vain."""
    after = pipeline.Layout(partitions=64, workers=then, strategy=Strategy.STICKY)
    for strategy in (Strategy.STICKY, Strategy.RING):
        before = pipeline.Layout(partitions=64, workers=(0, 1, 2, 3), strategy=strategy)
        old, new = before.owners(), after.owners(before)
        has, gets = Counter(old), Counter(new)
        assert max(gets.values()) - min(gets.values()) <= 1
        came = sum(max(0, gets[slot] - has[slot]) for slot in then)
        assert sum(one != other for one, other in zip(old, new, strict=True)) == came
    elsewhere = pipeline.Layout(partitions=32, workers=(0, 1), strategy=Strategy.JUMP)
    assert after.owners(elsewhere) == after.owners(), "another store: its partitions are others"


def test_the_command_says_what_it_takes(spec_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(cli, ["--help"])
    assert done.exit_code == 0
    assert all(name in done.output for name in ("plan", "show", "apply", "run", "export", "capacity", "Exit codes"))
    monkeypatch.setenv("RINGCAST_PIPELINE_STORE", "from-environment")
    monkeypatch.setenv("RINGCAST_PIPELINE_MAX_DELETE_SHARE", "0.25")
    done = CliRunner().invoke(cli, ["--json", "check", str(spec_file), "--max-delete-share", "0.75"])
    shown = json.loads(done.output)
    assert shown["target"]["store"] == "from-environment"
    assert shown["guards"]["max_delete_share"] == 0.75


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["check", "nowhere.toml"], 1, "specification nowhere.toml can't be read: No such file or directory"),
        (["show", "nowhere"], 1, "plan 'nowhere/plan.json' can't be used: there is no such file"),
        (["check", "SPEC", "--mode", "append"], 1, "target.mode: Invalid enum value 'append'"),
        (["check", "SPEC", "--max-delete-share", "2"], 1, "guards.max_delete_share is 2.0: 0 to 1 is allowed"),
        (["chek"], 2, "No such command 'chek'"),
        (["export", "gateway", "list", "out", "--since", "x"], 2, "--since goes with --history"),
        (["capacity", "--partitions", "0", "--workers", "3"], 1, "0"),
        (
            ["capacity", "--partitions", "64", "--workers", "201", "--strategy", "sticky"],
            1,
            "workers are 201: 1 to 200",
        ),
        (["capacity", "--partitions", "64", "--workers", "201"], 1, "workers are 201: 1 to 200 are allowed"),
    ],
)
def test_one_clear_error(
    words: list[str], code: int, sentence: str, spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([str(spec_file) if word == "SPEC" else word for word in words]) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "check", "nowhere.toml"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["code"], error["field"]) == ("INVALID_INPUT", "spec")


def test_what_the_package_offers() -> None:
    assert set(pipeline._HOME_OF) == set(pipeline.__all__)
    assert all(getattr(pipeline, name).__name__ == name for name in pipeline.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        pipeline.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_command_starts_without_spark() -> None:
    """Help, a specification and a saved plan need none, and PySpark takes a second to import."""
    code = "import sys, pyspark_ringcast.pipeline._cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
