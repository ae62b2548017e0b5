"""What the cluster test submits: a write and a read, each with an executor killed in the middle, a stream, and a
write and a stream each with a task that Spark runs twice at once.

The streams take the list to the keys ``copy`` and ``twice-stream``, the last write goes to ``twice``. The report has
what was found.

Usage: spark_job.py OPTIONS DIRECTORY, where OPTIONS are those of the connector as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROWS = 5_000
TWICE_ROWS = 1_600
COPY_WITHIN_S = 240.0
WIDTH = 4_000
"""Characters of a value: more than what waits between Spark's processes has to pass."""
TWICE_WIDTH = 35_000
"""The same for a task that is to have written some of its 400 rows: a hundred are more than a batch holds."""

Batches = Iterator[Any]


def kill_once(marker: Path) -> Callable[[Batches], Batches]:
    """A step that lets rows through; the first task that gets to the middle notes it and takes its executor down."""

    def through(batches: Batches) -> Batches:
        import psutil

        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if seen >= ROWS // 2 and not marker.exists():
                marker.write_text(json.dumps(where_it_came_from()))
                executor = next(process for process in psutil.Process().parents() if process.name() == "java")
                os.kill(executor.pid, signal.SIGKILL)

    return through


def where_it_came_from() -> list[str]:
    """The files of the connector and its core, as an executor imports them."""
    import pyspark_ringcast
    import ringcast_core._native

    return [str(Path(str(module.__file__)).resolve()) for module in (pyspark_ringcast, ringcast_core._native)]


def mirror(spark: Any, options: dict[str, str], key: str, checkpoint: Path, step: Any = None, **more: Any) -> str:
    """A stream from the list to another, that ends once all is there; returns the query's id."""
    changes = spark.readStream.format("ringcast").options(**options, **more).load()
    if step is not None:
        changes = changes.mapInArrow(step, changes.schema)
    writer = changes.writeStream.format("ringcast").options(**{**options, "key": key})
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return str(query.id)


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + COPY_WITHIN_S
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def wait_for_copy(directory: Path, options: dict[str, str]) -> Callable[[Batches], Batches]:
    """A step whose first task is slow: when some of its rows are written, it waits until a copy of it has the others.

    Then it goes on: either may win. The copy waits in turn until those rows are written; on a busy machine it would
    else be through before the first has begun.
    """

    def is_written(row_id: str) -> bool:
        from pyspark_ringcast._client.service import shared_stub
        from ringcast_wire.grpc import pb

        request = pb.GetRequest(store=options["store"], key=options["key"], row_ids=[row_id])
        try:
            return bool(shared_stub(options["service"]).Get(request).rows)
        except Exception:  # noqa: BLE001  # the key is not there yet
            return False

    def through(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        copy, slow = directory / "copy-is-done", directory / "slow-wrote"
        if context.partitionId() or context.attemptNumber():
            if not context.partitionId():
                until(slow.exists)
            yield from batches
            if not context.partitionId():
                copy.touch()
            return
        seen: list[str] = []
        for batch in batches:
            yield batch
            seen += batch.column("row_id").to_pylist()
            if len(seen) == 300 and until(partial(is_written, seen[0])):
                slow.touch()
            if len(seen) >= 300:
                until(copy.exists)

    return through


def wait_for_the_end(directory: Path) -> Callable[[Batches], Batches]:
    """A step whose first task comes to no end, so that a copy of it has to win, and Spark kills it."""

    def through(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            if context.attemptNumber():
                until((directory / "stream-attempt-0").exists)
            (directory / f"stream-attempt-{context.attemptNumber()}").touch()
        for batch in batches:
            if context.partitionId() == context.attemptNumber() == 0:
                until(lambda: False)
            yield batch

    return through


def main() -> None:
    from pyspark.sql import SparkSession

    options, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
    settings: dict[str, bool | float | int | str | None] = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.sql.shuffle.partitions": "1",
        # Of few rows, making and compiling a program for each query takes more than the query does.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # A copy of a task that is slow, where most others of its stage are done: steps of one task have none.
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    value = f"rpad(concat('value ', {{}}), {WIDTH}, '.')"
    rows = spark.range(ROWS, numPartitions=1).selectExpr(
        "concat('row-', id) AS row_id", f"{value.format('id')} AS value"
    )
    killed = rows.mapInArrow(kill_once(directory / "write"), rows.schema)
    killed.write.format("ringcast").mode("overwrite").options(**options, maxDeleteShare="1").save()  # of one row
    frame = spark.read.format("ringcast").options(**options, tasks="1").load()
    read = frame.mapInArrow(kill_once(directory / "read"), frame.schema)
    right = f"count_if(value = {value.format('substr(row_id, 5)')})"
    (found,) = read.selectExpr("count(*) AS rows", "count(DISTINCT row_id) AS ids", f"{right} AS right").collect()
    mirror(spark, options, "copy", directory / "checkpoint", maxRowsPerTrigger=ROWS // 2)
    wide = f"rpad(concat('value ', id), {TWICE_WIDTH}, '.') AS value"
    few = spark.range(TWICE_ROWS, numPartitions=4).selectExpr("concat('row-', id) AS row_id", wide)
    to_twice = {**options, "key": "twice"}
    twice = few.mapInArrow(wait_for_copy(directory, to_twice), few.schema)
    twice.write.format("ringcast").mode("append").options(**to_twice, countsPath=str(directory / "counts")).save()
    (counts,) = spark.read.parquet(str(directory / "counts")).collect()
    step = wait_for_the_end(directory)
    query = mirror(spark, options, "twice-stream", directory / "checkpoint-twice", step, tasks=4)
    report = {"master": spark.sparkContext.master, **found.asDict(), "twice": counts.asDict(), "query": query}
    (directory / "part.json").write_text(json.dumps(report))
    (directory / "part.json").rename(directory / "report.json")
    spark.stop()


if __name__ == "__main__":
    main()
