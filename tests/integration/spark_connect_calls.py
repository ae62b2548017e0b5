"""What the test of Spark Connect runs as a client that has our package: the calls of ``pyspark_ringcast``.

Usage: spark_connect_calls.py ADDRESS OPTIONS, where OPTIONS are those of the connector as JSON, with a key that nobody
has written. The report, JSON on the last line, has what was found.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ROWS = 2_000


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark_ringcast import lookup, prepare, with_reasons, write

    address, options = sys.argv[1], json.loads(sys.argv[2])
    spark = SparkSession.builder.remote(f"sc://{address}").getOrCreate()
    report: dict[str, Any] = {}

    rows = spark.range(ROWS).selectExpr("concat('row-', id) AS row_id", "cast(id AS STRING) AS value")
    report["written"] = counts_of(write(prepare(rows, 16, tasks=2), **options))
    report["again"] = counts_of(write(rows.union(spark.sql("SELECT 'new', 'one'")), **options))
    bad = spark.createDataFrame([("good", "x"), ("bad", None)], "row_id STRING, value STRING")
    report["rejected"] = counts_of(write(bad, **options, max_rejected=1))
    report["reasons"] = [list(row) for row in with_reasons(bad).select("row_id", "code").collect()]

    print("written", flush=True)

    asked = spark.range(0, 2 * ROWS, 4).selectExpr("concat('row-', id) AS row_id", "id AS number")
    found = lookup(asked, **options)
    report["asked"], report["found"] = found.count(), found.filter("value IS NOT NULL").count()
    report["wrong"] = found.filter("value != cast(number AS STRING)").count()
    # The plan is the client's: its snapshot stays, whatever is written later.
    write(spark.sql("SELECT 'row-0', 'later'").toDF("row_id", "value"), **options)
    report["later"] = found.filter("value = 'later'").count()
    report["inner"] = lookup(asked, how="inner", **options).filter("value = 'later'").count()
    spark.conf.set("spark.ringcast.service", options["service"])
    rest = {name: text for name, text in options.items() if name != "service"}
    report["by default"] = lookup(asked.limit(3), **rest).count()

    print("looked up", flush=True)

    report["errors"] = []
    for call in (
        lambda: lookup(asked, **{**options, "store": "nowhere"}),
        lambda: write(rows.limit(1), mode="overwrite", **options),
        lambda: write(rows, **{**options, "service": "127.0.0.1:1", "timeout_s": "2"}),
    ):
        try:
            call()
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at its words
            report["errors"].append(f"{type(error).__name__}: {error}")
    spark.stop()
    print(json.dumps(report))


def counts_of(counts: Any) -> dict[str, int]:
    return {name: count for name, count in counts.by_name().items() if count}


if __name__ == "__main__":
    main()
