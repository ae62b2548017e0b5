"""What Spark shows and keeps of reads, writes and streams: nowhere is a secret in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from ringcast_testkit import PATIENCE_S
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py

PASSWORD = "hunter2-of-this-file-alone"
LAST = "the last job of test_secrets"


def test_no_secret_is_shown_or_kept(
    spark: SparkSession, store: Store, event_log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A password goes with the job to its tasks; plans, event log, progress, checkpoints and errors don't have it."""
    store.more = {"user": "somebody", "password": PASSWORD}
    said: list[str] = []
    store.save(store.frame({"a": "1", "b": "2"}), mode="overwrite")
    frame = store.load()
    frame.explain("extended")
    said += [frame._jdf.queryExecution().toString(), *(str(row) for row in frame.collect())]
    mirror(store, tmp_path / "checkpoint", said)
    with pytest.raises(StreamingQueryException) as failed:
        mirror(store, tmp_path / "other", said, maxRowsPerTrigger="1", service="127.0.0.1:1", timeout_s="0.3")
    said.append(str(failed.value))
    store.stub.DeleteKey(pb.DeleteKeyRequest(store=store.name, key="list"))
    for fails in (frame.collect, lambda: store.save(store.frame([(None, "v")]), key="copy")):
        with pytest.raises(PySparkException, match=r"was deleted|row_id is null") as caught:
            fails()
        said.append(str(caught.value))
    said += capfd.readouterr()
    events = events_until_now(spark, event_log)
    assert store.name in events, "the event log knows nothing of these jobs"
    said += [events, *(path.read_text(errors="replace") for path in files_in(tmp_path))]
    assert not [text for text in said if PASSWORD in text]


def mirror(store: Store, checkpoint: Path, said: list[str], **options: str) -> None:
    """Streams the list into another key, and notes what the query says of itself."""
    stream = store.spark.readStream.format("ringcast").options(**{**store.options, **options}).load()
    writer = stream.writeStream.format("ringcast").options(**{**store.options, "key": "copy"})
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        said += [progress.json for progress in query.recentProgress]
        query.explain(extended=True)
        query.stop()


def events_until_now(spark: SparkSession, event_log: Path) -> str:
    """The event log, once it has a job that begins after all others."""
    spark.sparkContext.setJobDescription(LAST)
    spark.range(1).count()
    spark.sparkContext.setJobDescription("")
    deadline = time.monotonic() + PATIENCE_S
    while LAST not in (events := "".join(path.read_text() for path in files_in(event_log))):
        assert time.monotonic() < deadline, "the event log does not come to its end"
        time.sleep(0.05)
    return events


def files_in(directory: Path) -> list[Path]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    assert found, f"nothing is in {directory}"
    return found
