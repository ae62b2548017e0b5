"""The calls about the audit log, and about tokens that are revoked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from ringcast_wire import InvalidInputError, names, shown
from ringcast_wire.audit import MAX_AUDIT_PAGE, AuditEntry, Link, parse_link
from ringcast_wire.grpc import pb

from ringcast_client._calls.calls import Calls
from ringcast_client._common.input import check_range
from ringcast_client._common.records import AuditVerdict

_DIGEST_DIGITS = 64


class AuditCalls:
    """A part of the client of the config service."""

    _calls: Calls

    async def audit(
        self,
        *,
        store: str | None = None,
        principal: str = "",
        action: str = "",
        since_ms: int = 0,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[AuditEntry, None]:
        """The entries of the audit log, the oldest first: of a store, a principal or an action.

        The store ``*``: those about all stores. ``since_ms``: only those of that time (Unix) or later. They are read
        page by page.

        Raises:
            PermissionDeniedError: this client is no ADMIN of the store; without one, of ``*``.
        """
        request = pb.ListAuditRequest(
            store="" if store is None else store if store == "*" else names.check_name("store", store),
            principal=principal,
            action=action,
            since_ms=check_range("since_ms", since_ms, 0, 2**63 - 1),
            newest_first=newest_first,
        )
        left = 2**63 - 1 if limit is None else check_range("limit", limit, 1, 2**63 - 1)
        while left:
            request.limit = min(left, MAX_AUDIT_PAGE)
            reply = await self._calls.unary(self._calls.rpc.ListAudit, request)
            for entry in reply.entries:
                yield _entry(entry)
            left -= len(reply.entries)
            request.after = reply.next
            if not reply.next:
                return

    async def verify_audit(
        self, anchor: Link | str | None = None, *, on_progress: Callable[[int], None] = lambda _: None
    ) -> AuditVerdict:
        """Has the service look through the chain of the audit log from its beginning.

        ``anchor``: ``SEQ:HASH`` of an entry that was noted earlier and kept elsewhere. Without one, a log whose chain a
        writer of the database has computed again, or cut at its end together with its noted head, looks whole.

        Raises:
            PermissionDeniedError: this client is no ADMIN of ``*``.
            InvalidInputError: the anchor is none.
        """
        asked = "" if anchor is None else str(parse_link("anchor", str(anchor)))
        verdict = AuditVerdict(0, "", "")
        request = pb.VerifyAuditRequest(anchor=asked)
        async with aclosing(self._calls.stream(self._calls.rpc.VerifyAudit, request)) as steps:
            async for step in steps:
                on_progress(step.checked)
                verdict = AuditVerdict(step.checked, step.at, step.problem)
        return verdict

    async def revoke_token(self, *, principal: str | None = None, digest: str | None = None) -> int:
        """Has tokens refused, in all instances within 2 s: those that a principal has in the service's file, or the one
        with a digest (64 hexadecimal digits); how many were not refused before.

        Raises:
            InvalidInputError: there is no such token, or no ADMIN of ``*`` could log in any more.
            PermissionDeniedError: this client is no ADMIN of ``*``.
            LimitExceededError: 10,000 tokens are revoked.
        """
        if (principal is None) == (digest is None):
            raise InvalidInputError("one of principal and digest is needed", field="digest")
        if digest is not None and len(digest) != _DIGEST_DIGITS:
            raise InvalidInputError(
                f"digest {shown(digest)} is not {_DIGEST_DIGITS} hexadecimal digits", field="digest"
            )
        request = pb.RevokeTokenRequest(principal=principal or "", digest=digest or "")
        return int((await self._calls.unary(self._calls.rpc.RevokeToken, request)).revoked)


def _entry(entry: pb.AuditEntry) -> AuditEntry:
    return AuditEntry(*(getattr(entry, field) for field in AuditEntry._fields))
