"""What a group makes of changes and consumers, without servers: its source is made here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Any, cast

import pytest
from ringcast import Change
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Delivery
from ringcast_heartbeat_agent.dispatch.group import GroupContext
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.errors import BehindError
from ringcast_testkit import PATIENCE_S, until
from ringcast_testkit.dispatch import OwnsAll

Make = Callable[..., KeySharedGroup]


class RegisteredWorker(OwnsAll):
    """A source that holds rows."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[str, Change] = {}

    def row_ids(self, partitions: Collection[int] | None = None) -> list[str]:
        return list(self.changes)

    def opened(self, change: Change) -> Change:
        return change

    def change_of(self, row_id: str) -> Change | None:
        return self.changes.get(row_id)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[KeySharedGroup] = []

    def make(policy: str = "drop", source: OwnsAll | None = None, **settings: Any) -> KeySharedGroup:
        around = GroupContext(Config(**settings), asyncio.create_task, cast(Any, None))
        made.append(KeySharedGroup(source or OwnsAll(), "g", around, policy))
        return made[-1]

    yield make
    for group in made:
        group.close()


def join(
    group: KeySharedGroup, name: str = "one", *filters: str, capacity: int = 0, session: str = ""
) -> ConsumerSession:
    consumer, resumed = group.join(name, filters, capacity=capacity, changes_only=True, session=session, api="stream")
    assert resumed == bool(session)
    return consumer


def put(
    group: KeySharedGroup, versions: Iterable[int], row_id: str = "a", value: str = "v", deleted: bool = False
) -> None:
    for version in versions:
        group.take(Change("s", "list", 0, row_id, None if deleted else value, version, deleted=deleted))


async def given(consumer: ConsumerSession, count: int) -> list[Delivery]:
    """The next deliveries of a consumer, so many of them."""
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        async for frame in consumer.frames():
            found += frame.deliveries
            if len(found) >= count:
                break
    assert len(found) == count
    return found


def ack(group: KeySharedGroup, consumer: ConsumerSession, deliveries: Sequence[Delivery]) -> None:
    group.answer(consumer, [each.offset for each in deliveries], [each.attempt for each in deliveries])


def kept(group: KeySharedGroup, consumer: ConsumerSession) -> int:
    """How many changes are kept for consumers that are away, while this one, which does nothing, stays."""
    group.seen(consumer)
    return cast(int, group.status()["kept"])


async def turns(count: int = 8) -> None:
    """Lets what is due at once happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_kills_its_consumer_is_poison_though_a_supervisor_is_quick(make: Make) -> None:
    """Another process under the same name does not go on where the one before it was."""
    group = make(max_deliveries=5, max_tries=3)
    put(group, [1], "killer")
    attempts = []
    for _ in range(5):
        consumer = join(group)
        (delivery,) = await given(consumer, 1)
        attempts.append(delivery.attempt)
        group.detach(consumer)
    consumer = join(group)
    put(group, [2], "killer")
    (delivery,) = await given(consumer, 1)
    assert attempts == [1, 2, 3, 4, 5]
    assert (delivery.change.version, delivery.attempt) == (2, 1)
    assert (group.counts()["dropped"], group.counts()["evicted"]) == (1, 5)


async def test_what_was_given_up_is_not_told_to_who_comes_later(make: Make) -> None:
    """Not the row as it was then; a newer change is."""
    source = RegisteredWorker()
    source.changes["killer"] = Change("s", "list", 0, "killer", "v", 1)
    group = make(source=source, max_deliveries=2, max_tries=2)
    for attempt in (1, 2):
        consumer, _ = group.join("one", (), capacity=0, changes_only=False, session="", api="stream")
        assert [each.attempt for each in await given(consumer, 1)] == [attempt]
        group.detach(consumer)
    consumer, _ = group.join("one", (), capacity=0, changes_only=False, session="", api="stream")
    other, _ = group.join("two", (), capacity=0, changes_only=False, session="", api="stream")
    await until(lambda: group.counts()["dropped"] and not group.figures().lag)
    await turns()
    assert (group.counts()["deliveries"], consumer.unsent, other.unsent) == (2, 0, 0)
    group.leave(other)
    put(group, [2], "killer")
    assert [each.change.version for each in await given(consumer, 1)] == [2]


async def test_the_same_session_goes_on_where_it_was(make: Make) -> None:
    group = make()
    put(group, [1])
    consumer = join(group)
    (before,) = await given(consumer, 1)
    group.detach(consumer)
    assert join(group, session=consumer.session) is consumer
    assert await given(consumer, 1) == [before]
    assert group.counts()["evicted"] == 0


async def test_of_a_row_that_waits_the_newest_change_is_delivered(make: Make) -> None:
    group = make(window=4)
    consumer = join(group, capacity=1)
    put(group, [1])
    (first,) = await given(consumer, 1)
    put(group, range(2, 100))
    put(group, range(100, 200), "b")  # not delivered: the consumer has no room
    assert group.figures().lag == 3
    ack(group, consumer, [first])
    for row_id, version in (("b", 199), ("a", 99)):
        (delivery,) = await given(consumer, 1)
        assert (delivery.change.row_id, delivery.change.version, delivery.attempt) == (row_id, version, 1)
        ack(group, consumer, [delivery])
    assert (group.figures().lag, group.counts()["coalesced"]) == (0, 97 + 99)


async def test_a_blocked_row_takes_one_place_of_the_window(make: Make) -> None:
    group = make("block", window=8, max_tries=1)
    consumer = join(group)
    put(group, [1], "hot")
    (hot,) = await given(consumer, 1)
    group.answer(consumer, [], [], [(hot.offset, 1, "no")])
    for number in range(100):
        put(group, [2 + number], "hot")
        put(group, [1], f"cold{number}")
        ack(group, consumer, await given(consumer, 1))
    assert (group.figures().blocked_rows, group.figures().lag, group.counts()["acked"]) == (1, 2, 100)
    assert group.resolve(["hot"], discard=True) == ["hot"]
    (newest,) = await given(consumer, 1)
    assert (newest.change.row_id, newest.change.version) == ("hot", 101)


@pytest.mark.parametrize(("limit", "fits"), [({"window": 4}, 4), ({"window_bytes": 1_000}, 8)])
async def test_what_a_window_has_no_room_for_waits_and_holds_nobody_up(
    make: Make, limit: dict[str, int], fits: int
) -> None:
    group = make(**limit)
    consumer = join(group)
    for number in range(fits + 2):
        put(group, [1, 2], f"row{number}", "1")
    first = await given(consumer, fits)
    assert [delivery.change.row_id for delivery in first] == [f"row{number}" for number in range(fits)]
    assert {delivery.change.version for delivery in first} == {2}
    assert (group.figures().lag, group.figures().behind) == (fits + 2, 2)
    put(group, [3], f"row{fits}", "1")
    ack(group, consumer, first[:1])
    (late,) = await given(consumer, 1)
    assert (late.change.row_id, late.change.version, late.offset) == (f"row{fits}", 3, fits + 1)


async def test_a_slow_consumer_does_not_take_the_window_from_the_others(make: Make) -> None:
    group = make(window=60)
    names = ("slow", "quick", "quicker")
    consumers = {name: join(group, name) for name in names}
    done: dict[str, set[str]] = {name: set() for name in names}

    async def work(name: str) -> None:
        async for frame in consumers[name].frames():
            done[name] |= {delivery.change.row_id for delivery in frame.deliveries}
            if name != "slow":
                ack(group, consumers[name], frame.deliveries)

    tasks = [asyncio.create_task(work(name)) for name in names]
    for number in range(3_000):
        put(group, [1], f"row{number}")
        if number % 100 == 0:
            await asyncio.sleep(0)
    # What is left is the slow one's, which has at most half of the window and its part of the other half.
    await until(
        lambda: (
            len(done["slow"]) == group.figures().in_flight > 0
            and len(done["quick"] | done["quicker"]) + group.figures().lag == 3_000
        )
    )
    assert 10 <= group.figures().in_flight <= 40
    assert group.figures().lag == group.figures().in_flight + group.figures().behind
    # It is evicted: the others get what it had, too.
    group.detach(consumers["slow"])
    group.leave(consumers["slow"])
    group.detach(consumers["slow"])
    await until(lambda: not group.figures().lag)
    assert len(done["quick"] | done["quicker"]) == 3_000
    for task in tasks:
        task.cancel()


async def test_what_a_consumer_with_filters_missed_while_it_was_away_is_kept_for_it(make: Make) -> None:
    """Changes and deletions, the newest of each row, also what it had not answered."""
    group = make(orphan_hold_s=0.05)
    pay, ship = join(group, "pay", "pay*"), join(group, "ship", "ship*")
    put(group, [1], "pay-0")
    await given(pay, 1)
    group.leave(pay)
    group.detach(pay)
    await until(lambda: kept(group, ship))
    put(group, [2, 3], "pay-1", deleted=True)
    put(group, [4], "pay-2")
    put(group, [5], "other")
    await turns()
    assert group.status()["kept"] == 3
    group.seen(ship)
    pay = join(group, "pay", "pay*")
    found = {each.change.row_id: (each.change.version, each.change.deleted) for each in await given(pay, 3)}
    assert found == {"pay-0": (1, False), "pay-1": (3, True), "pay-2": (4, False)}
    assert group.status()["kept"] == 0


async def test_what_is_kept_is_forgotten_after_a_while_and_versions_do_not_fall(make: Make) -> None:
    group = make(linger_s=2.0)
    ship = join(group, "ship", "ship*")
    for name in ("pay", "bill"):
        group.leave(join(group, name, f"{name}*"))
    put(group, [1], "pay-1")
    put(group, [1], "bill-1")
    await turns()
    assert group.status()["kept"] == 2
    everything = join(group, "everything", "*")
    assert {each.change.row_id for each in await given(everything, 2)} == {"pay-1", "bill-1"}
    group.detach(everything)
    group.leave(everything)
    group.detach(everything)
    put(group, [2], "pay-1")
    await until(lambda: not kept(group, ship))


async def test_rows_that_are_there_are_told_once_and_as_they_are(make: Make) -> None:
    source = RegisteredWorker()
    for number in range(3_000):
        source.changes[f"row{number}"] = Change("s", "list", 0, f"row{number}", "old", 1)
    group = make(window=16, source=source)
    consumer, _ = group.join("one", (), capacity=0, changes_only=False, session="", api="stream")
    first = await given(consumer, 9)
    put(group, [2], "row5", "new")
    source.changes["row7"] = Change("s", "list", 0, "row7", "new", 2)
    told = {delivery.change.row_id: delivery.change.value for delivery in first}
    ack(group, consumer, first)
    async with asyncio.timeout(PATIENCE_S):
        async for frame in consumer.frames():
            told |= {delivery.change.row_id: delivery.change.value for delivery in frame.deliveries}
            ack(group, consumer, frame.deliveries)
            if not group.figures().lag:
                break
    assert len(told) == 3_000
    assert told["row5"] == "new"
    assert group.counts()["offered"] - len(told) == ("row5" in {each.change.row_id for each in first})


async def test_a_group_that_is_too_far_behind_begins_anew(make: Make) -> None:
    group = make(window=2, max_behind=10)
    consumer = join(group)
    for number in range(12):
        put(group, [1], f"row{number}")
    await turns()
    assert (group.figures().behind, group.closed) == (10, False)
    put(group, [1], "one-more")
    await turns()
    assert group.closed
    assert isinstance(consumer.error, BehindError)
    assert str(consumer.error) == "group g of s/list is 11 rows behind: register again, and begin with the rows"
