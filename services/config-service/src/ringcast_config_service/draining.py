"""What an instance does to drain, and to stop."""

from __future__ import annotations

import logging

from ringcast_service import bounded
from ringcast_wire import EventLog, RingcastError

from ringcast_config_service.audit import AuditTrail
from ringcast_config_service.config import Config
from ringcast_config_service.core import Core
from ringcast_config_service.grpc.transport import GrpcServer
from ringcast_config_service.readiness import Readiness

log = EventLog(logging.getLogger(__name__))


class DrainableInstance:
    """:class:`~ringcast_meta.cluster.Drainable`, over the parts of an instance."""

    def __init__(self, core: Core, server: GrpcServer, readiness: Readiness, config: Config) -> None:
        self._core = core
        self._server = server
        self._readiness = readiness
        self._grace_s = config.drain_grace_s
        self._bound_s = config.stop_timeout_s

    async def begin_drain(self) -> None:
        """Calls are refused, health says so, and fetches of workers go to other instances."""
        self._readiness.drain(True)
        self._server.drain()
        await bounded("intake of fetches", self._core.fetches.stop(), self._bound_s)

    async def finish_drain(self) -> None:
        """Calls end, what they wrote is published; others may publish what is left, and lead maintenance."""
        core, bound_s = self._core, self._bound_s
        await self._server.drained(self._grace_s)
        await bounded("fetches", core.fetches.drain(), bound_s)
        await bounded("audit log", audit_flushed(core.audit), bound_s)
        await bounded("outbox", core.relay.flush(), bound_s)
        await bounded("claims on the outbox", core.relay.withdraw(), bound_s)
        await bounded("lead of maintenance", core.maintenance.withdraw(), bound_s)

    async def end_drain(self) -> None:
        """All of it is taken up again."""
        self._core.maintenance.resume()
        self._server.resume()
        await bounded("intake of fetches", self._core.fetches.start(), self._bound_s)
        self._readiness.drain(False)


async def audit_flushed(audit: AuditTrail) -> None:
    """What was refused is in the log, and what waits is chained, if the database can be written."""
    try:
        await audit.flush()
    except RingcastError as error:
        log.warning("audit.postponed", error=error)


async def audit_written(audit: AuditTrail) -> None:
    """The same, with how often no entry was made: the instance stops."""
    try:
        await audit.close()
    except RingcastError as error:
        log.warning("audit.postponed", error=error)
