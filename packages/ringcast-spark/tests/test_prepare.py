"""How many tasks a prepared DataFrame is written by, with Spark's adaptive execution as it is by default."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark_ringcast import prepare

PARTITIONS = 64


def homes(spark: SparkSession, rows: int, width: int, tasks: int | None = None) -> list[set[int]]:
    """The partitions that each task has; ``width``: characters of each value, at random."""
    frame = spark.range(rows, numPartitions=2).selectExpr(
        "concat('row-', id) AS row_id", f"randstr({width}, 7) AS value"
    )
    # Whole rows, as a write takes them: of ``partition`` alone so little would be shuffled that all is merged.
    written = prepare(frame, PARTITIONS, tasks=tasks).rdd.glom()
    return written.map(lambda task: {row.partition for row in task}).collect()


def test_spark_merges_small_tasks_and_no_partition_is_in_two(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    few, many, wanted = homes(spark, 400, 32), homes(spark, 2_000, 4_000), homes(spark, 400, 32, tasks=7)
    assert len(few) == 1
    assert 1 < len(many) <= 4, "there is enough for both cores, in as many tasks as the session shuffles into"
    assert len(wanted) == 7
    for tasks in (few, many, wanted):
        assert sum(map(len, tasks)) == len(set().union(*tasks)) == PARTITIONS, "a partition is in two tasks"
