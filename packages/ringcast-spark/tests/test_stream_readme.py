"""What the README says of streams, run against a real store; only addresses and directories are other ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark_ringcast._client.sink_notes import LEDGER_KEY
from pyspark_ringcast._common.options import Changes, OnGap, Options
from ringcast_testkit import run_readme_examples
from ringcast_wire.grpc import pb


def section() -> str:
    """From the heading to the next of its kind, or the end."""
    readme = Path(__file__).resolve().parents[1] / "README.md"
    _, _, rest = readme.read_text(encoding="utf-8").partition("\n## Streaming\n")
    return rest.partition("\n## ")[0]


def test_the_example_runs(store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.stub.CreateStore(pb.CreateStoreRequest(name="gateway", partition_count=16))
    (tmp_path / "incoming").mkdir()
    rows = {"row_id": ["mailinator.com", "example.org"], "value": ["block", "allow"]}
    pq.write_table(pa.table(rows), tmp_path / "incoming" / "1.parquet")
    text = section().replace("nats://127.0.0.1:4222", store.nats_url).replace("127.0.0.1:7420", store.address)
    for name in ("incoming", "checkpoints/in", "checkpoints/out", "changes"):
        text = re.sub(rf'([(] ?|, )"{name}"[)]', rf'\1"{tmp_path / name}")', text)
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    assert run_readme_examples(tmp_path / "README.md") == 2
    assert sorted(capsys.readouterr().out.splitlines()) == ["example.org allow 1", "mailinator.com block 1"]


def test_options_and_defaults_are_as_documented() -> None:
    table = {
        name: (what, default) for name, what, default in re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", section(), re.M)
    }
    defaults = Options(store="s", key="k")
    assert table["changes"] == (" or ".join(f"`{one}`" for one in Changes), f"`{defaults.changes}`")
    assert table["onGap"] == (" or ".join(f"`{one}`" for one in OnGap) + ": see below", f"`{defaults.on_gap}`")
    assert table["startingOffsets"][1] == f"`{defaults.starting_offsets}`"
    assert (table["maxRowsPerTrigger"][1], defaults.max_rows_per_trigger) == ("no limit", None)
    assert f"`{LEDGER_KEY}`" in section()
    assert f"`timeout_s` ({defaults.timeout_s:g} s)" in section()
