"""Capacity planning: how many rows another set of workers, partition count or strategy moves, and how even the load is.

Ids are made and hashed in the JVM; who owns a partition comes from the core's assignment, as a table of the query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
from ringcast_core import assign_sticky
from ringcast_wire import DEFAULT_LOAD_FACTOR, InvalidInputError, StoreSettings, Strategy, assign, limits, names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MAX_ROWS: Final = 100_000_000_000


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A store and its workers. ``workers`` are slots: removing one in the middle is another thing than the last."""

    partitions: int
    workers: tuple[int, ...]
    strategy: Strategy = Strategy.JUMP
    load_factor: float = DEFAULT_LOAD_FACTOR

    def owners(self, before: Layout | None = None) -> list[int]:
        """The slot that owns each partition.

        With the strategy sticky it depends on what was ``before``: nothing of as many partitions, or a layout of which
        as little as possible moves.

        Raises:
            InvalidInputError: no store has so many partitions, or no key so many workers.
        """
        names.check_partition_count(self.partitions)
        if not 1 <= len(self.workers) <= limits.MAX_WORKERS_PER_KEY:
            raise InvalidInputError(
                f"workers are {len(self.workers)}: 1 to {limits.MAX_WORKERS_PER_KEY} are allowed", field="workers"
            )
        slots = {f"worker-{slot}": slot for slot in self.workers}
        if self.strategy is Strategy.STICKY:
            present: list[str | None] = [None] * self.partitions
            if before is not None and before.partitions == self.partitions:
                present = [f"worker-{slot}" for slot in before.owners()]
            return [slots[owner] for owner in assign_sticky(present, slots)]
        settings = StoreSettings(partition_count=self.partitions, strategy=self.strategy, load_factor=self.load_factor)
        return [slots[owner] for owner in assign(settings, slots)]


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of the layout does to ``rows`` rows."""

    rows: int
    moved_rows: int
    ideal_rows: float
    """The least that any assignment with even load on both sides could move."""
    load_before: float
    """Rows of the fullest worker by the mean of all."""
    load_after: float

    @property
    def moved_share(self) -> float:
        """Moved rows, of all."""
        return self.moved_rows / self.rows if self.rows else 0.0

    @property
    def ideal_share(self) -> float:
        """The least, of all."""
        return self.ideal_rows / self.rows if self.rows else 0.0


def synthetic_ids(spark: SparkSession, rows: int) -> DataFrame:
    """``row_id``: ``row-0``, ``row-1`` and so on, made in the JVM.

    Raises:
        InvalidInputError: ``rows`` is not 1 to 100 billion.
    """
    from pyspark.sql import functions as sql

    if not 1 <= rows <= MAX_ROWS:
        raise InvalidInputError(f"rows is {rows}: 1 to {MAX_ROWS} are allowed", field="rows")
    return spark.range(rows).select(sql.concat(sql.lit("row-"), sql.col("id").cast("string")).alias("row_id"))


def simulate_move(ids: DataFrame, before: Layout, after: Layout) -> MoveReport:
    """Counts what moves when ``before`` becomes ``after``.

    Args:
        ids: Has a column ``row_id``.
        before: The layout now.
        after: The layout then; another partition count means another store, whose rows have other partitions.

    Raises:
        InvalidInputError: a layout breaks a limit.
    """
    from pyspark.sql import functions as sql

    hashed = sql.xxhash64("row_id")
    if before.partitions == after.partitions:  # a group a partition, which has one owner before and one after
        counted = ids.groupBy(_partition(hashed, before).alias("partition")).count()
        owners = list(zip(before.owners(), after.owners(before), strict=True))
        counts = [(*owners[partition], count) for partition, count in counted.collect()]
    else:
        pair = (_owner(_partition(hashed, before), before), _owner(_partition(hashed, after), after))
        counts = [tuple(row) for row in ids.groupBy(*pair).count().collect()]
    flows: Counter[tuple[int, int]] = Counter()
    for then, now, count in counts:
        flows[then, now] += count
    return move_report(flows, before.workers, after.workers)


def _partition(hashed: Column, layout: Layout) -> Column:
    from pyspark.sql import functions as sql

    names.check_partition_count(layout.partitions)
    return sql.pmod(hashed, sql.lit(layout.partitions)).cast("int")


def _owner(partition: Column, layout: Layout) -> Column:
    from pyspark.sql import functions as sql

    return sql.element_at(sql.lit(layout.owners()), partition + 1)


def move_report(flows: Mapping[tuple[int, int], int], before: Iterable[int], after: Iterable[int]) -> MoveReport:
    """The figures, from how many rows go from which worker to which. Needs no Spark."""
    rows = sum(flows.values())
    old, new = list(before), list(after)
    gone, come = set(old) - set(new), set(new) - set(old)
    return MoveReport(
        rows=rows,
        moved_rows=sum(count for (one, other), count in flows.items() if one != other),
        ideal_rows=rows * max(len(gone) / len(old), len(come) / len(new)) if rows else 0.0,
        load_before=_fullest(flows, 0, old),
        load_after=_fullest(flows, 1, new),
    )


def _fullest(flows: Mapping[tuple[int, int], int], side: int, workers: list[int]) -> float:
    loads = dict.fromkeys(workers, 0)
    for pair, count in flows.items():
        loads[pair[side]] += count
    total = sum(loads.values())
    return max(loads.values()) * len(loads) / total if total else 1.0
