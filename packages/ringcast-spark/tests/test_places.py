"""Asks a real Spark where rows fall, and compares with the core, id by id."""

from __future__ import annotations

import random

import pyarrow as pa
import ringcast_core
from pyspark.sql import SparkSession

PARTITION_COUNTS = (1, 2, 3, 255, 256, 1000, 4096)
ROWS = 4000


def drawn_ids(seed: int) -> list[str]:
    """Ids over all of Unicode but the surrogates, of 0 to 40 characters, and some as long as allowed."""
    draw = random.Random(seed)
    planes = ((0x20, 0x7F), (0x00, 0x250), (0x370, 0x2000), (0x3040, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000))

    def one() -> str:
        low, high = draw.choice(planes)
        return "".join(chr(draw.randrange(low, high)) for _ in range(draw.randrange(41)))

    longest = ["x" * 512, "é" * 256, "\U0001f600" * 128]
    return [one() for _ in range(ROWS - len(longest))] + longest


def test_core_agrees_with_spark_on_unicode_ids(spark: SparkSession) -> None:
    seed = 20261120
    ids = drawn_ids(seed)
    assert sum(not row_id.isascii() for row_id in ids) > ROWS // 2
    columns = [f"pmod(xxhash64(id), {count}) as p{count}" for count in PARTITION_COUNTS]
    frame = spark.createDataFrame(list(enumerate(ids)), "at int, id string")
    rows = frame.selectExpr("at", *columns).orderBy("at").collect()
    assert len(rows) == ROWS
    for count in PARTITION_COUNTS:
        expected = [row[f"p{count}"] for row in rows]
        assert list(ringcast_core.row_partitions(ids, count)) == expected, f"seed {seed}, {count} partitions"


def test_spark_places_a_hundred_thousand_unicode_ids_as_the_core_does(spark: SparkSession) -> None:
    """Made in the JVM: up to 24 characters over all planes, surrogates left out, seeded."""
    count, partitions = 100_000, 1_000
    point = "pmod(xxhash64(id, i), 1112064)"
    char = f"decode(unhex(lpad(hex({point} + if({point} >= 55296, 2048, 0)), 8, '0')), 'utf-32')"
    frame = spark.range(count, numPartitions=2).selectExpr(
        f"array_join(transform(sequence(0, cast(id % 24 as int)), i -> {char}), '') AS row_id"
    )
    table = frame.selectExpr("row_id", f"CAST(pmod(xxhash64(row_id), {partitions}) AS INT) AS place").toArrow()
    assert table.num_rows == count
    ids = table.column("row_id").combine_chunks()
    sample = ids.slice(0, 10_000).to_pylist()
    assert sum(not row_id.isascii() for row_id in sample) > 9_000
    assert len({len(row_id) for row_id in sample}) == 24
    ours = pa.array(ringcast_core.row_partitions_arrow(ids, partitions))
    assert ours.cast(pa.int32()).equals(table.column("place").combine_chunks())
