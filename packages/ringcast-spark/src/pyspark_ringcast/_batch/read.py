"""Batch reads: a snapshot pinned on the driver, a group of partitions a task, record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from ringcast_client.fetches import BlockingFetchClient, FetchRequest, batch_request, partition_request
from ringcast_core import row_partitions
from ringcast_wire import (
    InvalidInputError,
    MismatchError,
    ProtocolError,
    RevisionGoneError,
    limits,
    names,
)

from pyspark_ringcast._client.fetch import shared_client
from pyspark_ringcast._client.history import History, to_batch
from pyspark_ringcast._client.service import heads_of_release
from pyspark_ringcast._common.columns import READS, Entry, Reply, read_reply
from pyspark_ringcast._common.mapping import ReadColumns
from pyspark_ringcast._common.offsets import ChangesLostError, Range
from pyspark_ringcast._common.options import OnChange, Options, parse_options
from pyspark_ringcast._common.since import vector_text
from pyspark_ringcast._common.task_failures import raise_known_failure

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")

_VERSIONS: Final = ("version_as_of", "timestamp_as_of", "release_as_of")
"""Options that say which version is read; one of them is enough."""
_LEAST_TASKS: Final = 8
_PARTITIONS_PER_TASK: Final = 16
_MOST_PROBES: Final = 8
"""One has no rows, unless tombstones were compacted since: then the service sends the partition."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is read: ``heads`` is the revision of each partition that is read, ``history`` theirs."""

    options: Options
    heads: tuple[int, ...]
    history: str


def take_snapshot(options: Options) -> Snapshot:
    """Asks for the heads, which all come from one snapshot of the database, or takes those that an option says.

    Raises:
        UnknownStoreError, UnknownKeyError: nothing of that name is there.
        InvalidInputError: a partition is named that the store does not have, or a revision that is still to come, or
            options contradict each other.
        MismatchError: ``since`` or ``version_as_of`` is of another list.
        RevisionGoneError: what there was at ``timestamp_as_of`` or ``release_as_of`` is not known any more.
        ConditionFailedError: not all of that release is published.
        UnavailableError: there was no reply in time.
    """
    _check_versions(options)
    heads, history = _heads(options)
    place = options.place
    for partition in options.partitions or ():
        names.check_partition(partition, len(heads))
    if options.version_as_of is not None:
        options.version_as_of.check(place, heads, "version_as_of")
        heads = options.version_as_of.vector(len(heads))
    options.since.check(place, heads)
    return Snapshot(options, heads, history)


def _heads(options: Options) -> tuple[tuple[int, ...], str]:
    """With the history that they are of: as they are, or were at the moment or the release that an option says."""
    if options.release_as_of is not None:
        words = options.store, options.key, options.release_as_of, options.timeout_s
        then = heads_of_release(options.service, *words)
        return tuple(then.heads), then.history_id
    found = shared_client(options).heads(options.store, options.key, options.timeout_s, options.timestamp_as_of)
    return tuple(found.heads), found.history


def _check_versions(options: Options) -> None:
    """Refuses options that contradict each other."""
    given = [name for name in _VERSIONS if getattr(options, name) is not None]
    if len(given) > 1:
        raise InvalidInputError(f"options {' and '.join(given)} are given: one of them is enough", field=given[1])
    if given and options.on_change is OnChange.LATEST:
        raise InvalidInputError(
            f"option on_change is latest: that does not go with {given[0]}, which says what is read", field="on_change"
        )


def version_now(**options: str) -> str:
    """The revisions of a key as they are, for the options ``versionAsOf`` and ``since``.

    Args:
        options: What a read takes.

    Raises:
        UnknownStoreError, UnknownKeyError: nothing of that name is there.
        UnavailableError: there was no reply in time.
    """
    return vector_text(take_snapshot(parse_options(options)).heads)


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What one task reads: partitions, or rows of them by their ids."""

    partitions: tuple[int, ...]
    row_ids: tuple[str, ...] | None = None


class RingcastReader(DataSourceReader):
    """Travels to the tasks with the snapshot.

    It takes no filters from Spark (``pushFilters``): Spark 4.3 keeps one reader for every query of a DataFrame, so that
    one that a filter has made smaller would leave out rows of the next query, and of the other side of a union.
    """

    def __init__(self, snapshot: Snapshot, schema: StructType) -> None:
        """Raises ``InvalidInputError`` for a schema other than what a read gives."""
        ReadColumns(snapshot.options, schema)  # so that what is wrong shows here and not in a task
        self._snapshot = snapshot
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks; partitions that were never written are left out.

        Spark tries a failed task four times and asks for the tasks once. So what can be known here is looked at here.

        Raises:
            UnknownStoreError, UnknownKeyError: nothing of that name is there any more.
            RevisionGoneError: what was replaced since the snapshot is not kept any more, or the history is another now.
            UnavailableError: there was no reply in time.
        """
        _check_plan(self._snapshot)
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
            RevisionGoneError: what was replaced since the snapshot is not kept any more, or the history is another now.
            InvalidInputError: a value does not fit ``value_columns``.
        """
        if isinstance(partition, ReadTask):  # Spark makes a task of its own where there is none
            columns = ReadColumns(self._snapshot.options, self._schema)
            yield from raise_known_failure(lambda: map(columns.of, read_task(self._snapshot, partition)))


def _check_plan(snapshot: Snapshot) -> None:
    """Looks whether the key is still there and the snapshot's revisions are kept, without reading a row of these.

    The service is asked for what changed between a revision and itself, of the partitions that moved on furthest: whose
    revisions are gone first. A read of ids needs them only where these rows were written to, which the task finds out.
    """
    options, heads = snapshot.options, snapshot.heads
    client = shared_client(options)
    now = client.heads(options.store, options.key, options.timeout_s)
    if options.on_change is OnChange.LATEST or options.row_ids is not None:
        return
    chosen = range(len(heads)) if options.partitions is None else options.partitions
    read = [partition for partition in chosen if options.since.of(partition) < heads[partition]]
    if now.history == snapshot.history:
        moved = {partition: now.heads[partition] - heads[partition] for partition in read}
    else:
        moved = dict.fromkeys(read, 1)
    furthest = sorted((partition for partition in read if moved[partition]), key=moved.__getitem__, reverse=True)
    requests = (
        partition_request(options.store, options.key, one, heads[one], snapshot.history, heads[one], reads=READS)
        for one in furthest[:_MOST_PROBES]
    )
    with _advised():
        for _ in client.fetch_bodies(requests, options.timeout_s):
            pass


@contextmanager
def _advised() -> Iterator[None]:
    """Says what to do where a snapshot can't be read any more."""
    try:
        yield
    except RevisionGoneError as error:
        raise RevisionGoneError(
            f"{error}; make the DataFrame or view again, or read with the option onChange=latest"
        ) from None


def read_task(snapshot: Snapshot, task: ReadTask) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in batches of the columns of :data:`pyspark_ringcast._common.columns.SCHEMA`.

    Raises:
        RevisionGoneError: what was replaced since the snapshot is not kept any more, or the history is another now.
        UnavailableError: there was no reply in time.
    """
    return _TaskRead(snapshot, task, shared_client(snapshot.options)).batches()


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

    def __init__(self, snapshot: Snapshot, task: ReadTask, client: BlockingFetchClient) -> None:
        self._options = snapshot.options
        self._heads = snapshot.heads
        self._history = snapshot.history
        self._task = task
        self._client = client

    def batches(self) -> Iterator[pa.RecordBatch]:
        with _advised():
            for body in self._client.fetch_bodies(self._requests(), self._options.timeout_s):
                for part in self._of_snapshot(read_reply(body, self._options.place)):
                    batch = self._wanted(part)
                    if batch.num_rows:
                        yield batch

    @property
    def _by_id(self) -> bool:
        """Whether rows are fetched by their ids.

        With ``since`` and tombstones they are sought among what changed: a fetch by id does not say whether a row that
        it does not find was deleted since.
        """
        options = self._options
        return self._task.row_ids is not None and not (options.since and options.include_deleted)

    def _requests(self) -> Iterable[FetchRequest]:
        options, row_ids = self._options, self._task.row_ids
        if self._by_id and row_ids is not None:
            for start in range(0, len(row_ids), limits.MAX_BATCH_ROWS):
                named = row_ids[start : start + limits.MAX_BATCH_ROWS]
                yield batch_request(options.store, options.key, named, reads=READS)
            return
        for partition in self._task.partitions:
            after = options.since.of(partition)
            # Tombstones come only with what changed since a revision.
            since = after if after or options.include_deleted else None
            if after < self._heads[partition] or options.on_change is OnChange.LATEST:
                yield self._request(partition, since)

    def _request(self, partition: int, since: int | None) -> FetchRequest:
        options = self._options
        as_of = None if options.on_change is OnChange.LATEST else self._heads[partition]
        return partition_request(options.store, options.key, partition, since, self._history, as_of, reads=READS)

    def _wanted(self, reply: Reply) -> pa.RecordBatch:
        """The rows that were asked for, of those of the snapshot."""
        options, batch = self._options, reply.batch
        if self._task.row_ids is not None and not self._by_id:
            batch = _with_ids(batch, self._task.row_ids)
        if not options.include_deleted and batch.column("deleted").true_count:
            batch = batch.filter(pc.invert(batch.column("deleted")))
        # What changed since a revision needs no second look.
        if options.since and (self._task.row_ids is not None or any(entry.whole for entry in reply.entries)):
            after = [options.since.of(partition) for partition in batch.column("partition").to_pylist()]
            batch = batch.filter(pc.greater(batch.column("version"), pa.array(after, pa.int64())))
        return batch

    def _check(self, entry: Entry) -> None:
        if not 0 <= entry.partition < len(self._heads):
            raise ProtocolError(
                f"fetch reply of {self._options.place} names partition {entry.partition} of {len(self._heads)}"
            )

    def _with_deletes(self, reply: Reply) -> Reply:
        """What changed since, also where the service has sent the whole partition: the history has the deletes then.

        Raises:
            ChangesLostError: it has not all of them any more.
        """
        if not (self._options.since and self._options.include_deleted):
            return reply
        found = [self._changed(entry) for entry in reply.entries if self._lacks_deletes(entry)]
        rest = _without(reply, [entry.partition for entry in reply.entries if self._lacks_deletes(entry)])
        return rest._replace(batch=pa.concat_batches([rest.batch, *found])) if found else reply

    def _lacks_deletes(self, entry: Entry) -> bool:
        return entry.whole and self._options.since.of(entry.partition) > 0

    def _changed(self, entry: Entry) -> pa.RecordBatch:
        options, place = self._options, self._options.place
        after = options.since.of(entry.partition)
        wanted = Range(entry.partition, after, entry.revision, loading=False, head=entry.revision)
        try:
            return to_batch(History(options, wanted).newest())
        except ChangesLostError:
            raise ChangesLostError(
                f"which rows of partition {entry.partition} of {place} were deleted since revision {after} is not "
                f"known any more: the service keeps that for a time only; read without since, and compare"
            ) from None

    def _of_snapshot(self, reply: Reply) -> Iterator[Reply]:
        """The reply, with rows that were written to after the snapshot as they were before."""
        for entry in reply.entries:
            self._check(entry)
        if self._options.on_change is OnChange.LATEST:
            yield self._with_deletes(reply)
            return
        moved = [entry for entry in reply.entries if entry.revision != self._heads[entry.partition]]
        if not self._by_id:
            for entry in moved:
                raise MismatchError(
                    f"partition {entry.partition} of {self._options.place} came as of revision {entry.revision}, and "
                    f"{self._heads[entry.partition]} was asked for: the config service is older than this package"
                )
            yield self._with_deletes(reply)
            return
        written = [entry.partition for entry in moved if self._was_written(entry.partition)]
        yield _without(reply, written)
        for partition in written:
            # With since, tombstones come too, as they do by id.
            before = self._fetch(self._request(partition, since=0))
            yield before._replace(batch=_with_ids(before.batch, self._task.row_ids or ()))

    def _fetch(self, request: FetchRequest) -> Reply:
        options = self._options
        return self._client.fetch(request, options.timeout_s, lambda body: read_reply(body, options.place))

    def _was_written(self, partition: int) -> bool:
        """Whether rows that this task reads by id were written to after the snapshot, or may have been."""
        options = self._options
        since = self._heads[partition], self._history
        found = self._fetch(partition_request(options.store, options.key, partition, *since, reads=READS))
        return found.entry.whole or _with_ids(found.batch, self._task.row_ids or ()).num_rows > 0


def _without(reply: Reply, partitions: Sequence[int]) -> Reply:
    chosen = pc.is_in(reply.batch.column("partition"), value_set=pa.array(partitions, pa.int32()))
    return reply._replace(batch=reply.batch.filter(pc.invert(chosen)))


def _with_ids(batch: pa.RecordBatch, row_ids: Sequence[str]) -> pa.RecordBatch:
    return batch.filter(pc.is_in(batch.column("row_id"), value_set=pa.array(row_ids, pa.string())))
