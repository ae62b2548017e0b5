"""The calls for releases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from ringcast_service import Context
from ringcast_wire import DEFAULT_GATE, InvalidInputError, ReleaseGate, Rollout
from ringcast_wire.grpc import RELEASE_OUTCOMES, RELEASE_STATES, ConfigServiceServicer, pb

from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.input import answer
from ringcast_config_service.grpc.messages import SKIP_INVALID, choice
from ringcast_config_service.grpc.rows import authorship, rejected_message, row_input
from ringcast_config_service.releases.driver import Releases, Staged
from ringcast_config_service.releases.proofs import Proofs
from ringcast_config_service.repository import Authorship, Certificate, Release, ReleaseRow, RowRelease
from ringcast_config_service.repository.release_records import REMOVE
from ringcast_config_service.writes.terms import KeyedRow


class ReleaseCalls(ConfigServiceServicer):
    """Stages, shows, publishes, undoes, drops and proves releases."""

    def __init__(self, releases: Releases, proofs: Proofs) -> None:
        self._releases = releases
        self._proofs = proofs

    async def StageRelease(self, request: pb.StageReleaseRequest, context: Context) -> pb.Release:
        async def work() -> Staged:
            rows = [KeyedRow(write.key, row_input(write.row)) for write in request.rows]
            by = authorship(caller_of(context), request.reason)
            words = request.store, request.stage_id, request.sequence, rows, by
            skip = choice("on_invalid", SKIP_INVALID, request.on_invalid)
            return await self._releases.stage(*words, complete=request.complete, skip_invalid=skip)

        staged = await answer(context, work())
        message = _message(staged.release)
        message.rejected.extend(map(rejected_message, staged.rejected))
        return message

    async def ListReleases(self, request: pb.ListReleasesRequest, context: Context) -> pb.ListReleasesResponse:
        found = await answer(context, self._releases.newest(request.store, request.before, request.limit))
        return pb.ListReleasesResponse(releases=map(_message, found))

    async def GetRelease(self, request: pb.GetReleaseRequest, context: Context) -> pb.Release:
        return _message(await answer(context, self._releases.get(request.store, request.number)))

    async def ListReleaseRows(self, request: pb.ListReleaseRowsRequest, context: Context) -> pb.ListReleaseRowsResponse:
        words = request.store, request.number, request.after, request.limit
        page = await answer(context, self._releases.rows(*words, conflicts_only=request.conflicts_only))
        return pb.ListReleaseRowsResponse(rows=map(_row_message, page.rows), next=page.next)

    async def ListRowReleases(self, request: pb.ListRowReleasesRequest, context: Context) -> pb.ListRowReleasesResponse:
        found = await answer(context, self._releases.of_row(request.store, request.key, request.row_id))
        return pb.ListRowReleasesResponse(releases=map(_row_release, found))

    async def PublishRelease(self, request: pb.PublishReleaseRequest, context: Context) -> pb.Release:
        async def work() -> Release:
            by = authorship(caller_of(context), request.reason)
            gate = DEFAULT_GATE
            if request.HasField("gate"):
                asked = request.gate
                gate = ReleaseGate(asked.bake_ms, asked.max_refused, asked.patience_ms, tuple(asked.promql))
            waves: Sequence[int] = request.waves
            for what, given in (("canary", bool(request.canary)), ("dry wave", request.dry_wave)):
                waves = _without_zero(what, waves) if given else waves
            words = request.store, request.number, by, waves, gate, request.canary
            return await self._releases.publish(*words, dry_wave=request.dry_wave)

        return _message(await answer(context, work()))

    async def ApproveRelease(self, request: pb.ApproveReleaseRequest, context: Context) -> pb.Release:
        async def work() -> Release:
            by = authorship(caller_of(context), request.reason)
            return await self._releases.approve(request.store, request.number, by, request.digest)

        return _message(await answer(context, work()))

    async def RevokeApproval(self, request: pb.ChangeReleaseRequest, context: Context) -> pb.Release:
        return await _changed(self._releases.revoke_approval, request, context)

    async def PauseRelease(self, request: pb.ChangeReleaseRequest, context: Context) -> pb.Release:
        return await _changed(self._releases.pause, request, context)

    async def ResumeRelease(self, request: pb.ChangeReleaseRequest, context: Context) -> pb.Release:
        return await _changed(self._releases.resume, request, context)

    async def StopRelease(self, request: pb.ChangeReleaseRequest, context: Context) -> pb.Release:
        return await _changed(self._releases.stop, request, context)

    async def UndoRelease(self, request: pb.ChangeReleaseRequest, context: Context) -> pb.Release:
        return await _changed(self._releases.undo, request, context)

    async def DropRelease(self, request: pb.ChangeReleaseRequest, context: Context) -> pb.Release:
        return await _changed(self._releases.drop, request, context)

    async def PinRelease(self, request: pb.ChangeReleaseRequest, context: Context) -> pb.Release:
        return await _changed(self._releases.pin, request, context)

    async def UnpinRelease(self, request: pb.ChangeReleaseRequest, context: Context) -> pb.Release:
        return await _changed(self._releases.unpin, request, context)

    async def ProveRelease(self, request: pb.ProveReleaseRequest, context: Context) -> pb.ReleaseProof:
        proof = await answer(context, self._proofs.prove(request.store, request.number))
        certificate = None if proof.certificate is None else _certificate(proof.certificate)
        lacks = [
            pb.ReleaseLack(key=lack.key, sentence=lack.sentence, worker_id=lack.worker_id, row_id=lack.row_id)
            for lack in proof.lacks
        ]
        return pb.ReleaseProof(
            release=_message(proof.release), certificate=certificate, lacks=lacks, more_lacks=proof.more
        )

    async def GetReleaseCertificate(self, request: pb.GetReleaseRequest, context: Context) -> pb.ReleaseCertificate:
        return _certificate(await answer(context, self._proofs.certificate(request.store, request.number)))


async def _changed(
    change: Callable[[str, int, Authorship], Awaitable[Release]], request: pb.ChangeReleaseRequest, context: Context
) -> pb.Release:
    async def work() -> Release:
        return await change(request.store, request.number, authorship(caller_of(context), request.reason))

    return _message(await answer(context, work()))


def _without_zero(what: str, waves: Sequence[int]) -> Sequence[int]:
    """The waves behind that of a canary, or behind a dry one. Its place has to be there: a service without it refuses
    that."""
    if not waves or waves[0]:
        raise InvalidInputError(f"waves must begin with 0 where there is a {what}: that is its wave", field="waves")
    return waves[1:]


def _message(release: Release) -> pb.Release:
    return pb.Release(
        store=release.store,
        number=release.number,
        state=RELEASE_STATES[release.state],
        rows=release.rows,
        bytes=release.bytes,
        published=release.published,
        undone=release.undone,
        skipped=release.skipped,
        keys=[
            pb.ReleaseKey(key=key.name, added=key.added, changed=key.changed, deleted=key.deleted)
            for key in release.keys
        ],
        author=release.author,
        reason=release.reason,
        staged_at_ms=release.staged_at_ms,
        changed_by=release.changed_by,
        change_reason=release.change_reason,
        changed_at_ms=release.changed_at_ms,
        rows_kept=release.kept and release.work != REMOVE,
        problem=release.problem,
        proven_at_ms=release.proven_at_ms,
        proven_by=release.proven_by,
        rollout=_rollout(release.rollout),
        digest=release.digest or "",
        approvals=[pb.ReleaseApproval(**approval._asdict()) for approval in release.approvals],
        approvals_needed=release.approvals_needed,
        pinned=release.pinned,
    )


def _rollout(rollout: Rollout | None) -> pb.ReleaseRollout | None:
    if rollout is None:
        return None
    fields = msgspec.structs.asdict(rollout)
    return pb.ReleaseRollout(**fields | {"gate": pb.ReleaseGate(**msgspec.structs.asdict(rollout.gate))})


def _certificate(certificate: Certificate) -> pb.ReleaseCertificate:
    return pb.ReleaseCertificate(
        proven_at_ms=certificate.proven_at_ms,
        proven_by=certificate.instance,
        keys=[
            pb.ReleaseKeyCertificate(
                key=key.key,
                history_id=key.history,
                spans=key.spans,
                revisions=key.revisions,
                workers=[
                    pb.CertifiedWorker(
                        worker_id=worker.worker_id,
                        incarnation=worker.incarnation,
                        kind=str(worker.kind),
                        spans=worker.spans,
                    )
                    for worker in key.workers
                ],
            )
            for key in certificate.keys
        ],
    )


def _row_release(found: RowRelease) -> pb.RowRelease:
    return pb.RowRelease(
        number=found.number,
        state=RELEASE_STATES[found.state],
        outcome=RELEASE_OUTCOMES[found.outcome],
        version=found.version,
        undo_version=found.undo_version,
        proven_at_ms=found.proven_at_ms,
        wave=found.wave,
        rollout=_rollout(found.rollout),
        approvals=found.approvals,
        approvals_needed=found.approvals_needed,
    )


def _row_message(row: ReleaseRow) -> pb.ReleaseRow:
    return pb.ReleaseRow(
        place=row.place,
        key=row.key,
        partition=row.partition,
        row_id=row.row_id,
        deleted=row.value is None,
        value=row.value or "",
        metadata=row.metadata,
        staged_version=row.staged_version,
        existed=row.old_value is not None,
        old_value=row.old_value or "",
        old_metadata=row.old_metadata,
        found_version=row.found_version,
        outcome=RELEASE_OUTCOMES[row.outcome],
        version=row.version,
        undo_version=row.undo_version,
    )
