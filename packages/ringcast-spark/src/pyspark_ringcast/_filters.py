"""Filters of a query, taken into the read where they make it smaller.

Spark applies every one of them again, so taking in too little is only slower; what is taken in must never leave out a
row that passes the filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, check_row_id

from pyspark_ringcast._options import MAX_ROW_IDS, Options

_EQUAL: Final = (EqualTo, EqualNullSafe)


def narrowed(options: Options, filters: Iterable[Filter], partition_count: int) -> Options:
    """The options with ``partitions``, ``row_ids`` and ``since`` as small as the filters let them be."""
    for one in filters:
        column = getattr(one, "attribute", None)
        if column == ("partition",):
            options = _by_partition(options, one, partition_count)
        elif column == ("row_id",):
            options = _by_row_id(options, one, partition_count)
        elif column == ("version",):
            options = _by_version(options, one, partition_count)
    return options


def _by_partition(options: Options, one: Filter, partition_count: int) -> Options:
    chosen: Sequence[int] = range(partition_count) if options.partitions is None else options.partitions
    if isinstance(one, _EQUAL):
        chosen = [partition for partition in chosen if partition == one.value]
    elif isinstance(one, In):
        chosen = [partition for partition in chosen if partition in one.value]
    elif isinstance(one, LessThan):
        chosen = [partition for partition in chosen if partition < one.value]
    elif isinstance(one, LessThanOrEqual):
        chosen = [partition for partition in chosen if partition <= one.value]
    elif isinstance(one, GreaterThan):
        chosen = [partition for partition in chosen if partition > one.value]
    elif isinstance(one, GreaterThanOrEqual):
        chosen = [partition for partition in chosen if partition >= one.value]
    else:
        return options
    return replace(options, partitions=tuple(chosen))


def _by_row_id(options: Options, one: Filter, partition_count: int) -> Options:
    if isinstance(one, _EQUAL):
        wanted: set[object] = {one.value}
    elif isinstance(one, In) and len(one.value) <= MAX_ROW_IDS:
        wanted = set(one.value)
    else:
        return options
    # Ids that no row can have would be refused by the service: there is nothing to find for them.
    row_ids = [str(row_id) for row_id in wanted if _is_row_id(row_id)]
    if options.include_deleted and options.row_ids is None:
        # A read by id finds tombstones that a read of partitions does not: only the partitions may shrink.
        homes = set(row_partitions(row_ids, partition_count))
        chosen = range(partition_count) if options.partitions is None else options.partitions
        return replace(options, partitions=tuple(partition for partition in chosen if partition in homes))
    if options.row_ids is not None:
        row_ids = [row_id for row_id in row_ids if row_id in set(options.row_ids)]
    return replace(options, row_ids=tuple(sorted(row_ids)))


def _is_row_id(value: object) -> bool:
    try:
        check_row_id(value)
    except InvalidInputError:
        return False
    return True


def _by_version(options: Options, one: Filter, partition_count: int) -> Options:
    if options.include_deleted:
        return options  # which tombstones there are depends on the revision that is asked for
    if isinstance(one, GreaterThan):
        return replace(options, since=options.since.raised(one.value, partition_count))
    if isinstance(one, GreaterThanOrEqual):
        return replace(options, since=options.since.raised(one.value - 1, partition_count))
    return options
