"""Faults of config services and of their database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import trustme
from nats.aio.client import Client
from ringcast_client import RowWrite
from ringcast_testkit import ConfigServiceProcess, until
from ringcast_testkit.issuer import IssuerServer, issuers_file
from ringcast_wire import StorePolicy, names

from tests.integration.drills.drill import drill
from tests.integration.drills.site import GATEWAY, KEY, PARTITIONS, Shape, Site
from tests.integration.drills.worker_drills import GONE, LATE
from tests.integration.faults.arena import off

WRITES = ("RingcastWritesFail", "RingcastWritesSlow", "RingcastWriteBudgetBurnsFast", "RingcastWriteBudgetBurns")
"""What writes that fail or wait bring about."""
_ASKERS, _ASKED = 4, 200
"""Each of them may have a quarter of what may wait."""


@asynccontextmanager
async def _stranger(site: Site) -> AsyncIterator[Any]:
    """A connection to the database that is no service's."""
    own = await asyncpg.connect(site.database)
    try:
        yield own
    finally:
        await own.close()


@drill(
    "RingcastOutboxOld",
    "RingcastJetStreamUnseen",
    companions=(
        *LATE,
        "RingcastPublishFailures",
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
    "RingcastServiceDisconnected",
    "RingcastServiceFetchesFail",
    companions=(
        *(*LATE, *WRITES, "RingcastPartitionsUnloaded", "RingcastFetchesFail", "RingcastBootstrapSlow"),
        *("RingcastMaintenanceWithoutLeader", "RingcastAuditLogBehind"),
    ),
    shape=Shape.SMALL,
)
async def database_cut_off(site: Site) -> AsyncGenerator[None, None]:
    """The services lose their network to the database, and a worker leaves, whose partitions the others fetch.

    The network is well again, and the worker comes back.
    """
    worker = site.workers["gateway-1"]
    links = site.database_links.values()
    for link in links:
        await off(link.cut)
    await site.ended(worker)
    yield
    for link in links:
        await off(link.resume)
    await site.started(worker)


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


@drill(
    "RingcastHistoryBegan",
    "RingcastHistoryRefused",
    companions=(*GONE, *WRITES, "RingcastServiceDown", "RingcastNoService", "RingcastFetchesFail"),
    shape=Shape.SMALL,
)
async def rows_lost(site: Site) -> AsyncGenerator[None, None]:
    """SIGKILL to all services, the rows of a store are deleted as by a restore of an older database, and the services
    start again.

    The rows are written again.
    """
    rows = [row async for row in site.client.list(GATEWAY, KEY)]
    for service in site.services.values():
        await off(service.kill)
    async with _stranger(site) as own:
        key_id = await own.fetchval("SELECT key_id FROM config_keys WHERE store = $1 AND name = $2", GATEWAY, KEY)
        async with own.transaction():
            for table in ("rows", "history", "partitions"):
                await own.execute(f"DELETE FROM {table} WHERE key_id = $1", key_id)
    await asyncio.gather(*(off(service.start) for service in site.services.values()))
    yield
    writes = [RowWrite(row.row_id, row.value or "") for row in rows]
    async for _ in site.client.bulk_write(GATEWAY, KEY, writes):
        pass


@drill(
    "RingcastWritesSlow",
    "RingcastBootstrapSlow",
    companions=(
        *(*GONE, "RingcastServiceDisconnected", "RingcastAuditLogBehind", "RingcastFetchesFail"),
        *("RingcastPartitionsUnloaded", "RingcastWritesFail", "RingcastWriteBudgetBurnsFast"),
        "RingcastWriteBudgetBurns",
    ),
    shape=Shape.SMALL,
)
async def database_slow(site: Site) -> AsyncGenerator[None, None]:
    """Everything takes half a second longer between the services and the database, and a worker leaves, whose
    partitions the others fetch.

    It does not any more, and the worker comes back.
    """
    worker = site.workers["gateway-1"]
    for link in site.database_links.values():
        await off(link.delay, 0.5)
    await site.ended(worker)
    yield
    for link in site.database_links.values():
        await off(link.resume)
    await site.started(worker)


@drill("RingcastAuditLogBehind", companions=(*LATE, *WRITES), shape=Shape.SMALL)
async def audit_log_locked(site: Site) -> AsyncGenerator[None, None]:
    """A stranger's transaction locks the table of the chain, and an entry waits to be chained.

    The transaction ends.
    """
    async with _stranger(site) as own, own.transaction():
        await own.execute("LOCK TABLE audit_chain IN ACCESS EXCLUSIVE MODE")
        await site.client.set_store_policy(GATEWAY, StorePolicy(max_keys=99))
        yield


@drill("RingcastIssuerKeysOld", "RingcastLoginFileUnusable", companions=LATE, shape=Shape.SMALL)
async def issuer_away(site: Site) -> AsyncGenerator[None, None]:
    """The issuer of tokens answers a further config service with errors, and its file of issuers is cut off.

    The issuer answers with its keys, the file is whole, and the service leaves.
    """
    directory = site.directory / "issuer"
    directory.mkdir(exist_ok=True)
    issuer = IssuerServer()
    async with issuer.serving():
        path = Path(issuers_file(directory, issuer.url))
        whole = await off(path.read_text)
        service = ConfigServiceProcess(
            directory,
            nats_url=site.linked("service-2"),
            database=site.linked_database("service-2"),
            options=(
                *site.service_options(),
                *_tls(directory),
                *("--oidc-issuers", str(path), "--oidc-keys-every", "1s", "--oidc-keys-rest", "1s"),
            ),
        )
        async with site.further(service):
            issuer.status = 503
            await off(path.write_text, whole[: len(whole) // 2])
            yield
            issuer.status = 200
            await off(path.write_text, whole)
            await until(lambda: _is_well(site))


def _tls(directory: Path) -> tuple[str, ...]:
    issued = trustme.CA().issue_cert("127.0.0.1")
    cert, key = directory / "tls.crt", directory / "tls.key"
    cert.write_bytes(issued.cert_chain_pems[0].bytes())
    key.write_bytes(issued.private_key_pem.bytes())
    return ("--tls-cert", str(cert), "--tls-key", str(key))


async def _is_well(site: Site) -> bool:
    question = "max(config_service_issuer_keys_age_seconds) < 60 and max(config_service_login_file_unusable) == 0"
    return bool(await off(site.prometheus.ask, question))


@drill("RingcastWriteConflicts", companions=(*LATE, *WRITES), shape=Shape.SMALL)
async def writes_in_conflict(site: Site) -> AsyncGenerator[None, None]:
    """Two of three transactions that write events end as those do that can't be serialised: by a trigger of a stranger.

    The trigger is removed.
    """
    async with _stranger(site) as own:
        await own.execute(_CONFLICTS)
        yield
        await own.execute("DROP FUNCTION conflict() CASCADE; DROP SEQUENCE conflicts")


_CONFLICTS = """
CREATE SEQUENCE conflicts;
CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('conflicts') % 3 <> 0 THEN
        RAISE EXCEPTION 'as if another transaction had been first' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER conflict AFTER INSERT ON outbox FOR EACH STATEMENT EXECUTE FUNCTION conflict();
"""


@drill("RingcastEventsRefused", companions=LATE, shape=Shape.SMALL)
async def record_of_a_stranger(site: Site) -> AsyncGenerator[None, None]:
    """A stranger writes a record into the outbox, whose subject is that of no event.

    It was only one.
    """
    async with _stranger(site) as own:
        await own.execute(
            "INSERT INTO outbox (store, subject, msg_id, payload, created_at_ms) VALUES ($1, $2, $3, $4, 0)",
            *(GATEWAY, "elsewhere", "stranger", b"no event"),
        )
        yield


@drill(
    "RingcastServiceOverloaded",
    companions=(*LATE, *WRITES, "RingcastServiceFetchesFail", "RingcastFetchesFail", "RingcastServiceDisconnected"),
    shape=Shape.SMALL,
)
async def fetches_pile_up(site: Site) -> AsyncGenerator[None, None]:
    """A stranger's transaction locks the table of rows, and programs ask for partitions faster than they are answered.

    The transaction ends, and nobody asks any more.
    """
    async with _stranger(site) as own, own.transaction(), site.bus() as bus:
        await own.execute("LOCK TABLE rows IN ACCESS EXCLUSIVE MODE")
        async with site.repeating(partial(_ask, bus), 1.0):
            yield


async def _ask(bus: Client) -> None:
    for asker in range(_ASKERS):
        for number in range(_ASKED):
            subject = names.fetch_subject(GATEWAY, KEY, number % PARTITIONS[GATEWAY])
            await bus.publish(subject, reply=f"_INBOX.asker{asker}.{number}")
    await bus.flush()
