"""The calls for releases."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, cast

from msgspec.structs import asdict
from ringcast_wire import (
    DEFAULT_GATE,
    Backoff,
    InvalidInputError,
    ReleaseGate,
    ReleaseState,
    RingcastError,
    UnavailableError,
    ValueSealedError,
    check_canary,
    check_gate,
    limits,
    names,
)
from ringcast_wire.grpc import pb
from ringcast_wire.key_ring import KeyRing, ListKeys

from ringcast_client._calls.calls import Calls
from ringcast_client._common.input import check_range, check_why, where
from ringcast_client._common.records import checked_row
from ringcast_client._releases.records import (
    OUTCOMES,
    STATES,
    ReleaseInfo,
    ReleaseRowInfo,
    RowReleaseInfo,
    release_info,
    release_number,
    rollout_info,
)
from ringcast_client._sync.sync import (
    DEFAULT_FIRST_ROWS,
    DEFAULT_MAX_DELETE_SHARE,
    Sync,
    SyncOptions,
    SyncProgress,
    SyncResult,
)
from ringcast_client._sync.write import conditional

if TYPE_CHECKING:
    from ringcast_client._bulk.write import Rows
    from ringcast_client._sync.service import SyncService
    from ringcast_client._sync.spool import PlannedWrite, Spool

_ATTEMPTS: Final = 5
_FIRST_PAUSE_S: Final = 0.2
_POLL_S: Final = 0.05
_MAX_POLL_S: Final = 0.5
_UNDER_WAY: Final = frozenset({ReleaseState.PUBLISHING, ReleaseState.UNDOING})


@dataclass(frozen=True, slots=True)
class StagedRelease:
    """What was staged: a difference for each key. ``release`` is ``None`` where nothing differs."""

    release: ReleaseInfo | None
    differences: tuple[SyncResult, ...]


class _Self(Protocol):
    """What staging needs of the client."""

    @property
    def as_stored(self) -> SyncService: ...
    def _keys(self, store: str, key: str) -> ListKeys | None: ...


class ReleaseCalls:
    """A part of the client of the config service."""

    _calls: Calls
    _key_ring: KeyRing | None

    async def stage_release(
        self,
        store: str,
        keys: Mapping[str, Rows],
        *,
        max_delete_share: float = DEFAULT_MAX_DELETE_SHARE,
        allow_empty: bool = False,
        first_rows: int = DEFAULT_FIRST_ROWS,
        reason: str | None = None,
        on_progress: Callable[[str, SyncProgress], None] = lambda _key, _progress: None,
    ) -> StagedRelease:
        """Stages what makes each key equal to its rows, deletions included, as one release; nobody sees it yet.

        The rows are compared as :meth:`ConfigServiceClient.sync` compares them, all keys before anything is staged. The
        arguments are those of a sync. ``on_progress`` is called with the key too. What fails in the middle is dropped.

        Raises:
            InvalidRowError: a row breaks a rule.
            SyncRefusedError: more would be deleted than is allowed.
            LimitExceededError: the store has 20 releases that are staged or under way; or more than 1,000,000 rows, or
                1 GiB, differ.
            UnknownStoreError, UnavailableError: as for :meth:`ConfigServiceClient.put`.
        """
        if not keys:
            raise InvalidInputError("a release of no key can't be staged", field="keys")
        options = SyncOptions(False, max_delete_share, allow_empty, first_rows, check_why(reason))
        me = cast("_Self", self)
        async with AsyncExitStack() as stack:
            found: list[tuple[str, Spool]] = []
            results = []
            for key, rows in keys.items():

                def report(progress: SyncProgress, key: str = key) -> None:
                    on_progress(key, progress)

                sync = Sync(
                    me.as_stored, **where(store, key), options=options, on_progress=report, keys=me._keys(store, key)
                )
                spool, difference, result = await stack.enter_async_context(sync.compared(rows))
                results.append(result)
                if difference.writes:
                    found.append((key, spool))
            release = await self._stage(store, found, options.reason) if found else None
        return StagedRelease(release, tuple(results))

    async def releases(self, store: str, *, limit: int | None = None) -> AsyncGenerator[ReleaseInfo, None]:
        """The releases of a store, the newest first, without their keys.

        Raises:
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        left = 2**63 - 1 if limit is None else check_range("limit", limit, 1, 2**63 - 1)
        before = 0
        while left:
            request = pb.ListReleasesRequest(store=names.check_name("store", store), before=before)
            request.limit = min(left, limits.MAX_RELEASE_PAGE)
            reply = await self._calls.unary(self._calls.rpc.ListReleases, request)
            for release in reply.releases:
                yield release_info(release)
            if len(reply.releases) < request.limit:
                return
            before = reply.releases[-1].number
            left -= len(reply.releases)

    async def release(self, store: str, number: int) -> ReleaseInfo:
        """A release with its keys.

        Raises:
            InvalidInputError: the store has no release of that number.
        """
        request = pb.GetReleaseRequest(store=names.check_name("store", store), number=release_number(number))
        return release_info(await self._calls.unary(self._calls.rpc.GetRelease, request))

    async def release_rows(
        self, store: str, number: int, *, conflicts_only: bool = False
    ) -> AsyncGenerator[ReleaseRowInfo, None]:
        """The rows of a release in the order in which they are published; or only those that others have written since.

        Values that can't be opened with the key ring stay sealed.
        """
        request = pb.ListReleaseRowsRequest(
            store=names.check_name("store", store), number=release_number(number), conflicts_only=conflicts_only
        )
        while True:
            reply = await self._calls.unary(self._calls.rpc.ListReleaseRows, request)
            for row in reply.rows:
                yield self._row(store, row)
            if not reply.next:
                return
            request.after = reply.next

    async def row_releases(self, store: str, key: str, row_id: str) -> list[RowReleaseInfo]:
        """The newest releases that have a row, up to 20, the newest first, as long as their rows are kept.

        Raises:
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        request = pb.ListRowReleasesRequest(**where(store, key), row_id=row_id)
        reply = await self._calls.unary(self._calls.rpc.ListRowReleases, request)
        return [
            RowReleaseInfo(
                each.number,
                STATES[each.state],
                OUTCOMES[each.outcome],
                each.version,
                each.undo_version,
                each.proven_at_ms,
                each.wave,
                rollout_info(each.rollout) if each.HasField("rollout") else None,
                each.approvals,
                each.approvals_needed,
            )
            for each in reply.releases
        ]

    async def publish_release(
        self,
        store: str,
        number: int,
        *,
        waves: Sequence[int] = (),
        gate: ReleaseGate = DEFAULT_GATE,
        canary: str = "",
        dry_wave: bool = False,
        reason: str | None = None,
    ) -> ReleaseInfo:
        """Begins to publish a release; the service completes it. See :meth:`follow_release`.

        ``waves``: how many percent of the partitions that it writes to are to be in after each wave, rising strictly to
        100, for example ``[1, 10, 100]``; empty: all at once. Which ones is drawn by a hash of release and partition.
        ``canary``: a label of workers, such as ``site=test``; before ``waves`` comes one of the partitions that these
        own now. In a store of mode FULL nothing is published in it: they lay the rows over what they have, as
        provisional ones.
        ``dry_wave``: before anything is published the applications of these workers judge what is staged for them
        (``validate`` of :class:`ringcast.Worker`), within the patience of the gate and at most 60 s.
        ``gate``: what has to hold after each wave; otherwise the service undoes the release. Its ``promql`` is asked
        once before, at the Prometheus that the service is configured with.

        Raises:
            ConditionFailedError: a row has been written since it was staged, or it has too few approvals; or it is not
                staged; or one of ``promql`` is not met now, or the service has no Prometheus; or the workers of
                ``canary`` own none of its partitions, or all of them, or refuse a row in the dry wave, or can't judge.
                Nothing is published.
            InvalidInputError: ``waves`` are no such list, or ``canary`` is no label, or ``gate`` is out of its ranges,
                or Prometheus says that one of ``promql`` can't be a condition.
            LimitExceededError: in a store of mode FULL, with a canary, it is larger than what workers lay over, or
                another release is laid over now.
            UnavailableError: Prometheus, or a worker that may be of ``canary``, does not answer.
        """
        checked = check_gate(gate, waves)
        request = pb.PublishReleaseRequest(
            store=store,
            number=release_number(number),
            reason=check_why(reason),
            waves=check_canary(canary, waves, dry_wave=dry_wave),
            canary=canary,
            dry_wave=dry_wave,
        )
        request.gate.CopyFrom(pb.ReleaseGate(**asdict(checked)))
        more_s = limits.MAX_DRY_WAVE_S if dry_wave else 0.0
        return release_info(await self._again(self._calls.rpc.PublishRelease, request, more_s))

    async def approve_release(
        self, store: str, number: int, *, digest: str = "", reason: str | None = None
    ) -> ReleaseInfo:
        """Approves what is staged as a release, for the policy ``approvals`` of its store; again: changes nothing.

        ``digest``: that of the :class:`ReleaseInfo` that was looked at; something else is then not approved.

        Raises:
            ConditionFailedError: it is not staged, or something else is.
            PermissionDeniedError: this client has staged it, or has no credential, or no role APPROVER.
        """
        request = pb.ApproveReleaseRequest(
            store=store, number=release_number(number), reason=check_why(reason), digest=digest
        )
        return release_info(await self._again(self._calls.rpc.ApproveRelease, request))

    async def revoke_approval(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo:
        """Takes the approval of this client back; nothing if there is none.

        Raises:
            ConditionFailedError: the release is not staged any more.
        """
        request = pb.ChangeReleaseRequest(store=store, number=release_number(number), reason=check_why(reason))
        return release_info(await self._again(self._calls.rpc.RevokeApproval, request))

    async def pause_release(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo:
        """Has no more rows published of a release with waves, until it is resumed. What is published stays.

        Raises:
            ConditionFailedError: it is not being published in waves.
        """
        request = pb.ChangeReleaseRequest(store=store, number=release_number(number), reason=check_why(reason))
        return release_info(await self._again(self._calls.rpc.PauseRelease, request))

    async def resume_release(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo:
        """Lets a release go on that was paused.

        Raises:
            ConditionFailedError: it is not being published in waves.
        """
        request = pb.ChangeReleaseRequest(store=store, number=release_number(number), reason=check_why(reason))
        return release_info(await self._again(self._calls.rpc.ResumeRelease, request))

    async def stop_release(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo:
        """Has no more rows published of a release with waves, for ever. What is published stays, and can be undone.

        Raises:
            ConditionFailedError: it is not being published in waves.
        """
        request = pb.ChangeReleaseRequest(store=store, number=release_number(number), reason=check_why(reason))
        return release_info(await self._again(self._calls.rpc.StopRelease, request))

    async def undo_release(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo:
        """Begins to write back what the rows were before a release; one that others have written since stays.

        Raises:
            ConditionFailedError: it is not published, or what it replaced is not kept any more.
        """
        request = pb.ChangeReleaseRequest(store=store, number=release_number(number), reason=check_why(reason))
        return release_info(await self._again(self._calls.rpc.UndoRelease, request))

    async def drop_release(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo:
        """Drops a release that is not published.

        Raises:
            ConditionFailedError: it is published, or being published.
        """
        request = pb.ChangeReleaseRequest(store=store, number=release_number(number), reason=check_why(reason))
        return release_info(await self._again(self._calls.rpc.DropRelease, request))

    async def pin_release(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo:
        """Keeps the rows of a release and of all after it, however old they become, so that they can be undone.

        A store has one pin: it takes the place of the one that was there. The same again changes nothing.

        Raises:
            ConditionFailedError: it is not published, or its rows, or those of one after it, are removed already.
        """
        request = pb.ChangeReleaseRequest(store=store, number=release_number(number), reason=check_why(reason))
        return release_info(await self._again(self._calls.rpc.PinRelease, request))

    async def unpin_release(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo:
        """Takes the pin of a release back; nothing if no release is pinned.

        Raises:
            ConditionFailedError: another release is pinned.
        """
        request = pb.ChangeReleaseRequest(store=store, number=release_number(number), reason=check_why(reason))
        return release_info(await self._again(self._calls.rpc.UnpinRelease, request))

    async def follow_release(
        self, store: str, number: int, *, on_progress: Callable[[ReleaseInfo], None] = lambda _: None
    ) -> ReleaseInfo:
        """Returns once a release is neither being published nor being undone, or is paused, or has halted
        (``problem``)."""
        pause_s = _POLL_S
        while True:
            release = await self.release(store, number)
            on_progress(release)
            if release.state not in _UNDER_WAY or release.problem or release.is_paused:
                return release
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_POLL_S, 2 * pause_s)

    async def _stage(self, store: str, found: list[tuple[str, Spool]], reason: str) -> ReleaseInfo:
        stage_id = f"stage-{secrets.token_hex(16)}"
        sequence, number = 0, 0
        try:
            async for rows, last in _batches(found):
                request = pb.StageReleaseRequest(
                    store=store, stage_id=stage_id, sequence=sequence, rows=rows, complete=last, reason=reason
                )
                release = await self._again(self._calls.rpc.StageRelease, request)
                sequence, number = sequence + 1, release.number
        except BaseException:
            if number:
                with suppress(RingcastError):
                    await asyncio.shield(self.drop_release(store, number))
            raise
        return release_info(release)

    async def _again(self, method: object, request: object, more_s: float = 0.0) -> pb.Release:
        """A call that may be made again: the same once more changes nothing. ``more_s``: beyond the time-out."""
        late = self._calls.unknown
        backoff = Backoff(lambda: 1.0, first_s=_FIRST_PAUSE_S)  # in full: the few attempts are to span 3 s
        while True:
            try:
                return cast(pb.Release, await self._calls.unary(method, request, late=late, more_s=more_s))  # type: ignore[arg-type]
            except UnavailableError:
                if backoff.failures == _ATTEMPTS - 1:
                    raise
            await asyncio.sleep(backoff.next_s())

    def _row(self, store: str, row: pb.ReleaseRow) -> ReleaseRowInfo:
        value = None if row.deleted else row.value
        old = row.old_value if row.existed else None
        metadata, old_metadata = dict(row.metadata), dict(row.old_metadata)
        if self._key_ring is not None:
            keys = self._key_ring.of(store, row.key)
            value, metadata = _opened(keys, row.row_id, value, metadata)
            old, old_metadata = _opened(keys, row.row_id, old, old_metadata)
        return ReleaseRowInfo(
            row.place,
            row.key,
            row.partition,
            row.row_id,
            value,
            metadata,
            old,
            old_metadata,
            row.staged_version,
            row.found_version,
            OUTCOMES[row.outcome],
            row.version,
            row.undo_version,
        )


async def _batches(found: list[tuple[str, Spool]]) -> AsyncIterator[tuple[list[pb.KeyedWrite], bool]]:
    """What is to be staged, in batches that fit one call; with each whether it is the last."""
    ready: list[pb.KeyedWrite] = []
    size = 0
    for key, spool in found:
        await asyncio.to_thread(spool.plan)
        after = 0
        while page := await asyncio.to_thread(_page, spool, after):
            for planned in page:
                message, row_bytes = checked_row(conditional(planned))
                if ready and (len(ready) >= limits.MAX_BATCH_ROWS or size + row_bytes > limits.MAX_BATCH_BYTES):
                    yield ready, False
                    ready, size = [], 0
                ready.append(pb.KeyedWrite(key=key, row=message))
                size += row_bytes
            after = page[-1].place
    yield ready, True


def _page(spool: Spool, after: int) -> list[PlannedWrite]:
    return list(spool.planned(after, limits.MAX_BATCH_ROWS))


def _opened(
    keys: ListKeys, row_id: str, value: str | None, metadata: dict[str, str]
) -> tuple[str | None, dict[str, str]]:
    if value is None:
        return value, metadata
    try:
        opened, rest = keys.open(row_id, value, metadata)
    except (ValueSealedError, InvalidInputError):
        return value, metadata
    return opened, dict(rest or {})
