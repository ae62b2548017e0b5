"""What the test of Spark Connect runs as its client: a process that knows PySpark and nothing of ours.

Usage: spark_connect_client.py ADDRESS OPTIONS DIRECTORY, where OPTIONS are those of the connector as JSON. The report,
JSON on the last line, has what was found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROWS = 3_000


def version_of(frame: Any) -> str:
    """The revisions that a read has, for ``versionAsOf``: every row has its own."""
    found = frame.groupBy("partition").max("version").collect()
    return json.dumps({str(row[0]): row[1] for row in found})


def main() -> None:
    from pyspark.sql import SparkSession

    address, options, directory = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    spark = SparkSession.builder.remote(f"sc://{address}").getOrCreate()
    report: dict[str, Any] = {}
    print("the session is there", flush=True)

    rows = spark.range(ROWS).selectExpr("concat('row-', id) AS row_id", "cast(id AS STRING) AS value")
    rows.write.format("ringcast").mode("append").options(**options).save()
    frame = spark.read.format("ringcast").options(**options).load()
    report["rows"] = frame.count()
    report["wrong"] = frame.filter("value != substr(row_id, 5)").count()

    print("written and read", flush=True)

    # The server plans a DataFrame at each use, but for the last few plans that it keeps: a version makes one snapshot.
    pinned = spark.read.format("ringcast").options(**options, versionAsOf=version_of(frame)).load()
    one = rows.limit(1).selectExpr("row_id", "'later' AS value")
    one.write.format("ringcast").mode("append").options(**options).save()
    fresh = spark.read.format("ringcast").options(**options).load()
    report["later"] = [used.filter("value = 'later'").count() for used in (pinned, pinned.union(pinned), fresh)]

    print("pinned", flush=True)

    place = ", ".join(f"`{name}` '{text}'" for name, text in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW list USING ringcast OPTIONS ({place}, onChange 'latest')")
    spark.sql("INSERT INTO list VALUES ('by SQL', '{\"n\": 1}', 0, 0, false, null)")
    report["joined"] = spark.sql("SELECT * FROM list a JOIN list b USING (row_id) WHERE a.value = 'later'").count()
    mapped = spark.read.format("ringcast").options(**options, rowIds="by SQL", valueColumns="n INT", columns="n")
    report["mapped"] = [list(row) for row in mapped.load().collect()]

    print("read by SQL", flush=True)

    changes = spark.readStream.format("ringcast").options(**options, maxRowsPerTrigger=ROWS // 2).load()
    copy = changes.writeStream.format("ringcast").options(**{**options, "key": "copy"})
    copy = copy.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
    copy.start().awaitTermination()
    report["copied"] = spark.read.format("ringcast").options(**{**options, "key": "copy"}).load().count()

    print("copied by a stream", flush=True)

    report["errors"] = []
    for wrong in ({"store": "nowhere"}, {"tabel": "x"}):
        try:
            spark.read.format("ringcast").options(**{**options, **wrong}).load().count()
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at its words
            report["errors"].append(str(error))
    try:
        bad = spark.createDataFrame([("a", None)], "row_id STRING, value STRING")
        bad.write.format("ringcast").mode("append").options(**options).save()
    except Exception as error:  # noqa: BLE001
        report["errors"].append(str(error))
    spark.stop()
    report["imported"] = sorted(name for name in sys.modules if name.partition(".")[0].find("ringcast") >= 0)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
