"""The difference between checked rows and the live store, and the plan that comes of it."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql
from pyspark.storagelevel import StorageLevel
from ringcast_wire import InvalidInputError

from pyspark_ringcast.pipeline import _expressions as expressions
from pyspark_ringcast.pipeline._files import absolute
from pyspark_ringcast.pipeline._input import Checked, read_checked
from pyspark_ringcast.pipeline._plan import Content, InputReport, PartitionPlan, Plan
from pyspark_ringcast.pipeline._session import clear_error
from pyspark_ringcast.pipeline._target import State, load_live

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pyspark_ringcast.pipeline._spec import Dedup, Spec

CHANGE_COLUMNS: Final = (
    "partition",
    "row_id",
    "action",
    "value",
    "metadata",
    "old_value",
    "old_metadata",
    "old_version",
)
"""Of the rows of a plan. ``action`` is add, change or delete; metadata are sorted entries."""
_ENTRIES: Final = "array<struct<key:string,value:string>>"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with its rows (``CHANGE_COLUMNS``) and the reject report (``row_id, field, value, reason, record``)."""

    plan: Plan
    changes: DataFrame
    rejects: DataFrame | None = None
    cached: tuple[DataFrame, ...] = ()

    def release(self) -> None:
        """Lets go of what Spark keeps of it; it can be computed again afterwards."""
        for frame in self.cached:
            frame.unpersist()


def make_plan(spark: SparkSession, spec: Spec) -> Planned:
    """Reads, checks and compares; nothing is written.

    Raises:
        InvalidInputError: a file or column is missing, or a file can't be read right.
        UnknownStoreError: there is no such store.
        UnavailableError: NATS or the config service did not answer in time.
    """
    checked = read_checked(spark, spec)
    state, live = load_live(spark, spec.target)
    # Spark would take the rows that it keeps of an earlier plan for those of the same files, whatever they hold by now.
    own = checked.rows.withColumn("plan_id", sql.lit(uuid.uuid4().hex))
    checked = replace(checked, rows=own.persist(StorageLevel.MEMORY_AND_DISK))
    wanted = one_row_an_id(checked.rows, spec.dedup)
    compared = compare(wanted, live, spec.target.mode, state.partition_count).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        plan = _summarise(spec, state, checked, compared)
    except BaseException as error:
        checked.rows.unpersist()
        compared.unpersist()
        if isinstance(refused := clear_error(error), InvalidInputError):  # a task found that a file can't be read right
            raise refused from None
        raise
    changes = compared.filter("action IN ('add', 'change', 'delete')").select(*CHANGE_COLUMNS)
    rejects = checked.rejects()
    if spec.dedup.keep == "reject":
        rejects = rejects.unionByName(_conflict_report(compared))
    return Planned(plan, changes, rejects, (checked.rows, compared))


def one_row_an_id(rows: DataFrame, dedup: Dedup) -> DataFrame:
    """A row an id: ``row_id, value, metadata, valid, conflict, copies``; ``valid`` says if it may be written.

    Rows without an id are left out: they are only in the report.
    """
    valid = sql.size("problems") == 0
    content = sql.struct("value", "metadata")
    keep_least = dedup.keep == "least"
    first = sql.col("rank").isNull() if keep_least else sql.col("rank").isNotNull()
    order = sql.when(valid, sql.struct(first.alias("first"), "rank", "value", "metadata"))
    best = sql.min(order) if keep_least else sql.max(order)
    grouped = rows.filter(sql.col("row_id").isNotNull() & (sql.col("row_id") != "")).groupBy("row_id")
    found = grouped.agg(
        best.alias("best"),
        (sql.min(sql.when(valid, content)) != sql.max(sql.when(valid, content))).alias("differ"),
        sql.count_if(valid).alias("copies"),
    )
    conflict = sql.coalesce("differ", sql.lit(False))
    usable = sql.col("copies") > 0
    if dedup.keep == "reject":
        usable &= ~conflict
    return found.select(
        "row_id",
        sql.col("best.value").alias("value"),
        sql.col("best.metadata").cast(_ENTRIES).alias("metadata"),
        usable.alias("valid"),
        conflict.alias("conflict"),
        "copies",
    )


def compare(wanted: DataFrame, live: DataFrame, mode: str, partitions: int) -> DataFrame:
    """Each id that is wanted or live, once, with ``action``: add, change, delete, same, held, or null (neither)."""
    old = live.select(
        "row_id",
        sql.col("value").alias("old_value"),
        expressions.entries_of_map(sql.col("metadata")).alias("old_metadata"),
        sql.col("version").alias("old_version"),
    )
    both = wanted.join(old, "row_id", "full_outer")
    is_live, valid = sql.col("old_version").isNotNull(), sql.coalesce("valid", sql.lit(False))
    same = sql.equal_null("value", "old_value") & sql.equal_null("metadata", "old_metadata")
    rejected, missing = sql.col("copies").isNotNull() & ~valid, sql.col("copies").isNull()
    action = (
        sql.when(valid & ~is_live, "add")
        .when(valid & same, "same")
        .when(valid, "change")
        .when(is_live & rejected, "held")
        .when(is_live & missing, "delete" if mode == "replace" else "same")
    )
    return both.withColumn("action", action).withColumn("partition", partition_of(sql.col("row_id"), partitions))


def partition_of(row_id: Column, partitions: int) -> Column:
    """The partition, as the core computes it."""
    return sql.pmod(sql.xxhash64(row_id), sql.lit(partitions)).cast("int")


def _summarise(spec: Spec, state: State, checked: Checked, compared: DataFrame) -> Plan:
    by_partition, content, changed, after = _counts(compared, state.partition_count)
    return Plan(
        target=spec.target,
        heads=state.heads,
        written=state.written,
        input=_input_report(checked, content, spec.dedup.keep == "reject"),
        live_rows=content["live"],
        partitions=by_partition,
        changes=changed,
        after=after,
        guards=spec.guards,
        made_at=datetime.datetime.now(datetime.UTC),
    )


def _input_report(checked: Checked, content: dict[str, int], reject_conflicts: bool) -> InputReport:
    row = checked.rows.agg(sql.count("*"), sql.count_if(sql.size("problems") > 0)).first()
    assert row is not None
    rejected = row[1] + (content["conflict_copies"] if reject_conflicts else 0)
    return InputReport(
        read=row[0],
        rejected=rejected,
        duplicates=row[0] - rejected - content["usable"],
        conflicts=content["conflicts"],
        held=content["held"],
    )


def _counts(compared: DataFrame, partitions: int) -> tuple[list[PartitionPlan], dict[str, int], Content, Content]:
    """One pass: a line a partition, of which the totals are sums."""
    action = sql.col("action")
    stays, old = action.isin("same", "held"), ("old_value", "old_metadata")
    value = sql.when(stays, sql.col(old[0])).otherwise(sql.col("value"))
    metadata = sql.when(stays, sql.col(old[1])).otherwise(sql.col("metadata"))
    later, moved = stays | action.isin("add", "change"), action.isin("add", "change", "delete")
    row_id, size = sql.col("row_id"), expressions.row_bytes(sql.col("row_id"), value, metadata)
    hashed = sql.xxhash64(row_id, value, metadata)
    counted = compared.groupBy("partition").agg(
        *(sql.count_if(action == name).alias(name) for name in ("add", "change", "delete", "held")),
        sql.count_if(later).alias("rows"),
        sql.coalesce(sql.sum(sql.when(later, size)), sql.lit(0)).alias("bytes"),
        sql.bit_xor(sql.when(later, hashed)).alias("after"),
        sql.bit_xor(sql.when(moved, changes_hash())).alias("moved"),
        sql.count("old_version").alias("live"),
        sql.count_if("conflict").alias("conflicts"),
        sql.coalesce(sql.sum(sql.when(sql.col("conflict"), sql.col("copies"))), sql.lit(0)).alias("conflict_copies"),
        sql.count_if("valid").alias("usable"),
    )
    found = counted.collect()
    totals = {
        name: sum(row[name] for row in found) for name in ("held", "live", "conflicts", "conflict_copies", "usable")
    }
    lines = {
        row.partition: PartitionPlan(row.partition, row.rows, row.bytes, row.add, row["change"], row["delete"])
        for row in found
    }
    by_partition = [lines.get(number, PartitionPlan(number, 0, 0, 0, 0, 0)) for number in range(partitions)]
    diff = sum(one.adds + one.changes + one.deletes for one in by_partition)
    after = Content(sum(one.rows for one in by_partition), _xor(row.after for row in found))
    return by_partition, totals, Content(diff, _xor(row.moved for row in found)), after


def changes_hash() -> Column:
    """The hash of one row of a plan."""
    return sql.xxhash64("row_id", "action", "value", "metadata", "old_version")


def _xor(values: Iterable[int | None]) -> int:
    total = 0
    for value in values:
        total ^= value or 0
    return total


def _conflict_report(compared: DataFrame) -> DataFrame:
    """Ids that the input has with several contents; only of rows that are valid by themselves."""
    why = sql.concat(sql.lit("stands for "), sql.col("copies").cast("string"), sql.lit(" rows that are not alike"))
    nothing = sql.lit(None).cast("string")
    return compared.filter("conflict").select(
        "row_id",
        sql.lit("row_id").alias("field"),
        sql.col("row_id").alias("value"),
        why.alias("reason"),
        nothing.alias("record"),
    )


def write_rejects(rejects: DataFrame, path: str, kind: str = "parquet") -> int:
    """Writes the reject report as Parquet or JSON, replacing what is there; returns its rows.

    Raises:
        InvalidInputError: ``kind`` is neither.
    """
    if kind not in ("parquet", "json"):
        raise InvalidInputError(f"rejects_format is {kind!r}: parquet or json is allowed", field="rejects_format")
    rejects.write.mode("overwrite").format(kind).save(absolute(path))
    return int(rejects.count())
