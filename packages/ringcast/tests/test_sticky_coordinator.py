"""Exclusive ownership over a real NATS server: three coordinators in one process, each with a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace

import nats
import pytest
from ringcast._bus.buckets import ConflictError
from ringcast._bus.bus import Bus, connected
from ringcast._bus.kv import NatsBucket, NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._coordination.peer import Coordinator
from ringcast._coordination.sticky.coordinator import StickyCoordinator
from ringcast._coordination.sticky.ownership import ExclusiveCall
from ringcast._coordination.sticky.times import StickyTimes, steady_clock
from ringcast._coordination.sticky.wishes import write_wishes
from ringcast._protocol.sticky.fence import FenceTimes
from ringcast._protocol.sticky.leader import LeaderTimes
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast._protocol.sticky.plan import Wishes
from ringcast_testkit import PATIENCE_S, NatsServer, TcpProxy, end_task
from ringcast_wire import InUseError, LeaseRecord, MismatchError, encode_record, names
from ringcast_wire.owner_records import decode_state

PARTITIONS, KEY = 6, "list"
TIMES = StickyTimes(
    fence=FenceTimes(3_000, 500),
    leader=LeaderTimes(quiet_s=0.2, quiet_most_s=1.0, prepare_s=5.0, stagger_s=0.1),
    refresh_s=0.5,
    read_s=0.25,
    check_s=0.5,
)
_POISON = b'{"epoch":9000000000,"sessions":[],"owners":[-1,-1,-1,-1,-1,-1],"tokens":[0,0,0,0,0,0],"moves":[]}'
_NEVER_TAKEN = b'{"epoch":1,"sessions":[],"owners":[-1,-1,-1,-1,-1,-1],"tokens":[0,0,0,0,0,0],"moves":[],"step":9}'
LOG = worker_log(logging.getLogger("ringcast"))


@dataclass
class Court:
    """Sees each call of each worker, and holds the promises against them."""

    running: dict[int, str] = field(default_factory=dict)
    """The worker that has calls of a partition running,"""
    owner: dict[int, tuple[int, str]] = field(default_factory=dict)
    """and the last token of it, with its worker."""
    active: dict[int, str] = field(default_factory=dict)
    """The worker that has activated a partition and was not told to stop."""
    violations: list[str] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def holds(self, promise: bool, violation: str) -> None:
        """Takes a broken promise down, in whatever task it is seen; the fixture fails for it."""
        if not promise:
            self.violations.append(violation)
            self.moved.set()

    def activates(self, worker_id: str, partition: int) -> None:
        other = self.active.get(partition)
        self.holds(other is None, f"{partition} is active at {other} and at {worker_id}")
        self.active[partition] = worker_id

    def stops(self, worker_id: str, partition: int) -> None:
        self.holds(self.active.pop(partition, None) == worker_id, f"{worker_id} stops {partition}, which it had not")
        self.moved.set()

    def begins(self, worker_id: str, partition: int, token: int) -> None:
        other = self.running.get(partition)
        self.holds(other is None, f"{worker_id} and {other} call {partition} at once")
        last, owner = self.owner.get(partition, (0, ""))
        rises = token > last or (token, worker_id) == (last, owner)
        self.holds(rises, f"token {token} of {worker_id} comes after {last} of {owner}")
        self.running[partition] = worker_id
        self.owner[partition] = token, worker_id
        self.moved.set()

    def ends(self, partition: int) -> None:
        del self.running[partition]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                assert not self.violations
                self.moved.clear()
                await self.moved.wait()

    def owners(self) -> dict[str, int]:
        """How many partitions each worker was the last to be called for."""
        return dict(Counter(worker_id for _, worker_id in self.owner.values()))


class Application:
    """A participant in memory: prepares at once, and calls a handler over and over, in a task a partition."""

    def __init__(self, worker_id: str, court: Court) -> None:
        self.worker_id = worker_id
        self.coordinator: StickyCoordinator
        self.court = court
        self.tokens: dict[int, int] = {}
        self.rows: set[int] = set()
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.last_calls: set[asyncio.Task[None]] = set()
        self.last_call_at = 0.0
        self.hold: asyncio.Event | None = None
        """Where this is set to an event, calls do not end before it is set."""
        self.is_lame = False
        """Whether it never gets ready."""

    def prepare(self, key: str, partition: int, token: int) -> None:
        self.rows.add(partition)
        if not self.is_lame:
            asyncio.get_running_loop().call_soon(self.coordinator.ready, key, partition, token)

    def activate(self, key: str, partition: int, token: int) -> None:
        self.court.holds(partition in self.rows, f"{partition} is activated without its rows")
        self.court.activates(self.worker_id, partition)
        self.tokens[partition] = token
        self.tasks[partition] = asyncio.create_task(self._serve(key, partition, self.tasks.get(partition)))

    def stop(self, key: str, partition: int, token: int) -> None:
        self.court.holds(self.tokens.pop(partition, 0) == token, f"{partition} is stopped with another token")
        self.court.stops(self.worker_id, partition)
        self.last_calls.add(last := asyncio.create_task(self._make_last_call(key, partition, self.tasks[partition])))
        last.add_done_callback(self.last_calls.discard)

    async def _make_last_call(self, key: str, partition: int, calls: asyncio.Task[None]) -> None:
        """Tells the application that it has lost the partition, once its other calls have ended."""
        await asyncio.wait({calls})
        call = self.coordinator.begin_last_call(key, partition)
        if call is not None:
            self.court.begins(self.worker_id, partition, call.token)
            await asyncio.sleep(0.005)
            self.court.ends(partition)
            call.end()
        self.coordinator.end_last_call(key, partition)

    def forget(self, key: str, partition: int, token: int) -> None:
        self.court.holds(partition not in self.tokens, f"{partition} is forgotten while it is active")
        self.rows.discard(partition)
        self.court.moved.set()

    def acted(self, key: str) -> None:
        """Each was done at once."""

    def extended(self, key: str, until: float) -> None:
        """Its calls do not wait for longer."""

    def session_changed(self, key: str, runs: bool) -> None:
        self.court.moved.set()

    def settled(self, key: str, partitions: frozenset[int]) -> None:
        self.court.moved.set()

    async def _serve(self, key: str, partition: int, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        # It asks before each call, also once it was told to stop: what lets a call start is the coordinator alone.
        while (call := self.coordinator.begin_call(key, partition)) is not None:
            await self._handle(partition, call)
            await asyncio.sleep(0.02)

    async def _handle(self, partition: int, call: ExclusiveCall) -> None:
        self.court.holds(self.tokens.get(partition) == call.token, f"{partition} is called with another token")
        self.last_call_at = steady_clock()
        self.court.begins(self.worker_id, partition, call.token)
        try:
            if self.hold is not None:
                await self.hold.wait()
            await asyncio.sleep(0.005)  # a handler that takes a while
        finally:
            self.court.ends(partition)
            call.end()


@dataclass
class Node:
    """A coordinator that runs, behind a proxy of its own."""

    worker_id: str
    proxy: TcpProxy
    bus: Bus
    coordinator: StickyCoordinator
    application: Application
    task: asyncio.Task[None]

    def active(self) -> list[int]:
        return [n for n in range(PARTITIONS) if self.coordinator.state_of(KEY, n) is OwnedState.ACTIVE]

    async def leaves(self) -> None:
        """Goes in good order, as a worker does."""
        await self.coordinator.give_notice()
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.coordinator.leave()


@dataclass
class Fleet:
    """Workers of one store."""

    store: str
    port: int
    court: Court
    stack: AsyncExitStack
    times: StickyTimes = TIMES
    nodes: list[Node] = field(default_factory=list)

    async def start(self, name: str, incarnation: str = "i") -> Node:
        proxy = self.stack.enter_context(TcpProxy(self.port))
        config = WorkerConfig(
            store=self.store, keys=(KEY,), servers=(f"nats://127.0.0.1:{proxy.port}",), worker_id=name
        )
        bus = await self.stack.enter_async_context(connected(NatsBus.prepared, config, LOG))
        application = Application(name, self.court)
        record = LeaseRecord(incarnation=f"{name}-{incarnation}", host="h", pid=1, started_at_ms=1)
        coordinator = StickyCoordinator(
            NatsBuckets(bus), config, PARTITIONS, record=record, participant=application, log=LOG, times=self.times
        )
        application.coordinator = coordinator
        _: Coordinator = coordinator
        task = asyncio.create_task(coordinator.run())
        self.stack.push_async_callback(end_task, task)
        node = Node(name, proxy, bus, coordinator, application, task)
        self.nodes.append(node)
        return node

    async def until_shared(self, **shares: int) -> None:
        """Waits until these workers are the ones that serve, each so many partitions."""
        await self.court.until(lambda: {n.worker_id: len(n.active()) for n in self.nodes if n.active()} == shares)
        await self.court.until(lambda: self.court.owners() == shares)

    async def until_led(self) -> Node:
        """Waits until a worker leads, and returns it. On a busy machine it need not be the one that led first."""
        await self.court.until(lambda: any(node.coordinator.leads(KEY) for node in self.nodes))
        return next(node for node in self.nodes if node.coordinator.leads(KEY))


@pytest.fixture
async def fleet(shared_nats: NatsServer, store_of_owners: str) -> AsyncIterator[Fleet]:
    """Judges in the end what the test has not."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(store_of_owners, shared_nats.port, Court(), stack)
        yield fleet
    assert not fleet.court.violations
    assert fleet.court.owner


async def test_workers_that_join_and_leave_have_their_shares(fleet: Fleet) -> None:
    for name, shares in ("a", {"a": 6}), ("b", {"a": 3, "b": 3}), ("c", {"a": 2, "b": 2, "c": 2}):
        await fleet.start(name)
        await fleet.until_shared(**shares)
    leader = await fleet.until_led()
    await leader.leaves()  # it gives its own away, and then another leads
    fleet.nodes.remove(leader)
    await fleet.until_shared(**{node.worker_id: 3 for node in fleet.nodes})
    assert not leader.active()
    await fleet.until_led()


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_worker_that_is_cut_off_stops_at_its_fence_and_others_take_over(fleet: Fleet, victim: int) -> None:
    """The first is the leader."""
    nodes = [await fleet.start(name) for name in "abc"]
    await fleet.until_shared(a=2, b=2, c=2)
    cut = nodes[victim]
    cut.proxy.cut()
    cut_at = steady_clock()
    rest = {node.worker_id: 3 for node in nodes if node is not cut}
    await fleet.until_shared(**rest)
    assert not cut.active()
    assert cut.application.last_call_at < cut_at + TIMES.fence.serve_s
    cut.proxy.resume()
    await fleet.until_shared(a=2, b=2, c=2)


async def test_a_drained_worker_serves_until_the_next_is_prepared(fleet: Fleet) -> None:
    node, _ = [await fleet.start(name) for name in "ab"]
    await fleet.until_shared(a=3, b=3)
    bucket = NatsBucket(node.bus, names.wishes_bucket(fleet.store))
    revision = await write_wishes(bucket, KEY, Wishes(drains=frozenset("b")), PARTITIONS, last=0)
    assert revision is not None
    await fleet.until_shared(a=6)
    assert await write_wishes(bucket, KEY, Wishes(), PARTITIONS, last=0) is None, "another has written since"
    assert await write_wishes(bucket, KEY, Wishes(), PARTITIONS, last=revision)
    await fleet.until_shared(a=3, b=3)


async def test_wishes_that_can_not_be_read_leave_those_of_before_in_force(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    node, _ = [await fleet.start(name) for name in "ab"]
    await fleet.until_shared(a=3, b=3)
    bucket = NatsBucket(node.bus, names.wishes_bucket(fleet.store))
    revision = await write_wishes(bucket, KEY, Wishes(drains=frozenset("b")), PARTITIONS, last=0)
    await fleet.until_shared(a=6)
    revision = await bucket.put(names.wishes_key(KEY), b'{"drains": 1}', last=revision or 0)
    await fleet.court.until(lambda: "event=owners.wishes_unreadable" in caplog.text)
    await fleet.start("c")  # a new plan
    await fleet.until_shared(a=3, c=3)
    assert caplog.text.count("event=owners.wishes_unreadable") <= 3, "once a worker, not once a look"
    assert await write_wishes(bucket, KEY, Wishes(), PARTITIONS, last=revision)
    await fleet.until_shared(a=2, b=2, c=2)


async def test_a_store_without_the_bucket_of_wishes_gets_its_owners(
    fleet: Fleet, shared_nats: NatsServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for first: a leader that begins without the wishes would move what they want elsewhere."""
    monkeypatch.setattr("ringcast._coordination.sticky.wishes.PATIENCE_S", 0.5)
    client = await nats.connect(shared_nats.url)
    try:
        await client.jetstream().delete_stream(f"KV_{names.wishes_bucket(fleet.store)}")
    finally:
        await client.close()
    await fleet.start("a")
    await fleet.until_shared(a=6)
    assert caplog.text.count("event=owners.wishes_unknown") == 1


async def test_a_call_that_runs_keeps_its_partition_from_the_next_owner(fleet: Fleet) -> None:
    first = await fleet.start("a")
    await fleet.until_shared(a=6)
    first.application.hold = asyncio.Event()
    await fleet.court.until(lambda: len(fleet.court.running) == PARTITIONS)
    second = await fleet.start("b")
    await fleet.court.until(lambda: len(first.active()) == 3)
    assert not second.active()
    assert len(fleet.court.running) == PARTITIONS
    first.application.hold.set()
    first.application.hold = None
    await fleet.until_shared(a=3, b=3)


async def test_a_worker_that_gave_a_key_up_comes_back(fleet: Fleet) -> None:
    nodes = [await fleet.start(name) for name in "ab"]
    await fleet.until_shared(a=3, b=3)
    leader = await fleet.until_led()
    (other,) = [node for node in nodes if node is not leader]
    assert not leader.coordinator.withdraw(KEY)
    assert other.coordinator.withdraw(KEY)
    assert not other.active()
    await fleet.until_shared(**{leader.worker_id: 6})
    other.coordinator.come_back(KEY)
    await fleet.until_shared(a=3, b=3)


async def test_the_last_worker_leaves_without_waiting(fleet: Fleet) -> None:
    fleet.times = replace(TIMES, leader=replace(TIMES.leader, prepare_s=PATIENCE_S))
    node = await fleet.start("a")
    await fleet.until_shared(a=6)
    async with asyncio.timeout(PATIENCE_S):  # it would take longer if it waited for another to prepare
        await node.leaves()
    bucket = NatsBucket(node.bus, names.owners_bucket(fleet.store))
    session, state = (await bucket.get(names.session_key("a")), await bucket.get(names.state_key(KEY, "a")))
    assert session is not None
    assert session.value is None
    assert state is not None
    assert state.value is not None
    said = decode_state(state.value)
    assert (said.session, said.ended > 0) == (0, True)


async def test_a_second_process_of_a_worker_id_is_refused(fleet: Fleet) -> None:
    await fleet.start("a")
    await fleet.until_shared(a=6)
    second = await fleet.start("a", incarnation="other")
    with pytest.raises(InUseError, match=r"^worker id 'a' is in use by process 1 on host h$"):
        await asyncio.wait_for(second.task, PATIENCE_S)
    await fleet.until_shared(a=6)


async def test_a_process_that_is_started_again_takes_over_from_itself(fleet: Fleet) -> None:
    first = await fleet.start("a")
    await fleet.until_shared(a=6)
    first.proxy.cut()
    await end_task(first.task)
    fleet.nodes.remove(first)
    before = dict(fleet.court.owner)
    await fleet.start("a", incarnation="next")
    await fleet.court.until(lambda: all(fleet.court.owner[n][0] > before[n][0] for n in range(PARTITIONS)))


async def test_a_process_whose_session_another_has_taken_stops(fleet: Fleet) -> None:
    node = await fleet.start("a")
    await fleet.until_shared(a=6)
    config = WorkerConfig(store=fleet.store, keys=(KEY,), servers=(f"nats://127.0.0.1:{fleet.port}",))
    other = await fleet.stack.enter_async_context(connected(NatsBus.prepared, config, LOG))
    bucket = NatsBucket(other, names.owners_bucket(fleet.store))
    record = LeaseRecord(incarnation="x", host="h", pid=2, started_at_ms=1)
    await _write_over(bucket, names.session_key("a"), encode_record(record))
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(node.task, PATIENCE_S)
    assert caught.group_contains(InUseError)
    assert not node.active()
    assert node.coordinator.begin_call(KEY, 0) is None


async def _write_over(bucket: NatsBucket, name: str, value: bytes | None) -> int:
    """Writes over an entry (``None``: deletes it), though its worker may be faster now and then."""
    for _ in range(20):
        entry = await bucket.get(name)
        assert entry is not None
        with suppress(ConflictError):
            if value is not None:
                return await bucket.put(name, value, last=entry.revision)
            await bucket.delete(name, last=entry.revision)
            return 0
    raise AssertionError(f"{name} was never written over")


@pytest.mark.parametrize("wreck", [None, b"{", _POISON, _NEVER_TAKEN])
async def test_tokens_outlive_their_table(fleet: Fleet, wreck: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    nodes = [await fleet.start(name) for name in "ab"]
    await fleet.until_shared(a=3, b=3)
    before = dict(fleet.court.owner)
    bucket, name = NatsBucket(nodes[0].bus, names.owners_bucket(fleet.store)), names.table_key(KEY)
    await _write_over(bucket, name, wreck)
    await fleet.court.until(lambda: all(fleet.court.owner[n][0] > before[n][0] for n in range(PARTITIONS)))
    await fleet.until_shared(a=3, b=3)
    assert "event=owners.table_lost" in caplog.text


async def test_a_worker_that_does_not_prepare_is_passed_over(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet.times = replace(TIMES, leader=replace(TIMES.leader, prepare_s=0.3))
    leader = await fleet.start("a")
    await fleet.until_shared(a=6)
    lame = await fleet.start("b")
    lame.application.is_lame = True
    await fleet.court.until(lambda: lame.application.rows != set())
    await fleet.court.until(lambda: not lame.application.rows)
    await fleet.until_shared(a=6)
    assert "event=owners.passed_over" in caplog.text
    await fleet.court.until(lambda: leader.coordinator.report(KEY).passed_over == 1)
    assert "worker=b" in caplog.text


async def test_records_that_can_not_be_read_do_no_harm(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    node = await fleet.start("a")
    await fleet.until_shared(a=6)
    bucket = NatsBucket(node.bus, names.owners_bucket(fleet.store))
    await bucket.put(names.state_key(KEY, "bad"), b"{", last=0)
    await bucket.put(names.session_key("bad"), b"{", last=0)
    await fleet.start("b")
    await fleet.until_shared(a=3, b=3)
    assert "event=owners.record_unreadable record=list.state.bad" in caplog.text


async def test_a_bucket_that_was_created_again_ends_the_worker(fleet: Fleet, shared_nats: NatsServer) -> None:
    node = await fleet.start("a")
    await fleet.until_shared(a=6)
    client = await nats.connect(shared_nats.url)
    try:
        stream = f"KV_{names.owners_bucket(fleet.store)}"
        config = (await client.jetstream().stream_info(stream)).config
        await client.jetstream().delete_stream(stream)
        await client.jetstream().add_stream(config)
    finally:
        await client.close()
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(node.task, PATIENCE_S)
    assert caught.group_contains(MismatchError, match="was deleted and created again while worker 'a' ran")


async def test_a_worker_whose_answer_was_lost_goes_on_with_its_session(fleet: Fleet) -> None:
    """The server has a refresh that the worker does not know of: the next one is refused, and is no other's."""
    node = await fleet.start("a")
    await fleet.until_shared(a=6)
    bucket = NatsBucket(node.bus, names.owners_bucket(fleet.store))
    before = dict(fleet.court.owner)
    entry = await bucket.get(names.session_key("a"))
    assert entry is not None
    assert entry.value is not None
    unknown = await _write_over(bucket, names.session_key("a"), entry.value)
    await fleet.court.until(lambda: node.coordinator.revision > unknown)
    assert {n: token for n, (token, _) in fleet.court.owner.items()} == {n: token for n, (token, _) in before.items()}
    assert len(node.active()) == PARTITIONS


@pytest.mark.parametrize("value", [None, b"{"])
async def test_a_session_that_the_server_lost_is_over(fleet: Fleet, value: bytes | None) -> None:
    """Another process may have had the entry meanwhile: no session outlives that."""
    node = await fleet.start("a")
    await fleet.until_shared(a=6)
    before = dict(fleet.court.owner)
    bucket = NatsBucket(node.bus, names.owners_bucket(fleet.store))
    await _write_over(bucket, names.session_key("a"), value)
    await fleet.court.until(lambda: all(fleet.court.owner[n][0] > before[n][0] for n in range(PARTITIONS)))
    await fleet.until_shared(a=6)
