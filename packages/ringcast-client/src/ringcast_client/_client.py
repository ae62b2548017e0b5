"""The client: what its calls do. Those about stores and dead letters have modules of their own."""

from __future__ import annotations

import copy
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ringcast_wire import (
    InvalidInputError,
    check_condition,
    check_row,
    check_row_id,
    limits,
    names,
)
from ringcast_wire.grpc import ServiceLogin, pb
from ringcast_wire.key_ring import KEY_RING_VARIABLE, KeyRing, ListKeys

from ringcast_client._access.audit import AuditCalls
from ringcast_client._access.principals import PrincipalCalls
from ringcast_client._bulk.batches import BatchBuilder
from ringcast_client._bulk.write import BulkWrite, Rows
from ringcast_client._calls.calls import Calls
from ringcast_client._calls.change_writer import ChangeWriter
from ringcast_client._common.addresses import Addresses
from ringcast_client._common.input import (
    check_job_id,
    check_limit,
    check_mark,
    check_partition,
    check_range,
    check_row_ids,
    check_why,
    slices,
    where,
)
from ringcast_client._common.records import (
    CommittedRow,
    DeleteResult,
    KeyedWrite,
    OnInvalid,
    PutResult,
    RevisionRecord,
    RowRecord,
    checked_row,
    revision_record,
    row_record,
)
from ringcast_client._common.requested_waits import patience
from ringcast_client._releases.proofs import ProofCalls
from ringcast_client._releases.releases import ReleaseCalls
from ringcast_client._releases.rollback import RollbackCalls
from ringcast_client._stores.dead_letters import DeadLetterCalls
from ringcast_client._stores.reseal import Reseal, ResealResult
from ringcast_client._stores.schemas import SchemaCalls
from ringcast_client._stores.states import StateCalls
from ringcast_client._stores.status import StatusCalls
from ringcast_client._stores.stores import StoreCalls
from ringcast_client._sync.sync import (
    DEFAULT_FIRST_ROWS,
    DEFAULT_MAX_DELETE_SHARE,
    Sync,
    SyncOptions,
    SyncProgress,
    SyncResult,
)

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

DEFAULT_SERVICE: Final = "127.0.0.1:7420"
DEFAULT_TIMEOUT_S: Final = 10.0
MAX_IN_FLIGHT: Final = 64

RowList = list[RowRecord]


class ConfigServiceClient(
    AuditCalls,
    DeadLetterCalls,
    PrincipalCalls,
    ReleaseCalls,
    ProofCalls,
    RollbackCalls,
    SchemaCalls,
    StateCalls,
    StatusCalls,
    StoreCalls,
):
    """Talks to the config service over gRPC.

    The constructor connects to nothing; use it as ``async with ConfigServiceClient(address) as client``. Every method
    raises an error of ``ringcast_wire``: :class:`~ringcast_wire.InvalidInputError` before anything is sent where the
    input breaks a rule, :class:`~ringcast_wire.UnavailableError` when the service can't be reached or does not answer
    within ``timeout_s``, otherwise what the service refused with.

    ``address`` is ``host:port``, or ``tls://host:port`` for TLS with the certificates that the system trusts; by
    default the environment variable RINGCAST_SERVICE, or 127.0.0.1:7420. Several have commas between, or are a list, or
    what a function returns each time that it is called (``ringcast_meta.cluster.service_addresses`` makes such a list).
    Calls then go to one of them, and to another where that one drains, stops or can't be reached. A call whose
    connection breaks is made again if it only reads; of a write it is not known whether it was stored.

    ``login`` says by what other certificates and with what token; by default RINGCAST_SERVICE_TLS_CA_FILE,
    …_TLS_CERT_FILE, …_TLS_KEY_FILE and …_TOKEN_FILE.

    ``reason``: why this client calls, one line of up to 512 bytes, for all that it does: the audit log has it, and the
    history where a write has no reason of its own. A principal with the role ``break-glass`` has to give one.

    ``key_ring``: seals values of the lists that it encrypts, and opens all sealed ones; by default that of the file
    that RINGCAST_KEY_RING names. Without one, sealed rows are as they are stored.

    Any number of calls may be made at once: 128 of them are under way, the others wait for their turn, with which their
    ``timeout_s`` begins.

    Writes are spans of ``tracer_provider``, by default of the one that the process has configured, if any, and go on in
    the service and in the workers that hear of them.
    """

    def __init__(
        self,
        address: Addresses | None = None,
        *,
        login: ServiceLogin | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        reason: str | None = None,
        key_ring: KeyRing | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._key_ring = key_ring if key_ring is not None else KeyRing.from_environment()
        self._calls = Calls(
            address or os.environ.get("RINGCAST_SERVICE") or DEFAULT_SERVICE,
            login or ServiceLogin.from_environment(),
            timeout_s,
            tracer_provider,
            reason=check_why(reason),
        )

    @property
    def address(self) -> str:
        """Where the service is."""
        return self._calls.address

    @property
    def as_stored(self) -> ConfigServiceClient:
        """This client without its key ring, over the same connection: it reads and writes sealed rows as they are."""
        twin = copy.copy(self)
        twin._key_ring = None
        return twin

    def _keys(self, store: str, key: str) -> ListKeys | None:
        return None if self._key_ring is None else self._key_ring.of(store, key)

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._calls.close()

    async def put(
        self,
        store: str,
        key: str,
        row_id: str,
        value: str,
        metadata: Mapping[str, str] | None = None,
        *,
        if_version: int | None = None,
        if_absent: bool = False,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> PutResult:
        """Writes a row; the first write to a config key creates the key.

        ``if_version``: only if the live row has this version; ``if_absent``: only if there is none. With an
        ``idempotency_key`` (1 to 128 bytes) the same put again returns what it returned the first time, and writes
        nothing: so one whose outcome is not known can be repeated. ``reason``: one line of up to 512 bytes, for
        :meth:`history`, which has it beside the author.

        Raises:
            UnknownStoreError: there is no such store.
            LimitExceededError: the partition would outgrow 8 MiB, or the store 100 keys.
            ConditionFailedError: the condition does not hold; ``found_version`` says which version the row has.
            OutcomeUnknownError: the service did not answer in time, or the connection broke; it may have written the
                row.
            UnavailableError: the service can't be reached, or writes nothing now.
        """
        if (keys := self._keys(store, key)) is not None:
            value, metadata = keys.seal(row_id, value, metadata)
        check_row(row_id, value, metadata)
        check_condition(if_version, if_absent)
        request = pb.PutRequest(
            **where(store, key),
            row_id=row_id,
            value=value,
            metadata=metadata,
            if_version=if_version,
            if_absent=if_absent,
            idempotency_key=check_mark(idempotency_key),
            reason=check_why(reason),
        )
        reply = await self._calls.write("config.put", self._calls.rpc.Put, request)
        return PutResult(reply.partition, reply.version)

    async def delete(
        self,
        store: str,
        key: str,
        row_id: str,
        *,
        if_version: int | None = None,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> DeleteResult:
        """Deletes a row, if it is there; ``if_version``, ``idempotency_key`` and ``reason`` as for :meth:`put`.

        Raises:
            UnknownStoreError: there is no such store.
            UnknownKeyError: nothing was ever written to the key.
            ConditionFailedError, OutcomeUnknownError: as for :meth:`put`.
        """
        check_condition(if_version, if_absent=False)
        request = pb.DeleteRequest(
            **where(store, key),
            row_id=check_row_id(row_id),
            if_version=if_version,
            idempotency_key=check_mark(idempotency_key),
            reason=check_why(reason),
        )
        reply = await self._calls.write("config.delete", self._calls.rpc.Delete, request)
        return DeleteResult(reply.existed, reply.partition, reply.version)

    async def commit(
        self,
        store: str,
        writes: Sequence[KeyedWrite],
        *,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> list[CommittedRow]:
        """Writes rows of any keys of a store in one transaction: all of them, or none where one is refused.

        Up to 1,000 rows and 3 MiB, no row twice. Workers hear of each partition by an event of its own, as ever.

        Raises:
            InvalidInputError: there are none or too many, one breaks a rule, or comes twice; nothing was sent.
            ConditionFailedError: a condition of one of them does not hold.
            UnknownStoreError, UnknownKeyError, LimitExceededError, OutcomeUnknownError: as for :meth:`put`.
        """
        request = pb.CommitRequest(
            store=names.check_name("store", store),
            idempotency_key=check_mark(idempotency_key),
            reason=check_why(reason),
        )
        check_range("writes", len(writes), 1, limits.MAX_BATCH_ROWS)
        total = 0
        for write in writes:
            if not write.delete and (keys := self._keys(store, write.key)) is not None:
                value, metadata = keys.seal(write.row_id, write.value, write.metadata)
                write = replace(write, value=value, metadata=metadata or {})
            message, size = checked_row(write)
            request.writes.append(pb.KeyedWrite(key=names.check_name("key", write.key), row=message))
            total += size
        check_range("bytes of writes", total, 0, limits.MAX_BATCH_BYTES)
        reply = await self._calls.write("config.commit", self._calls.rpc.Commit, request)
        return [
            CommittedRow(write.key, write.row_id, row.partition, row.version)
            for write, row in zip(writes, reply.rows, strict=True)
        ]

    async def get(self, store: str, key: str, row_ids: Sequence[str]) -> RowList:
        """The live rows among those named, in the order asked for.

        Raises:
            UnknownStoreError: there is no such store.
            UnknownKeyError: nothing was ever written to the key.
            InvalidInputError: a row id is none, or ``row_ids`` is a string.
            ValueSealedError: a value can't be opened with the key ring of the client.
        """
        wanted = check_row_ids(row_ids)
        rows: RowList = []
        for part in slices(wanted, limits.MAX_BATCH_ROWS):
            reply = await self._calls.unary(self._calls.rpc.Get, pb.GetRequest(**where(store, key), row_ids=part))
            rows.extend(row_record(row, self._keys(store, key)) for row in reply.rows)
        return rows

    async def list(
        self,
        store: str,
        key: str,
        *,
        partition: int | None = None,
        include_deleted: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[RowRecord, None]:
        """The rows of a key, or of one partition of it; with ``include_deleted`` the tombstones too.

        Raises:
            UnknownStoreError: there is no such store.
            UnknownKeyError: nothing was ever written to the key.
        """
        request = pb.ListRequest(
            **where(store, key),
            partition=check_partition(partition),
            include_deleted=include_deleted,
            limit=check_limit(limit),
        )
        keys = self._keys(store, key)
        async with aclosing(self._calls.items(self._calls.rpc.List, request)) as rows:
            async for row in rows:
                yield row_record(row, keys)

    async def history(
        self,
        store: str,
        key: str,
        row_id: str | None = None,
        *,
        partition: int | None = None,
        since: int = 0,
        limit: int | None = None,
    ) -> AsyncGenerator[RevisionRecord, None]:
        """The writes to a row, or to every row, with author and reason; ``since`` leaves out revisions up to that one.

        Raises:
            UnknownStoreError: there is no such store.
            UnknownKeyError: nothing was ever written to the key.
        """
        request = pb.HistoryRequest(**where(store, key), partition=check_partition(partition), limit=check_limit(limit))
        request.since = check_range("since", since, 0, 2**63 - 1)
        if row_id is not None:
            request.row_id = check_row_id(row_id)
        keys = self._keys(store, key)
        async with aclosing(self._calls.items(self._calls.rpc.History, request, "revisions")) as revisions:
            async for revision in revisions:
                yield revision_record(revision, keys)

    async def heads(self, store: str, key: str) -> tuple[int, ...]:
        """The revision of each partition, by partition number.

        Raises:
            UnknownStoreError: there is no such store.
            UnknownKeyError: nothing was ever written to the key.
        """
        reply = await self._calls.unary(self._calls.rpc.Heads, pb.HeadsRequest(**where(store, key)))
        return tuple(reply.heads)

    def changes(self, store: str, key: str, *, max_in_flight: int = limits.MAX_BATCH_ROWS) -> ChangeWriter:
        """Puts and deletes over one stream: ``async with client.changes(store, key) as writer: await writer.put(…)``.

        At most ``max_in_flight`` of them (1 to 1,000) wait for an answer at once.
        """
        return ChangeWriter(
            self._calls.streams("Change"),
            names.check_name("store", store),
            names.check_name("key", key),
            max_in_flight=check_range("max_in_flight", max_in_flight, 1, limits.MAX_BATCH_ROWS),
            timeout_s=self._calls.timeout_s,
            silent=self._calls.silent,
            unknown=self._calls.unknown,
            tracing=self._calls.tracing,
            keys=self._keys(store, key),
        )

    def bulk_write(
        self,
        store: str,
        key: str,
        rows: Rows,
        *,
        on_invalid: OnInvalid = OnInvalid.REJECT_BATCH,
        skip_unchanged: bool = False,
        batch_rows: int = limits.MAX_BATCH_ROWS,
        batch_bytes: int = limits.MAX_BATCH_BYTES,
        max_in_flight: int = 4,
        job_id: str | None = None,
        reason: str | None = None,
    ) -> BulkWrite:
        """Writes many rows; iterate over the result to make it happen: it yields each batch once it is committed.

        With ``skip_unchanged`` a row whose value and metadata are already those given is left alone: it gets no new
        version, and workers hear nothing. With a ``job_id`` (1 to 100 bytes) each batch has an idempotency key, made of
        it and of the batch's number: the same rows in the same order with the same settings may be sent again, and the
        batches that are committed already are not written again. A plain iterable is read in a thread, so it may block.
        At most ``max_in_flight`` batches wait for an answer. ``reason`` as for :meth:`put`, for all rows.

        Raises (while iterating):
            InvalidRowError: a row breaks a rule and ``on_invalid`` is ``REJECT_BATCH``. Its ``index`` says which; the
                batches before it are written, its own and everything after it is not.
            UnknownStoreError, LimitExceededError, UnavailableError: as for :meth:`put`.
        """
        builder = BatchBuilder(
            names.check_name("store", store),
            names.check_name("key", key),
            on_invalid,
            max_rows=check_range("batch_rows", batch_rows, 1, limits.MAX_BATCH_ROWS),
            max_bytes=check_range("batch_bytes", batch_bytes, 1, limits.MAX_BATCH_BYTES),
            skip_unchanged=skip_unchanged,
            job_id=check_job_id(job_id),
            reason=check_why(reason),
            keys=self._keys(store, key),
        )
        return BulkWrite(
            self._calls.streams("Write", (*(self._calls.trace_headers() or ()), patience(self._calls.timeout_s))),
            rows,
            builder,
            max_in_flight=check_range("max_in_flight", max_in_flight, 1, MAX_IN_FLIGHT),
            timeout_s=self._calls.timeout_s,
        )

    async def sync(
        self,
        store: str,
        key: str,
        rows: Rows,
        *,
        dry_run: bool = False,
        max_delete_share: float = DEFAULT_MAX_DELETE_SHARE,
        allow_empty: bool = False,
        first_rows: int = DEFAULT_FIRST_ROWS,
        reseal: bool = False,
        reason: str | None = None,
        on_progress: Callable[[SyncProgress], None] = lambda _: None,
    ) -> SyncResult:
        """Makes a key equal to ``rows``: adds, changes and deletes what differs, and leaves the rest alone.

        Both sides are compared on disk, in about twice the size of the rows, before anything is written; with
        ``dry_run`` nothing is. Of two rows with one id the later counts. A plain iterable is read in a thread. A sync
        that was broken off is finished by running it again. A row that another writer changes between the comparison
        and the write is left as it is, and reported (``SyncResult.conflicts``).

        Args:
            max_delete_share: the share of the key's rows (0 to 1) that may be deleted.
            allow_empty: whether no rows at all may empty the key; ``max_delete_share`` does not count then.
            first_rows: how many row ids of each kind the result names.
            reseal: whether rows that are sealed with another key than the active one are written again. Without, a row
                counts as unchanged if its value is. A row of clear text in an encrypted list is always written again.
            reason: of all that is written, as for :meth:`put`.

        Raises:
            InvalidRowError: a row breaks a rule; nothing is written.
            SyncRefusedError: more would be deleted than is allowed; nothing is written.
            UnknownStoreError, LimitExceededError, UnavailableError: as for :meth:`put`.
        """
        options = SyncOptions(dry_run, max_delete_share, allow_empty, first_rows, check_why(reason), reseal)
        sync = Sync(
            self.as_stored,
            **where(store, key),
            options=options,
            on_progress=on_progress,
            keys=self._keys(store, key),
        )
        return await sync.run(rows)

    async def reseal(
        self,
        store: str,
        key: str,
        *,
        reason: str | None = None,
        on_progress: Callable[[ResealResult], None] = lambda _: None,
    ) -> ResealResult:
        """Writes each row again that is not sealed with the active key of the key ring, as after a new one was made.

        Rows of clear text are sealed where the key ring's ``accept_clear`` allows them. A row that another writer
        changes meanwhile is left as it is. A pass that was broken off is finished by another one.

        Raises:
            InvalidInputError: the client has no key ring.
            ValueSealedError: a row can't be opened; those before it are written.
            UnknownStoreError, UnknownKeyError, UnavailableError: as for :meth:`put`.
        """
        if (keys := self._keys(**where(store, key))) is None:
            raise InvalidInputError(
                f"key_ring is missing: give one to the client, or name its file in {KEY_RING_VARIABLE}",
                field="key_ring",
            )
        return await Reseal(self.as_stored, keys, store, key, check_why(reason), on_progress).run()
