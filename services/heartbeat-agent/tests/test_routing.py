"""Routing keys: what stays in order behind one another, and who gets it."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import grpc
import pytest
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast import Change
from ringcast.dispatch import Consumer, ConsumerError, Delivery
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.consumer_session import Delivery as Given
from ringcast_heartbeat_agent.dispatch.group import GroupContext
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.dispatch.routing import ByMetadata, routing_of
from ringcast_testkit import PATIENCE_S, AgentProcess
from ringcast_testkit.dispatch import OwnsAll, following, hold, status_until
from ringcast_wire import InvalidInputError, Row

Make = Callable[..., KeySharedGroup]
TENANTS = [f"tenant-{number}" for number in range(12)]


class RegisteredWorker(OwnsAll):
    """A source that holds rows."""

    def __init__(self, *rows: Row) -> None:
        super().__init__()
        self._rows = rows

    def rows(self) -> tuple[Row, ...]:
        return self._rows


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[KeySharedGroup] = []

    def make(setting: str, source: OwnsAll | None = None, policy: str = "drop", **settings: Any) -> KeySharedGroup:
        around = GroupContext(Config(**settings), asyncio.create_task, cast(Any, None))
        made.append(KeySharedGroup(source or OwnsAll(), "g", around, policy, routing_of(setting)))
        return made[-1]

    yield make
    for group in made:
        group.close()


def join(group: KeySharedGroup, *names: str, capacity: int = 0) -> dict[str, ConsumerSession]:
    made = {}
    for name in names:
        made[name], _ = group.join(name, (), capacity=capacity, changes_only=True, session="", api="stream")
    return made


def put(group: KeySharedGroup, row_id: str, version: int, **fields: str) -> None:
    group.take(Change("s", "list", 0, row_id, str(version), version, metadata=fields or None))


def delete(group: KeySharedGroup, row_id: str, version: int) -> None:
    group.take(Change("s", "list", 0, row_id, None, version, deleted=True))


async def given(consumers: dict[str, ConsumerSession], count: int) -> list[tuple[str, Given]]:
    """The next deliveries of all consumers, so many of them, each with whose it is."""
    found: list[tuple[str, Given]] = []

    async def take(name: str, consumer: ConsumerSession) -> None:
        async for frame in consumer.frames():
            found.extend((name, delivery) for delivery in frame.deliveries)
            if len(found) >= count:
                return

    async with asyncio.timeout(PATIENCE_S):
        tasks = [asyncio.create_task(take(name, consumer)) for name, consumer in consumers.items()]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for _ in range(8):
        await asyncio.sleep(0)
    assert len(found) == count
    assert not any(consumer.unsent for consumer in consumers.values())
    return found


def answer(group: KeySharedGroup, consumers: dict[str, ConsumerSession], found: list[tuple[str, Given]]) -> None:
    for name, delivery in found:
        group.answer(consumers[name], [delivery.offset], [delivery.attempt])


async def test_rows_of_a_routing_key_come_one_at_a_time_and_to_one_consumer(make: Make) -> None:
    group = make("prefix:/")
    consumers = join(group, "one", "two", "three")
    for number in range(3):
        for tenant in TENANTS:
            put(group, f"{tenant}/{number}", number + 1)
    owners: dict[str, set[str]] = defaultdict(set)
    for number in range(3):
        found = await given(consumers, len(TENANTS))
        assert {delivery.change.row_id for _, delivery in found} == {f"{tenant}/{number}" for tenant in TENANTS}
        for name, delivery in found:
            owners[delivery.change.row_id.partition("/")[0]].add(name)
        answer(group, consumers, found)
    assert all(len(names) == 1 for names in owners.values())
    assert set.union(*owners.values()) == {"one", "two", "three"}
    assert group.figures().lag == 0


async def test_a_deletion_goes_the_way_of_the_change_before_it(make: Make) -> None:
    """It carries no metadata; the rows that were there when the group began are known as well."""
    rows = [Row(f"old-{number}", "v", 1, metadata={"tenant": TENANTS[number]}) for number in range(12)]
    group = make("metadata:tenant", RegisteredWorker(*rows))
    consumers = join(group, "one", "two", "three")
    for number, tenant in enumerate(TENANTS):
        put(group, f"new-{number}", 2, tenant=tenant)
    owner = {}
    found = await given(consumers, len(TENANTS))
    for name, delivery in found:
        owner[(delivery.change.metadata or {})["tenant"]] = name
    answer(group, consumers, found)
    for number in range(12):
        delete(group, f"old-{number}", 3)
        delete(group, f"new-{number}", 4)
    for _ in range(2):
        found = await given(consumers, len(TENANTS))
        for name, delivery in found:
            assert delivery.change.deleted
            assert name == owner[TENANTS[int(delivery.change.row_id.partition("-")[2])]]
        answer(group, consumers, found)
    assert group.figures().lag == 0


async def test_a_row_without_the_field_goes_by_its_id(make: Make) -> None:
    by_field, by_row = make("metadata:tenant"), make("row")
    found = []
    for group in (by_field, by_row):
        consumers = join(group, "one", "two", "three")
        for number in range(20):
            put(group, f"r{number}", number + 1, **({"tenant": ""} if number % 2 else {}))
        found.append({delivery.change.row_id: name for name, delivery in await given(consumers, 20)})
    assert found[0] == found[1]


async def test_a_row_that_changes_its_routing_key_is_with_one_consumer_at_a_time(make: Make) -> None:
    group = make("metadata:tenant")
    consumers = join(group, "one", "two", "three", capacity=1)
    moved = set()
    for number, tenant in enumerate(TENANTS):
        put(group, "row", 2 * number + 1, tenant=tenant)
        ((name, delivery),) = found = await given(consumers, 1)
        assert delivery.change.version == 2 * number + 1
        put(group, "row", 2 * number + 2, tenant="another")  # it waits, however free the other consumer is
        for _ in range(8):
            await asyncio.sleep(0)
        assert not any(consumer.unsent for consumer in consumers.values())
        answer(group, consumers, found)
        ((other, delivery),) = found = await given(consumers, 1)
        assert delivery.change.version == 2 * number + 2
        moved.add(name == other)
        answer(group, consumers, found)
    assert moved == {True, False}


async def test_a_row_that_goes_to_and_fro_ends_with_its_newest_change(make: Make) -> None:
    group = make("metadata:tenant")
    consumers = join(group, "one", capacity=1)
    put(group, "before", 1, tenant="z")
    found = await given(consumers, 1)
    for version, tenant in ((2, "x"), (3, "y"), (4, "x")):
        put(group, "row", version, tenant=tenant)
        for _ in range(8):
            await asyncio.sleep(0)
    answer(group, consumers, found)
    ((_, delivery),) = found = await given(consumers, 1)
    assert delivery.change.version == 4
    answer(group, consumers, found)
    for _ in range(8):
        await asyncio.sleep(0)
    assert group.figures().lag == 0


async def test_nothing_overtakes_what_the_window_has_no_room_for(make: Make) -> None:
    group = make("prefix:/", window=2)
    consumers = join(group, "one")
    put(group, "x/0", 1)
    put(group, "y/0", 2)
    first = await given(consumers, 2)
    put(group, "t/0", 3)
    for _ in range(8):
        await asyncio.sleep(0)
    assert group.figures().behind == 1
    answer(group, consumers, first[:1])
    put(group, "t/1", 4)  # as there is room for one again
    for expected in ("t/0", "t/1"):
        ((_, delivery),) = found = await given(consumers, 1)
        assert delivery.change.row_id == expected
        answer(group, consumers, found)


async def test_a_routing_key_that_is_blocked_holds_up_no_other(make: Make) -> None:
    """However many of its rows change: it has one place in the window."""
    group = make("prefix:/", window=8, max_tries=1, policy="block")
    consumers = join(group, "one")
    put(group, "bad/0", 1)
    ((_, delivery),) = await given(consumers, 1)
    group.answer(consumers["one"], [], [], [(delivery.offset, delivery.attempt, "no")])
    for number in range(1, 100):
        put(group, f"bad/{number}", number + 1)
        put(group, f"good-{number}/x", 200 + number)
        ((_, delivery),) = found = await given(consumers, 1)
        assert delivery.change.row_id == f"good-{number}/x"
        answer(group, consumers, found)
    assert (group.figures().behind, group.figures().blocked_rows, len(list(group._feed.intake.messages))) == (99, 1, 1)
    assert group.resolve(None, discard=True) == ["bad/0"]
    for number in range(1, 100):
        ((_, delivery),) = found = await given(consumers, 1)
        assert delivery.change.row_id == f"bad/{number}"
        answer(group, consumers, found)
    assert (group.figures().lag, group.figures().behind) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_each_row_ends_with_its_newest_change(make: Make, seed: int) -> None:
    """Rows change, move between routing keys and go; consumers come, leave and answer, or don't."""
    draw = random.Random(seed)
    by_field = bool(seed % 2)
    tries = {"max_tries": 1_000, "max_deliveries": 1_000, "retry_first_s": 0.001, "retry_most_s": 0.001}
    group = make("metadata:t" if by_field else "prefix:/", window=draw.choice([2, 8, 64]), **tries)
    rows = [f"{tenant}/{number}" for tenant in "abc" for number in range(5)]
    newest: dict[str, int] = {}
    last: dict[str, int] = {}
    held: dict[tuple[str, int], tuple[ConsumerSession, Given, str]] = {}
    consumers: dict[str, ConsumerSession] = {}

    def look() -> None:
        for name, consumer in consumers.items():
            while consumer._outbox:
                for delivery in consumer._take():
                    row_id, version = delivery.change.row_id, delivery.change.version
                    assert version >= last.get(row_id, 0), "a row went back"
                    last[row_id] = version
                    key = group._feed.intake.messages[delivery.offset].key
                    assert key not in {each for _, _, each in held.values()}, "two of a routing key at once"
                    held[name, delivery.offset] = consumer, delivery, key

    async def step() -> None:
        await asyncio.sleep(0.002 if draw.random() < 0.1 else 0)
        look()

    for version in range(1, 400):
        match draw.choices(["put", "delete", "join", "leave", "answer", "reject"], [50, 5, 3, 2, 40, 5])[0]:
            case "put":
                row_id = draw.choice(rows)
                put(group, row_id, version, **({"t": draw.choice("xyz")} if by_field else {}))
                newest[row_id] = version
            case "delete":
                row_id = draw.choice(rows)
                delete(group, row_id, version)
                newest[row_id] = version
            case "join" if len(consumers) < 3:
                consumers |= join(group, f"c{version}", capacity=draw.choice([1, 3]))
            case "leave" if consumers:
                name = draw.choice(list(consumers))
                group.detach(consumers[name])
                group._evict(consumers.pop(name))
                for at in [at for at in held if at[0] == name]:
                    del held[at]
            case "answer" | "reject" as what if held:
                consumer, delivery, _ = held.pop(draw.choice(list(held)))
                if what == "answer":
                    group.answer(consumer, [delivery.offset], [delivery.attempt])
                else:
                    group.answer(consumer, [], [], [(delivery.offset, delivery.attempt, "no")])
        await step()
    consumers |= join(group, "end")
    async with asyncio.timeout(PATIENCE_S):
        while group.figures().lag:
            for name, offset in list(held):
                consumer, delivery, _ = held.pop((name, offset))
                group.answer(consumer, [delivery.offset], [delivery.attempt])
            for consumer in consumers.values():
                group.seen(consumer)
            await step()
    assert last == newest
    assert group.figures().behind == 0


async def test_of_rows_that_are_gone_nothing_is_remembered_for_ever(make: Make) -> None:
    group = make("metadata:tenant")
    consumers = join(group, "one")
    for version in range(1, 3_001):
        put(group, f"r{version}", version, tenant="t")
        answer(group, consumers, await given(consumers, 1))
    assert isinstance(group.routing, ByMetadata)
    assert len(group.routing._keys) <= 1_025


@pytest.mark.parametrize("setting", ["tenant", "prefix:", "metadata:", "field:x", f"prefix:{'x' * 513}", "ROW"])
def test_what_is_no_routing_key(setting: str) -> None:
    with pytest.raises(InvalidInputError, match=r"routing_key is '.*: it must be row, prefix:<separator> or metadata"):
        routing_of(setting)


async def test_consumers_of_a_real_agent(shared_agent: AgentProcess, writer: Any, store_name: str) -> None:
    """Each tenant's changes come in order to one consumer, who has one of them at a time."""
    await asyncio.to_thread(writer.create, store_name)
    in_hand: dict[str, Delivery] = {}
    order: dict[tuple[str, str], list[str]] = defaultdict(list)
    names = ("one", "two", "three")
    async with AsyncExitStack() as stack:

        async def follow(name: str) -> None:
            def take(delivery: Delivery) -> None:
                tenant = delivery.metadata["tenant"]
                assert tenant not in in_hand, "two changes of a tenant at once"
                in_hand[tenant] = delivery
                order[name, tenant].append(f"{delivery.row_id}={delivery.value}")
                asyncio.get_running_loop().call_soon(lambda: in_hand.pop(tenant).ack())

            await stack.enter_async_context(
                following(shared_agent, store_name, name, answer=take, routing_key="metadata:tenant")
            )

        for name in names:
            await follow(name)
        for number in range(4):
            for tenant in TENANTS:
                await asyncio.to_thread(writer.put, store_name, "list", f"{tenant}-{number}", "1", tenant=tenant)
        group = await status_until(shared_agent, store_name, lambda group: group["counts"]["acked"] == 4 * len(TENANTS))
        assert group["routing_key"] == "metadata:tenant"
        assert len(order) == len(TENANTS)
        assert {name for name, _ in order} == set(names)
        for (_, tenant), told in order.items():
            assert sorted(told) == [f"{tenant}-{number}=1" for number in range(4)]


async def test_who_disagrees_is_refused(shared_agent: AgentProcess, writer: Any, store_name: str) -> None:
    await asyncio.to_thread(writer.create, store_name)
    place: dict[str, Any] = {"store": store_name, "key": "list", "group": "g", "token": shared_agent.token}
    async with following(shared_agent, store_name, answer=hold, routing_key="prefix:/"):
        for setting, said in (("row", "row"), ("prefix:-", "prefix:-"), ("metadata:x", "metadata:x")):
            with pytest.raises(ConsumerError) as told:
                async with Consumer(shared_agent.grpc_address, name="two", routing_key=setting, **place):
                    pass
            assert told.value.code is grpc.StatusCode.FAILED_PRECONDITION
            assert str(told.value) == f"group g has the routing key prefix:/, not {said}"
        with pytest.raises(ConsumerError, match="routing_key is 'tenant': it must be row, prefix") as told:
            async with Consumer(shared_agent.grpc_address, name="two", routing_key="tenant", **place):
                pass
        assert told.value.code is grpc.StatusCode.INVALID_ARGUMENT
        async with following(shared_agent, store_name, "two", filters=["t*"], routing_key="prefix:/") as two:
            await asyncio.to_thread(writer.put, store_name, "list", "t/1", "1")
            await asyncio.to_thread(writer.put, store_name, "list", "x/1", "1")
            await status_until(shared_agent, store_name, lambda group: group["last"] == 2)
            assert {delivery.row_id for delivery in two.deliveries} <= {"t/1"}


async def test_subscribers_of_dapr_say_it_in_their_metadata(
    shared_agent: AgentProcess, writer: Any, store_name: str
) -> None:
    await asyncio.to_thread(writer.create, store_name)

    def ask(*keys: str, **metadata: str) -> Any:
        metadata = {f"ringcast.{name}": value for name, value in metadata.items()}
        return stub.SubscribeConfiguration(
            configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=keys, metadata=metadata)
        )

    async with following(shared_agent, store_name, answer=hold, routing_key="prefix:/"):
        with grpc.insecure_channel(shared_agent.grpc_address) as channel:
            stub = dapr_pb2_grpc.DaprStub(channel)

            def subscribe() -> None:
                with pytest.raises(grpc.RpcError, match="group g has the routing key prefix:/, not row"):
                    next(ask("list", group="g"))
                with pytest.raises(grpc.RpcError, match="keys names rows of list, and group g shares them out by p"):
                    next(ask("list/a", group="g", routing_key="prefix:/"))
                stream = ask("list", group="g", routing_key="prefix:/")
                assert next(stream).id
                stream.cancel()

            await asyncio.to_thread(subscribe)
