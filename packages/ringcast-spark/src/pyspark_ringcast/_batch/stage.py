"""Rows that are staged as a release: compared by the tasks, and staged by the driver."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from ringcast_core import row_partitions
from ringcast_wire import InvalidInputError, UnknownKeyError, limits
from ringcast_wire.grpc import pb

from pyspark_ringcast._batch.checks import check_rejected, check_write, rejected_by_service
from pyspark_ringcast._batch.compare import Compared, Difference, Kind, check_size, compare
from pyspark_ringcast._batch.counts import Counts, Staged, log_staged
from pyspark_ringcast._batch.reports import write_counts, write_rejects
from pyspark_ringcast._client.service import find_store, list_versions, read_heads
from pyspark_ringcast._client.staging import Staging
from pyspark_ringcast._common.batches import Rejected
from pyspark_ringcast._common.guards import Replacement, check_overwrite
from pyspark_ringcast._common.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StageWriter(DataSourceArrowWriter):
    """Travels to the tasks, and back to the driver for the commit."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        """Checks the columns and looks for the store, so that no task runs where that is wrong.

        Raises:
            InvalidInputError: a column is missing, unknown or of another type, or an option does not go with the mode
                or with a release.
            UnknownStoreError: there is no such store.
            UnavailableError: the config service did not answer in time.
        """
        check_write(options, schema, overwrite=overwrite)
        if options.max_rows_per_second is not None:
            raise InvalidInputError(
                "option max_rows_per_second goes with a direct write, not with a release: staging holds up nobody",
                field="max_rows_per_second",
            )
        self.options = options
        self.overwrite = overwrite
        self.job = uuid.uuid4().hex
        self.partition_count = find_store(options.service, options.store, options.timeout_s).partition_count

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Compared:
        """One task; raises as :func:`~pyspark_ringcast._batch.compare.compare`."""
        return compare(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, once every task is done; raises as :func:`stage`."""
        stage([Job(self, [message for message in messages if isinstance(message, Compared)])])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is staged before the commit, which drops what it has staged when it fails."""


@dataclass
class Job:
    """The rows of one key, and what its tasks found."""

    writer: StageWriter
    tasks: Sequence[Compared]


@dataclass
class _KeyChanges:
    """What is to be staged of a key: ``rows`` in the order in which they are published."""

    writer: StageWriter
    rows: list[Difference]
    unchanged: int
    rejected: list[Rejected]

    @property
    def options(self) -> Options:
        return self.writer.options

    def counts(self, left_out: int) -> Counts:
        """``left_out``: how many of ``rows`` the service has rejected, which deletes never are."""
        deletes = sum(row.kind is Kind.DELETE for row in self.rows)
        return Counts(len(self.rows) - deletes - left_out, deletes, self.unchanged, len(self.rejected))


def stage(jobs: Sequence[Job]) -> Staged:
    """Stages what the tasks of one or more keys of a store found, as one release. What fails is dropped.

    Raises:
        RingcastError: what a task was refused with; nothing is staged then.
        InvalidInputError: more rows of all keys together were rejected than ``max_rejected``.
        OverwriteRefusedError: an overwrite would delete more than it may.
        LimitExceededError: the store has 20 releases that are staged or under way; or more rows or bytes differ than a
            release may have; or a policy of the store allows fewer changes.
    """
    rejected = [[row for task in job.tasks for row in task.rejected] for job in jobs]
    by_tasks = list(map(len, rejected))
    try:
        for failure in (task.failure for job in jobs for task in job.tasks):
            if failure is not None:
                raise failure
        _check_rejected(jobs[0].writer.options, rejected)
        keys = list(map(_changes, jobs, rejected))
        release = _send(keys)
    finally:
        for job, rows in zip(jobs, rejected, strict=True):
            if job.writer.options.rejects_path is not None:
                write_rejects(job.writer.options.rejects_path, job.writer.job, rows)
    counts = {}
    for key, before in zip(keys, by_tasks, strict=True):
        counts[key.options.key] = found = key.counts(len(key.rejected) - before)
        log_staged(key.options.place, key.writer.job, release, found)
        write_counts(key.options, key.writer.job, found, release)
    return Staged(release, counts)


def _check_rejected(options: Options, rejected: Iterable[Sequence[Rejected]]) -> None:
    """Of all keys together."""
    check_rejected(options, [row for rows in rejected for row in rows])


def _send(keys: Sequence[_KeyChanges]) -> int | None:
    """Stages everything; the number of the release, ``None`` where nothing differs."""
    rows = sum(len(key.rows) for key in keys)
    check_size(f"store {keys[0].options.store!r}", rows, sum(len(row.write) for key in keys for row in key.rows))
    if not rows:
        return None
    staging = Staging(keys[0].options, f"spark-{keys[0].writer.job}")
    try:
        for batch in _batches(keys):
            for row in staging.send([write for _, write in batch]):
                batch[row.index][0].rejected.append(rejected_by_service(row))
            _check_rejected(keys[0].options, (key.rejected for key in keys))
        if not staging.rows:
            staging.drop()
            return None
        staging.send([], complete=True)
    except BaseException:
        staging.drop()
        raise
    return staging.number


def _batches(keys: Sequence[_KeyChanges]) -> Iterator[list[tuple[_KeyChanges, pb.KeyedWrite]]]:
    """What one call takes, of any keys."""
    ready: list[tuple[_KeyChanges, pb.KeyedWrite]] = []
    size = 0
    for key in keys:
        for row in key.rows:
            if ready and (len(ready) >= limits.MAX_BATCH_ROWS or size + len(row.write) > limits.MAX_BATCH_BYTES):
                yield ready
                ready, size = [], 0
            ready.append((key, pb.KeyedWrite(key=key.options.key, row=pb.RowWrite.FromString(row.write))))
            size += len(row.write)
    if ready:
        yield ready


def _changes(job: Job, rejected: list[Rejected]) -> _KeyChanges:
    """Of rows with one id in several tasks that of the last task counts."""
    rows: dict[str, Difference] = {}
    for task in job.tasks:
        rows.update(task.rows)
    seen = sum(task.seen for task in job.tasks)
    changes = {row_id: row for row_id, row in rows.items() if row.write}
    unchanged = seen - len(changes)
    if job.writer.overwrite:
        changes |= _others(job.writer, rows)
    ids = list(changes)
    partitions = row_partitions(ids, job.writer.partition_count)
    # By partition; what is deleted comes first, and makes room there.
    places = sorted(
        (partition, changes[row_id].kind is Kind.PUT, row_id) for partition, row_id in zip(partitions, ids, strict=True)
    )
    return _KeyChanges(job.writer, [changes[row_id] for _, _, row_id in places], unchanged, rejected)


def _others(writer: StageWriter, rows: dict[str, Difference]) -> dict[str, Difference]:
    """The deletes of live rows that no task had.

    Raises:
        OverwriteRefusedError: these are more than it may delete.
    """
    options = writer.options
    live, found = 0, {}
    for partition in _written_partitions(options):
        versions = list_versions(options.service, options.store, options.key, partition, options.timeout_s)
        live += len(versions)
        for row_id in versions.keys() - rows.keys():
            write = pb.RowWrite(row_id=row_id, delete=True, if_version=versions[row_id])
            found[row_id] = Difference(Kind.DELETE, write.SerializeToString())
    after = sum(row.kind in (Kind.PUT, Kind.SAME) for row in rows.values())
    replacement = Replacement(options.place, live if found else 0, len(found), after)
    check_overwrite(replacement, options.max_delete_share, allow_empty=options.allow_empty, done="staged")
    return found


def _written_partitions(options: Options) -> list[int]:
    try:
        heads = read_heads(options.service, options.store, options.key, options.timeout_s)
    except UnknownKeyError:
        return []
    return [partition for partition, head in enumerate(heads) if head]
