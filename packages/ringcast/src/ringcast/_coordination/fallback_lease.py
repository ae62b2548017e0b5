"""The own lease of a worker under an agent: granted while it is needed, and revoked afterwards."""

from __future__ import annotations

import asyncio
import random

from ringcast_wire import Backoff, EventLog, InUseError, RingcastError

from ringcast._bus.bus import TRANSIENT
from ringcast._coordination.agent_registration import LeaseChanges
from ringcast._coordination.lease import LeaseHolder
from ringcast._protocol.lease_choice import LeaseChoice


class FallbackLease:
    """Keeps ``own`` alive while it is wanted, and records in ``choice`` whether it is held."""

    def __init__(self, own: LeaseHolder, choice: LeaseChoice, changes: LeaseChanges, log: EventLog) -> None:
        self._own = own
        self._choice = choice
        self._changes = changes
        self._log = log
        self._keeping: asyncio.Task[None] | None = None

    async def keep(self, tasks: asyncio.TaskGroup, *, wanted: bool) -> None:
        """Starts a task in ``tasks`` that has it granted and refreshed, or ends that task and revokes the lease.

        Waits for the revocation, not for the grant. A revocation that fails is only logged: the lease expires. The task
        fails with ``InUseError`` when another process has the worker id.
        """
        if wanted and self._keeping is None:
            self._keeping = tasks.create_task(self._keep_alive())
        elif not wanted and self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
            self._keeping = None
            if self._choice.own_held:
                self._choice.own_given()
                try:
                    await self._own.revoke()
                except (RingcastError, *TRANSIENT) as error:
                    self._log.debug("lease.revoke_failed", error=error)

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(random.random, first_s=0.1, most_s=2.0)
        while not self._choice.own_held:
            try:
                await self._own.grant()
            except InUseError:
                raise
            except (RingcastError, *TRANSIENT) as error:
                self._log.debug("lease.grant_failed", error=error)
                await asyncio.sleep(backoff.next_s())
                continue
            if self._choice.own_taken(loop.time()):
                self._changes.regranted()
        await self._own.keep_alive()
