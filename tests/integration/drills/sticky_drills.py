"""Faults of workers with exclusive ownership."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from nats.js.kv import KeyValue
from ringcast.wishes import drain_worker, undrain_worker
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, WorkerProcess, until
from ringcast_wire import names

from tests.integration.drills.application import HOLD
from tests.integration.drills.drill import drill
from tests.integration.drills.site import JOBS, KEY, PARTITIONS, Site
from tests.integration.drills.worker_drills import GONE, LATE
from tests.integration.faults.arena import off

_WORKERS = ("jobs-0", "jobs-1")


@drill(
    "RingcastCallOverBound",
    "RingcastMovesStuck",
    companions=(*LATE, "RingcastHandlerStalled", "RingcastRedeliveries", "RingcastPartitionsWithoutOwner"),
)
async def call_does_not_return(site: Site) -> AsyncGenerator[None, None]:
    """The handler of a worker does not return from rows of all its partitions, and an operator drains the worker.

    The calls return, and the worker is drained no more.
    """
    async with site.file(HOLD):
        for row_id in _row_of_each_partition():
            await site.put(JOBS, "hold:jobs-0", row_id)
        await drain_worker(site.url, JOBS, "jobs-0")
        yield
    await undrain_worker(site.url, JOBS, "jobs-0")


@drill("RingcastPartitionsUnowned", companions=GONE)
async def all_workers_drained(site: Site) -> AsyncGenerator[None, None]:
    """An operator drains both workers of a key, and one of them is killed.

    It is started again, and they are drained no more.
    """
    for worker in _WORKERS:
        await drain_worker(site.url, JOBS, worker)
    killed = site.workers["jobs-1"]
    await off(killed.kill)
    yield
    await off(killed.start)
    for worker in _WORKERS:
        await undrain_worker(site.url, JOBS, worker)
    await off(killed.wait_ready, PATIENCE_S)


@drill("RingcastOwnerRecordsUnreadable")
async def wishes_that_are_none(site: Site) -> AsyncGenerator[None, None]:
    """The record of an operator's wishes is replaced by what is none.

    It is deleted.
    """
    async with site.bus() as bus:
        bucket: KeyValue = await bus.jetstream().key_value(names.wishes_bucket(JOBS))
        await bucket.put(names.wishes_key(KEY), b"no wishes")
        yield
        await bucket.delete(names.wishes_key(KEY))


@drill("RingcastNoLeader", companions=(*GONE, "RingcastPartitionsUnowned"))
async def term_refused(site: Site) -> AsyncGenerator[None, None]:
    """NATS lets no worker of a key write who leads it any more, and the one that leads is killed.

    It lets them again, and the worker is started again.
    """
    subject = f"$KV.{names.owners_bucket(JOBS)}.{names.term_key(KEY)}"
    async with site.denied(dict.fromkeys(_WORKERS, (subject,))):
        leader = await _leader(site)
        await off(leader.kill)
        yield
    await site.started(leader)


@drill(
    "RingcastWorkerPassedOver",
    companions=(
        *(*GONE, "RingcastFetchesFail", "RingcastPartitionsUnowned", "RingcastSubjectsRefused"),
        *("RingcastBacklog", "RingcastBootstrapSlow", "RingcastNoLeader"),
    ),
)
async def joiner_never_ready(site: Site) -> AsyncGenerator[None, None]:
    """A worker leaves in order, and comes back when NATS does not let it fetch any more: it never gets ready for a
    partition.

    NATS lets it, and the worker that leads is killed and started again, which remembers nobody that it passed over.
    """
    leader = await _leader(site)
    (joiner,) = (worker for worker in site.of_store(JOBS) if worker is not leader)
    await site.ended(joiner)
    async with site.denied({joiner.worker_id: (names.fetch_subject(JOBS, KEY, "*"),)}):
        await off(joiner.start)
        site.scraped_again(joiner)
        yield
    await off(leader.kill)
    await site.started(leader)


async def _leader(site: Site) -> WorkerProcess:
    """The worker that leads, once the others know it too."""
    found: list[str] = []

    async def leads() -> bool:
        found[:] = [
            sample["metric"]["worker_id"]
            for sample in await off(site.prometheus.samples, f'config_key_leading{{store="{JOBS}"}}')
            if sample["value"][1] == "1"
        ]
        return len(found) == 1

    await until(leads)
    return site.workers[found[0]]


def _row_of_each_partition() -> list[str]:
    found: dict[int, str] = {}
    number = 0
    while len(found) < PARTITIONS[JOBS]:
        row_id = f"held-{number}"
        found.setdefault(row_partition(row_id, PARTITIONS[JOBS]), row_id)
        number += 1
    return list(found.values())
