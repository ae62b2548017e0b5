"""Faults of config services and of their database."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ringcast_client import RowWrite
from ringcast_wire import StorePolicy

from tests.integration.drills.drill import drill
from tests.integration.drills.site import GATEWAY, KEY, Shape, Site
from tests.integration.drills.worker_drills import LATE
from tests.integration.faults.arena import off

WRITES = ("RingcastWritesFail", "RingcastWritesSlow", "RingcastWriteBudgetBurnsFast", "RingcastWriteBudgetBurns")
"""What writes that fail or wait bring about."""


@drill(
    "RingcastOutboxOld",
    "RingcastPublishFailures",
    "RingcastJetStreamUnseen",
    companions=(
        *LATE,
        "RingcastServiceDisconnected",
        "RingcastStoreNotProvisioned",
        "RingcastFetchesFail",
        "RingcastWritesFail",
        "RingcastStreamSilent",
    ),
    shape=Shape.SMALL,
)
async def services_cut_off(site: Site) -> AsyncGenerator[None, None]:
    """Nothing gets through between the config services and NATS, while writes go on.

    The network is well again.
    """
    links = [link for name in site.services for link in site.links[name]]
    for link in links:
        await off(link.silence)
    yield
    for link in links:
        await off(link.resume)


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


@drill("RingcastReleaseHalted", companions=LATE, shape=Shape.SMALL)
async def release_refused(site: Site) -> AsyncGenerator[None, None]:
    """A release with a new row is published to a store whose policy allows no more rows.

    The policy is lifted, and the release goes on.
    """
    rows = [RowWrite(row.row_id, row.value or "") async for row in site.client.list(GATEWAY, KEY)]
    staged = await site.client.stage_release(GATEWAY, {KEY: [*rows, RowWrite("released", "1")]})
    assert staged.release is not None
    number = staged.release.number
    await site.client.set_store_policy(GATEWAY, StorePolicy(max_rows=1))
    try:
        await site.client.publish_release(GATEWAY, number)
        yield
    finally:
        await site.client.set_store_policy(GATEWAY, lift=["max_rows"])
