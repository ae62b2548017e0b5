"""Who does maintenance: one instance of all, until it stops, drains, or loses the lead.

What is past its retention is removed by the instance that leads (:mod:`~ringcast_config_service.repository.lead`). Each
instance tries to take the lead when nobody has it. One that lost it ends what it is at; whatever it may still send to
the database is refused there, and the next leader begins all duties again: each goes on from what it finds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from ringcast_wire import EventLog, RingcastError

from ringcast_config_service.repository import Lead, LeadRepository, LostLeadError
from ringcast_config_service.telemetry import Measures

log = EventLog(logging.getLogger(__name__))

_KEPT_PER_LEASE: Final = 3
"""How often the lead is extended, or looked at by others, within one lease."""


class Term:
    """The lead of this instance, from when it was taken to when it is lost or given up."""

    def __init__(self, lead: Lead, until: float) -> None:
        self.lead = lead
        self._until = until

    def check(self) -> None:
        """Right before something that no database can refuse.

        Raises:
            LostLeadError: the lease has run out by this process's own clock: another instance may lead.
        """
        if asyncio.get_running_loop().time() >= self._until:
            raise LostLeadError

    def extend(self, until: float) -> None:
        """The database has extended the lease; ``until`` is counted from before that was asked for."""
        self._until = until

    def end(self) -> None:
        """Nothing may be done with it any more."""
        self._until = float("-inf")


Duty: TypeAlias = Callable[[Term], Awaitable[None]]


class Maintenance:
    """``duties``: sequences that run beside each other every ``every_s``, each with its duties one after the other.

    A duty may be cancelled at any time, begins again with each term, and lets ``LostLeadError`` pass.
    """

    def __init__(
        self,
        repository: LeadRepository,
        instance_id: str,
        measures: Measures,
        *,
        lease_ms: int,
        every_s: float,
        duties: Sequence[Mapping[str, Duty]],
    ) -> None:
        self._repository = repository
        self._id = instance_id
        self._measures = measures
        self._lease_ms = lease_ms
        self._every_s = every_s
        self._duties = duties
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._unwanted = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self.changed: Callable[[], None] = lambda: None
        """Called when :attr:`leads` has changed."""
        self._failing = False
        self._refused = ""
        """What found that the lead is lost, of this term."""

    @property
    def leads(self) -> bool:
        """Whether this instance leads, as far as it knows."""
        return not self._free.is_set()

    async def run(self) -> None:
        """Takes the lead whenever it is free, and does the duties, for as long as it is not cancelled."""
        while True:
            await self._wanted.wait()
            if (term := await self._take()) is not None:
                await self._serve(term)
            else:
                await asyncio.sleep(self._lease_ms / 1000 / _KEPT_PER_LEASE)

    async def withdraw(self) -> None:
        """Ends the duties, gives the lead up, and takes it no more. It may be cancelled, and called again."""
        self._wanted.clear()
        self._unwanted.set()
        await self._free.wait()

    def resume(self) -> None:
        """The opposite."""
        self._unwanted.clear()
        self._wanted.set()

    async def _take(self) -> Term | None:
        asked_at = asyncio.get_running_loop().time()
        try:
            state = await self._repository.lead_state()
            if not (state.free or state.holder == self._id):
                self._failing = False
                return None
            lead = await self._repository.take_lead(self._id, self._lease_ms)
        except RingcastError as error:
            if not self._failing:  # a line for each outage
                log.warning("maintenance.take_postponed", error=error)
            self._failing = True
            return None
        self._failing = False
        if lead is None:
            return None
        log.info("maintenance.lead_taken", token=lead.token, before=state.holder)
        self._measures.lead_changes["taken"] += 1
        return Term(lead, asked_at + self._lease_ms / 1000)

    async def _serve(self, term: Term) -> None:
        """Does the duties until the lead is lost, or not wanted any more."""
        self._free.clear()
        self.changed()
        self._refused = ""
        lost = False
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._resigned(), name="maintenance-resigned")
                tasks.create_task(self._keep(term), name="maintenance-keep")
                for duties in self._duties:
                    tasks.create_task(self._do(duties, term), name="maintenance-" + "-".join(duties))
        except* LostLeadError:
            log.warning("maintenance.lead_lost", token=term.lead.token, refused=self._refused)
            self._measures.lead_changes["lost"] += 1
            lost = True
        except* _ResignedError:
            pass
        try:
            if not lost:
                await self._resign(term)
        finally:
            self._free.set()
            self.changed()

    async def _resign(self, term: Term) -> None:
        try:
            await self._repository.resign_lead(term.lead)
        except RingcastError as error:
            log.warning("maintenance.resign_failed", token=term.lead.token, error=error)  # its lease runs out
            return
        log.info("maintenance.lead_resigned", token=term.lead.token)
        self._measures.lead_changes["resigned"] += 1

    async def _resigned(self) -> None:
        await self._unwanted.wait()
        raise _ResignedError

    async def _keep(self, term: Term) -> None:
        """Extends the lead. While the database can't be reached the term goes on until its lease is over."""
        lease_s = self._lease_ms / 1000
        while True:
            await asyncio.sleep(lease_s / _KEPT_PER_LEASE)
            asked_at = asyncio.get_running_loop().time()
            try:
                if await self._repository.keep_lead(term.lead, self._lease_ms):
                    term.extend(asked_at + lease_s)
                else:
                    term.end()
            except RingcastError as error:  # the readiness of the instance says that the database is away
                log.debug("maintenance.keep_postponed", error=error)
            self._check(term, "keep_lead")

    async def _do(self, duties: Mapping[str, Duty], term: Term) -> None:
        while True:
            for name, duty in duties.items():
                self._check(term, name)
                try:
                    await duty(term)
                except LostLeadError:
                    self._lost(term, name)
                    raise
            await asyncio.sleep(self._every_s)

    def _check(self, term: Term, name: str) -> None:
        try:
            term.check()
        except LostLeadError:
            self._lost(term, name)
            raise

    def _lost(self, term: Term, name: str) -> None:
        term.end()
        self._refused = self._refused or name


class _ResignedError(Exception):
    """The lead is not wanted any more."""
