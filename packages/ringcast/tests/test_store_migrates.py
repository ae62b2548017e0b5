"""A store of peers gets exclusive ownership and loses it again: three coordinators over a real NATS server.

The steps and the peer rule are this test's; what the coordinators make of them is theirs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import nats
import pytest
from ringcast._bus.bus import connected
from ringcast._bus.kv import NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import first_error
from ringcast._common.log import worker_log
from ringcast._coordination.sticky.coordinator import StickyCoordinator
from ringcast._coordination.sticky.migration import Migrates, StoreMigration
from ringcast._coordination.sticky.times import StickyTimes, steady_clock
from ringcast._protocol.sticky.fence import FenceTimes
from ringcast._protocol.sticky.leader import LeaderTimes
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast_testkit import PATIENCE_S, NatsServer, TcpProxy, end_task
from ringcast_wire import LeaseRecord, Stage, event_within, names
from ringcast_wire.migrating import Step, unguarded
from ringcast_wire.owner_records import Rule, State, Table, encode_state

PARTITIONS, KEY = 6, "list"
LOOK_S = 0.05
TIMES = StickyTimes(
    fence=FenceTimes(3_000, 500),
    leader=LeaderTimes(quiet_s=0.2, quiet_most_s=1.0, prepare_s=5.0, stagger_s=0.1),
    refresh_s=0.5,
    read_s=0.25,
    check_s=0.5,
)
LOG = worker_log(logging.getLogger("ringcast"))
OFF, SHADOW, VALIDATE = Step(Stage.OFF, 0), Step(Stage.SHADOW, 1), Step(Stage.VALIDATE, 2)
SWITCH, BACK, END = Step(Stage.SWITCH, 3), Step(Stage.SHADOW, 4, is_back=True), Step(Stage.OFF, 5)


class Court:
    """Sees each call of each worker: beside one of an owner there is no other call of its partition."""

    def __init__(self) -> None:
        self.running: dict[int, list[tuple[str, Rule]]] = {number: [] for number in range(PARTITIONS)}
        self.served: list[tuple[str, int, Rule, int]] = []
        """The worker, partition, rule and token of each call; the token is 0 where no table let it start."""
        self.violations: list[str] = []
        self.moved = asyncio.Event()

    def begins(self, worker_id: str, partition: int, rule: Rule, token: int) -> None:
        for other, its_rule in self.running[partition]:
            if other != worker_id and (rule, its_rule) != (Rule.PEERS, Rule.PEERS):
                self.violations.append(f"{partition}: {worker_id} by {rule} beside {other} by {its_rule}")
        self.running[partition].append((worker_id, rule))
        self.served.append((worker_id, partition, rule, token))
        self.moved.set()

    def ends(self, worker_id: str, partition: int, rule: Rule) -> None:
        self.running[partition].remove((worker_id, rule))
        self.moved.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks whenever something moves, and now and then: records of a worker that serves nothing move nothing."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                assert not self.violations
                self.moved.clear()
                await event_within(self.moved, LOOK_S)

    async def served_anew(self, rule: Rule, *, is_free: bool = False) -> dict[int, str]:
        """Waits until each partition has been called by a rule from now on; returns by which worker each was last."""
        begin = len(self.served)

        def found() -> dict[int, str]:
            calls = self.served[begin:]
            return {number: name for name, number, by, token in calls if by is rule and bool(token) is not is_free}

        await self.until(lambda: len(found()) == PARTITIONS)
        return found()


class Node:
    """A worker: calls a handler over and over for each partition that it may, by whatever rule."""

    def __init__(self, name: str, court: Court, proxy: TcpProxy) -> None:
        self.name, self.court, self.proxy = name, court, proxy
        self.coordinator: StickyCoordinator
        self.share: frozenset[int] = frozenset()
        self.needs_admission = False
        self.free = 0
        self.hold: asyncio.Event | None = None
        """Where it is set to an event, calls that no table lets start do not end before it is set."""
        self.busy: set[int] = set()
        self.last_call_at = 0.0
        self.running: asyncio.Task[None]
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def migration(self) -> StoreMigration:
        assert self.coordinator.migration is not None
        return self.coordinator.migration

    @property
    def table(self) -> Table | None:
        return self.coordinator._owned[KEY].table

    def spawn(self, work: asyncio.Task[None]) -> None:
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    def prepare(self, key: str, partition: int, token: int) -> None:
        asyncio.get_running_loop().call_soon(self.coordinator.ready, key, partition, token)

    def activate(self, key: str, partition: int, token: int) -> None:
        """The loop of the partition asks for itself."""

    def stop(self, key: str, partition: int, token: int) -> None:
        self.spawn(asyncio.create_task(self._last_call(partition)))

    def forget(self, key: str, partition: int, token: int) -> None:
        """There are no rows."""

    def acted(self, key: str) -> None:
        self.court.moved.set()

    def extended(self, key: str, until: float) -> None:
        """Its calls do not wait for longer."""

    def session_changed(self, key: str, runs: bool) -> None:
        self.court.moved.set()

    def settled(self, key: str, partitions: frozenset[int]) -> None:
        assert self.table is not None
        assert self.table.rule is Rule.OWNERS, "by the peer rule the table does not have the shares"

    def guarded(self, key: str, tokens: dict[int, int]) -> None:
        assert not self.needs_admission
        assert all(token > 0 for token in tokens.values())
        self.needs_admission = True
        self.spawn(asyncio.create_task(self._wait_for_strays()))

    def let_go(self, key: str) -> None:
        assert self.needs_admission
        self.needs_admission = False
        for number in range(PARTITIONS):
            if self.coordinator.state_of(KEY, number) is OwnedState.DRAINING:
                self.coordinator.end_last_call(KEY, number)

    async def _wait_for_strays(self) -> None:
        await self.court.until(lambda: not self.free)
        self.migration.strays_ended(KEY)

    async def _last_call(self, partition: int) -> None:
        await self.court.until(lambda: partition not in self.busy)
        call = self.coordinator.begin_last_call(KEY, partition) if self.needs_admission else None
        if call is not None:
            await asyncio.sleep(0.005)
            call.end()
        self.coordinator.end_last_call(KEY, partition)

    async def serve(self, partition: int) -> None:
        while True:
            await asyncio.sleep(0.02)
            if self.needs_admission:
                await self._call(partition)
            elif partition in self.share:
                await self._call_freely(partition)

    async def _call(self, partition: int) -> None:
        call = self.coordinator.begin_call(KEY, partition)
        if call is None:
            return
        assert self.table is not None
        rule = self.table.rule
        self.last_call_at = steady_clock()
        self.busy.add(partition)
        self.court.begins(self.name, partition, rule, call.token)
        try:
            await asyncio.sleep(0.005)
        finally:
            self.busy.discard(partition)
            self.court.ends(self.name, partition, rule)
            call.end()

    async def _call_freely(self, partition: int) -> None:
        self.free += 1
        self.court.begins(self.name, partition, Rule.PEERS, 0)
        try:
            await asyncio.sleep(0.005)
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.free -= 1
            self.court.ends(self.name, partition, Rule.PEERS)


class Fleet:
    """Workers of one store, and its operator."""

    def __init__(self, store: str, port: int, stack: AsyncExitStack) -> None:
        self._store, self._port, self._stack = store, port, stack
        self.court = Court()
        self.nodes: list[Node] = []
        self.step = OFF

    async def start(self, name: str) -> Node:
        node = Node(name, self.court, self._stack.enter_context(TcpProxy(self._port)))
        config = WorkerConfig(
            store=self._store, keys=(KEY,), servers=(f"nats://127.0.0.1:{node.proxy.port}",), worker_id=name
        )
        bus = await self._stack.enter_async_context(connected(NatsBus.prepared, config, LOG))
        node.coordinator = StickyCoordinator(
            NatsBuckets(bus),
            config,
            PARTITIONS,
            record=LeaseRecord(incarnation=f"{name}-i", host="h", pid=1, started_at_ms=1),
            participant=node,
            log=LOG,
            times=TIMES,
            migrates=Migrates(self.step, node),
        )
        node.migration.heard(self.step)
        node.running = asyncio.create_task(node.coordinator.run())
        serving = [asyncio.create_task(node.serve(number)) for number in range(PARTITIONS)]
        for task in (node.running, *serving):
            self._stack.push_async_callback(end_task, task)
        self.nodes.append(node)
        self.share_out()
        return node

    def share_out(self) -> None:
        """The peer rule: the workers in turn."""
        owners = tuple(self.nodes[number % len(self.nodes)].name for number in range(PARTITIONS))
        for node in self.nodes:
            node.share = frozenset(number for number, name in enumerate(owners) if name == node.name)
            node.migration.share(KEY, owners)

    def take(self, step: Step, *, without: Node | None = None) -> None:
        self.step = step
        for node in self.nodes:
            if node is not without:
                node.migration.heard(step)

    async def say_gone(self, name: str) -> None:
        """As the config service does it, for an operator."""
        await self.put(names.state_key(KEY, name), b"", {"KV-Operation": "DEL", names.HEADER_GONE: "0"})

    async def put(self, record: str, value: bytes, headers: dict[str, str] | None = None) -> None:
        """Somebody else writes a record of the key."""
        async with await nats.connect(f"nats://127.0.0.1:{self._port}") as client:
            subject = f"$KV.{names.owners_bucket(self._store)}.{record}"
            await client.jetstream().publish(subject, value, headers=headers)

    async def until_rule(self, rule: Rule, *, without: Node | None = None) -> None:
        await self.court.until(
            lambda: all(
                node.table is not None and (node.table.rule, node.table.step) == (rule, self.step.number)
                for node in self.nodes
                if node is not without
            )
        )

    def unguarded(self) -> frozenset[str]:
        states = self.nodes[0].coordinator._records.states(KEY)
        return unguarded(self.step, {node.name for node in self.nodes}, states)


@pytest.fixture
async def fleet(shared_nats: NatsServer, store_of_owners: str) -> AsyncIterator[Fleet]:
    """Three workers of a store of peers; each hears of the shadow."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(store_of_owners, shared_nats.port, stack)
        for name in "abc":
            await fleet.start(name)
        fleet.take(SHADOW)
        await fleet.until_rule(Rule.PEERS)
        await fleet.court.served_anew(Rule.PEERS, is_free=True)
        yield fleet
    assert not fleet.court.violations


async def test_there_and_back(fleet: Fleet) -> None:
    court = fleet.court
    assert not any(node.migration.is_guarded(KEY) for node in fleet.nodes)
    fleet.take(VALIDATE)
    await court.until(lambda: not fleet.unguarded())
    assert set((await court.served_anew(Rule.PEERS)).values()) == {"a", "b", "c"}, "each its share, let start"
    fleet.take(SWITCH)
    await fleet.until_rule(Rule.OWNERS)
    owners = await court.served_anew(Rule.OWNERS)
    assert sorted(owners.values()) == ["a", "a", "b", "b", "c", "c"]
    fleet.take(BACK)
    await court.until(lambda: not any(node.migration.is_guarded(KEY) for node in fleet.nodes))
    begin = len(court.served)
    await court.served_anew(Rule.PEERS, is_free=True)
    assert all(rule is Rule.PEERS for _, _, rule, _ in court.served[begin:])
    by_partition: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for _, partition, _, token in court.served[:begin]:
        if token:
            by_partition[partition].append(token)
    assert all(tokens == sorted(tokens) and len(set(tokens)) > 1 for tokens in by_partition.values())


async def test_a_worker_does_not_say_that_it_is_guarded_while_calls_of_before_run(fleet: Fleet) -> None:
    node = fleet.nodes[1]
    node.hold = asyncio.Event()
    await fleet.court.until(lambda: node.free > 0)
    fleet.take(VALIDATE)
    await fleet.court.until(lambda: fleet.unguarded() == {"b"})
    assert node.migration.is_guarded(KEY)
    fleet.take(SWITCH)  # an operator whom nothing keeps from it
    await fleet.until_rule(Rule.PEERS)
    await fleet.court.until(lambda: fleet.unguarded() == {"b"})
    node.hold.set()
    await fleet.until_rule(Rule.OWNERS)
    await fleet.court.served_anew(Rule.OWNERS)


async def test_a_worker_that_is_cut_off_in_the_switch_stops_at_its_fence(fleet: Fleet) -> None:
    fleet.take(VALIDATE)
    await fleet.court.until(lambda: not fleet.unguarded())
    cut, cut_at = fleet.nodes[2], steady_clock()
    cut.proxy.cut()
    fleet.take(SWITCH)
    await fleet.until_rule(Rule.OWNERS, without=cut)
    owners = await fleet.court.served_anew(Rule.OWNERS)
    assert sorted(owners.values()) == ["a", "a", "a", "b", "b", "b"]
    assert cut.last_call_at < cut_at + TIMES.fence.serve_s
    cut.proxy.resume()
    await fleet.until_rule(Rule.OWNERS)
    await fleet.court.until(lambda: any(name == "c" and rule is Rule.OWNERS for name, _, rule, _ in fleet.court.served))


async def test_a_worker_is_not_let_go_by_what_another_process_of_its_id_has_said(fleet: Fleet) -> None:
    """Of the other one the operator knows, and not of this: it would have no fence, and nobody would wait for it."""
    court, node = fleet.court, fleet.nodes[2]
    fleet.take(VALIDATE)
    await court.until(lambda: not fleet.unguarded())
    async with node.coordinator._owned[KEY].state._writing:
        other = State(lease="c", session=0, first=1, ended=1)
        await fleet.put(names.state_key(KEY, "c"), encode_state(other))
        await court.until(lambda: node.coordinator._records.states(KEY).get("c") == other)
        for step in (BACK, END):
            fleet.take(step)
            await court.until(lambda: not any(one.migration.is_guarded(KEY) for one in fleet.nodes[:2]))
            await court.until(lambda: node.table is not None and node.table.step == BACK.number)
            assert node.migration.is_guarded(KEY)
            assert node.migration.waits_to_be_let_go
    await court.until(lambda: not node.migration.is_guarded(KEY))


@pytest.mark.parametrize("is_let_go", [False, True])
async def test_a_process_that_a_later_one_of_its_id_has_followed_ends(fleet: Fleet, is_let_go: bool) -> None:
    """It leaves what that one has said, by which alone the operator and the leaders know that it has no fence."""
    node = fleet.nodes[2]
    if not is_let_go:
        fleet.take(VALIDATE)
        await fleet.court.until(lambda: not fleet.unguarded())
    session = node.coordinator._owned[KEY].session
    assert session is not None
    other = State(lease="c", session=session.number + 1, first=session.number + 1)
    await fleet.put(names.state_key(KEY, "c"), encode_state(other))
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(node.running, PATIENCE_S)
    assert str(first_error(caught.value)) == "worker id 'c' is in use by another process"
    assert node.coordinator.begin_call(KEY, 0) is None
    node.share = frozenset()
    said = await fleet.nodes[0].coordinator._records.bucket.get(names.state_key(KEY, "c"))
    assert said is not None
    assert said.value == encode_state(other), "it has written nothing over that"


async def test_a_worker_that_was_said_to_be_gone_starts_no_call_by_itself_once_it_is_back(fleet: Fleet) -> None:
    """The others go on without it. It was cut off, and has heard of no step since."""
    court, cut = fleet.court, fleet.nodes[2]
    cut.proxy.cut()
    others = fleet.nodes[:2]
    fleet.take(VALIDATE, without=cut)
    await court.until(lambda: fleet.unguarded() == {"c"})
    await fleet.say_gone("c")
    await court.until(lambda: "c" not in others[0].coordinator._records.states(KEY))
    cut.share = frozenset()  # NATS brings it nothing to call for
    cut.proxy.resume()
    await court.until(lambda: cut.needs_admission)
    assert cut.migration._guards[KEY].step == SHADOW
    fleet.share_out()
    begin = len(court.served)
    assert set((await court.served_anew(Rule.PEERS)).values()) == {"a", "b", "c"}
    assert all(token for _, _, _, token in court.served[begin:]), "each call was let start"
    assert fleet.unguarded() == {"c"}, "as long as it has not heard of the step"
    fleet.take(VALIDATE)
    await court.until(lambda: not fleet.unguarded())
    fleet.take(SWITCH)
    await fleet.until_rule(Rule.OWNERS)
    assert set((await court.served_anew(Rule.OWNERS)).values()) == {"a", "b", "c"}


async def test_no_worker_waits_for_one_that_is_said_to_be_gone(fleet: Fleet) -> None:
    court, dead = fleet.court, fleet.nodes[2]
    dead.proxy.cut()
    dead.share = frozenset()
    fleet.take(VALIDATE, without=dead)
    fleet.take(SWITCH, without=dead)  # an operator whom nothing keeps from it
    await court.until(lambda: fleet.unguarded() == {"c"})
    assert all(node.table is not None and node.table.rule is Rule.PEERS for node in fleet.nodes[:2])
    await fleet.say_gone("c")
    await fleet.until_rule(Rule.OWNERS, without=dead)
    assert set((await court.served_anew(Rule.OWNERS)).values()) == {"a", "b"}


async def test_a_worker_that_starts_in_the_migration_is_guarded_from_its_first_call(fleet: Fleet) -> None:
    fleet.take(VALIDATE)
    await fleet.court.until(lambda: not fleet.unguarded())
    late = await fleet.start("d")
    assert late.needs_admission
    await fleet.court.until(lambda: not fleet.unguarded())
    fleet.take(SWITCH)
    await fleet.until_rule(Rule.OWNERS)
    await fleet.court.until(lambda: any(name == "d" and rule is Rule.OWNERS for name, _, rule, _ in fleet.court.served))
    assert all(token for name, _, _, token in fleet.court.served if name == "d")
