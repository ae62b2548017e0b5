"""Which processes are seen to end, and what is said of their sessions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ringcast_heartbeat_agent.leases import witnesses
from ringcast_heartbeat_agent.leases.exits import PidFd
from ringcast_heartbeat_agent.leases.registry import Registration
from ringcast_heartbeat_agent.leases.witnesses import Witnesses
from ringcast_testkit import PATIENCE_S
from ringcast_wire import limits


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as running:
        yield running
        running.kill()


async def within(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def test_a_process_ends_when_it_is_killed_and_not_when_it_is_halted(process: subprocess.Popen[bytes]) -> None:
    ended = asyncio.Event()
    end = PidFd.open(process.pid, process.pid)
    assert end is not None
    end.on_end(ended.set)
    process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED)
    await asyncio.sleep(0)
    assert not ended.is_set()
    process.kill()
    await within(ended)
    end.close()  # once more does no harm


async def test_of_a_process_that_is_not_looked_after_nothing_is_said(process: subprocess.Popen[bytes]) -> None:
    ended, other = asyncio.Event(), asyncio.Event()
    end, second = PidFd.open(process.pid, process.pid), PidFd.open(process.pid, process.pid)
    assert end is not None
    assert second is not None
    end.on_end(ended.set)
    second.on_end(other.set)
    end.close()
    process.kill()
    await within(other)
    assert not ended.is_set()


async def test_an_end_that_can_not_be_known(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process in another namespace the kernel gives 0; a child that has the connection has another number."""
    assert PidFd.open(0, 1) is None
    assert PidFd.open(process.pid, process.pid + 1) is None
    process.kill()
    process.wait()
    assert PidFd.open(process.pid, process.pid) is None
    monkeypatch.delattr(os, "pidfd_open")
    assert PidFd.open(os.getpid(), os.getpid()) is None


class End:
    """The end of a process that the test brings about."""

    def __init__(self) -> None:
        self.comes: Callable[[], None] = lambda: None
        self.looked_after_no_longer = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self.looked_after_no_longer.is_set()

    def on_end(self, callback: Callable[[], None]) -> None:
        self.comes = callback

    def close(self) -> None:
        self.looked_after_no_longer.set()


class Said:
    """Takes down what is said of a store."""

    def __init__(self) -> None:
        self.sessions: dict[object, tuple[str, str, int, int]] = {}
        self.gone: list[tuple[str, str, int, int]] = []

    def reported(self, process: object, worker_id: str, key: str, first: int, last: int) -> None:
        self.sessions[process] = worker_id, key, first, last

    def forget(self, process: object) -> None:
        self.sessions.pop(process, None)

    def ended(self, process: object) -> None:
        if process in self.sessions:
            self.gone.append(self.sessions.pop(process))

    async def run(self) -> None:
        await asyncio.Event().wait()


class Agent:
    """The witnesses of one agent, and what they have said, by store."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.said: dict[str, Said] = {}
        bus = cast(Any, SimpleNamespace(witness=lambda store: self.said.setdefault(store, Said())))
        self.exited: list[tuple[str, str, str]] = []
        self.witnesses = Witnesses(bus, 2, tasks, lambda *process: self.exited.append(process))

    def registers(self, worker_id: str, pid: int = 1, store: str = "s", *, seen: bool = True) -> tuple[Any, End]:
        registration = Registration(worker_id, f"i{pid}", pid, store, ("k",), 0)
        end = End()
        self.witnesses.watch(registration, end if seen else None)
        return registration, end


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with asyncio.TaskGroup() as tasks:
        made = Agent(tasks)
        yield made
        made.witnesses.stop()


async def test_what_a_process_has_reported_is_said_when_it_has_ended(agent: Agent) -> None:
    registration, end = agent.registers("a")
    agent.witnesses.reported(registration, "k", 3, 4)
    agent.witnesses.stream_ended(registration)
    assert agent.said["s"].gone == []  # a closed connection is no end
    end.comes()
    assert agent.said["s"].gone == [("a", "k", 3, 4)]
    assert agent.exited == [("s", "a", "i1")]
    assert end.closed
    assert agent.witnesses.ended == 1


async def test_a_new_process_of_a_worker_does_not_hide_the_end_of_the_one_before(agent: Agent) -> None:
    first, first_end = agent.registers("a", 1)
    agent.witnesses.reported(first, "k", 3, 4)
    second, _ = agent.registers("a", 2)
    agent.witnesses.reported(second, "k", 8, 8)
    first_end.comes()
    assert agent.said["s"].gone == [("a", "k", 3, 4)]


async def test_a_process_that_registers_again_keeps_what_it_has_reported(agent: Agent) -> None:
    registration, before = agent.registers("a")
    agent.witnesses.reported(registration, "k", 3, 4)
    again, end = agent.registers("a")
    assert before.closed
    agent.witnesses.stream_ended(registration)  # of the stream before: the timer is not for the new one
    end.comes()
    assert agent.said["s"].gone == [("a", "k", 3, 4)]
    agent.witnesses.stream_ended(again)


@pytest.mark.parametrize("how", ["leaves", "lingers", "unseen"])
async def test_of_a_process_that_may_live_nothing_is_said(
    agent: Agent, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witnesses, "LINGER_S", 0.0)
    registration, end = agent.registers("a")
    agent.witnesses.reported(registration, "k", 3, 4)
    match how:
        case "leaves":
            agent.witnesses.left(registration)
        case "lingers":
            agent.witnesses.stream_ended(registration)
            await within(end.looked_after_no_longer)
        case "unseen":
            agent.registers("a", seen=False)
    assert end.closed
    assert agent.said["s"].sessions == {}
    end.comes()
    assert agent.said["s"].gone == []


async def test_no_more_than_twice_as_many_as_may_register(agent: Agent) -> None:
    ends = [agent.registers(f"w{number}")[1] for number in range(5)]
    assert [end.closed for end in ends] == [False] * 4 + [True]
    ends[0].comes()
    assert not agent.registers("w5")[1].closed


async def test_reports_of_a_process_that_is_not_seen_are_passed_over(agent: Agent) -> None:
    registration, _ = agent.registers("a", seen=False)
    agent.witnesses.reported(registration, "k", 1, 1)
    assert agent.said == {}


async def test_stores_without_workers_make_room(agent: Agent) -> None:
    for number in range(limits.MAX_STORES + 3):
        registration, end = agent.registers("a", store=f"s{number}")
        agent.witnesses.reported(registration, "k", 1, 1)
        end.comes()
    assert len(agent.said) == limits.MAX_STORES + 3
    assert len(agent.witnesses._stores) == 3
