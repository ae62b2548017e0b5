"""What the service decides, whatever carries the call: checks, defaults, and which read or write answers it.

Everything raises :class:`ringcast_wire.RingcastError`; the transports turn that into a status or an error reply.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import msgspec
from ringcast_core import row_partition
from ringcast_wire import (
    FetchReply,
    FetchReplyWriter,
    HeadsReply,
    InvalidInputError,
    RingcastError,
    Row,
    StoreDeletedError,
    StoreSettings,
    UnknownStoreError,
    check_row,
    check_row_id,
    decode_batch_request,
    decode_full_request,
    decode_heads_request,
    decode_partition_request,
    encode,
    limits,
    names,
    shown,
    version_for,
)
from ringcast_wire.reports import (
    StagedReply,
    StagedRequest,
    StagedRow,
    decode_staged_request,
    encode_staged,
    partitions_of,
)

from ringcast_config_service.caller import LOCAL, Caller
from ringcast_config_service.histories import Histories
from ringcast_config_service.lifecycle import check_inline, with_times
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.permits import Permit
from ringcast_config_service.repository import (
    SERVICE,
    Authorship,
    Chain,
    Difference,
    HistoryFilter,
    KeyState,
    LargeAnswerError,
    ListedRow,
    ListFilter,
    Repository,
    Revision,
    RowWrite,
    StoreInfo,
    StoreRecord,
    WriteOutcome,
    WriteRequest,
)
from ringcast_config_service.repository.answers import named_bytes
from ringcast_config_service.repository.as_of import check_time
from ringcast_config_service.repository.mapping import utc
from ringcast_config_service.telemetry import Telemetry
from ringcast_config_service.value_schemas import CheckedValues, ValueSchemas
from ringcast_config_service.writes.batches import (
    CheckedBatch,
    PlainRows,
    Rejected,
    RowInput,
    check_row_policy,
    checked_writes,
    plain_writes,
)
from ringcast_config_service.writes.group_writer import GroupWriter
from ringcast_config_service.writes.terms import NO_TERMS, KeyedRow, Terms, bundle, make_mark

_STORE_AGE_S = 5.0
_LONG_BYTES = 1 << 20
"""An answer so long is encoded with pauses."""


class Handlers:
    """One object for all calls; it keeps the settings of stores that it has seen for a few seconds."""

    def __init__(
        self,
        repository: Repository,
        writer: GroupWriter,
        provisioner: Provisioner,
        histories: Histories,
        schemas: ValueSchemas,
        telemetry: Telemetry,
    ) -> None:
        self._schemas = schemas
        self._telemetry = telemetry
        self._repository = repository
        self._writer = writer
        self._provisioner = provisioner
        self._histories = histories
        self._stores: dict[str, tuple[StoreRecord, float]] = {}

    # Stores

    async def create_store(
        self, name: str, settings: StoreSettings, inline_max_bytes: int | None, by: Authorship = SERVICE
    ) -> StoreRecord:
        """Creates a store, or returns the one with the same settings, once workers can use it."""
        names.check_name("name", name)
        names.check_partition_count(settings.partition_count)
        inline = check_inline(limits.DEFAULT_INLINE_BYTES if inline_max_bytes is None else inline_max_bytes)
        settings = with_times(settings)
        wanted = StoreRecord(name, settings, inline, _now_ms())
        record = await self._repository.stores.create_store(wanted, by)
        self._remember(record)
        if record.history_id == wanted.history_id:
            self._histories.created(name)
        await self._provisioner.ensure(record)
        return record

    async def get_store(self, name: str, *, include_deleted: bool = False) -> StoreInfo:
        return await self._repository.stores.get_store(names.check_name("name", name), include_deleted=include_deleted)

    async def list_stores(self, *, include_deleted: bool = False) -> list[StoreInfo]:
        return await self._repository.stores.list_stores(include_deleted=include_deleted)

    def forget(self, name: str) -> None:
        """The settings of a store may have changed: the next call reads them."""
        self._stores.pop(name, None)

    async def new_history(self, name: str, by: Authorship = SERVICE) -> StoreInfo:
        """Begins a new history of a store, after an operator has restored its database."""
        await self._histories.begin(names.check_name("name", name), "operator", by=by)
        return await self._repository.stores.get_store(name)

    # Writes

    async def write_one(
        self, store: str, key: str, row: RowInput, terms: Terms = NO_TERMS, caller: Caller = LOCAL
    ) -> tuple[int, WriteOutcome]:
        """Writes or deletes one row; returns its partition and the outcome."""
        partition, request = await self.check_one(store, key, row, terms)
        return partition, await self._writer.write(request, caller)

    async def commit(
        self, store: str, writes: Sequence[KeyedRow], terms: Terms = NO_TERMS, caller: Caller = LOCAL
    ) -> list[tuple[int, int]]:
        """Writes rows of several keys, all or none; partition and version of each, in order."""
        record = await self._store(store)
        if not self._histories.is_open(store):
            await self._histories.open(store)
        checks = await self._schemas.looked_at(store, ((key, row.value, row.metadata) for key, row in writes))
        requests, places = bundle(record, writes, terms, self._repository.histories.generation, checks)
        outcome = await self._writer.write_all(requests, caller)
        versions = dict(zip(places, outcome.versions, strict=True))
        return [(places[item.key, item.row.row_id], versions[item.key, item.row.row_id]) for item in writes]

    async def check_one(self, store: str, key: str, row: RowInput, terms: Terms) -> tuple[int, WriteRequest]:
        """Checks one row for :meth:`GroupWriter.submit`; returns its partition too.

        Raises:
            InvalidInputError: the row is invalid.
        """
        record = await self._check_key(store, key)
        if not self._histories.is_open(store):
            await self._histories.open(store)
        size = check_row(row.row_id, row.value or "", row.metadata)
        if row.value is not None:
            check_row_policy(row.row_id, size, record.policy.max_row_bytes)
        if (check := await self._schemas.check_of(store, key)) is not None and row.value is not None:
            (await check.look([(row.value, row.metadata)])).check(row.row_id, row.value, row.metadata)
        partition = row_partition(row.row_id, record.partition_count)
        metadata = dict(row.metadata) if row.metadata else None
        write = RowWrite(partition, row.row_id, row.value, metadata, size, row.condition)
        return partition, WriteRequest(
            record,
            key,
            [write],
            traceparent=terms.traceparent,
            mark=make_mark(terms.idempotency_key, [(key, [write])]),
            generation=self._repository.histories.generation,
            permit=Permit(terms.expires_s),
            by=terms.by,
            schema_id=check.schema_id if check is not None else 0,
        )

    async def check_batch(
        self,
        store: str,
        key: str,
        rows: Sequence[RowInput] | PlainRows,
        *,
        skip_invalid: bool,
        skip_unchanged: bool,
        chain: Chain,
        terms: Terms = NO_TERMS,
    ) -> CheckedBatch:
        """Checks a batch for :meth:`GroupWriter.submit`.

        Raises:
            InvalidInputError: the batch is empty or too large, or a row is invalid and ``skip_invalid`` is not set.
        """
        record = await self._store(store)
        names.check_name("key", key)
        if not self._histories.is_open(store):
            await self._histories.open(store)
        count = len(rows.row_ids) if isinstance(rows, PlainRows) else len(rows)
        if not 1 <= count <= limits.MAX_BATCH_ROWS:
            raise InvalidInputError(
                f"rows has {count} entries: 1 to {limits.MAX_BATCH_ROWS} are allowed in a batch", field="rows"
            )
        check = await self._looked_at(store, key, rows)
        writes: Sequence[RowWrite] | None = None
        if isinstance(rows, PlainRows) and (check is None or not check.problems):
            writes = plain_writes(rows, record.partition_count, record.policy.max_row_bytes)
        repeated = 0
        rejected: list[Rejected] = []
        if writes is None:
            inputs = rows.inputs() if isinstance(rows, PlainRows) else rows
            writes, repeated, rejected = checked_writes(
                inputs,
                record.partition_count,
                skip_invalid=skip_invalid,
                max_row_bytes=record.policy.max_row_bytes,
                check=check,
            )
        if not writes:
            return CheckedBatch(None, repeated, rejected)
        request = WriteRequest(
            record,
            key,
            writes,
            chain,
            terms.traceparent,
            skip_unchanged,
            mark=make_mark(terms.idempotency_key, [(key, writes)]),
            generation=self._repository.histories.generation,
            permit=Permit(terms.expires_s),
            by=terms.by,
            schema_id=check.schema_id if check is not None else 0,
        )
        return CheckedBatch(request, repeated, rejected)

    async def _looked_at(self, store: str, key: str, rows: Sequence[RowInput] | PlainRows) -> CheckedValues | None:
        """How the values of a batch are for the schema of their key; ``None``: they are not checked."""
        if (check := await self._schemas.check_of(store, key)) is None:
            return None
        if isinstance(rows, PlainRows):
            return await check.look((value, None) for value in rows.values)
        return await check.look((row.value, row.metadata) for row in rows)

    # Reads

    async def get(self, store: str, key: str, row_ids: Sequence[str]) -> list[ListedRow]:
        """Live rows in the order of the ids; a row that is not there is left out."""
        await self._check_key(store, key)
        ids = _check_row_ids(row_ids)
        most_bytes = named_bytes(ids, limits.MAX_BATCH_BYTES)
        try:
            found = (await self._repository.reader.read_rows(store, key, ids, most_bytes)).partitions
        except LargeAnswerError as error:
            raise InvalidInputError(
                f"row_ids asks for about {error.size} bytes: at most {limits.MAX_BATCH_BYTES} fit one answer, "
                "ask for fewer rows",
                field="row_ids",
            ) from error
        live = {row.row_id: ListedRow(entry.partition, row) for entry in found for row in entry.rows if not row.deleted}
        rows = [live[row_id] for row_id in row_ids if row_id in live]
        size = sum(_size(listed.row) for listed in rows)
        if size > limits.MAX_BATCH_BYTES:
            raise InvalidInputError(
                f"row_ids asks for {size} bytes: at most {limits.MAX_BATCH_BYTES} fit one answer, ask for fewer rows",
                field="row_ids",
            )
        return rows

    async def list_rows(self, store: str, key: str, query: ListFilter) -> AsyncGenerator[list[ListedRow], None]:
        """An iterator of pages; close it when it is not read to the end."""
        await self._check_listed(store, key, query)
        return self._repository.reader.list_rows(store, key, query)

    async def history(self, store: str, key: str, query: HistoryFilter) -> AsyncGenerator[list[Revision], None]:
        """An iterator of pages; close it when it is not read to the end."""
        record = await self._check_key(store, key)
        if query.since < 0:
            raise InvalidInputError(f"since {query.since} is below 0", field="since")
        if query.partition is not None:
            names.check_partition(query.partition, record.partition_count)
        if query.row_id:
            home = row_partition(check_row_id(query.row_id), record.partition_count)
            if query.partition not in (None, home):
                raise InvalidInputError(
                    f"partition {query.partition} does not hold row {shown(query.row_id)}: partition {home} does",
                    field="partition",
                )
            query = replace(query, partition=home)
        return self._repository.reader.history(store, key, query)

    async def heads(self, store: str, key: str, release: int = 0) -> HeadsReply:
        """The revision of each partition; or those when the last row of a release was published."""
        await self._check_key(store, key)
        if release:
            return await self._repository.reader.heads_of_release(store, key, release)
        return await self._repository.reader.heads(store, key)

    async def state(self, store: str, key: str, wanted: KeyState) -> HeadsReply:
        """The revisions that a state of a key has, for :meth:`rows_as_of` and :meth:`differences`.

        Raises:
            InvalidInputError: there is no such release or moment, or the store was not there yet.
            ConditionFailedError: the release is not published.
            RevisionGoneError: the history does not reach back so far any more.
        """
        record = await self._check_key(store, key)
        reader = self._repository.reader
        if wanted.release is not None:
            return await reader.heads_of_release(store, key, wanted.release)
        if wanted.at_ms is None:
            return await reader.heads(store, key)
        check_time(wanted.at_ms, await self._repository.clock_ms())
        found = await reader.heads(store, key, wanted.at_ms)
        # Another store may have had the name. What is in the record counts, and not the clock of who created the store.
        if wanted.at_ms < record.created_at_ms and not any(found.heads):
            raise InvalidInputError(
                f"time {utc(wanted.at_ms)} is before store {store!r} was created at {utc(record.created_at_ms)}",
                field="time_ms",
            )
        return found

    async def rows_as_of(
        self, store: str, key: str, then: HeadsReply, query: ListFilter
    ) -> AsyncGenerator[list[ListedRow], None]:
        """An iterator of pages; close it when it is not read to the end."""
        await self._check_listed(store, key, query)
        return self._repository.reader.rows_as_of(store, key, then, query)

    async def differences(
        self, store: str, key: str, before: HeadsReply, after: HeadsReply, query: ListFilter
    ) -> AsyncGenerator[list[Difference], None]:
        """An iterator of pages; close it when it is not read to the end."""
        await self._check_listed(store, key, query)
        return self._repository.reader.differences(store, key, before, after, query)

    # Fetches of workers

    async def fetch(self, subject: str, payload: bytes, most_bytes: int = sys.maxsize) -> bytes | bytearray:
        """The encoded answer to a fetch.

        Raises:
            LargeAnswerError: it is of a partition or of named rows, and would have over ``most_bytes``; no row was
                read.
        """
        target = names.parse_fetch_subject(subject)
        store, key, what = target.store, target.config_key, target.what
        reader, read = self._repository.reader, self._telemetry.read
        if isinstance(what, int):
            asked = decode_partition_request(payload)
            words = asked.since, asked.history, asked.as_of, most_bytes, version_for(asked.reads)
            return await read(reader.read_partition(store, key, what, *words))
        if what == names.FETCH_BATCH:
            batch = decode_batch_request(payload)
            reply = await read(reader.read_rows(store, key, _check_row_ids(batch.row_ids), most_bytes))
            return await _encoded(reply, version_for(batch.reads))
        if what == names.FETCH_HEADS:
            wanted = decode_heads_request(payload)
            heads = await read(self._heads_at(store, key, wanted.at_ms))
            return encode(msgspec.structs.replace(heads, wire_version=version_for(wanted.reads)))
        if what == names.FETCH_STAGED:
            return encode_staged(await read(self._staged(store, key, decode_staged_request(payload))))
        return await read(reader.read_full(store, key, version_for(decode_full_request(payload).reads)))

    async def _staged(self, store: str, key: str, request: StagedRequest) -> StagedReply:
        """A page of what a release has staged for partitions of a key."""
        words = store, request.release, key, set(partitions_of(request.spans)), request.after
        most, state = (limits.MAX_BATCH_ROWS, limits.MAX_BATCH_BYTES), ""
        if request.provisional:
            state, found = await self._repository.releases.provisional_rows(*words, *most)
        else:
            found = await self._repository.releases.staged_rows(*words, *most)
        rows = [StagedRow(row.partition, row.row_id, row.value, row.base, row.metadata) for row in found]
        return StagedReply(version_for(request.reads), rows, found[-1].place if found else 0, str(state))

    async def _heads_at(self, store: str, key: str, at_ms: int | None) -> HeadsReply:
        if at_ms is not None and at_ms > (now_ms := await self._repository.clock_ms()):
            raise InvalidInputError(
                f"at_ms {at_ms} is still to come: the database's clock says {now_ms}", field="at_ms"
            )
        return await self._repository.reader.heads(store, key, at_ms)

    async def _check_listed(self, store: str, key: str, query: ListFilter) -> None:
        record = await self._check_key(store, key)
        if query.partition is not None:
            names.check_partition(query.partition, record.partition_count)

    async def _check_key(self, store: str, key: str) -> StoreRecord:
        names.check_name("store", store)
        names.check_name("key", key)
        return await self._store(store)

    async def _store(self, name: str) -> StoreRecord:
        """The settings of a store, which another instance may have changed or deleted a few seconds ago.

        That harms nothing: each read and each write checks for deletions in its own transaction.
        """
        found = self._stores.get(names.check_name("store", name))
        if found is not None and found[1] > time.monotonic():
            return found[0]
        try:
            return self._remember(await self._repository.stores.get_record(name))
        except (UnknownStoreError, StoreDeletedError):
            self.forget(name)
            raise

    def _remember(self, record: StoreRecord) -> StoreRecord:
        if len(self._stores) >= limits.MAX_STORES:  # of stores that are gone, or one more than there may be
            self._stores.clear()
        self._stores[record.name] = record, time.monotonic() + _STORE_AGE_S
        return record


async def _encoded(reply: FetchReply, version: int) -> bytearray:
    """The encoded reply. Its rows go as they are encoded, so that a large one never takes twice its bytes; between two
    partitions the event loop goes on."""
    writer = FetchReplyWriter(len(reply.partitions), version)
    reply.partitions.reverse()
    while reply.partitions:
        entry = reply.partitions.pop()
        writer.begin(entry.partition, entry.revision, entry.whole)
        writer.add(entry.rows)
        if reply.partitions and len(writer) > _LONG_BYTES:
            await asyncio.sleep(0)
    return writer.finish(reply.history)


def _check_row_ids(row_ids: Sequence[str]) -> Sequence[str]:
    if not 1 <= len(row_ids) <= limits.MAX_BATCH_ROWS:
        raise InvalidInputError(
            f"row_ids has {len(row_ids)} entries: 1 to {limits.MAX_BATCH_ROWS} are allowed", field="row_ids"
        )
    for row_id in row_ids:
        check_row_id(row_id)
    return row_ids


def _size(row: Row) -> int:
    return check_row(row.row_id, row.value, row.metadata)


def _now_ms() -> int:
    return int(time.time() * 1000)


__all__ = ["Handlers", "RingcastError"]
