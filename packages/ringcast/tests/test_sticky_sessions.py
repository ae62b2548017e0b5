"""The session entries of exclusive ownership, on a real NATS server."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from ringcast._bus.bus import Bus, connected
from ringcast._bus.kv import NatsBucket, NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._coordination.sticky.session import Refresh, SessionKeeper, read_sessions
from ringcast._coordination.sticky.times import StickyTimes, steady_clock
from ringcast._protocol.sticky.fence import FenceTimes
from ringcast_testkit import PATIENCE_S, NatsServer, until
from ringcast_wire import InUseError, InvalidInputError, LeaseRecord, encode_record, limits, names

LOG = worker_log(logging.getLogger("ringcast"))


@pytest.fixture
async def bus(shared_nats: NatsServer, store_of_owners: str) -> AsyncIterator[Bus]:
    """A connection of worker ``a``."""
    config = WorkerConfig(store=store_of_owners, keys=("list",), servers=(shared_nats.url,), worker_id="a")
    async with connected(NatsBus.prepared, config, LOG) as opened:
        yield opened


async def test_many_are_read_in_several_answers_each_with_the_own_entry(bus: Bus, store_of_owners: str) -> None:
    bucket = NatsBucket(bus, names.owners_bucket(store_of_owners))
    await bucket.put(names.session_key("a"), b"{}", last=0)
    many = [f"w{number}" for number in range(2 * limits.MAX_WORKERS_PER_KEY + 1)]
    await asyncio.gather(*(bucket.put(names.session_key(name), b"{}", last=0) for name in many[:-1]))
    answers = await read_sessions(bucket, "a", many)
    assert len(answers) == 3
    assert set().union(*(answer.asked for answer in answers)) == {"a", *many}
    assert set().union(*(answer.found.keys() for answer in answers)) == {"a", *many[:-1]}
    assert all(answer.own is not None for answer in answers)


class LossyBus:
    """A bus that loses the answers to what is stored while ``is_lossy``."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.is_lossy = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        revision = await self._bus.store(subject, payload, headers)
        if self.is_lossy:
            raise TimeoutError
        return revision


def keeper_of(
    bus: Bus,
    bucket: NatsBucket,
    refreshed: Callable[[Refresh], None],
    times: StickyTimes | None = None,
    clock: Callable[[], float] = steady_clock,
) -> SessionKeeper:
    """Of the worker ``other``."""
    record = LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1)
    return SessionKeeper(
        NatsBuckets(bus),
        bucket,
        "other",
        record,
        times or StickyTimes(),
        clock,
        LOG,
        refreshed=refreshed,
        taken=lambda: None,
    )


async def test_a_refresh_after_a_loss_does_not_continue_though_an_answer_was_lost_between(
    bus: Bus, store_of_owners: str
) -> None:
    """The entry is this process's own again, and another process may have had it before: nobody has been told yet."""
    lossy = LossyBus(bus)
    bucket = NatsBucket(cast(Bus, lossy), names.owners_bucket(store_of_owners))
    said: list[bool] = []
    keeper = keeper_of(bus, bucket, lambda refresh: said.append(refresh.continued))
    await keeper.take()
    await keeper.refresh()
    assert said == [False, True]
    lossy.is_lossy = True
    with pytest.raises(TimeoutError):
        await keeper.refresh()
    lossy.is_lossy = False
    await keeper.refresh()
    assert said == [False, True, True], "nothing was lost but an answer"
    await bucket.delete(names.session_key("other"), last=keeper.revision)
    lossy.is_lossy = True
    with pytest.raises(TimeoutError):
        await keeper.refresh()
    lossy.is_lossy = False
    await keeper.refresh()
    await keeper.refresh()
    assert said == [False, True, True, False, True]


async def test_what_a_refresh_without_an_answer_wrote_is_dropped(bus: Bus, store_of_owners: str) -> None:
    """As of one that is cancelled: its entry would stand until it has run out."""
    lossy = LossyBus(bus)
    bucket, name = NatsBucket(cast(Bus, lossy), names.owners_bucket(store_of_owners)), names.session_key("other")
    keeper = keeper_of(bus, bucket, lambda _: None)
    await keeper.take()
    lossy.is_lossy = True
    with pytest.raises(TimeoutError):
        await keeper.refresh()
    lossy.is_lossy = False
    await keeper.drop()
    dropped = await bucket.get(name)
    assert dropped is not None
    assert dropped.value is None
    await keeper.take()
    found = await bucket.get(name)
    assert found is not None
    await bucket.put(name, b"of another", last=found.revision)
    await keeper.drop()
    found = await bucket.get(name)
    assert found is not None
    assert found.value == b"of another"


class LookedAt:
    """A bucket that says when it was read again."""

    def __init__(self, bucket: NatsBucket) -> None:
        self._bucket = bucket
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    async def get(self, name: str) -> Any:
        entry = await self._bucket.get(name)
        self.reads += 1
        return entry

    async def until_read(self) -> None:
        """By a reading that began after this call."""
        reads = self.reads + 2
        await until(lambda: self.reads >= reads)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_process_is_refused_once_the_other_has_gone_on_for_as_long_as_a_session_lasts(
    bus: Bus, store_of_owners: str, goes_on: bool
) -> None:
    """One that was halted refreshes a few times before it learns that it has lost its lease: both would end."""
    bucket, name = NatsBucket(bus, names.owners_bucket(store_of_owners)), names.session_key("other")
    looked_at, now_s = LookedAt(bucket), 0.0
    times = StickyTimes(fence=FenceTimes(1_000, 250), refresh_s=0.1, read_s=0.1)
    keeper = keeper_of(bus, cast(NatsBucket, looked_at), lambda _: None, times, lambda: now_s)
    value = encode_record(LeaseRecord(incarnation="halted", host="h", pid=2, started_at_ms=1))
    revision = await bucket.put(name, value, last=0)
    taking = asyncio.create_task(keeper.take())
    for _ in range(5):
        await looked_at.until_read()
        revision = await bucket.put(name, value, last=revision)
        now_s += 0.15
    await looked_at.until_read()
    assert not taking.done()
    if goes_on:
        now_s += 0.45
        with pytest.raises(InUseError, match="worker id 'other' is in use by process 2 on host h"):
            await asyncio.wait_for(taking, PATIENCE_S)
    else:
        await bucket.delete(name, last=revision)
        await asyncio.wait_for(taking, PATIENCE_S)
        assert keeper.revision > revision


@pytest.mark.parametrize(("field", "value"), [("refresh_s", 1.3), ("read_s", 0.0), ("read_s", math.nan)])
def test_times_that_would_miss_the_fence_are_refused(field: str, value: float) -> None:
    fence = FenceTimes(3_000, 500)
    values: dict[str, Any] = {"refresh_s": 0.5, field: value}
    with pytest.raises(InvalidInputError, match=f"^{field} must be above 0 and at most 1.25 seconds, got "):
        StickyTimes(fence=fence, **values)
