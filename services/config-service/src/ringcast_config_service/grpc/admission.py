"""Which calls are admitted. It is decided before a message is read, by the caller and by how much is open already."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Final, NamedTuple

from ringcast_service import Context
from ringcast_wire import LimitExceededError, UnauthenticatedError, UnavailableError, limits

from ringcast_config_service.caller import Caller, LoginRefusedError
from ringcast_config_service.grpc import callers
from ringcast_config_service.logins import Logins
from ringcast_config_service.refusals import Refusals
from ringcast_config_service.turns import Turns

MAX_REQUEST_BYTES: Final = 2 * limits.MAX_BATCH_BYTES
"""Above every legal request, so that an oversized row is refused with a sentence and not by the transport."""


class CallKind(StrEnum):
    """Calls that are counted together. The value is a label of the metric."""

    UNARY = "unary"
    BULK = "bulk"
    CHANGES = "changes"
    LIST = "list"
    REFLECTION = "reflection"
    HEALTH_CHECK = "health_check"
    HEALTH_WATCH = "health_watch"


class Limit(NamedTuple):
    """Calls of a kind that may be open at once: in all, of one principal, and from one host."""

    total: int
    principal: int
    host: int


LIMITS: Final[dict[CallKind, Limit]] = {
    CallKind.UNARY: Limit(2_048, 1_024, 1_024),
    CallKind.BULK: Limit(256, 192, 192),
    CallKind.CHANGES: Limit(256, 192, 192),
    CallKind.LIST: Limit(64, 32, 32),
    CallKind.REFLECTION: Limit(16, 8, 8),
    CallKind.HEALTH_CHECK: Limit(64, 16, 16),
    CallKind.HEALTH_WATCH: Limit(128, 32, 32),
}
"""No principal and no host can use up a kind, and no kind uses up another."""

_NAMES: Final = {
    CallKind.UNARY: "calls",
    CallKind.BULK: "bulk writes",
    CallKind.CHANGES: "streams of changes",
    CallKind.LIST: "lists",
    CallKind.REFLECTION: "reflection streams",
    CallKind.HEALTH_CHECK: "health checks",
    CallKind.HEALTH_WATCH: "health watches",
}
_NEED_NO_TOKEN: Final = frozenset({CallKind.HEALTH_CHECK, CallKind.HEALTH_WATCH})
"""Probes have no token, and learn no more than whether the service serves."""

_MAX_READS: Final = 32
"""Requests of calls with a login that are read at once: each may take a multiple of MAX_REQUEST_BYTES."""
_MAX_READS_OF_PRINCIPAL: Final = 8
_RETRY_AFTER_S: Final = 1.0
"""When a call that was one too many may be tried again: others have ended by then, or not."""


class Admission:
    """Counts the open calls of an instance, and refuses those above :data:`LIMITS` or without a valid token."""

    def __init__(self, logins: Logins, refusals: Refusals) -> None:
        self._logins = logins
        self._refusals = refusals
        self._open: Counter[tuple[CallKind, str]] = Counter()
        self._idle = asyncio.Event()
        self._reads = asyncio.Semaphore(_MAX_READS)
        self._reads_of_principal = Turns(_MAX_READS_OF_PRINCIPAL)

    def admit(self, context: Context, kind: CallKind) -> Caller:
        """Lets a call in; :meth:`leave` has to be called when it has ended, whatever its end.

        Raises:
            UnauthenticatedError: a token is needed, and the call has none that is valid.
            UnavailableError: whether its token is valid can't be known now.
            LimitExceededError: there are too many.
            InvalidInputError: the reason that it came with is none.
        """
        caller = self._identify(context, kind)
        if kind not in _NEED_NO_TOKEN:
            caller = caller._replace(reason=callers.reason_of(context))
        counts, limit = self._open, LIMITS[kind]
        of_principal, from_host = (kind, caller.principal), (kind, f"from {caller.host}")
        for scope, most, reason, whose in (
            ((kind, ""), limit.total, "limit_total", ""),
            (of_principal, limit.principal, "limit_principal", " of one principal"),
            (from_host, limit.host, "limit_host", " from one host"),
        ):
            if counts[scope] >= most:
                self._refusals.call(kind, reason, caller.host)
                raise LimitExceededError(
                    f"{counts[scope]} {_NAMES[kind]}{whose} are open: at most {most} may be",
                    retry_after_s=_RETRY_AFTER_S,
                )
        counts[kind, ""] += 1
        counts[of_principal] += 1
        counts[from_host] += 1
        callers.admitted(caller)
        return caller

    def check_login(self, context: Context, kind: CallKind) -> None:
        """Refuses a call that is open for a while already, if its token counts no more.

        Raises:
            UnauthenticatedError: it does not.
            UnavailableError: that can't be known now.
        """
        self._identify(context, kind)

    def leave(self, kind: CallKind, caller: Caller) -> None:
        """A call that was let in has ended."""
        counts = self._open
        for scope in ((kind, ""), (kind, caller.principal), (kind, f"from {caller.host}")):
            if counts[scope] <= 1:
                del counts[scope]
            else:
                counts[scope] -= 1
        if not self.open_calls:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Returns when no call is open, health checks apart."""
        while self.open_calls:
            self._idle.clear()
            await self._idle.wait()

    @property
    def open_calls(self) -> int:
        """Calls that were let in and have not ended, health checks apart."""
        return sum(count for (kind, scope), count in self._open.items() if not scope and kind not in _NEED_NO_TOKEN)

    @asynccontextmanager
    async def reading(self, kind: CallKind, caller: Caller) -> AsyncIterator[None]:
        """A turn for reading the one request of a call: so many are read at once, and fewer of one principal."""
        if kind in _NEED_NO_TOKEN:
            yield  # their number is bounded, and they must not wait for those with a login
            return
        async with self._reads_of_principal.of(caller.principal), self._reads:
            yield

    def _identify(self, context: Context, kind: CallKind) -> Caller:
        if not self._logins.needed or kind in _NEED_NO_TOKEN:
            return callers.connection_of(context)
        host = callers.host_of(str(context.peer()))
        try:
            return callers.token_caller(context, self._logins.login_of(callers.bearer_tokens(context)))
        except LoginRefusedError as refused:
            self._refusals.login(kind, refused.reason, host)
            raise UnauthenticatedError(str(refused)) from None
        except UnavailableError:
            self._refusals.login(kind, "no_issuer_keys", host)
            raise
