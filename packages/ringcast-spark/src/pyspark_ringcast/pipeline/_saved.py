"""Plans on disk: ``changes/`` as Parquet, and ``plan.json``, which is written last and so says that all is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql
from ringcast_wire import InvalidInputError, shown_path

from pyspark_ringcast.pipeline._difference import CHANGE_COLUMNS, Planned, changes_hash
from pyspark_ringcast.pipeline._files import absolute, check_free, read_file, write_file
from pyspark_ringcast.pipeline._plan import MAX_PLAN_BYTES, Content, Plan, decode_plan, encode_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA: Final = (
    "partition INT, row_id STRING, action STRING, value STRING, metadata ARRAY<STRUCT<key: STRING, value: STRING>>, "
    "old_value STRING, old_metadata ARRAY<STRUCT<key: STRING, value: STRING>>, old_version BIGINT"
)


def save_plan(planned: Planned, path: str) -> None:
    """Writes a plan to a new directory.

    Raises:
        InvalidInputError: something is at ``path``, or it can't be written to.
    """
    path = absolute(path)
    check_free("plan", path)
    planned.changes.sortWithinPartitions("partition", "row_id").write.parquet(f"{path}/changes")
    write_file("plan", f"{path}/plan.json", encode_plan(planned.plan))


def read_plan(path: str) -> Plan:
    """What is known of a saved plan but its rows; needs no Spark.

    Raises:
        InvalidInputError: there is no plan at ``path``.
    """
    return decode_plan(read_file("plan", f"{path}/plan.json", MAX_PLAN_BYTES))


def load_plan(spark: SparkSession, path: str) -> Planned:
    """A saved plan with its rows, which are those that were planned.

    Raises:
        InvalidInputError: there is no plan at ``path``, or its rows are damaged.
    """
    path = absolute(path)
    plan = read_plan(path)
    if not plan.diff_rows:  # Parquet of no rows may be a directory of no files
        return Planned(plan, spark.createDataFrame([], _SCHEMA))
    changes = spark.read.schema(_SCHEMA).parquet(f"{path}/changes").select(*CHANGE_COLUMNS)
    found = content_of_changes(changes)
    if found != plan.changes:
        raise InvalidInputError(
            f"plan {shown_path(path)} is damaged: it has {found.rows} rows with checksum {found.checksum:x}, and "
            f"{plan.changes.rows} with {plan.changes.checksum:x} were planned",
            field="plan",
        )
    return Planned(plan, changes)


def content_of_changes(changes: DataFrame) -> Content:
    """Number and fingerprint of the rows of a plan."""
    row = changes.agg(sql.count("*"), sql.coalesce(sql.bit_xor(changes_hash()), sql.lit(0))).first()
    assert row is not None
    return Content(row[0], row[1])
