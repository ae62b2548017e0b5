"""Dead letters through the API of a running instance: pages, filters, what can't be read, removal, NATS away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_testkit.refusals import refused
from ringcast_wire import (
    DeadLetter,
    ErrorCode,
    ReplayAnswer,
    ReplayOutcome,
    ReplayRequest,
    decode_replay_request,
    encode_replay,
    names,
)
from ringcast_wire.grpc import pb

Running = Any  # of conftest.py
PARTITIONS = 4


def letter(store: str, row_id: str, key: str = "k", **fields: Any) -> DeadLetter:
    """A dead letter as workers and agents write it."""
    return DeadLetter(
        **{
            "store": store,
            "key": key,
            "partition": row_partition(row_id, PARTITIONS),
            "row_id": row_id,
            "version": 3,
            "value": f"value of {row_id}",
            "deleted": False,
            "metadata": {"by": "desk"},
            "error": "ValueError('no')",
            "worker_id": "w-0",
            "tries": 2,
            "at_ms": 1,
            **fields,
        }
    )


async def leave(service: Running, *letters: DeadLetter) -> None:
    """Leaves dead letters one after the other: they are numbered so."""
    js = service.nc.jetstream()
    for each in letters:
        await js.publish(names.dead_subject(each.store, each.key, each.partition), msgspec.json.encode(each))


async def page(service: Running, store: str, **words: Any) -> tuple[list[int], int]:
    reply = await service.stub.ListDeadLetters(pb.ListDeadLettersRequest(store=store, **words))
    return [each.number for each in reply.dead_letters], reply.next


async def everything(service: Running, store: str, **words: Any) -> list[int]:
    """All numbers, page after page."""
    found, after = await page(service, store, **words)
    while after:
        more, after = await page(service, store, after=after, **words)
        found += more
    return found


async def replayed(service: Running, store: str, *numbers: int, patience_ms: int = 500) -> list[pb.ReplayedDeadLetter]:
    request = pb.ReplayDeadLettersRequest(store=store, numbers=numbers, patience_ms=patience_ms)
    found = [each async for reply in service.stub.ReplayDeadLetters(request) for each in reply.replayed]
    return sorted(found, key=lambda each: each.number)


async def test_a_dead_letter_is_listed_with_all_that_is_known(service: Running, store_name: str) -> None:
    await service.create(store_name, PARTITIONS)
    assert await page(service, store_name) == ([], 0)
    await leave(
        service, letter(store_name, "a"), letter(store_name, "b", group="g", deleted=True, value=None, replays=4)
    )
    reply = await service.stub.ListDeadLetters(pb.ListDeadLettersRequest(store=store_name, oldest_first=True))
    first, second = reply.dead_letters
    assert (first.number, first.key, first.row_id, first.version) == (1, "k", "a", 3)
    assert first.partition == row_partition("a", PARTITIONS)
    assert (first.error, first.worker_id, first.group, first.tries, first.replays) == (
        "ValueError('no')",
        "w-0",
        "",
        2,
        0,
    )
    assert not first.HasField("value")
    assert not first.metadata
    assert first.came_at_ms > 1_700_000_000_000
    assert (second.group, second.deleted, second.replays) == ("g", True, 4)
    reply = await service.stub.ListDeadLetters(pb.ListDeadLettersRequest(store=store_name, with_values=True))
    second, first = reply.dead_letters
    assert (first.value, dict(first.metadata), second.HasField("value")) == ("value of a", {"by": "desk"}, False)
    assert service.app._telemetry.measures.dead_letters[store_name, "listed"] == 4


async def test_pages_in_both_directions_miss_nothing(service: Running, store_name: str) -> None:
    await service.create(store_name, PARTITIONS)
    await leave(service, *(letter(store_name, f"r{number}", "ab"[number % 2]) for number in range(40)))
    js = service.nc.jetstream()
    for number in (2, 7, 8, 9, 39, 40):  # gaps, at the end too
        await js.delete_msg(names.dead_stream(store_name), number)
    there = [number for number in range(1, 39) if number not in (2, 7, 8, 9)]
    for limit in (1, 3, 100):
        assert await everything(service, store_name, limit=limit, oldest_first=True) == there
        assert await everything(service, store_name, limit=limit) == there[::-1]
    odd = [number for number in there if number % 2]
    assert await everything(service, store_name, limit=5, key="a") == odd[::-1]
    assert await everything(service, store_name, limit=5, key="a", oldest_first=True) == odd
    assert (await page(service, store_name, limit=2))[0] == [38, 37]


async def test_what_chooses(service: Running, store_name: str) -> None:
    await service.create(store_name, PARTITIONS)
    await leave(
        service,
        letter(store_name, "a"),
        letter(store_name, "b", group="mail"),
        letter(store_name, "a", "other", worker_id="w-1"),
        letter(store_name, "a"),
    )
    assert await everything(service, store_name, key="k", row_id="a") == [4, 1]
    assert await everything(service, store_name, group="mail") == [2]
    assert await everything(service, store_name, worker_id="w-1") == [3]
    partition = row_partition("b", PARTITIONS)
    assert 2 in await everything(service, store_name, partition=partition)
    assert await everything(service, store_name, partition=(partition + 1) % PARTITIONS, group="mail") == []
    reply = await service.stub.ListDeadLetters(pb.ListDeadLettersRequest(store=store_name, oldest_first=True))
    came = [each.came_at_ms for each in reply.dead_letters]
    assert await everything(service, store_name, since_ms=came[2]) == [
        n + 1 for n in (3, 2, 1, 0) if came[n] >= came[2]
    ]
    assert await everything(service, store_name, since_ms=came[3] + 1) == []
    assert await everything(service, store_name, since_ms=came[3] + 1, oldest_first=True) == []


async def test_what_is_no_dead_letter_is_told_and_chosen_by_nothing_in_it(service: Running, store_name: str) -> None:
    await service.create(store_name, PARTITIONS)
    js = service.nc.jetstream()
    home = row_partition("a", PARTITIONS)
    elsewhere = names.dead_subject(store_name, "k", (home + 1) % PARTITIONS)
    hostile = [
        (names.dead_subject(store_name, "k", home), b"no json"),
        (names.dead_subject(store_name, "k", home), b"[" * 100_000),
        (names.dead_subject(store_name, "k", home), b'{"row_id": "a"}'),
        (elsewhere, msgspec.json.encode(letter(store_name, "a"))),
        (names.dead_subject(store_name, "x", home), msgspec.json.encode(letter(store_name, "a"))),
        (names.dead_subject(store_name, "k", home), msgspec.json.encode(letter(store_name, "a", tries=2**40))),
        (names.dead_subject(store_name, "k", home), msgspec.json.encode(letter(store_name, "a", version=-1))),
    ]
    for subject, body in hostile:
        await js.publish(subject, body)
    await leave(service, letter(store_name, "a", error="e" * 100_000, worker_id="w" * 5_000))
    reply = await service.stub.ListDeadLetters(pb.ListDeadLettersRequest(store=store_name, oldest_first=True))
    *damaged, fine = reply.dead_letters
    assert [each.number for each in damaged] == [1, 2, 3, 4, 5, 6, 7]
    assert all(each.unreadable and not each.row_id for each in damaged)
    assert "which is not in partition" in damaged[3].unreadable
    assert (len(fine.error), len(fine.worker_id), fine.unreadable) == (4_096, 64, "")
    assert await everything(service, store_name, key="k", row_id="a") == [8]


async def test_large_ones_come_in_several_pages(service: Running, store_name: str) -> None:
    await service.create(store_name, PARTITIONS)
    await leave(service, *(letter(store_name, f"r{number}", value="x" * 900_000) for number in range(5)))
    assert await page(service, store_name) == ([5, 4, 3, 2, 1], 0)
    numbers, after = await page(service, store_name, with_values=True)
    assert 1 <= len(numbers) <= 2
    assert after
    assert await everything(service, store_name, with_values=True) == [5, 4, 3, 2, 1]
    assert await everything(service, store_name, with_values=True, oldest_first=True) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("words", "field", "sentence"),
    [
        ({"store": "a.b"}, "store", "is not a valid name"),
        ({"key": "a b"}, "key", "is not a valid name"),
        ({"group": ">"}, "group", "is not a valid name"),
        ({"worker_id": "*"}, "worker_id", "is not a valid name"),
        ({"partition": 4}, "partition", "the store has partitions 0 to 3"),
        ({"row_id": "a"}, "key", "row_id is given without a key"),
        ({"key": "k", "row_id": "x" * 513}, "row_id", "1 to 512 bytes"),
        (
            {"key": "k", "row_id": "a", "partition": (row_partition("a", 4) + 1) % 4},
            "partition",
            "does not hold the row",
        ),
        ({"limit": 1_001}, "limit", "1 to 1000 dead letters"),
        ({"since_ms": -1}, "since_ms", "is below 0"),
    ],
)
async def test_what_is_refused(service: Running, store_name: str, words: Any, field: str, sentence: str) -> None:
    await service.create(store_name, PARTITIONS)
    request = pb.ListDeadLettersRequest(**{"store": store_name, **words})
    code, found, said = await refused(service.stub.ListDeadLetters(request))
    assert (code, found) == (ErrorCode.INVALID_INPUT, field)
    assert sentence in said


async def test_discarding_says_how_many_were_there(service: Running, store_name: str) -> None:
    await service.create(store_name, PARTITIONS)
    await leave(service, *(letter(store_name, f"r{number}") for number in range(6)))
    discard = service.stub.DiscardDeadLetters

    async def discarded(*numbers: int) -> int:
        reply = await discard(pb.DiscardDeadLettersRequest(store=store_name, numbers=numbers))
        return int(reply.discarded)

    assert await discarded(2, 2, 5, 99) == 2
    assert await everything(service, store_name) == [6, 4, 3, 1]
    both = await asyncio.gather(discarded(1, 3, 4), discarded(1, 3, 4))  # two operators at once
    assert sum(both) == 3
    assert await everything(service, store_name) == [6]
    assert [await discarded(6), await discarded(6), await discarded(5), await discarded(7)] == [1, 0, 0, 0]
    assert await everything(service, store_name) == []
    assert service.app._telemetry.measures.dead_letters[store_name, "discarded"] == 6
    for numbers in ([], [0], [2**63], range(1, 1_002)):
        code, field, _ = await refused(discard(pb.DiscardDeadLettersRequest(store=store_name, numbers=numbers)))
        assert (code, field) == (ErrorCode.INVALID_INPUT, "numbers")
    for call in (
        service.stub.ListDeadLetters(pb.ListDeadLettersRequest(store="none")),
        discard(pb.DiscardDeadLettersRequest(store="none", numbers=[1])),
    ):
        assert (await refused(call))[0] is ErrorCode.UNKNOWN_STORE


async def test_without_nats_they_are_unavailable_with_a_sentence(
    start: Any, nats_server: NatsServer, tmp_path: Path, store_name: str
) -> None:
    async with start(nats_server.url, f"sqlite:{tmp_path / 'x.db'}") as service:
        await service.create(store_name, PARTITIONS)
        await leave(service, letter(store_name, "a"))
        await service.nc.jetstream().delete_stream(names.dead_stream(store_name))
        code, _, said = await refused(service.stub.ListDeadLetters(pb.ListDeadLettersRequest(store=store_name)))
        assert (code, "has no stream of dead letters on NATS yet" in said) == (ErrorCode.UNAVAILABLE, True)
        await asyncio.to_thread(nats_server.kill)
        calls: list[tuple[Any, Any]] = [
            (service.stub.ListDeadLetters, pb.ListDeadLettersRequest(store=store_name)),
            (service.stub.DiscardDeadLetters, pb.DiscardDeadLettersRequest(store=store_name, numbers=[1])),
            (replayed, (service, store_name, 1)),
        ]
        for method, request in calls:
            async with asyncio.timeout(PATIENCE_S):
                code, _, said = await refused(method(*request) if method is replayed else method(request))
            assert code is ErrorCode.UNAVAILABLE
            assert "NATS" in said
            assert "later" in said


async def heard(service: Running, store: str) -> asyncio.Queue[Any]:
    """The requests to replay rows of key k."""
    requests: asyncio.Queue[Any] = asyncio.Queue()

    async def take(msg: Any) -> None:
        requests.put_nowait(decode_replay_request(msg.data))

    await service.nc.subscribe(names.replay_subject(store, "k"), cb=take)
    await service.nc.flush()
    return requests


async def say(service: Running, store: str, worker_id: str, body: bytes, key: str = "k") -> None:
    await service.nc.publish(names.replayed_subject(store, key, worker_id), body)


def answer(request: Any, outcome: ReplayOutcome, **fields: Any) -> bytes:
    return encode_replay(ReplayAnswer(1, request.id, outcome, **fields))


async def test_what_is_asked_of_the_owner(service: Running, store_name: str) -> None:
    """Dead letters of one row and owner are asked for once, with the highest count, and the head of the partition."""
    await service.create(store_name, PARTITIONS)
    for value in ("1", "2"):
        await service.put(store_name, "a", value)
    await leave(
        service,
        letter(store_name, "a", replays=1),
        letter(store_name, "a", replays=5, worker_id="w-1"),
        letter(store_name, "a", group="g"),
    )
    requests = await heard(service, store_name)
    replaying = asyncio.create_task(replayed(service, store_name, 1, 2, 3))
    both = sorted([await requests.get(), await requests.get()], key=lambda request: str(request.group))
    assert [(each.group, each.replays, each.worker_id, each.revision) for each in both] == [
        ("", 5, "", 2),
        ("g", 0, "", 2),
    ]
    assert both[0].partition == row_partition("a", PARTITIONS)
    for each in both:
        await say(service, store_name, "w-9", answer(each, ReplayOutcome.ACCEPTED))
    await say(service, store_name, "w-9", answer(both[0], ReplayOutcome.HANDLED, version=2))
    await say(service, store_name, "w-9", answer(both[1], ReplayOutcome.KEPT, why="no"))
    results = await replaying
    handled, kept = pb.REPLAYED_HANDLED, pb.REPLAYED_KEPT
    assert [(each.number, each.outcome) for each in results] == [(1, handled), (2, handled), (3, kept)]
    assert (results[0].version, results[0].worker_id, results[2].why) == (2, "w-9", "no")
    assert await everything(service, store_name) == [3]
    counts = service.app._telemetry.measures.dead_letters
    assert (counts[store_name, "replayed"], counts[store_name, "kept"]) == (2, 1)


async def test_whoever_waits_long_gives_the_owner_time(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that has much to do it takes seconds until it says that it is there."""
    monkeypatch.setattr("ringcast_config_service.nats.replays._ACCEPT_TIMEOUT_S", 0.05)
    await service.create(store_name, PARTITIONS)
    await service.put(store_name, "a")
    await leave(service, letter(store_name, "a"))
    requests = await heard(service, store_name)
    replaying = asyncio.create_task(replayed(service, store_name, 1, patience_ms=60_000))
    request = await requests.get()
    await asyncio.sleep(0.3)
    await say(service, store_name, "w-0", answer(request, ReplayOutcome.ACCEPTED))
    await say(service, store_name, "w-0", answer(request, ReplayOutcome.HANDLED))
    (result,) = await replaying
    assert result.outcome == pb.REPLAYED_HANDLED


async def test_no_answer_but_the_owner_s_last_removes_a_dead_letter(service: Running, store_name: str) -> None:
    await service.create(store_name, PARTITIONS)
    await service.put(store_name, "a")
    await leave(service, letter(store_name, "a", observer=True))
    requests = await heard(service, store_name)
    replaying = asyncio.create_task(replayed(service, store_name, 1, patience_ms=1))
    request = await requests.get()
    assert request.worker_id == "w-0"
    done = answer(request, ReplayOutcome.HANDLED)
    await say(service, store_name, "w-1", done)  # it is not the one that is meant
    await say(service, store_name, "w-0", done, "other")
    await say(service, store_name, "w-0", b"\xc1")
    await say(service, store_name, "w-0", answer(request, ReplayOutcome.ACCEPTED)[:-1])
    unknown = ReplayRequest(1, "0" * 32, 0, "a", 0, "", "", "", 0, 0)
    await say(service, store_name, "w-0", answer(unknown, ReplayOutcome.HANDLED))
    for _ in range(100):  # a flood is not kept
        await say(service, store_name, "w-0", answer(request, ReplayOutcome.ACCEPTED))
    (result,) = await replaying
    assert result.outcome == pb.REPLAYED_KEPT
    assert result.why == "worker w-0 has not finished within 0.001 s: it is kept"
    assert await everything(service, store_name) == [1]


async def test_what_can_t_be_replayed_is_kept(service: Running, store_name: str) -> None:
    await service.create(store_name, PARTITIONS)
    home = row_partition("a", PARTITIONS)
    await service.nc.jetstream().publish(names.dead_subject(store_name, "k", home), b"none")
    await leave(service, letter(store_name, "a"))
    damaged, unknown, gone = await replayed(service, store_name, 1, 2, 3)
    assert (damaged.outcome, unknown.outcome, gone.outcome) == (
        pb.REPLAYED_KEPT,
        pb.REPLAYED_KEPT,
        pb.REPLAYED_NOT_THERE,
    )
    assert damaged.why.startswith("it can only be discarded: 4 bytes are not a dead letter")
    assert unknown.why == f"store '{store_name}' has no config key 'k'"
    for numbers in ((), (0,), tuple(range(1, 102))):
        code, field, _ = await refused(replayed(service, store_name, *numbers))
        assert (code, field) == (ErrorCode.INVALID_INPUT, "numbers")
    code, field, _ = await refused(replayed(service, store_name, 1, patience_ms=300_001))
    assert (code, field) == (ErrorCode.INVALID_INPUT, "patience_ms")
    assert (await refused(replayed(service, "none", 1)))[0] is ErrorCode.UNKNOWN_STORE
