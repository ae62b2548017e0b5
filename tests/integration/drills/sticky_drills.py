"""Faults of workers with exclusive ownership."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from nats.js.kv import KeyValue
from ringcast_wire import names

from tests.integration.drills.drill import drill
from tests.integration.drills.site import JOBS, KEY, Site


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
