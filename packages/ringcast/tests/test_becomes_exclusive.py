"""A peer becomes an exclusive owner while it runs, and a peer again: nothing is lost, and no call is forgotten."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from random import Random
from typing import Any, cast

import pytest
from ringcast import Change
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._common.measures import KeyMeasures, NoMetrics
from ringcast._common.opening import Openings
from ringcast._common.stats import Stats
from ringcast._delivery.callbacks import Listeners
from ringcast._delivery.gate import Admission
from ringcast._delivery.handler import Applier
from ringcast._delivery.iterator import ChangeStream
from ringcast._protocol.actions import Action, Announce, Apply, FetchPartition
from ringcast._protocol.key import KeyMachine
from ringcast_testkit import PATIENCE_S
from ringcast_wire import Change as WireChange
from ringcast_wire import Event, PartitionRows, Row

PARTITIONS = 4
LOG = worker_log(logging.getLogger("ringcast"))


class Walk:
    """A machine that goes a random way between the two, a service with its rows, and an application that is told."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.machine = KeyMachine("s", "k", full=False, partition_count=PARTITIONS, random=self.draw.random)
        self.log: list[list[Row]] = [[] for _ in range(PARTITIONS)]
        """What the service has written to each partition: the row at index r has the version r + 1."""
        self.told: list[dict[str, Row]] = [{} for _ in range(PARTITIONS)]
        """What the application knows of the partitions that it has,"""
        self.heard: list[dict[str, int]] = [{} for _ in range(PARTITIONS)]
        """and the versions of it, of deleted rows too."""
        self.token = 0
        self.now = 0.0

    def step(self) -> None:
        machine, draw = self.machine, self.draw
        some = frozenset(number for number in range(PARTITIONS) if draw.random() < 0.6)
        match draw.randrange(8):
            case 0 if not machine.exclusive:
                self.token += 1
                machine.become_exclusive(dict.fromkeys(some, self.token), self.now)
            case 0:
                machine.become_shared(some)
            case 1:
                machine.assign(some)
            case 2 if machine.exclusive:
                self.token += 1
                machine.silent.hand_over(dict.fromkeys(machine.partitions.keys() - machine.owned(), self.token))
            case 3 if machine.exclusive:
                machine.silent.silence(some, self.now)
            case 4:
                self.run()
            case _:
                self.write(draw.randrange(PARTITIONS), f"row{draw.randrange(3)}", draw.random() < 0.3)
        machine.filters_ready(machine.partitions, self.now)
        self.now += 1.0

    def write(self, number: int, row_id: str, is_deleted: bool) -> None:
        log = self.log[number]
        version = len(log) + 1
        value = "" if is_deleted else str(version)
        log.append(Row(row_id, value, version, is_deleted))
        if self.draw.random() < 0.8:  # else the event is lost
            change = WireChange(row_id, version, is_deleted, None if is_deleted else value)
            self.machine.event(number, Event(1, version - 1, version, 1, [change]), f"{number}.{version}", self.now)

    def live(self, number: int) -> dict[str, Row]:
        rows = {row.row_id: row for row in self.log[number]}
        return {row_id: row for row_id, row in rows.items() if not row.deleted}

    def run(self) -> None:
        while actions := self.machine.poll(self.now):
            for action in actions:
                self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case FetchPartition(partition=number, since=since):
                is_whole = since is None
                rows = list(self.live(number).values()) if is_whole else self.log[number][since:]
                newest = {row.row_id: row for row in rows}
                reply = PartitionRows(number, len(self.log[number]), is_whole, list(newest.values()))
                self.machine.fetches.partition_reply(action.request, reply, self.now)
            case Announce():
                for number in action.partitions:
                    self.told[number], self.heard[number] = {}, {}
                self.machine.handover.done(action.number, self.now)
            case Apply():
                for change in action.changes:
                    self._tell(change)
                self.machine.handover.done(action.number, self.now)

    def _tell(self, change: Change) -> None:
        assert self.machine.owns(change.partition), change
        assert bool(change.token) is self.machine.exclusive, change
        heard = self.heard[change.partition]
        assert change.version >= heard.get(change.row_id, 0), "a row goes back"
        heard[change.row_id] = change.version
        if change.deleted:
            self.told[change.partition].pop(change.row_id, None)
        else:
            self.told[change.partition][change.row_id] = Row(change.row_id, str(change.value), change.version)

    def end(self) -> None:
        """At last it owns all partitions, and hears of every head."""
        machine = self.machine
        machine.assign(frozenset(range(PARTITIONS)))
        if machine.exclusive:
            machine.silent.hand_over(dict.fromkeys(machine.partitions.keys() - machine.owned(), self.token + 1))
        machine.filters_ready(machine.partitions, self.now)
        self.run()
        for number in range(PARTITIONS):
            self.write(number, "last", False)
        for _ in range(3):
            self.now += 10.0
            machine.compare_heads(machine.known_revisions(), [len(log) for log in self.log], self.now)
            self.run()


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_nothing_is_lost_on_the_way_there_and_back(first: int) -> None:
    went: set[bool] = set()
    for seed in range(first, first + 100):
        walk = Walk(seed)
        for _ in range(50):
            walk.step()
            went.add(walk.machine.exclusive)
        walk.end()
        assert walk.told == [walk.live(number) for number in range(PARTITIONS)], f"seed {seed}"
        assert walk.machine.ready, f"seed {seed}"
    assert went == {True, False}


# ---- the calls that run when the gate appears


class Gate:
    """Lets everything start, and counts."""

    over_bound_s = 0.0

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended = 0

    def begin(self, partition: int, token: int | None = None) -> Admission | None:
        self.begun.append(partition)
        return cast("Admission", self)

    def begin_last(self, partition: int) -> Admission | None:
        return self.begin(partition)

    def end_last(self, partition: int) -> None:
        """Nothing waits for it."""

    async def wait(self, awaitable: Awaitable[None]) -> None:
        await awaitable

    def end(self) -> None:
        self.ended += 1


class Bench:
    def __init__(self, *, on_assigned: Any = None, on_revoked: Any = None, parallel: int = 1) -> None:
        config = WorkerConfig(
            store="s", keys=("k",), servers=(), worker_id="w", max_parallel_handlers=parallel, handler_tries=2
        )
        self.gate = Gate()
        self.applier = Applier(
            config,
            Stats(),
            LOG,
            listeners=Listeners(on_assigned, on_revoked),
            owned=lambda _: True,
            dead_letters=cast("Any", None),
            measures=KeyMeasures(NoMetrics()),
            opening=Openings(None).of("s", "k"),
        )

    async def gets_a_gate(self) -> asyncio.Task[None]:
        """Returns what waits for the calls that run; it has not ended."""
        self.applier.gate = self.gate
        waiting = asyncio.create_task(self.applier.strays_ended())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        return waiting


def changes(count: int) -> list[Change]:
    return [
        Change(store="s", key="k", partition=n, row_id=f"r{n}", version=1, value="v", deleted=False)
        for n in range(count)
    ]


async def test_calls_that_run_when_the_gate_appears_are_waited_for_and_later_ones_need_it() -> None:
    bench, free, began = Bench(), asyncio.Event(), asyncio.Event()

    async def handle(change: Change) -> None:
        began.set()
        if change.partition == 0:
            await free.wait()

    async with asyncio.timeout(PATIENCE_S):
        bench.applier.attach(handle)
        job = asyncio.create_task(bench.applier.apply(1, changes(3)))
        await began.wait()
        waiting = await bench.gets_a_gate()
        free.set()
        await waiting
        await job
    assert (bench.gate.begun, bench.gate.ended) == ([1, 2], 2)


async def test_a_failed_call_is_repeated_through_the_gate() -> None:
    bench, free, began = Bench(), asyncio.Event(), asyncio.Event()

    async def handle(_: Change) -> None:
        if not began.is_set():
            began.set()
            await free.wait()
            raise LookupError

    async with asyncio.timeout(PATIENCE_S):
        bench.applier.attach(handle)
        job = asyncio.create_task(bench.applier.apply(1, changes(1)))
        await began.wait()
        waiting = await bench.gets_a_gate()
        free.set()
        await waiting
        await job
    assert (bench.gate.begun, bench.gate.ended) == ([0], 1)


async def test_a_plain_function_needs_the_gate_from_its_next_run_on() -> None:
    bench, began = Bench(), asyncio.Event()
    taken: list[int] = []

    def handle(change: Change) -> None:
        taken.append(change.partition)
        began.set()

    async with asyncio.timeout(PATIENCE_S):
        bench.applier.attach(handle)
        job = asyncio.create_task(bench.applier.apply(1, changes(1000)))
        await began.wait()
        assert len(taken) < 1000
        bench.applier.gate = bench.gate
        freely = len(taken)
        await bench.applier.strays_ended()  # none: a plain function has returned
        await job
    assert taken == list(range(1000))
    assert bench.gate.begun == taken[freely:]


async def test_what_a_plain_function_has_begun_is_waited_for() -> None:
    """It has returned something that waits after all."""
    bench, free, began = Bench(), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        began.set()
        await free.wait()

    async with asyncio.timeout(PATIENCE_S):
        bench.applier.attach(lambda _: wait())
        job = asyncio.create_task(bench.applier.apply(1, changes(2)))
        await began.wait()
        waiting = await bench.gets_a_gate()
        free.set()
        await waiting
        await job
    assert bench.gate.begun == [1]


async def test_the_body_of_an_iterator_is_waited_for() -> None:
    bench = Bench(parallel=2)
    stream = ChangeStream((), begin=bench.applier.admit)
    async with asyncio.timeout(PATIENCE_S):
        bench.applier.attach(stream.put, timed=False, gated=False)
        job = asyncio.create_task(bench.applier.apply(1, changes(2)))
        first = await anext(stream)
        waiting = await bench.gets_a_gate()
        second = await anext(stream)
        assert not job.done()
        stream.release()
        await waiting
        await job
    assert {first.partition, second.partition} == {0, 1}
    assert bench.gate.begun == [second.partition]


async def test_a_callback_is_waited_for_and_what_it_was_told_of_is_revoked_through_the_gate() -> None:
    free, began = asyncio.Event(), asyncio.Event()
    revoked: list[frozenset[int]] = []

    async def on_assigned(_: str, __: frozenset[int]) -> None:
        began.set()
        await free.wait()

    bench = Bench(on_assigned=on_assigned, on_revoked=lambda _, partitions: revoked.append(partitions))
    async with asyncio.timeout(PATIENCE_S):
        call = asyncio.create_task(bench.applier.announce("k", True, frozenset({1, 2})))
        await began.wait()
        later = asyncio.create_task(bench.applier.announce("k", True, frozenset({3})))
        waiting = await bench.gets_a_gate()
        assert not bench.gate.begun
        free.set()
        await waiting
        await call
        await later
        assert bench.gate.begun == [3]
        await bench.applier.announce("k", False, frozenset({1, 2, 3, 4}))
    assert revoked == [frozenset({1, 2, 3})]
