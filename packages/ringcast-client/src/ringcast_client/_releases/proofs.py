"""The calls that prove a release: that every worker has applied it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringcast_wire import CertifiedWorker, KeyCertificate, LimitExceededError, UnavailableError, names
from ringcast_wire.grpc import pb
from ringcast_wire.reports import WorkerKind

from ringcast_client._calls.calls import Calls
from ringcast_client._releases.records import ReleaseInfo, release_info, release_number

_POLL_S: Final = 0.05
_MAX_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ReleaseLack:
    """Why a release is not proven yet. ``key``, ``worker_id`` and ``row_id`` are empty where it is about none."""

    key: str
    sentence: str
    worker_id: str = ""
    row_id: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseCertificate:
    """What proves that the workers have applied a release, by key. ``proven_by``: an instance of the config service."""

    proven_at_ms: int
    proven_by: str
    keys: tuple[KeyCertificate, ...]


@dataclass(frozen=True, slots=True)
class ReleaseProof:
    """What came of asking the workers once. Without a ``certificate``: why, and how much more of that there is."""

    release: ReleaseInfo
    certificate: ReleaseCertificate | None
    lacks: tuple[ReleaseLack, ...]
    more_lacks: int


class ProofCalls:
    """A part of the client of the config service."""

    _calls: Calls

    async def prove_release(self, store: str, number: int) -> ReleaseProof:
        """Asks all workers once whether they have applied a release. One that is proven stays so.

        Raises:
            ConditionFailedError: it was dropped, has expired or is undone; or its rows are removed.
            UnavailableError: NATS does not answer the config service.
        """
        request = pb.ProveReleaseRequest(store=names.check_name("store", store), number=release_number(number))
        reply = await self._calls.unary(self._calls.rpc.ProveRelease, request)
        certificate = _certificate(reply.certificate) if reply.HasField("certificate") else None
        lacks = tuple(ReleaseLack(each.key, each.sentence, each.worker_id, each.row_id) for each in reply.lacks)
        return ReleaseProof(release_info(reply.release), certificate, lacks, reply.more_lacks)

    async def release_certificate(self, store: str, number: int) -> ReleaseCertificate:
        """What proves that the workers have applied a release.

        Raises:
            ConditionFailedError: it is not proven.
        """
        request = pb.GetReleaseRequest(store=names.check_name("store", store), number=release_number(number))
        return _certificate(await self._calls.unary(self._calls.rpc.GetReleaseCertificate, request))

    async def wait_for_release(
        self,
        store: str,
        number: int,
        *,
        timeout_s: float | None = None,
        on_try: Callable[[ReleaseProof], None] = lambda _: None,
    ) -> ReleaseProof:
        """Returns once it is proven that every worker has applied a release; or, without a certificate, after
        ``timeout_s``, with what lacked last. At least one try is made.

        ``docs/releases.md`` says what that proves. It may be called before the release is published.

        Raises:
            ConditionFailedError: it was dropped, has expired or is undone; or its rows are removed.
            UnavailableError: the config service, or NATS, has not answered up to the end of ``timeout_s``.
        """
        due_s = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = _POLL_S
        while True:
            proof, failure = None, None
            try:
                proof = await self.prove_release(store, number)
            except (UnavailableError, LimitExceededError) as error:
                failure = error
            if proof is not None:
                on_try(proof)
                if proof.certificate is not None:
                    return proof
            if due_s is not None and time.monotonic() + pause_s >= due_s:
                if proof is not None:
                    return proof
                assert failure is not None
                raise failure
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_POLL_S, 2 * pause_s)


def _certificate(found: pb.ReleaseCertificate) -> ReleaseCertificate:
    keys = tuple(
        KeyCertificate(
            key.key,
            key.history_id,
            tuple(key.spans),
            tuple(key.revisions),
            tuple(
                CertifiedWorker(worker.worker_id, worker.incarnation, WorkerKind(worker.kind), tuple(worker.spans))
                for worker in key.workers
            ),
        )
        for key in found.keys
    )
    return ReleaseCertificate(found.proven_at_ms, found.proven_by, keys)
