"""Calls that wait are ended once their session is over and their bound is up; what they had is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from ringcast import Change
from ringcast._common.cancellation import Stopping
from ringcast._common.stats import Stats
from ringcast._coordination.sticky.ownership import ExclusiveCall
from ringcast._coordination.sticky.times import steady_clock
from ringcast._delivery.callbacks import Listeners, OwnershipCallbacks
from ringcast._delivery.gate import CallEndedError
from ringcast._protocol.sticky.fence import Fence, FenceTimes
from ringcast._protocol.sticky.ownership import Ownership
from ringcast._worker.exclusive import AdmittedCall, KeyGate
from ringcast_testkit import PATIENCE_S, TcpProxy
from ringcast_wire import Strategy
from ringcast_wire.owner_records import Entry, Session, Table

TIMES = {"strategy": Strategy.STICKY, "lease_ttl_ms": 2_000, "call_bound_ms": 200}


class Waiting:
    """A handler that waits again and again, with an effect after each wait, until it is cancelled."""

    def __init__(self, *, swallows: bool) -> None:
        self.calls: list[str | None] = []
        self.effects: list[float] = []
        self.began, self.ended = asyncio.Event(), asyncio.Event()
        self._swallows = swallows

    async def __call__(self, change: Change) -> None:
        self.calls.append(change.value)
        self.began.set()
        try:
            while len(self.calls) == 1:  # the first call alone does not return
                await asyncio.sleep(0.01)
                self.effects.append(steady_clock())
        except asyncio.CancelledError:
            self.ended.set()
            if not self._swallows:
                raise


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_worker_that_is_cut_off_ends_a_call_before_the_next_owner_begins(store: Any, swallows: bool) -> None:
    """Also one that says it has succeeded: the row stays undone, and its worker is handed it again when it is back."""
    await store.create(partition_count=1, **TIMES)
    await store.put("row", "1")
    first, taken = Waiting(swallows=swallows), asyncio.Event()
    began: list[float] = []

    def take(change: Change) -> None:
        began.append(steady_clock())
        taken.set()

    with TcpProxy(urlsplit(store.nats_url).port or 0) as link:
        async with store.worker("a", handler=first, servers=f"nats://127.0.0.1:{link.port}") as one:
            async with asyncio.timeout(PATIENCE_S):
                await first.began.wait()
            async with store.worker("b", handler=take) as two:
                link.silence()
                async with asyncio.timeout(PATIENCE_S):
                    await first.ended.wait()
                    assert not taken.is_set()
                    await taken.wait()
                assert first.effects[-1] < began[0]
                await one.wait_until("list", lambda: one.stats("list").calls_ended == 1, timeout_s=PATIENCE_S)
                assert one.stats("list").handler_failures == 0
                link.resume()
                await two.stop()
                await one.wait_until("list", lambda: len(first.calls) == 2, timeout_s=PATIENCE_S)
    assert first.calls == ["1", "1"]
    assert len(began) == 1


class Kept:
    """The gate of a key with one partition, whose owner the machine is; its clock is the loop's."""

    def __init__(self, lease_ttl_ms: int = 1_000, call_bound_ms: int = 200) -> None:
        self.now = asyncio.get_running_loop().time
        self.owned = Ownership("w", "w", 1, Fence(FenceTimes(lease_ttl_ms, call_bound_ms)))
        self.owned.refreshed(self.now(), 5, self.now())
        self.owned.obey(Table(7, (Entry(Session("w", "w", 5), 7),)), self.now())
        self.owned.ready(0, 7, self.now())
        self.stats, self.logged = Stats(), list[str]()
        session = SimpleNamespace(
            key="list",
            applier=SimpleNamespace(lose=lambda lost: None),
            machine=SimpleNamespace(stats=self.stats),
            log=SimpleNamespace(warning=lambda event, **facts: self.logged.append(event)),
        )
        self.gate = KeyGate(cast("Any", session), cast("Any", self), call_bound_ms / 1000)
        self.gate.extend(self.owned.calls_until)

    def begin_call(self, key: str, partition: int) -> ExclusiveCall | None:
        token = self.owned.begin_call(partition, self.now())
        return None if token is None else ExclusiveCall(cast("Any", self), self.owned, partition, token)

    def end_call(self, owned: Ownership, partition: int) -> None:
        owned.end_call(partition, self.now())

    def begin(self) -> AdmittedCall:
        admitted = self.gate.begin(0, 7)
        assert admitted is not None
        return admitted

    def pass_fence(self) -> float:
        """The session has had no refresh for that long; returns when calls have to have ended."""
        fence = self.owned.wake_at
        assert fence is not None
        self.owned.poll(fence)
        assert self.owned.session is None
        return self.owned.calls_until


async def test_a_call_may_wait_as_long_as_the_session_is_refreshed() -> None:
    kept = Kept(lease_ttl_ms=2_000, call_bound_ms=50)
    admitted, released = kept.begin(), asyncio.Event()
    running = asyncio.create_task(admitted.wait(_until(released.wait)))
    first = kept.owned.calls_until
    number = 5
    while kept.now() < first + 0.1:
        await asyncio.sleep(0.05)  # its bound
        number += 1
        kept.owned.refreshed(kept.now(), number, kept.now())
        kept.gate.extend(kept.owned.calls_until)
    released.set()
    await running
    admitted.end()
    assert kept.stats.calls_ended == 0
    assert kept.stats.calls_over_bound == 1


async def _until(wait: Callable[[], Awaitable[object]]) -> None:
    await wait()


async def test_a_call_is_ended_a_bound_after_the_fence_and_no_refresh_prolongs_it() -> None:
    kept = Kept()
    admitted = kept.begin()
    running = asyncio.create_task(admitted.wait(_until(asyncio.Event().wait)))
    due = kept.pass_fence()
    kept.owned.refreshed(kept.now(), 9, kept.now())  # an answer that comes after the fence
    assert kept.owned.calls_until == due
    kept.gate.extend(kept.owned.calls_until)
    with pytest.raises(CallEndedError, match="the session is over that a call of partition 0 started in"):
        await running
    assert kept.now() >= due
    admitted.end()
    assert kept.stats.calls_ended == 1
    assert kept.logged == ["call.ended", "call.over_bound"]


async def test_what_a_call_raises_once_it_is_ended_does_not_count_and_what_it_raises_before_does() -> None:
    async def turns_it_into_another() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    async def fails() -> None:
        raise TimeoutError("of its own")

    kept = Kept()
    with pytest.raises(TimeoutError, match="of its own"):
        await kept.begin().wait(fails())
    first = kept.begin()
    kept.gate.extend(kept.now())
    with pytest.raises(CallEndedError) as ended:
        await first.wait(turns_it_into_another())
    assert isinstance(ended.value.__cause__, ConnectionError)


async def test_a_cancellation_of_the_task_itself_is_none_of_the_session() -> None:
    kept = Kept()
    running = asyncio.create_task(kept.begin().wait(_until(asyncio.Event().wait)))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert kept.stats.calls_ended == 0


async def test_a_callback_that_waits_is_ended_too() -> None:
    kept = Kept()

    async def never_returns(key: str, partitions: frozenset[int]) -> None:
        await asyncio.Event().wait()

    callbacks = OwnershipCallbacks(
        Listeners(never_returns), stopping=Stopping(), stats=kept.stats, log=cast("Any", SimpleNamespace())
    )
    callbacks.gate = kept.gate
    kept.gate.extend(kept.now())
    await callbacks.call("list", True, frozenset({0}))
    assert (kept.stats.calls_ended, kept.stats.callback_failures) == (1, 0)
    assert callbacks.running_s == 0
