"""The calls about the audit log."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from ringcast_service import Context
from ringcast_wire import InvalidInputError, LimitExceededError, names, shown
from ringcast_wire.audit import MAX_AUDIT_PAGE, AuditEntry, parse_link
from ringcast_wire.grpc import ConfigServiceServicer, pb

from ringcast_config_service.access import MAX_PRINCIPAL_LENGTH
from ringcast_config_service.audit import AuditTrail
from ringcast_config_service.grpc.input import answer, send
from ringcast_config_service.repository import ALL, AuditFilter

_DEFAULT_PAGE: Final = 100
_READ_AT_ONCE: Final = 2
"""Pages that are read at once; more calls wait, and their number is bounded by the calls that may be open."""
_VERIFY_AT_ONCE: Final = 2
_MAX_ACTION: Final = 64


class AuditCalls(ConfigServiceServicer):
    """Lists the entries of the audit log, and verifies their chain."""

    def __init__(self, audit: AuditTrail) -> None:
        self._audit = audit
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)
        self._verifying = 0

    async def ListAudit(self, request: pb.ListAuditRequest, context: Context) -> pb.ListAuditResponse:
        async def work() -> pb.ListAuditResponse:
            wanted, limit = _filter(request), _checked_limit(request.limit)
            if request.after < 0:
                raise InvalidInputError(f"after {request.after} is below 0", field="after")
            async with self._reading:
                page = await self._audit.page(wanted, request.after, limit, newest_first=request.newest_first)
            return pb.ListAuditResponse(entries=map(_message, page.entries), next=page.next)

        return await answer(context, work())

    async def VerifyAudit(self, request: pb.VerifyAuditRequest, context: Context) -> None:
        async def work() -> None:
            anchor = parse_link("anchor", request.anchor) if request.anchor else None
            if self._verifying >= _VERIFY_AT_ONCE:
                raise LimitExceededError(
                    f"{self._verifying} calls verify the audit log here: at most {_VERIFY_AT_ONCE} may"
                )
            self._verifying += 1
            try:
                async with aclosing(self._audit.verify(anchor)) as steps:
                    async for step in steps:
                        at = str(step.at) if step.at is not None else ""
                        await send(context, pb.VerifyAuditResponse(checked=step.checked, at=at, problem=step.problem))
            finally:
                self._verifying -= 1
            await send(context, pb.VerifyAuditResponse(checked=step.checked, at=at, problem=step.problem, last=True))

        await answer(context, work())


def _filter(request: pb.ListAuditRequest) -> AuditFilter:
    if request.store not in ("", ALL):
        names.check_name("store", request.store)
    for field, most in (("principal", MAX_PRINCIPAL_LENGTH), ("action", _MAX_ACTION)):
        value = getattr(request, field)
        if len(value) > most or not value.isprintable():
            raise InvalidInputError(
                f"{field} {shown(value)} is none: up to {most} printable characters are allowed", field=field
            )
    if request.since_ms < 0:
        raise InvalidInputError(f"since_ms {request.since_ms} is below 0", field="since_ms")
    return AuditFilter(request.store, request.principal, request.action, request.since_ms)


def _checked_limit(limit: int) -> int:
    if limit > MAX_AUDIT_PAGE:
        raise InvalidInputError(
            f"limit {limit} is out of range: 1 to {MAX_AUDIT_PAGE} entries are allowed in an answer", field="limit"
        )
    return limit or _DEFAULT_PAGE


def _message(entry: AuditEntry) -> pb.AuditEntry:
    return pb.AuditEntry(**entry._asdict())
