"""Batch reads: a snapshot pinned on the driver, a group of partitions a task, record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, ProtocolError, UnavailableError, limits, names

from pyspark_ringcast._columns import SCHEMA, Entry, Reply, read_reply
from pyspark_ringcast._fetch import FetchClient, Request, batch_request, partition_request, shared_client
from pyspark_ringcast._filters import narrowed
from pyspark_ringcast._options import OnChange, Options

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

T = TypeVar("T")

_LEAST_TASKS: Final = 8
_PARTITIONS_PER_TASK: Final = 16


class SnapshotMovedError(UnavailableError):
    """A partition was written to after the snapshot was taken, so that the rows as of the snapshot are gone."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is read: ``heads`` is the revision of each partition when the DataFrame was made, ``history`` theirs."""

    options: Options
    heads: tuple[int, ...]
    history: str


def take_snapshot(options: Options) -> Snapshot:
    """Asks for the heads, which all come from one snapshot of the database.

    Raises:
        UnknownStoreError, UnknownKeyError: nothing of that name is there.
        InvalidInputError: a partition is named that the store does not have, or a revision that is still to come.
        MismatchError: ``since`` is of another list.
        UnavailableError: nobody answered in time.
    """
    found = shared_client(options).heads(options.store, options.key, options.timeout_s)
    for partition in options.partitions or ():
        names.check_partition(partition, len(found.heads))
    options.since.check(f"{options.store}/{options.key}", found.heads)
    return Snapshot(options, tuple(found.heads), found.history)


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What one task reads: partitions, or rows of them by their ids."""

    partitions: tuple[int, ...]
    row_ids: tuple[str, ...] | None = None


class RingcastReader(DataSourceReader):
    """Travels to the tasks with the snapshot."""

    def __init__(self, snapshot: Snapshot, schema: StructType) -> None:
        """Raises ``InvalidInputError`` for a schema other than what a read gives."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if not to_arrow_schema(schema).equals(SCHEMA):
            raise InvalidInputError(
                f"the schema of a ringcast read is fixed: {', '.join(SCHEMA.names)}; leave .schema(…) out",
                field="schema",
            )
        self._snapshot = snapshot
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def narrow(self, filters: Iterable[Filter]) -> None:
        """Reads no more than what filters of the query let through, as far as that can be told."""
        snapshot = self._snapshot
        self._snapshot = replace(snapshot, options=narrowed(snapshot.options, filters, len(snapshot.heads)))

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks; partitions that were never written are left out."""
        options, heads = self._snapshot.options, self._snapshot.heads
        chosen = range(len(heads)) if options.partitions is None else options.partitions
        latest = options.on_change is OnChange.LATEST
        written = [partition for partition in chosen if latest or heads[partition] > 0]
        if options.row_ids is not None:
            return _tasks_of_rows(options, set(written), len(heads))
        count = options.tasks or max(_LEAST_TASKS, -(-len(written) // _PARTITIONS_PER_TASK))
        return [ReadTask(tuple(group)) for group in _split(written, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task.

        Raises:
            SnapshotMovedError: a partition was written to after the snapshot, and ``onChange`` is ``fail``.
        """
        if isinstance(partition, ReadTask):  # Spark makes a task of its own where there is none
            yield from _TaskRead(self._snapshot, partition, shared_client(self._snapshot.options)).batches()


class _PushFilters:
    """``pushFilters`` of a reader, in sessions with ``spark.sql.python.filterPushdown.enabled`` only.

    In others Spark refuses every query of a reader that has a method of its own of that name, and it tells by
    ``__func__``: this looks like the method that it brings itself, which does nothing, unless it is called.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: RingcastReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.narrow(filters)
        return filters  # Spark applies all of them again


def _tasks_of_rows(options: Options, written: set[int], partition_count: int) -> list[ReadTask]:
    row_ids = options.row_ids or ()
    homes = row_partitions(row_ids, partition_count)
    there = sorted((home, row_id) for home, row_id in zip(homes, row_ids, strict=True) if home in written)
    count = options.tasks or max(1, -(-len(there) // (10 * limits.MAX_BATCH_ROWS)))
    return [
        ReadTask(tuple(sorted({home for home, _ in group})), tuple(row_id for _, row_id in group))
        for group in _split(there, count)
    ]


def _split(items: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """At most ``count`` pieces of nearly one length, none empty."""
    count = min(count, len(items))
    for index in range(count):
        yield items[len(items) * index // count : len(items) * (index + 1) // count]


class _TaskRead:
    """One task under way."""

    def __init__(self, snapshot: Snapshot, task: ReadTask, client: FetchClient) -> None:
        self._options = snapshot.options
        self._heads = snapshot.heads
        self._history = snapshot.history
        self._task = task
        self._client = client

    def batches(self) -> Iterator[pa.RecordBatch]:
        bodies = self._client.fetch_bodies(self._requests(), self._options.timeout_s)
        for body in bodies:
            batch = self._wanted(read_reply(body))
            if batch.num_rows:
                yield batch

    def _requests(self) -> Iterable[Request]:
        options = self._options
        if self._task.row_ids is not None:
            for start in range(0, len(self._task.row_ids), limits.MAX_BATCH_ROWS):
                chunk = self._task.row_ids[start : start + limits.MAX_BATCH_ROWS]
                yield batch_request(options.store, options.key, chunk)
            return
        for partition in self._task.partitions:
            after = options.since.of(partition)
            # Tombstones come only with what changed since a revision.
            since = after if after or options.include_deleted else None
            if after < self._heads[partition] or options.on_change is OnChange.LATEST:
                yield partition_request(options.store, options.key, partition, since, self._history)

    def _wanted(self, reply: Reply) -> pa.RecordBatch:
        """The rows that were asked for, after a look at whether they are those of the snapshot."""
        options, batch = self._options, reply.batch
        for entry in reply.entries:
            self._check(entry)
        if not options.include_deleted and batch.column("deleted").true_count:
            batch = batch.filter(pc.invert(batch.column("deleted")))
        # What changed since a revision needs no second look.
        if options.since and (self._task.row_ids is not None or any(entry.whole for entry in reply.entries)):
            after = [options.since.of(partition) for partition in batch.column("partition").to_pylist()]
            batch = batch.filter(pc.greater(batch.column("version"), pa.array(after, pa.int64())))
        return batch

    def _check(self, entry: Entry) -> None:
        options, place = self._options, f"{self._options.store}/{self._options.key}"
        if not 0 <= entry.partition < len(self._heads):
            raise ProtocolError(f"fetch reply of {place} names partition {entry.partition} of {len(self._heads)}")
        self._check_pin(entry)
        after = options.since.of(entry.partition)
        if after and options.include_deleted and entry.whole:
            raise UnavailableError(
                f"which rows of partition {entry.partition} of {place} were deleted since revision {after} "
                f"is no longer known: read without since, and compare"
            )

    def _check_pin(self, entry: Entry) -> None:
        options, pinned = self._options, self._heads[entry.partition]
        if options.on_change is OnChange.LATEST or entry.revision == pinned:
            return
        if self._task.row_ids is not None and not self._touched(entry.partition, pinned):
            return
        raise SnapshotMovedError(
            f"partition {entry.partition} of {options.store}/{options.key} moved from revision {pinned} to "
            f"{entry.revision} after the DataFrame was made: make it again, or read with the option onChange=latest"
        )

    def _touched(self, partition: int, pinned: int) -> bool:
        """Whether rows that this task reads by id were written to after the snapshot, or may have been."""
        options = self._options
        request = partition_request(options.store, options.key, partition, pinned, self._history)
        found = self._client.fetch(request, options.timeout_s)
        touched = found.batch.column("row_id").to_pylist()
        return found.entry.whole or not set(self._task.row_ids or ()).isdisjoint(touched)
