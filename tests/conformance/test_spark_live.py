"""Asks a real Spark where rows fall, and compares with the core, id by id."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ringcast_core

PARTITION_COUNTS = (1, 2, 3, 255, 256, 1000, 4096)
ROWS = 4000


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[1]")
        .appName("conformance")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    yield session
    session.stop()


def drawn_ids(seed: int) -> list[str]:
    """Ids over all of Unicode but the surrogates, of 0 to 40 characters, and some as long as allowed."""
    draw = random.Random(seed)
    planes = ((0x20, 0x7F), (0x00, 0x250), (0x370, 0x2000), (0x3040, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000))

    def one() -> str:
        low, high = draw.choice(planes)
        return "".join(chr(draw.randrange(low, high)) for _ in range(draw.randrange(41)))

    longest = ["x" * 512, "é" * 256, "\U0001f600" * 128]
    return [one() for _ in range(ROWS - len(longest))] + longest


def test_core_agrees_with_spark_on_unicode_ids(spark: Any) -> None:
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
