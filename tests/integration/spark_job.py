"""What the cluster test submits: a write and a read, each with an executor killed in the middle, a stream, and a
write with a task that Spark runs twice at once.

The stream takes the list to the key ``copy``, the last write goes to ``twice``. The report has what was found.

Usage: spark_job.py OPTIONS DIRECTORY, where OPTIONS are those of the connector as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROWS = 5_000
TWICE_ROWS = 800
COPY_WITHIN_S = 240.0
WIDTH = 4_000
"""Characters of a value: more than what waits between Spark's processes has to pass."""

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


def mirror(spark: Any, options: dict[str, str], checkpoint: Path) -> None:
    """A stream from the list to another, that ends once all is there."""
    changes = spark.readStream.format("ringcast").options(**options, maxRowsPerTrigger=ROWS // 2).load()
    writer = changes.writeStream.format("ringcast").options(**{**options, "key": "copy"})
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def wait_for_copy(directory: Path) -> Callable[[Batches], Batches]:
    """A step whose first task is slow: in the middle of its rows it waits until a copy of it has written them all."""

    def through(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        copy = directory / "copy-is-done"
        if context.partitionId() or context.attemptNumber():
            yield from batches
            if not context.partitionId():
                copy.touch()
            return
        for batch in batches:
            (directory / "slow-began").touch()  # on a slow machine a copy may be done before this comes back
            yield batch
            deadline = time.monotonic() + COPY_WITHIN_S
            while not copy.exists() and time.monotonic() < deadline:
                time.sleep(0.05)

    return through


def main() -> None:
    from pyspark.sql import SparkSession

    options, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
    settings: dict[str, bool | float | int | str | None] = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.sql.shuffle.partitions": "1",
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
    mirror(spark, options, directory / "checkpoint")
    few = rows.limit(TWICE_ROWS).repartition(4)
    twice = few.mapInArrow(wait_for_copy(directory), few.schema)
    twice.write.format("ringcast").mode("append").options(**{**options, "key": "twice"}).save()
    report = {"master": spark.sparkContext.master, **found.asDict()}
    (directory / "part.json").write_text(json.dumps(report))
    (directory / "part.json").rename(directory / "report.json")
    spark.stop()


if __name__ == "__main__":
    main()
