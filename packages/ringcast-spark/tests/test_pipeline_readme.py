"""What the README says of the pipeline."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import grpc
import pytest
from pyspark.sql import SparkSession
from pyspark_ringcast import pipeline
from pyspark_ringcast.pipeline._rules import NORMALISERS, VALIDATORS
from ringcast_testkit import ConfigServiceProcess, NatsServer, run_readme_examples
from ringcast_wire.grpc import ConfigServiceStub, pb

README = Path(__file__).resolve().parents[1] / "README.md"


def section() -> str:
    """From the heading to the next of its kind, or the end."""
    _, _, rest = README.read_text(encoding="utf-8").partition("\n## Pipeline\n")
    return rest.partition("\n## ")[0]


def test_the_example_runs(
    spark: SparkSession,
    tmp_path: Path,
    nats_server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "README.md").write_text(section(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database) as service:
        monkeypatch.setenv("RINGCAST_SERVERS", nats_server.url)
        monkeypatch.setenv("RINGCAST_SERVICE", service.address)
        with grpc.insecure_channel(service.address) as channel:
            ConfigServiceStub(channel).CreateStore(pb.CreateStoreRequest(name="gateway", partition_count=16))
            assert run_readme_examples(tmp_path / "README.md") == 1
            pages = ConfigServiceStub(channel).List(pb.ListRequest(store="gateway", key="networks"))
            rows = {row.row_id: row.value for page in pages for row in page.rows}
    assert rows == {"192.0.2.0/24": "Docs", "198.51.100.0/24": "Tests"}
    assert "2 written, 2 read back" in capsys.readouterr().out


def test_the_specification_is_one() -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```", section(), re.DOTALL | re.MULTILINE)
    spec = pipeline.parse_spec(tomllib.loads(block))
    assert spec.dedup.by == "updated"
    assert spec.guards == pipeline.Guards()


def test_every_rule_is_documented() -> None:
    tables = section().partition("| `normalise` |")[2]
    named = set(re.findall(r"`(\w+)(?: = [^`]*)?`", tables))
    assert {*NORMALISERS, *VALIDATORS} <= named
