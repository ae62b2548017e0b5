"""Encrypted values: sealed by writes, opened by reads and streams, and the same for a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_ringcast import lookup, pipeline
from ringcast_wire import InvalidInputError
from ringcast_wire.key_ring import KeyRingDocument, make_key, read_key_ring, write_key_ring

Store = Any  # of conftest.py
Stream = Any

CLEAR = "the clear text"


@pytest.fixture
def ring(tmp_path: Path) -> str:
    path = str(tmp_path / "ring.json")
    document = KeyRingDocument(active="k1", keys={"k1": make_key()}, encrypt=["*/list"])
    write_key_ring(path, document, replace=False)
    return path


def test_batches_and_streams(store: Store, stream: Stream, ring: str) -> None:
    store.more["key_ring"] = ring
    rows = [(f"row-{number}", CLEAR, {"n": str(number)} if number % 2 else None) for number in range(200)]
    frame = store.frame(rows, "row_id STRING, value STRING, metadata MAP<STRING, STRING>")
    store.save(frame)
    assert not any(CLEAR in value for value in store.rows().values())
    assert store.metadata("row-1") == {"n": "1", "enc-alg": "A256GCM-HS256", "enc-kid": "k1"}
    heads = store.heads()
    store.save(frame)
    assert store.heads() == heads, "equal values have equal bytes: nothing is written again"
    found = {row.row_id: (row.value, row.metadata) for row in store.load().collect()}
    assert found == {row_id: (value, metadata) for row_id, value, metadata in rows}
    del store.more["key_ring"]
    assert {row.row_id: row.value for row in store.load().collect()} == store.rows(), "as stored, without a key ring"
    store.more["key_ring"] = ring

    ids = store.frame([("row-3",), ("none",)], "row_id STRING")
    looked_up = {row.row_id: row.value for row in lookup(ids, **store.options).collect()}
    assert looked_up == {"row-3": CLEAR, "none": None}

    assert {row.value for row in stream.catch_up(key_ring=ring)} == {CLEAR}
    store.save(store.frame({"row-0": "another"}))
    store.delete("row-1")
    assert {row.row_id: row.value for row in stream.catch_up(key_ring=ring)} == {"row-0": "another", "row-1": None}


def test_a_change_feed(store: Store, stream: Stream, ring: str) -> None:
    store.more["key_ring"] = ring
    store.save(store.frame({"row": CLEAR}))
    store.save(store.frame({"row": "another"}))
    store.delete("row")
    rows = stream.catch_up(key_ring=ring, readChangeFeed="true")
    assert [(row.change_type, row.value) for row in rows] == [
        ("insert", CLEAR),
        ("update_preimage", CLEAR),
        ("update_postimage", "another"),
        ("delete", "another"),
    ]


def test_what_does_not_open_fails_the_read(store: Store, ring: str) -> None:
    store.put("row", CLEAR)
    with pytest.raises(Exception, match=rf"row 'row' of {store.name}/list is clear text, and the key ring says"):
        store.load(key_ring=ring).collect()
    Path(ring).chmod(0o644)
    with pytest.raises(InvalidInputError, match="has the mode 0644"):
        read_key_ring(ring)


def test_a_pipeline(spark: SparkSession, store: Store, ring: str, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("row_id,value\n" + "".join(f"row-{number},{CLEAR}\n" for number in range(50)))
    document = {
        "source": {"paths": [str(source)], "format": "csv"},
        "row": {"row_id": "row_id", "value": "value"},
        "target": store.options | {"timeout_s": 10.0, "key_ring": ring},
    }
    spec = pipeline.parse_spec(document)
    report = pipeline.apply_plan(spark, pipeline.make_plan(spark, spec))
    assert (report.planned, report.verified) == (50, 50)
    assert not any(CLEAR in value for value in store.rows().values())
    assert pipeline.make_plan(spark, spec).plan.diff_rows == 0
    pipeline.export_snapshot(spark, spec.target, str(tmp_path / "snapshot"))
    pipeline.export_history(spark, spec.target, str(tmp_path / "history"))
    for path in ("snapshot/rows", "history/revisions"):
        assert {row.value for row in spark.read.parquet(str(tmp_path / path)).collect()} == {CLEAR}
