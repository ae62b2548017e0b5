"""Faults of NATS: servers that are away, and room that is gone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from ringcast_wire import RingcastError

from tests.integration.drills.drill import drill
from tests.integration.drills.site import Shape, Site
from tests.integration.drills.worker_drills import LATE
from tests.integration.faults.arena import off

_NEXT = "late"


@drill(
    "RingcastStoreNotProvisioned",
    "RingcastJetStreamNearlyFull",
    "RingcastStreamSilent",
    companions=LATE,
    shape=Shape.SMALL,
)
async def no_room_for_a_store(site: Site) -> AsyncGenerator[None, None]:
    """The account gets no more room at JetStream than is reserved already, and a store is created.

    The account gets more room, and the store is deleted.
    """
    reserved = int(
        float((await off(site.prometheus.ask, 'max(config_service_jetstream_reserved_bytes{storage="disk"})'))[0])
    )
    await site.set_limits(max_file=reserved + 4096)
    with contextlib.suppress(RingcastError):  # it is recorded, and that it can't be made is what is wanted
        await site.client.create_store(_NEXT, partition_count=4)
    yield
    await site.set_limits()
    await site.client.delete_store(_NEXT, purge=True)
