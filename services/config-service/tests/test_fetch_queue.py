"""Whose fetch is next, and that nobody's waits for all of another's."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.nats.fetch_queue import FetchLane, LaneLimits, Request, requester_of, weight_of
from ringcast_config_service.nats.fetch_server import FetchServer
from ringcast_config_service.repository import LargeAnswerError
from ringcast_config_service.telemetry import Telemetry
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_wire import ChunkAssembler, limits, names

WIDE = LaneLimits(hands=2, hands_each=2, bytes=1000, waiting=100, waiting_each=50)


def request(requester: str, number: int = 0, weight: int = 1) -> Request[int]:
    return Request(number, requester, weight, 0.0, 30.0)


def taken(lane: FetchLane[int]) -> list[tuple[str, int]]:
    """Everything that waits, one after the other."""
    found = []
    while (next_one := lane.take()) is not None:
        found.append((next_one.requester, next_one.message))
        lane.done(next_one)
    return found


def test_requesters_take_turns() -> None:
    lane: FetchLane[int] = FetchLane(WIDE)
    for requester, count in (("a", 4), ("b", 2), ("c", 1)):
        for number in range(count):
            assert lane.add(request(requester, number))
    order = [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("a", 2), ("a", 3)]
    assert taken(lane) == order
    assert lane.is_idle


def test_one_requester_has_not_all_hands_and_not_all_places() -> None:
    lane: FetchLane[int] = FetchLane(LaneLimits(hands=3, hands_each=2, bytes=1000, waiting=5, waiting_each=4))
    assert [lane.add(request("a", number)) for number in range(5)] == [True] * 4 + [False]
    begun = [lane.take(), lane.take()]
    assert lane.take() is None
    assert lane.add(request("b"))
    last = lane.take()
    assert last is not None
    assert last.requester == "b"
    assert begun[0] is not None
    lane.done(begun[0])
    assert lane.take() is not None


def test_a_large_answer_without_room_lets_small_ones_pass() -> None:
    lane: FetchLane[int] = FetchLane(LaneLimits(hands=9, hands_each=9, bytes=100, waiting=50, waiting_each=50))
    first = request("a", 0, 80)
    for one in (first, request("a", 1, 80), request("b", 2, 10)):
        lane.add(one)
    assert lane.take() is first
    small = lane.take()
    assert small is not None
    assert small.message == 2
    assert lane.take() is None
    lane.weigh(first, 5)  # what was read is smaller than it might have been
    assert lane.take() is not None


def test_one_answer_goes_however_large_it_is() -> None:
    lane: FetchLane[int] = FetchLane(LaneLimits(hands=9, hands_each=9, bytes=100, waiting=50, waiting_each=50))
    lane.add(request("a", 0, 1_000))
    assert lane.take() is not None


@pytest.mark.parametrize(
    ("reply", "headers", "requester"),
    [
        ("_INBOX_worker-1.abc.7", None, "_INBOX_worker-1"),
        ("_INBOX.abc.def.1", None, "_INBOX.abc"),
        ("_R_.abc.def", {names.HEADER_CLIENT: '{"acc":"WORKERS","user":"worker-1"}'}, "user worker-1"),
        ("_R_.abc.def", {names.HEADER_CLIENT: "{"}, "user "),
        ("_R_.abc.def", None, "user "),
        ("_INBOX_worker-1.abc", {names.HEADER_CLIENT: '{"user":"somebody"}'}, "_INBOX_worker-1"),
    ],
)
def test_who_asks(reply: str, headers: dict[str, str] | None, requester: str) -> None:
    assert requester_of(reply, headers) == requester


def test_what_an_answer_may_weigh() -> None:
    weights = [weight_of(what) for what in (names.FETCH_HEADS, names.FETCH_BATCH, "7", names.FETCH_FULL)]
    assert weights == sorted(weights)
    assert weights[-1] == limits.MAX_REPLY_BYTES


# --- Over a real bus --------------------------------------------------------------------------------------------------


class SlowHandlers(Handlers):
    """Answers of a set size; whole keys only once they may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked: list[str] = []
        self.size = 10

    async def fetch(self, subject: str, payload: bytes, most_bytes: int = sys.maxsize) -> bytes:
        self.asked.append(subject)
        if subject.endswith((".full", ".1")):
            await self.may.wait()
        return b"x" * self.size


class Serving:
    def __init__(self, nc: Any, handlers: SlowHandlers, server: FetchServer, telemetry: Telemetry) -> None:
        self.nc = nc
        self.handlers = handlers
        self.server = server
        self.fetches = telemetry.measures.fetches

    async def ask(self, what: str, headers: dict[str, str] | None = None) -> bytes:
        reply = await self.nc.request(
            names.fetch_subject("s", "k", what), b"", timeout=PATIENCE_S, headers=headers or {"x": "y"}
        )
        return bytes(reply.data)

    async def reachable(self) -> None:
        """Returns when the broker passes requests of this connection on: it may take a moment to know of the other."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.ask("heads")
                except NoRespondersError:
                    await asyncio.sleep(0.01)
                else:
                    self.handlers.asked.clear()
                    return

    async def counted(self, kind: str, outcome: str, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.fetches[kind, outcome] < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture
async def serving(tmp_path: Any) -> Any:

    with NatsServer(tmp_path) as running:
        own, nc = await nats.connect(running.url), await nats.connect(running.url)
        handlers, telemetry = SlowHandlers(), Telemetry()
        server = FetchServer(own, handlers, at_once=4, waiting=400, telemetry=telemetry)
        task = asyncio.create_task(server.run())
        await server.start()
        serving = Serving(nc, handlers, server, telemetry)
        await serving.reachable()
        yield serving
        handlers.may.set()
        await asyncio.wait_for(server.drain(), PATIENCE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await own.close()
        await nc.close()


async def test_a_server_that_ends_begins_nothing_that_waits(serving: Any) -> None:
    """Cancelling it ends in a cancellation, whatever waits for the hand of a fetch that ends."""
    inbox, handlers = serving.nc.new_inbox(), SlowHandlers()
    server = FetchServer(serving.nc, handlers, at_once=1, waiting=8, telemetry=Telemetry())
    task = asyncio.create_task(server.run())
    for number in range(2):
        what = names.fetch_subject("s", "k", 1)
        await server._take(Msg(serving.nc, what, f"{inbox}.{number}", b"", {}))
    async with asyncio.timeout(PATIENCE_S):
        while not handlers.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert server.waiting == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(handlers.asked) == 1


async def test_whole_keys_keep_no_small_fetch_waiting(serving: Any) -> None:
    inbox = serving.nc.new_inbox()
    patient = {names.HEADER_PATIENCE: "30000"}  # longer than a loaded machine takes: none is to be given up
    for number in range(40):
        await serving.nc.publish(names.fetch_subject("s", "k", "full"), b"", reply=f"{inbox}.{number}", headers=patient)
    for what in ("heads", "0", "batch"):
        assert await serving.ask(what) == b"x" * 10
    assert serving.server.waiting >= 36


async def test_one_requester_keeps_no_other_waiting(serving: Any) -> None:
    for number in range(50):  # each takes a hand until it may go on
        await serving.nc.publish(names.fetch_subject("s", "k", 1), b"", reply=f"_INBOX_hostile.{number}")
    assert await serving.ask("0") == b"x" * 10


async def test_what_nobody_waits_for_any_more_is_not_read(serving: Any) -> None:
    inbox = serving.nc.new_inbox()
    full = names.fetch_subject("s", "k", "full")
    for number in range(5):  # one of a requester at a time
        await serving.nc.publish(full, b"", reply=f"{inbox}.{number}", headers={names.HEADER_PATIENCE: "1"})
    await serving.nc.flush()
    await serving.ask("heads")
    await asyncio.sleep(0.01)  # longer than they have patience
    serving.handlers.may.set()
    await serving.counted("full", "abandoned", 4)
    assert serving.handlers.asked.count(full) <= 1


async def test_a_large_answer_that_nobody_takes_is_not_sent(serving: Any) -> None:
    serving.handlers.size = 5 * limits.MIB
    await serving.nc.publish(names.fetch_subject("s", "k", "0"), b"", reply=serving.nc.new_inbox())
    await serving.counted("partition", "abandoned", 1)


async def test_a_large_answer_arrives_whole(serving: Any) -> None:
    serving.handlers.size = 5 * limits.MIB
    inbox, assembler, body = serving.nc.new_inbox(), ChunkAssembler(), None
    subscription = await serving.nc.subscribe(inbox)
    await serving.nc.publish(names.fetch_subject("s", "k", "0"), b"", reply=inbox)
    while body is None:
        msg = await subscription.next_msg(timeout=PATIENCE_S)
        body = assembler.add(msg.headers[names.HEADER_CHUNK], msg.data)
    assert body == b"x" * serving.handlers.size
    await serving.counted("partition", "ok", 1)


async def test_a_cancelled_fetch_is_not_read_and_one_under_way_is_not_sent(serving: Any) -> None:
    full, inbox = names.fetch_subject("s", "k", "full"), serving.nc.new_inbox()
    subscription = await serving.nc.subscribe(f"{inbox}.*")
    for number in range(3):  # one of a requester at a time
        headers = {names.HEADER_FETCH_ID: f"{inbox}.{number}", names.HEADER_PATIENCE: "30000"}
        await serving.nc.publish(full, b"", reply=f"{inbox}.{number}", headers=headers)
    await serving.ask("heads")
    assert serving.handlers.asked.count(full) == 1
    cancel = names.fetch_subject("s", "k", names.FETCH_CANCEL)
    for fetch_id in (f"{inbox}.0", f"{inbox}.1", "unknown", "x" * 10_000, "\udcff"):
        await serving.nc.publish(cancel, fetch_id.encode(errors="surrogateescape"))
    await serving.ask("heads")
    serving.handlers.may.set()
    await serving.counted("full", "ok", 1)
    assert serving.fetches["full", "abandoned"] == 2
    assert serving.handlers.asked.count(full) == 2
    assert (await subscription.next_msg(timeout=PATIENCE_S)).subject == f"{inbox}.2"


async def test_a_cancelled_answer_of_many_chunks_stops(serving: Any) -> None:
    serving.handlers.size = 60 * limits.MIB
    inbox = serving.nc.new_inbox()
    subscription = await serving.nc.subscribe(inbox, pending_bytes_limit=-1)
    headers = {names.HEADER_FETCH_ID: inbox}
    await serving.nc.publish(names.fetch_subject("s", "k", "0"), b"", reply=inbox, headers=headers)
    await subscription.next_msg(timeout=PATIENCE_S)
    await serving.nc.publish(names.fetch_subject("s", "k", names.FETCH_CANCEL), inbox.encode())
    await serving.counted("partition", "abandoned", 1)


class LargeHandlers(SlowHandlers):
    """Partitions as large as their number says in MiB; those that are read wait until they may end."""

    def __init__(self) -> None:
        super().__init__()
        self.reading: list[str] = []
        self.may.clear()

    async def fetch(self, subject: str, payload: bytes, most_bytes: int = sys.maxsize) -> bytes:
        self.asked.append(subject)
        what = subject.rpartition(".")[2]
        if what.isdigit() and int(what):
            if (size := int(what) * limits.MIB) > most_bytes:
                raise LargeAnswerError(size)
            self.reading.append(what)
            await self.may.wait()
        return b"x" * 10


@pytest.fixture
async def large(serving: Any) -> Any:
    """The same server, with partitions of any size."""
    serving.handlers = serving.server._handlers = LargeHandlers()
    yield serving
    serving.handlers.may.set()


async def asked(serving: Any, what: int, requester: str) -> None:
    """Sends a fetch and waits until the server has tried to read it."""
    before = len(serving.handlers.asked)
    await serving.nc.publish(
        names.fetch_subject("s", "k", what),
        b"",
        reply=f"_INBOX_{requester}.1",
        headers={names.HEADER_FETCH_ID: requester, names.HEADER_PATIENCE: "30000"},
    )
    async with asyncio.timeout(PATIENCE_S):
        while len(serving.handlers.asked) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await serving.ask("heads")


async def test_large_partitions_are_read_apart_and_few_at_once(large: Any) -> None:
    """Once their size is known they wait among themselves, so that small fetches have all hands."""
    for number in range(12):
        await asked(large, 3, f"w{number}")
    assert large.handlers.reading == ["3", "3"]
    assert large.server.waiting == 10
    for what in ("0", "batch", "heads"):
        assert await large.ask(what) == b"x" * 10
    large.handlers.may.set()
    await large.counted("partition", "ok", 13)
    assert large.handlers.reading == ["3"] * 12
    assert sum(count for (kind, _), count in large.fetches.items() if kind == "partition") == 13


async def test_what_large_partitions_take_in_memory_is_bounded(large: Any) -> None:
    await asked(large, 40, "a")
    await asked(large, 40, "b")  # 80 MiB in all
    await asked(large, 5, "c")
    assert large.handlers.reading == ["40", "5"]
    large.handlers.may.set()
    await large.counted("partition", "ok", 3)


async def test_an_answer_that_is_larger_than_any_is_read_alone(large: Any) -> None:
    await asked(large, 80, "a")
    await asked(large, 3, "b")
    assert large.handlers.reading == ["80"]
    large.handlers.may.set()
    await large.counted("partition", "ok", 2)


async def test_a_large_fetch_that_waits_can_be_cancelled(large: Any) -> None:
    for requester in ("a", "b", "c"):
        await asked(large, 3, requester)
    await large.nc.publish(names.fetch_subject("s", "k", names.FETCH_CANCEL), b"c")
    await large.ask("heads")
    large.handlers.may.set()
    await large.counted("partition", "abandoned", 1)
    await large.counted("partition", "ok", 2)
    assert large.handlers.reading == ["3", "3"]


async def test_more_large_fetches_of_a_requester_than_can_wait(large: Any) -> None:
    """They get the error to try again; a quarter of the places may be one requester's."""
    large.server._large.limits.waiting_each = 2
    subscription = await large.nc.subscribe("_INBOX_a.1")
    for _ in range(4):
        await asked(large, 3, "a")
    refusal = await subscription.next_msg(timeout=PATIENCE_S)
    assert refusal.data == b"2 fetches of large partitions wait already: try again later"
    assert refusal.headers[names.HEADER_ERROR] == "UNAVAILABLE"
    large.handlers.may.set()
    await large.counted("partition", "ok", 3)
    await large.counted("partition", "UNAVAILABLE", 1)
