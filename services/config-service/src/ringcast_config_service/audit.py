"""The audit log as an instance keeps it: chains what was written, adds what was refused, removes what is too old.

Mutations add their entries themselves, in their own transactions. A refused call has none: its entry waits here for a
moment, and there is a bound on how many a client can cause.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Final

from ringcast_wire import EventLog, RingcastError
from ringcast_wire.audit import ChainCheck, Link

from ringcast_config_service.caller import Caller
from ringcast_config_service.maintenance import Term
from ringcast_config_service.repository import (
    SERVICE,
    AuditFact,
    AuditFilter,
    AuditPage,
    AuditRepository,
    DatabaseClock,
)
from ringcast_config_service.repository import audit as rules

log = EventLog(logging.getLogger(__name__))

SEAL_EVERY_S: Final = 1.0
_AGAIN_S: Final = 5.0
"""After a failure: each attempt on a database that takes no writes has all connections made again."""
_HEAD_EVERY_S: Final = 3_600.0
"""From one line with the head of the chain to the next: a log that is kept elsewhere is an anchor."""
_WINDOW_S: Final = 3_600.0
MAX_REFUSED: Final = 200
"""Refused calls of each hour that have an entry."""
MAX_REFUSED_OF_PRINCIPAL: Final = 20
_MAX_PRINCIPALS: Final = 1_024
"""Of more, refused calls are counted together."""
_NAMED: Final = 8
_PAGE: Final = 1_000
_SEALS: Final = 10
"""Transactions that chain entries before a list is read; what is left is chained in its time."""


class AuditTrail:
    """Of one instance; :meth:`run` does what is to be done now and then."""

    def __init__(self, repository: AuditRepository, clock: DatabaseClock, *, retention_ms: int) -> None:
        self._repository = repository
        self._clock = clock
        self._retention_ms = retention_ms
        self._refused: list[AuditFact] = []
        self._of_principals: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._in_window = 0
        self._window_ends = 0.0
        self._failing = False
        self._chained_at = time.monotonic()
        self._logged_seq = 0
        """The last entry whose hash was logged."""

    def refused(self, method: str, caller: Caller, role: str, store: str, key: str) -> None:
        """A principal has no role for a call. An entry of it is written within a second, or it is counted."""
        now = time.monotonic()
        if now >= self._window_ends:
            self._end_window()
            self._window_ends = now + _WINDOW_S
        principal = caller.principal
        if principal not in self._of_principals and len(self._of_principals) >= _MAX_PRINCIPALS:
            principal = "others"
        if self._in_window >= MAX_REFUSED or self._of_principals[principal] >= MAX_REFUSED_OF_PRINCIPAL:
            self._left_out[principal] += 1
            return
        self._of_principals[principal] += 1
        self._in_window += 1
        names = rules.cut(store), rules.cut(key)
        details = rules.pack({"role": role, "host": caller.host[:64]})
        self._refused.append(AuditFact(caller.principal, method, *names, "refused", caller.reason, details))

    def _end_window(self) -> None:
        """An entry of all that had none, with the principals that had the most."""
        if self._left_out:
            most = dict(self._left_out.most_common(_NAMED))
            details = rules.pack({"left_out": self._left_out.total(), "principals": most})
            self._refused.append(AuditFact(SERVICE.author, "RefusedCalls", outcome="refused", details=details))
        self._of_principals.clear()
        self._left_out.clear()
        self._in_window = 0

    @property
    def behind_s(self) -> float:
        """Since when nothing was chained, or looked for."""
        return time.monotonic() - self._chained_at

    async def add(self, fact: AuditFact) -> None:
        """Adds an entry, and returns once it is in the database.

        Raises:
            UnavailableError: it is not there.
        """
        await self._repository.add([fact])

    async def page(self, wanted: AuditFilter, after: int, limit: int, *, newest_first: bool) -> AuditPage:
        """A page of entries, those that were written before the call among them."""
        await self._seal()
        return await self._repository.audit_entries(wanted, after, limit, newest_first=newest_first)

    async def verify(self, anchor: Link | None) -> AsyncGenerator[ChainCheck, None]:
        """Looks through the whole chain; yields how far it is after each thousand entries."""
        check, after, last = ChainCheck(anchor), 0, False
        # Where it begins, before what waits is chained: the entry that says why it begins there may be among that.
        check.add((await self._repository.chain_page(0, 0)).chain, (), last=False)
        await self._seal()
        while not (last or check.problem):
            page = await self._repository.chain_page(after, _PAGE)
            last = len(page.entries) < _PAGE
            check.add(page.chain, page.entries, last=last)
            after = check.at.seq if check.at is not None else 0
            yield check
        if check.problem:
            log.error("audit.broken", problem=check.problem)

    async def run(self) -> None:
        """Chains entries for as long as it is not cancelled."""
        head_at = 0.0
        while True:
            now = time.monotonic()
            try:
                await self.flush()
                self._chained_at = time.monotonic()
                if now >= head_at:
                    await self._tell_head()
                    head_at = now + _HEAD_EVERY_S
                self._failing = False
            except RingcastError as error:
                if not self._failing:  # a line for each outage, not for each second of it
                    log.warning("audit.postponed", error=error)
                self._failing = True
            await asyncio.sleep(_AGAIN_S if self._failing else SEAL_EVERY_S)

    async def flush(self) -> None:
        """Writes what was refused, and chains what waits."""
        if self._left_out and time.monotonic() >= self._window_ends:
            self._end_window()
        if waiting := self._refused:
            self._refused = []
            try:
                await self._repository.add(waiting)
            except BaseException:
                self._refused = waiting + self._refused
                for lost in self._refused[MAX_REFUSED:]:  # the database is away for longer than an hour
                    self._left_out[lost.principal] += 1
                del self._refused[MAX_REFUSED:]
                raise
        await self._seal()

    async def close(self) -> None:
        """The instance stops: writes what was refused, and how often no entry was made."""
        self._end_window()
        await self.flush()

    async def _seal(self) -> None:
        for _ in range(_SEALS):
            if await self._repository.seal() < rules.MAX_SEALED:
                return

    async def forget(self, term: Term) -> None:
        """A duty of maintenance: removes what is past the retention."""
        try:
            before_ms = rules.oldest_kept_ms(await self._clock.clock_ms(), self._retention_ms)
            while removed := await self._repository.forget_audit(term.lead, before_ms):
                log.info("audit.forgotten", entries=removed)
        except RingcastError as error:
            log.warning("audit.forget_postponed", error=error)

    async def _tell_head(self) -> None:
        head = (await self._repository.chain_page((1 << 63) - 1, 1)).chain.head
        if head.seq != self._logged_seq:
            self._logged_seq = head.seq
            log.info("audit.head", anchor=head)
