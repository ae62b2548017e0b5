"""Applying a plan, and reading back what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import msgspec
from pyspark.sql import functions as sql
from ringcast_wire import ErrorCode, RingcastError, check_reason

from pyspark_ringcast._batch.prepare import prepare
from pyspark_ringcast.pipeline import _expressions as expressions
from pyspark_ringcast.pipeline._difference import Planned
from pyspark_ringcast.pipeline._plan import Content, Plan, StalePlanError, check_plan
from pyspark_ringcast.pipeline._target import State, load_live, read_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pyspark_ringcast.pipeline._spec import Guards

_MAX_EXAMPLES = 5
_ROWS_PER_TASK = 10_000
_MAX_TASKS = 64

Say = Callable[[str], None]


def silent(_: str) -> None:
    """Says nothing."""


class NotVerifiedError(RingcastError):
    """The key is not as planned after the plan was applied."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL


class ApplyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. ``written`` rows are those that changed the key: 0 if the plan had been applied before."""

    planned: int
    written: int
    seconds: float
    verified: int
    """Rows that were read back and are as planned: all rows of the key."""

    @property
    def rows_per_s(self) -> float:
        """Planned rows by the time that writing took."""
        return self.planned / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found, and what had to be."""

    found: Content
    wanted: Content
    wrong: int
    """Rows of the plan that are not as planned."""
    examples: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether all is as planned."""
        return self.found == self.wanted and not self.wrong


def apply_plan(
    spark: SparkSession, planned: Planned, *, guards: Guards | None = None, reason: str = "", say: Say = silent
) -> ApplyReport:
    """Writes what a plan says, adds and changes before deletes, and reads it back.

    A plan that was applied in part, or whole, is applied again without harm: what is there already is left alone.

    Args:
        spark: The session.
        planned: A plan as it was made or loaded.
        guards: How far it may go; by default what its specification says.
        reason: Why, in one line of up to 512 bytes: the history has it with each row that is written.
        say: Is told each step.

    Raises:
        InvalidInputError: the reason is too long, or more than a line. Nothing is written.
        PlanRefusedError: it deletes too much, or crosses a limit. Nothing is written.
        StalePlanError: another writer changed the key after the plan was made. Nothing is written.
        UnavailableError: NATS or the config service did not answer in time. Applying it again goes on.
        NotVerifiedError: the key is not as planned afterwards: another writer changed it meanwhile.
    """
    plan = planned.plan
    if reason:
        check_reason(reason)
    check_plan(plan, guards)
    before = check_fresh(spark, planned)
    started = time.monotonic()
    _write(planned, before, reason, say)
    seconds = time.monotonic() - started
    written = sum(read_state(plan.target).heads) - sum(before.heads)
    say(f"reading {plan.after.rows:,} rows of {plan.target} back")
    result = verify(spark, planned)
    if not result.holds:
        raise NotVerifiedError(_difference_text(plan, result))
    return ApplyReport(planned=plan.diff_rows, written=written, seconds=seconds, verified=result.found.rows)


def _write(planned: Planned, state: State, reason: str, say: Say) -> None:
    plan, changes = planned.plan, planned.changes
    if sum(state.heads) - sum(plan.heads) == plan.diff_rows:
        say("nothing to write: all of the plan is applied")
        return
    metadata = sql.map_from_entries("metadata").alias("metadata")
    if plan.adds + plan.updates:
        say(f"writing {plan.adds + plan.updates:,} rows to {plan.target}")
        written = changes.filter("action <> 'delete'").select("row_id", "value", metadata)
        _save(prepare(written, len(plan.heads), tasks=_tasks(plan.adds + plan.updates)), plan, "upsert", reason)
    if plan.deletes:
        say(f"deleting {plan.deletes:,} rows of {plan.target}")
        gone = changes.filter("action = 'delete'").select("row_id")
        _save(prepare(gone, len(plan.heads), tasks=_tasks(plan.deletes)), plan, "delete", reason)


def _tasks(rows: int) -> int:
    """Left to Spark, it is one for each MiB of compressed rows."""
    return min(_MAX_TASKS, -(-rows // _ROWS_PER_TASK))


def _save(frame: DataFrame, plan: Plan, operation: str, reason: str) -> None:
    options = {**plan.target.options(), "operation": operation, **({"reason": reason} if reason else {})}
    frame.write.format("ringcast").mode("append").options(**options).save()


def check_fresh(spark: SparkSession, planned: Planned) -> State:
    """The state of the key, if nobody but this plan wrote to it since the plan was made.

    Every row that the plan writes moves its partition by one revision. So where as many rows are newer than the plan
    as there were revisions since, and each of them is a row of the plan, as planned, nobody else wrote.

    Raises:
        StalePlanError: another writer did.
    """
    plan = planned.plan
    state = read_state(plan.target)
    if state.heads == plan.heads:
        return state
    if len(state.heads) != len(plan.heads):
        raise StalePlanError(
            f"{plan.target} has {len(state.heads)} partitions and the plan was made for {len(plan.heads)}: plan again"
        )
    state, live = load_live(spark, plan.target, include_deleted="true")
    moved = [(number, then) for number, then in enumerate(plan.heads) if state.heads[number] != then]
    revisions = sum(state.heads) - sum(plan.heads)
    backwards = any(state.heads[number] < then for number, then in moved)
    if backwards or not _only_as_planned(spark, planned, live, moved, revisions):
        first = moved[0][0]
        raise StalePlanError(
            f"{plan.target} was written to after the plan was made: {len(moved)} partitions moved, partition {first} "
            f"from revision {plan.heads[first]} to {state.heads[first]}; plan again"
        )
    return state


def _only_as_planned(
    spark: SparkSession, planned: Planned, live: DataFrame, moved: list[tuple[int, int]], revisions: int
) -> bool:
    """Whether as many rows are newer than the plan as there were revisions since, each as planned."""
    since = spark.createDataFrame(moved, "partition INT, head BIGINT")
    newer = live.join(sql.broadcast(since), "partition").filter("version > head")
    joined = newer.join(_as_planned(planned.changes), "row_id", "left")
    row = joined.agg(sql.count("*"), sql.count_if(_matches())).first()
    assert row is not None
    return bool(row[0] == row[1] == revisions)


def _as_planned(changes: DataFrame) -> DataFrame:
    return changes.select(
        "row_id",
        sql.col("action").alias("planned_action"),
        sql.col("value").alias("planned_value"),
        sql.col("metadata").alias("planned_metadata"),
    )


def _matches() -> Column:
    """Whether a live row or tombstone, joined with what was planned of it, is as planned."""
    gone = sql.col("planned_action") == "delete"
    same_value = sql.equal_null("value", "planned_value")
    same_metadata = sql.equal_null(expressions.entries_of_map(sql.col("metadata")), "planned_metadata")
    deleted = sql.coalesce("deleted", sql.lit(True))
    return sql.coalesce(sql.when(gone, deleted).otherwise(~deleted & same_value & same_metadata), sql.lit(False))


def verify(spark: SparkSession, planned: Planned) -> Verification:
    """Reads the whole key back and holds it against the plan.

    Raises:
        UnavailableError: NATS did not answer in time.
    """
    plan = planned.plan
    _, live = load_live(spark, plan.target)
    row = live.agg(sql.count("*"), sql.coalesce(sql.bit_xor(_row_hash()), sql.lit(0))).first()
    assert row is not None
    found = Content(row[0], row[1])
    if found == plan.after:
        return Verification(found, plan.after, 0, ())
    joined = _as_planned(planned.changes).join(live, "row_id", "left").filter(~_matches()).select("row_id")
    return Verification(
        found, plan.after, joined.count(), tuple(row.row_id for row in joined.limit(_MAX_EXAMPLES).collect())
    )


def _row_hash() -> Column:
    return sql.xxhash64("row_id", "value", expressions.entries_of_map(sql.col("metadata")))


def _difference_text(plan: Plan, result: Verification) -> str:
    if result.wrong:
        examples = ", ".join(map(repr, result.examples))
        return f"{result.wrong} rows of {plan.target} are not as planned, among them {examples}"
    return (
        f"{plan.target} has {result.found.rows} rows and {result.wanted.rows} were planned; every row of the plan is "
        "as planned, so another writer changed the key meanwhile"
    )
