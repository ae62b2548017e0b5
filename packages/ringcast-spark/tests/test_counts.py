"""What became of the rows of a write: in the log, a report and the sink's note; and what Spark drops of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as sql
from pyspark_ringcast import Counts, with_reasons, write
from pyspark_ringcast._batch.write import RingcastWriter
from pyspark_ringcast._client.sink_notes import LEDGER_KEY
from pyspark_ringcast._common.guards import OverwriteRefusedError
from pyspark_ringcast._common.options import parse_options
from ringcast_testkit import ConfigServiceProcess, TcpProxy
from ringcast_wire import InvalidInputError

Store = Any  # of conftest.py

ROWS = [("same", "1", False), ("new", "1", False), ("changed", "2", False), ("gone", None, True), ("", "1", False)]
SCHEMA = "row_id STRING, value STRING, deleted BOOLEAN"
COUNTS = {"written": 2, "deleted": 1, "unchanged": 1, "rejected": 1}
"""Of these rows, where ``same``, ``changed`` and ``gone`` have the value 1."""
AGAIN = {"written": 0, "deleted": 0, "unchanged": 4, "rejected": 1}


def begin(store: Store) -> None:
    store.write_rows({"same": "1", "changed": "1", "gone": "1"})


def only(counts: dict[str, Any]) -> dict[str, int]:
    return {name: int(counts[name]) for name in COUNTS}


def test_counts_of_a_job(store: Store, tmp_path: Path, logged: Callable[[str], list[dict[str, str]]]) -> None:
    begin(store)
    path = str(tmp_path / "counts")
    frame = store.frame(ROWS, SCHEMA).repartition(2)
    for wanted in (COUNTS, AGAIN):
        store.save(frame, maxRejected="1", countsPath=path)
        line = next(line for line in logged("write.committed") if only(line) == wanted)
        assert (line["store"], line["key"]) == (store.name, store.key)
        (report,) = store.spark.read.parquet(path).filter(sql.col("job") == line["job"]).collect()
        assert only(report.asDict()) == wanted
        assert (report.store, report.key) == (store.name, store.key)
    store.save(store.frame({"same": "1", "changed": "2"}), mode="overwrite", countsPath=path)
    counts = [only(row.asDict()) for row in store.spark.read.parquet(path).collect()]
    assert len(counts) == 3
    assert {"written": 0, "deleted": 1, "unchanged": 2, "rejected": 0} in counts


def test_a_write_that_returns_its_counts(store: Store) -> None:
    begin(store)
    frame = store.frame(ROWS, SCHEMA).repartition(2)
    for wanted in (COUNTS, AGAIN):
        assert write(frame, **store.options, maxRejected=1).by_name() == wanted
    whole = store.frame({"same": "1", "changed": "2"})
    assert write(whole, mode="overwrite", **store.options) == Counts(deleted=1, unchanged=2)
    assert store.rows() == {"same": "1", "changed": "2"}
    with pytest.raises(OverwriteRefusedError, match="without a row: allow_empty permits that"):
        write(whole.limit(0), mode="overwrite", **store.options)
    with pytest.raises(InvalidInputError, match="mode is 'ignore': append or overwrite is allowed"):
        write(frame, mode="ignore", **store.options)
    with pytest.raises(InvalidInputError, match="column row_id is missing: a write takes"):
        write(frame.drop("row_id"), **store.options)
    assert store.rows() == {"same": "1", "changed": "2"}
    with pytest.raises(InvalidInputError, match="1 rows were rejected, and option max_rejected allows 0"):
        write(frame, **store.options)


def test_a_job_that_fails_tells_what_it_has_done(
    store: Store, tmp_path: Path, logged: Callable[[str], list[dict[str, str]]]
) -> None:
    begin(store)
    frame = store.frame([*ROWS, (None, "1", False)], SCHEMA).repartition(2)  # each task rejects one row, and may
    with pytest.raises(PySparkException, match="2 rows were rejected"):
        store.save(frame.repartition(2, "deleted", "row_id"), maxRejected="1", countsPath=str(tmp_path / "counts"))
    assert not list((tmp_path / "counts").iterdir())
    assert [line for line in logged("write.aborted") if line["store"] == store.name]


def test_batches_that_were_written_and_whose_answers_were_lost(store: Store, service: ConfigServiceProcess) -> None:
    """They are sent again, and change nothing then: what they have written counts as written."""
    store.write_rows({"same-1": "1", "same-2": "1"})
    rows = {f"new-{number}": "1" for number in range(998)} | {"same-1": "1", "same-2": "1"}
    with TcpProxy(int(service.address.rpartition(":")[2])) as proxy:
        options = parse_options({**store.options, "service": f"127.0.0.1:{proxy.port}"})

        def one_batch() -> Iterator[pa.RecordBatch]:
            proxy.mute()
            yield pa.record_batch({"row_id": list(rows), "value": list(rows.values())})
            service.process.wait_until(lambda: sum(store.heads()) == len(rows))
            proxy.sever()
            proxy.resume()

        done = RingcastWriter(options, store.frame({"a": "1"}).schema, overwrite=False).write(one_batch())
    assert done.counts == Counts(written=998, unchanged=2)
    assert store.rows() == rows
    assert sum(store.heads()) == len(rows), "a row was written twice"


def test_counts_of_batches(store: Store, tmp_path: Path) -> None:
    """In the note of the sink, of the last batch and of all; of Spark's progress only the rows that it was given."""
    begin(store)
    for number, rows in enumerate((ROWS, ROWS[:2])):
        store.frame(rows, SCHEMA).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        source = store.spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
        writer = source.writeStream.format("ringcast").options(**store.options, maxRejected="1")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        (note,) = store.load(key=LEDGER_KEY, rowIds=f"{store.key}/{query.id}").collect()
        counts = json.loads(note.value)
        assert counts.pop("until_s") > 0
        last = COUNTS if not number else {"written": 0, "deleted": 0, "unchanged": 2, "rejected": 0}
        total = {name: COUNTS[name] + (last[name] if number else 0) for name in COUNTS}
        assert counts == {"batch": number, "last": last, "total": total}
        progress = query.lastProgress
        assert progress is not None
        assert progress["sink"]["numOutputRows"] == len(rows)
        assert not progress["sink"].get("metrics"), "Spark has learned to take counts of a sink in Python: give them"


def test_the_line_is_shown_where_nobody_has_configured_logging() -> None:
    """As in the processes in which Spark's driver commits; pytest has handlers, so in a process of its own."""
    code = "from pyspark_ringcast._batch import counts; counts.log_committed('s/k', 'j', counts.Counts(3))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    line = "event=write.committed store=s key=k job=j written=3 deleted=0 unchanged=0 rejected=0"
    assert said.rstrip().endswith(line)
    assert len(said.splitlines()) == 1


def test_what_an_observer_sees(store: Store) -> None:
    """The rows on their way to the write, and why they are rejected; nothing of what became of them."""
    begin(store)
    seen = Observation("seen")
    checked = with_reasons(store.frame(ROWS, SCHEMA))
    checked = checked.observe(seen, sql.count(sql.lit(1)).alias("rows"), sql.count("code").alias("rejected"))
    store.save(checked.filter("code IS NULL").drop("code", "field", "reason"))
    assert seen.get == {"rows": 5, "rejected": 1}
