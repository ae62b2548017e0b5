"""Faults of config services and of their database."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from tests.integration.drills.drill import drill
from tests.integration.drills.site import Shape, Site
from tests.integration.drills.worker_drills import LATE
from tests.integration.faults.arena import off

WRITES = ("RingcastWritesFail", "RingcastWritesSlow", "RingcastWriteBudgetBurnsFast", "RingcastWriteBudgetBurns")
"""What writes that fail or wait bring about."""


@drill(
    "RingcastMaintenanceWithoutLeader",
    "RingcastWritesFail",
    "RingcastWriteBudgetBurnsFast",
    "RingcastWriteBudgetBurns",
    companions=(
        *(*LATE, "RingcastWritesSlow", "RingcastServiceDisconnected", "RingcastOutboxOld", "RingcastAuditLogBehind"),
        "RingcastReleaseHalted",
    ),
    shape=Shape.SMALL,
)
async def database_read_only(site: Site) -> AsyncGenerator[None, None]:
    """The database refuses every write, as a primary that was demoted.

    It takes them again.
    """
    await _set_read_only(site, "ALTER SYSTEM SET default_transaction_read_only = on")
    yield
    await _set_read_only(site, "ALTER SYSTEM RESET default_transaction_read_only")


async def _set_read_only(site: Site, statement: str) -> None:
    await off(site.postgres.ask, statement)
    await off(site.postgres.ask, "SELECT pg_reload_conf()")
