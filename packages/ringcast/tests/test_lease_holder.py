"""A worker's own lease on a real server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from ringcast._bus.bus import Bus
from ringcast._bus.kv import NatsBucket, NatsBuckets
from ringcast._common.log import worker_log
from ringcast._common.stats import Stats
from ringcast._coordination.lease import LeaseHolder
from ringcast_wire import LeaseRecord, encode_record, names

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

OURS = LeaseRecord(incarnation="ours", host="h", pid=1, started_at_ms=1)
OTHER = LeaseRecord(incarnation="another's", host="h", pid=2, started_at_ms=1)


@pytest.mark.parametrize(("record", "is_left"), [(OURS, False), (OTHER, True)])
async def test_a_lease_that_was_written_since_is_revoked_where_it_is_ours(
    connection: Bus, store: Store, caplog: pytest.LogCaptureFixture, record: LeaseRecord, is_left: bool
) -> None:
    """A refresh that was cancelled with the worker may land after all; what another process has is left to it."""
    bucket = NatsBucket(connection, names.LEASES_BUCKET)
    holder = LeaseHolder(
        NatsBuckets(connection),
        store.name,
        OURS,
        refresh_s=2.5,
        servers=(store.nats_url,),
        regranted=lambda: None,
        stats=Stats(),
        log=worker_log(logging.getLogger("ringcast")),
    )
    await holder.grant()
    granted = await bucket.get(store.name)
    assert granted is not None
    await bucket.put(store.name, encode_record(record), last=granted.revision)
    await holder.revoke()
    left = await bucket.get(store.name)
    assert (left is not None and left.value is not None) is is_left
    assert ("lease.not_ours" in caplog.text) is is_left
