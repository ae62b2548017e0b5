"""The parts of a lease under an agent, each by itself: the registration, and the worker's own lease beside it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from ringcast._common.log import worker_log
from ringcast._coordination.agent_registration import AgentRegistration
from ringcast._coordination.agent_stream import GivenUpError
from ringcast._coordination.fallback_lease import FallbackLease
from ringcast._protocol.lease_choice import SURE_S, LeaseChoice
from ringcast_testkit import PATIENCE_S
from ringcast_wire import InUseError, RingcastError, UnavailableError, leases

LOG = worker_log(logging.getLogger("ringcast"))


class Changes:
    """Records what follows from the lease."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def renamed(self) -> None:
        self.found.append("renamed")

    def regranted(self) -> None:
        self.found.append("regranted")

    def witnessed_by(self, agent: str) -> None:
        self.found.append(f"witnessed by {agent or 'nobody'}")


class Registered:
    """A registration with an agent that keeps the lease ``host.1``."""

    def __init__(self) -> None:
        self.choice, self.changes = LeaseChoice("own"), Changes()
        self.registration = AgentRegistration("unix:a", self.choice, self.changes, LOG)

    def ping(self, *, held: bool = True, losses: int = 0, failed_writes: int = 0) -> None:
        self.registration.pinged(leases.pb.Ping(held=held, losses=losses, failed_writes=failed_writes))


async def test_a_registration_names_the_hosts_lease() -> None:
    made = Registered()
    waiting = asyncio.create_task(made.registration.first_answer(0.0))
    await asyncio.sleep(0)
    made.registration.registered("host.1")
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert (made.choice.id, made.registration.held) == ("host.1", True)
    assert made.changes.found == ["renamed", "witnessed by nobody"]


async def test_an_agent_that_sees_the_process_end_is_named() -> None:
    made = Registered()
    made.registration.registered("host.1", sees_end=True)
    assert made.changes.found == ["renamed", "witnessed by host"]


async def test_an_agent_that_can_not_be_reached_is_an_answer_and_one_that_refuses_is_tried_until_the_deadline() -> None:
    made = Registered()
    made.registration.failed(UnavailableError("no such socket"))
    await asyncio.wait_for(made.registration.first_answer(0.0), PATIENCE_S)
    assert str(made.registration.refusal) == "no such socket"

    later = asyncio.get_running_loop().time() + 3600
    made.registration.failed(InUseError("in use"))
    waiting = asyncio.create_task(made.registration.first_answer(later))
    await asyncio.sleep(0.001)
    assert not waiting.done()
    made.registration.registered("host.1")
    await asyncio.wait_for(waiting, PATIENCE_S)

    refused = Registered()
    refused.registration.failed(InUseError("in use"))
    with pytest.raises(InUseError):
        await refused.registration.first_answer(0.0)


async def test_pings_say_whether_the_lease_is_held_and_whether_it_was_lost_meanwhile() -> None:
    made = Registered()
    made.registration.registered("host.1")
    made.changes.found = []
    made.ping(held=False, losses=4)
    assert not made.registration.held
    assert made.changes.found == [], "losses before the registration do not concern this worker"
    made.ping(losses=5)
    assert made.registration.held
    assert made.changes.found == ["regranted"]
    made.ping(losses=5)
    assert made.changes.found == ["regranted"]


async def test_failed_writes_count_from_the_first_ping_on_and_over_restarts_of_the_agent() -> None:
    made = Registered()
    made.registration.registered("host.1")
    made.ping(failed_writes=7)
    made.ping(failed_writes=9)
    assert made.registration.failed_writes == 2
    made.registration.failed(UnavailableError("ended"))
    made.registration.registered("host.1")
    made.ping(failed_writes=0)
    made.ping(failed_writes=1)
    assert made.registration.failed_writes == 3


async def test_an_agent_that_sends_nothing_for_ten_ticks_is_lost_until_it_pings_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringcast._coordination.agent_registration._TICK_S", 0.0)
    made, loop = Registered(), asyncio.get_running_loop()
    made.registration.registered("host.1")
    await made.registration.tick()
    made.ping()
    for _ in range(10):
        made.registration.check_silence(loop.time())
        assert made.choice.host == "host.1"
        await made.registration.tick()
    made.registration.check_silence(loop.time())
    assert made.choice.host is None
    made.ping(held=False)
    assert made.choice.host is None, "an agent that was halted for so long that its lease has ended"
    made.ping()
    assert made.choice.host == "host.1"


async def test_a_worker_that_the_agent_has_given_up_verifies_everything() -> None:
    made = Registered()
    made.registration.registered("host.1")
    made.registration.failed(GivenUpError("too long"))
    made.changes.found = []
    made.registration.registered("host.1")
    assert made.changes.found == ["regranted", "witnessed by nobody"]


class Own:
    """The worker's own lease."""

    def __init__(self, *failures: RingcastError) -> None:
        self.calls: list[str] = []
        self._failures = list(failures)
        self.revoke_failure: RingcastError | None = None

    async def grant(self) -> None:
        self.calls.append("grant")
        if self._failures:
            raise self._failures.pop(0)

    async def keep_alive(self) -> None:
        self.calls.append("keep_alive")
        await asyncio.Event().wait()

    async def revoke(self) -> None:
        self.calls.append("revoke")
        if self.revoke_failure is not None:
            raise self.revoke_failure


class Fallback:
    """A fallback lease."""

    def __init__(self, own: Own) -> None:
        self.own, self.choice, self.changes = own, LeaseChoice("own"), Changes()
        self.lease = FallbackLease(cast(Any, own), self.choice, self.changes, LOG)


async def settle(own: Own, calls: list[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while own.calls != calls:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_the_own_lease_is_granted_once_while_it_is_wanted_and_then_revoked() -> None:
    made = Fallback(Own())
    async with asyncio.TaskGroup() as tasks:
        await made.lease.keep(tasks, wanted=False)
        assert made.own.calls == []
        for _ in range(2):
            await made.lease.keep(tasks, wanted=True)
            await settle(made.own, ["grant", "keep_alive"])
        assert made.choice.own_held
        made.own.revoke_failure = UnavailableError("no answer")
        await made.lease.keep(tasks, wanted=False)
        assert not made.choice.own_held
        await made.lease.keep(tasks, wanted=False)
    assert made.own.calls == ["grant", "keep_alive", "revoke"]


async def test_a_grant_that_fails_is_tried_again() -> None:
    made = Fallback(Own(UnavailableError("no answer")))
    async with asyncio.TaskGroup() as tasks:
        await made.lease.keep(tasks, wanted=True)
        await settle(made.own, ["grant", "grant", "keep_alive"])
        await made.lease.keep(tasks, wanted=False)


async def test_a_grant_that_comes_after_the_hosts_lease_may_have_ended_is_verified() -> None:
    made = Fallback(Own())
    now = asyncio.get_running_loop().time()
    made.choice.answered("host.1", now - 2 * SURE_S)
    made.choice.lost(now - 2 * SURE_S)
    async with asyncio.TaskGroup() as tasks:
        await made.lease.keep(tasks, wanted=True)
        await settle(made.own, ["grant", "keep_alive"])
        await made.lease.keep(tasks, wanted=False)
    assert made.changes.found == ["regranted"]


async def test_another_process_with_the_id_ends_the_worker() -> None:
    made = Fallback(Own(InUseError("in use")))
    with pytest.raises(BaseExceptionGroup) as raised:
        async with asyncio.TaskGroup() as tasks:
            await made.lease.keep(tasks, wanted=True)
    assert isinstance(raised.value.exceptions[0], InUseError)
