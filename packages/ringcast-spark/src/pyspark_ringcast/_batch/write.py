"""Batch writes: append, overwrite, delete.

Every batch is sent with ``skip_unchanged``: a row that is as it should be is left alone. So a task that is tried again
or runs twice, and a commit that is repeated, change nothing twice, and a job that failed half-way can be run again.

A further attempt of a task also leaves alone what was written since the job began, by an attempt before it or by
another writer after that. Not so an overwrite, whose rows are to be those of the DataFrame in the end. What an attempt
before has written counts as written: it is this job that wrote it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from ringcast_client.blocking import AnsweredBatch, BlockingBulkWrite
from ringcast_core import row_partitions
from ringcast_wire import (
    RingcastError,
    UnknownKeyError,
    limits,
)
from ringcast_wire.grpc import pb

from pyspark_ringcast._batch.checks import check_rejected, check_write, rejected_by_service
from pyspark_ringcast._batch.counts import Counts, log_aborted, log_committed
from pyspark_ringcast._batch.repeated import RowsBefore
from pyspark_ringcast._batch.reports import write_counts, write_rejects
from pyspark_ringcast._batch.throttle import StoreNotes, Throttle
from pyspark_ringcast._client.service import find_store, list_versions, read_heads, shared_stub
from pyspark_ringcast._client.sink_notes import check_room
from pyspark_ringcast._common.batches import BatchMaker, Rejected
from pyspark_ringcast._common.guards import Replacement, check_overwrite
from pyspark_ringcast._common.mapping import WriteColumns
from pyspark_ringcast._common.options import Operation, Options
from pyspark_ringcast._common.task_failures import CURABLE

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_THROTTLED_WINDOW: Final = 2


@dataclass
class Written(WriterCommitMessage):
    """What a task did. ``kept``: the ids that it wrote, packed, by partition; only an overwrite needs them."""

    written: int = 0
    deleted: int = 0
    unchanged: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    kept: dict[int, bytes] = field(default_factory=dict)
    live: int = 0
    """Rows of the key when the job began."""
    failure: RingcastError | None = None
    """Why the task stopped, where another try would stop there as well."""

    @property
    def counts(self) -> Counts:
        """Of the task."""
        return Counts(self.written, self.deleted, self.unchanged, len(self.rejected))


class RingcastWriter(DataSourceArrowWriter):
    """Travels to the tasks, and back to the driver for the commit."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        """Checks the columns and looks for the store, so that nothing is written where that is wrong.

        ``keys`` are the names of the config keys that the store had.

        Raises:
            InvalidInputError: a column is missing, unknown or of another type, or an option does not go with the mode.
            UnknownStoreError: there is no such store.
            UnavailableError: the config service did not answer in time.
        """
        check_write(options, schema, overwrite=overwrite)
        self._options = options
        self._overwrite = overwrite
        self._job = uuid.uuid4().hex
        store = find_store(options.service, options.store, options.timeout_s)
        self._partition_count = store.partition_count
        self.keys = frozenset(key.name for key in store.keys)
        if options.max_rows_per_second is not None:
            check_room(options, self.keys)
        self._live = sum(key.rows for key in store.keys if key.name == options.key)
        self._heads = self._read_heads()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task. What was written before a failure stays.

        What another try can't cure is not raised here, where Spark would try the task again three times: the commit
        raises it.

        Raises:
            UnavailableError: the service stayed away.
            ProtocolError, InternalError: an answer can't be understood, or the service failed.
        """
        throttle, done = self._throttle(), Written()
        maker = BatchMaker(self._options, keep_ids=self._overwrite, max_rows=_batch_rows(throttle))
        try:
            self._send(iterator, maker, throttle, done)
        except CURABLE:
            raise
        except RingcastError as error:
            done.failure = error
        done.rejected = maker.rejected
        if self._overwrite:
            done.kept = _packed(maker.kept, self._partition_count)
            done.live = self._live
        return done

    def _send(
        self, iterator: Iterator[pa.RecordBatch], maker: BatchMaker, throttle: Throttle | None, done: Written
    ) -> None:
        options = self._options
        columns = WriteColumns(options)
        batches = maker.batches(columns.rows(frame, maker.rejected) for frame in iterator)
        before = RowsBefore(options, self._heads, overwrite=self._overwrite)
        again = _was_tried_before()
        if again:
            batches = before.only(batches, done)
        for batch, result, sent_again in _answered(options, batches, throttle):
            # The service may have had batches of the attempt before in hand, and written them after this one looked.
            already = before.written_already(batch, result) if sent_again or again else 0
            done.written += result.written + already
            done.deleted += result.deleted
            done.unchanged += result.unchanged - already
            maker.rejected += map(rejected_by_service, result.rejected)
            check_rejected(self._options, maker.rejected)
        check_rejected(self._options, maker.rejected)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, once every task is done; doing it again changes nothing. Raises as :meth:`settle`."""
        self.settle(messages, self._job)

    def settle(self, messages: list[WriterCommitMessage | None], job: str) -> Counts:
        """The commit, and what became of the rows. ``job`` names the reports.

        Raises:
            RingcastError: what a task was refused with; an overwrite then deletes nothing.
            InvalidInputError: more rows were rejected than ``maxRejected``; the same.
            OverwriteRefusedError: it would delete more than it may.
        """
        done = [message for message in messages if isinstance(message, Written)]
        rejected = [row for message in done for row in message.rejected]
        if self._options.rejects_path is not None:
            write_rejects(self._options.rejects_path, job, rejected)
        for message in done:
            if message.failure is not None:
                raise message.failure
        check_rejected(self._options, rejected)
        counts = _summed(done)
        if self._overwrite:
            counts += Counts(deleted=self._delete_others(done))
        write_counts(self._options, job, counts)
        log_committed(self._options.place, job, counts)
        return counts

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was written stays: writing again changes only the rest. The tasks that were done are counted."""
        self.give_up(messages, self._job)

    def give_up(self, messages: list[WriterCommitMessage | None], job: str) -> None:
        """The same for a job of another name."""
        done = [message for message in messages if isinstance(message, Written)]
        log_aborted(self._options.place, job, _summed(done))

    def _throttle(self) -> Throttle | None:
        rate = self._options.max_rows_per_second
        return None if rate is None else Throttle(rate, StoreNotes(self._options))

    def _delete_others(self, done: Sequence[Written]) -> int:
        """Deletes live rows that no task wrote; returns how many that were.

        The key is never empty on the way, for the others are there by now.
        """
        others = list(self._others(done))
        self._check_deletes(sum(map(len, others)), done)
        options = replace(self._options, operation=Operation.DELETE)
        throttle = self._throttle()
        maker = BatchMaker(options, max_rows=_batch_rows(throttle))
        frames = (pa.record_batch({"row_id": pa.array(ids, pa.string())}) for ids in others)
        answered = _answered(options, maker.batches(frames), throttle)
        # They were live when they were listed: what is unchanged in a batch that was sent again, it has deleted before.
        return sum(one.result.deleted + one.sent_again * one.result.unchanged for one in answered)

    def _check_deletes(self, deletes: int, done: Sequence[Written]) -> None:
        """Holds what is to be deleted against the rows that there were when the job began."""
        options, place = self._options, self._options.place
        live = max(deletes, max((one.live for one in done), default=self._live))
        found = Replacement(place, live if deletes else 0, deletes, sum(len(one.kept) for one in done))
        check_overwrite(found, options.max_delete_share, allow_empty=options.allow_empty, done="deleted")

    def _others(self, done: Sequence[Written]) -> Iterator[list[str]]:
        """Their ids, a partition at a time."""
        options = self._options
        for partition, head in enumerate(self._read_heads()):
            if head:
                kept = _unpacked(done, partition)
                live = list_versions(options.service, options.store, options.key, partition, options.timeout_s)
                yield [row_id for row_id in live if row_id not in kept]

    def _read_heads(self) -> list[int]:
        """The revision of each partition, none where the key was never written."""
        options = self._options
        try:
            return read_heads(options.service, options.store, options.key, options.timeout_s)
        except UnknownKeyError:
            return []


def _batch_rows(throttle: Throttle | None) -> int:
    return throttle.batch_rows if throttle else limits.MAX_BATCH_ROWS


def _answered(options: Options, batches: Iterator[pb.WriteBatch], throttle: Throttle | None) -> Iterator[AnsweredBatch]:
    """Writes batches; with a throttle each at its time, and so few at once that sending them again is no burst."""
    stub = shared_stub(options.service)
    if throttle is None:
        bulk = BlockingBulkWrite(stub, options.timeout_s)
    else:
        bulk, batches = BlockingBulkWrite(stub, options.timeout_s, window=_THROTTLED_WINDOW), throttle.paced(batches)
    return bulk.results(batches)


def _summed(done: Sequence[Written]) -> Counts:
    return sum((message.counts for message in done), Counts())


def _was_tried_before() -> bool:
    """Whether this is a further attempt of a task, or a copy of one that is slow."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def _packed(row_ids: Sequence[str], partition_count: int) -> dict[int, bytes]:
    found: dict[int, list[str]] = {}
    for partition, row_id in zip(row_partitions(row_ids, partition_count), row_ids, strict=True):
        found.setdefault(partition, []).append(row_id)
    return {partition: msgspec.msgpack.encode(ids) for partition, ids in found.items()}


def _unpacked(done: Sequence[Written], partition: int) -> set[str]:
    """The ids of one partition, from every task that had some of it."""
    found: set[str] = set()
    for message in done:
        if (packed := message.kept.get(partition)) is not None:
            found.update(msgspec.msgpack.decode(packed, type=list[str]))
    return found
