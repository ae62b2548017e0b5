"""The report round over a real server: what it collects, what it leaves out, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import nats
import pytest
from nats.aio.client import Client
from ringcast_wire import (
    WIRE_VERSION,
    InvalidInputError,
    LimitExceededError,
    ProtocolError,
    limits,
    names,
    split_chunks,
)
from ringcast_wire import reports as wire
from ringcast_wire.reports import ReportAsker, ReportRequest, WorkerKind, WorkerReport

PATIENCE_S = 30.0


def report(round_id: str, numbers: range = range(4), **facts: Any) -> WorkerReport:
    settings: dict[str, Any] = {
        "incarnation": "i",
        "build": "0",
        "clock_ms": 1,
        "kind": WorkerKind.APPLICATION,
        "assignment": "a",
        "history": "h",
        "spans": wire.spans_of(numbers),
        "applied": [7] * len(numbers),
        **facts,
    }
    return WorkerReport(WIRE_VERSION, round_id, **settings)


class Fleet:
    """Answers requests of one key as told: by worker id, what to say, given the id of the round."""

    def __init__(self, nc: Client, key: str) -> None:
        self.nc, self.key = nc, key
        self.requests: list[ReportRequest] = []
        self.says: dict[str, Callable[[str], bytes]] = {}
        self.max_payload = 65_536

    async def take(self, message: Any) -> None:
        request = wire.decode_report_request(message.data)
        self.requests.append(request)
        for worker_id, say in self.says.items():
            for chunk in split_chunks(say(request.round_id), self.max_payload):
                subject = names.reported_subject("store", self.key, worker_id, request.round_id)
                await self.nc.publish(subject, chunk.data, headers={names.HEADER_CHUNK: chunk.header})

    def answers(self, *worker_ids: str, **facts: Any) -> None:
        for worker_id in worker_ids:
            self.says[worker_id] = lambda round_id: wire.encode_report(report(round_id, **facts))


@pytest.fixture
async def nc(nats_url: str) -> AsyncIterator[Client]:
    client = await nats.connect(nats_url)
    yield client
    await client.close()


@pytest.fixture
async def fleet(nc: Client, store_name: str) -> Fleet:
    made = Fleet(nc, store_name)
    await nc.subscribe(names.report_subject("store", store_name), cb=made.take)
    return made


async def test_a_round_ends_with_the_last_expected_answer(fleet: Fleet) -> None:
    fleet.answers("a", "b")
    found = await ReportAsker(fleet.nc).ask("store", fleet.key, ["a", "b"], row_id="row", timeout_s=PATIENCE_S)
    assert sorted(found.reports) == ["a", "b"]
    assert [*found.reports["a"].partitions()] == [(0, 7), (1, 7), (2, 7), (3, 7)]
    assert (found.silent, found.unreadable, found.left_out) == ((), {}, 0)
    assert [request.row_id for request in fleet.requests] == ["row"]


async def test_the_silent_are_named(fleet: Fleet) -> None:
    fleet.answers("a")
    found = await ReportAsker(fleet.nc).ask("store", fleet.key, ["b", "a", "c"], timeout_s=1.0)
    assert found.silent == ("b", "c")


async def test_calls_at_once_share_a_round(fleet: Fleet) -> None:
    fleet.answers("a", "b")
    asker = ReportAsker(fleet.nc)
    calls = [asker.ask("store", fleet.key, [name], timeout_s=PATIENCE_S) for name in "abab" * 25]
    found = await asyncio.gather(*calls)
    assert len(fleet.requests) == 1
    assert all(not each.silent for each in found)
    assert "a" in (await asker.ask("store", fleet.key, ["a"], timeout_s=PATIENCE_S)).reports  # the round is over
    assert len(fleet.requests) == 2


async def test_only_so_many_rounds_are_under_way(fleet: Fleet) -> None:
    asker = ReportAsker(fleet.nc)
    keys = [f"none{number}" for number in range(wire.MAX_ROUNDS)]
    waiting = [asyncio.create_task(asker.ask("store", key, ["x"], timeout_s=PATIENCE_S)) for key in keys]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceededError, match=f"{wire.MAX_ROUNDS} report rounds"):
        await asker.ask("store", fleet.key, ["x"])
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    fleet.answers("a")
    assert not (await asker.ask("store", fleet.key, ["a"], timeout_s=PATIENCE_S)).silent


async def test_a_report_larger_than_a_message_comes_in_chunks(fleet: Fleet) -> None:
    fleet.max_payload = 8_192
    numbers = range(4_096)
    fleet.answers("a", numbers=numbers, applied=[2**62 + number for number in numbers])
    found = await ReportAsker(fleet.nc).ask("store", fleet.key, ["a"], timeout_s=PATIENCE_S)
    assert dict(found.reports["a"].partitions())[4_095] == 2**62 + 4_095


def test_the_largest_report_is_within_the_limit() -> None:
    text = "\N{GRINNING FACE}" * wire.MAX_REPORT_TEXT
    top = 2**53 - 1
    row = wire.RowReport(
        4_095,
        owned=True,
        state="x" * 64,
        heard=2**63 - 1,
        applied=2**63 - 1,
        version=2**63 - 1,
        ahead=text,
        ahead_ms=top,
        failure=wire.RowFailure.BLOCKED,
        error=text,
    )
    largest = report(
        "0" * 16,
        range(4_096),
        applied=[2**63 - 1] * 4_096,
        failing=text,
        refused=text,
        last_error=text,
        row=row,
        incarnation="x" * 64,
        refusals=[
            wire.Refusal(4_095, "x" * 512, 2**63 - 1, wire.RowFailure.DEAD_LETTERED, text[: wire.MAX_REFUSAL_TEXT])
        ]
        * wire.MAX_REFUSALS,
        unnamed_refusals=top,
        labels=[f"{number}{'x' * 62}={'x' * 63}" for number in range(limits.MAX_LABELS)],
        dry_wave=wire.DryWaveReport(
            "0" * 16,
            wire.DryWaveState.JUDGING,
            wire.spans_of(range(4_096)),
            rows=top,
            refused=top,
            refusals=[wire.DryRefusal("x" * 512, text[: wire.MAX_DRY_REASON])] * wire.MAX_DRY_REFUSALS,
            why=text[: wire.MAX_DRY_REASON],
        ),
        given_up=top,
        provisional=wire.ProvisionalReport(
            2**63 - 1,
            wire.ProvisionalState.FAILED,
            rows=top,
            refused=top,
            refusals=[wire.DryRefusal("x" * 512, text[: wire.MAX_DRY_REASON])] * wire.MAX_PROVISIONAL_REFUSALS,
            why=text[: wire.MAX_DRY_REASON],
        ),
        rows=top,
        row_bytes=top,
    )
    scattered = report("0" * 16, range(1, 4_096, 2), applied=[2**63 - 1] * 2_048, failing=text, refused=text)
    unasked = wire.ProvisionalReport(2**63 - 1, wire.ProvisionalState.LAID, rows=top)
    of_before = msgspec.structs.replace(largest, dry_wave=None, provisional=unasked)
    assert len(wire.encode_report(of_before)) <= 64 * limits.KIB, "what builds of before read"
    for each in (largest, scattered, of_before):
        assert len(wire.encode_report(each)) <= wire.MAX_REPORT_BYTES
        assert wire.decode_report(wire.encode_report(each)) == each


def test_a_report_of_a_build_that_does_not_say_how_many_rows_it_holds() -> None:
    """The fields were appended: builds of before leave them out, and ignore them."""
    whole = msgspec.msgpack.decode(wire.encode_report(report("0" * 16, rows=7, row_bytes=70)))
    assert whole[-3:-1] == [7, 70]
    of_before = wire.decode_report(msgspec.msgpack.encode(whole[:-3]))
    assert (of_before.rows, of_before.row_bytes) == (None, None)
    assert wire.decode_report(msgspec.msgpack.encode([*whole, "of a later build"])).row_bytes == 70


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda round_id: b"nonsense", "can't be read"),
        (lambda round_id: wire.encode_report(report("f" * 16)), "is of round ffffffffffffffff"),
        (lambda round_id: wire.encode_report(report(round_id, applied=[1])), "1 revisions for 4 partitions"),
        (lambda round_id: wire.encode_report(report(round_id, spans=[0, 2, 1, 2])), "2 partitions from 1"),
        (lambda round_id: wire.encode_report(report(round_id, spans=[0, 5_000])), "5000 partitions from 0"),
        (lambda round_id: wire.encode_report(report(round_id, spans=[0])), "must be pairs"),
        (lambda round_id: bytes(wire.MAX_REPORT_BYTES + 1), "at most 81920 are allowed"),
        (lambda round_id: wire.encode_report(report(round_id, labels=["site"])), "matching regex"),
        (lambda round_id: wire.encode_report(report(round_id, labels=["a=b"] * 9)), "of length <= 8"),
    ],
)
async def test_an_answer_that_can_not_be_read_is_named_and_ends_nothing(
    fleet: Fleet, say: Callable[[str], bytes], why: str
) -> None:
    fleet.says["liar"] = say
    fleet.answers("a")
    found = await ReportAsker(fleet.nc).ask("store", fleet.key, ["liar", "a"], timeout_s=PATIENCE_S)
    assert sorted(found.reports) == ["a"]
    assert why in found.unreadable["liar"]
    assert found.silent == ()


async def test_what_is_too_much_is_counted(fleet: Fleet) -> None:
    """Further answers of one worker, more messages than a report has, and more workers than a round takes."""

    async def flood(message: Any) -> None:
        round_id = wire.decode_report_request(message.data).round_id

        async def say(worker_id: str, header: str, data: bytes) -> None:
            subject = names.reported_subject("store", fleet.key, worker_id, round_id)
            await fleet.nc.publish(subject, data, headers={names.HEADER_CHUNK: header})

        good = next(split_chunks(wire.encode_report(report(round_id)), 65_536))
        large = report(round_id, range(4_096), applied=[2**62] * 4_096)
        first, *rest = split_chunks(wire.encode_report(large), 8_192)
        await say("slow", first.header, first.data)
        await say("twice", good.header, good.data)
        await say("twice", good.header, good.data)
        for number in range(wire.MAX_MESSAGES + 1):
            await say("drip", f"{number}/9999/00000000", b"")
        for number in range(wire.MAX_ANSWERS):
            await say(f"w{number}", good.header, good.data)
        await say("last", good.header, good.data)
        for chunk in rest:
            await say("slow", chunk.header, chunk.data)

    await fleet.nc.subscribe(names.report_subject("store", fleet.key), cb=flood)
    found = await ReportAsker(fleet.nc).ask("store", fleet.key, ["slow"], timeout_s=PATIENCE_S)
    assert len(found.reports) == wire.MAX_ANSWERS - 1  # one of those that it takes is the drip
    assert found.left_out == 1 + 1 + 3 + 1  # twice, the drip, three workers, and the last


@pytest.mark.parametrize("data", [b"", b"\x93\x01\xa1x\xa0", wire.encode_report(ReportRequest(2, "0" * 16))])
def test_a_request_that_can_not_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_report_request(data)


async def test_names_and_rows_are_checked(nc: Client) -> None:
    for place in (("a.b", "k", ""), ("s", "k.*", ""), ("s", "k", "x" * 513)):
        with pytest.raises(InvalidInputError):
            await ReportAsker(nc).ask(place[0], place[1], [], row_id=place[2])


def test_owners_have_one_digest() -> None:
    assert wire.assignment_digest(["a", None, "b"]) == wire.assignment_digest(("a", None, "b"))
    assert wire.assignment_digest(["a", "b"]) != wire.assignment_digest(["b", "a"])
    assert wire.spans_of([0, 1, 2, 5, 7, 8]) == [0, 3, 5, 1, 7, 2]


async def test_what_was_refused_is_asked_for_by_revisions(fleet: Fleet) -> None:
    refusal = wire.Refusal(1, "row", 5, wire.RowFailure.BLOCKED, "why")
    fleet.answers("a", refusals=[refusal], unnamed_refusals=2)
    asker = ReportAsker(fleet.nc)
    ranges = [1, 4, 6, 3, 1, 1]
    rounds = [asker.ask("store", fleet.key, ["a"], ranges=each, timeout_s=PATIENCE_S) for each in (ranges, ranges, ())]
    found = await asyncio.gather(*rounds)
    assert [wire.ranges_of(request) for request in fleet.requests] == [{1: (4, 6), 3: (1, 1)}, {}]
    assert [each.reports["a"].refusals for each in found] == [[refusal]] * 3
    assert found[0].reports["a"].unnamed_refusals == 2


@pytest.mark.parametrize(
    ("ranges", "why"),
    [
        ([1, 4], "ranges has 2 numbers: these must be triples"),
        ([1, 4, 3], "ranges has 4 to 3 of partition 1, after -1"),
        ([1, 1, 1, 1, 2, 2], "ranges has 2 to 2 of partition 1, after 1"),
        ([4_096, 1, 1], "ranges has 1 to 1 of partition 4096, after -1"),
        ([0, 1, 1] * 4_097, "can't be read"),
    ],
)
def test_ranges_that_are_none_are_refused(ranges: list[int], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        wire.ranges_of(ReportRequest(WIRE_VERSION, "0" * 16, "", wire.packed_ranges(ranges)))


def test_builds_of_before_understand_the_question_and_their_answers_say_that_they_do_not_know() -> None:
    """They have neither ranges nor refusals, nor labels, nor dry waves: the fields at the end of both messages.
    Nor do they count what is given up."""
    question = ReportRequest(WIRE_VERSION, "0" * 16, "row", wire.packed_ranges([1, 4, 6]))
    asked = msgspec.msgpack.decode(wire.encode_report(question))
    there = [WIRE_VERSION, "0" * 16, "row", [1, 4, 6], None, 1, None]
    assert asked == there, "a reader of arrays ignores what it does not know"
    assert wire.ranges_of(wire.decode_report_request(msgspec.msgpack.encode(asked[:3]))) == {}
    answered = msgspec.msgpack.decode(wire.encode_report(report("0" * 16, refusals=[])))
    old = wire.decode_report(msgspec.msgpack.encode(answered[:-9]))
    assert (old.refusals, old.unnamed_refusals, old.applied) == (None, 0, [7] * 4)
    assert (old.given_up, old.unnamed_given_up) == (0, 0)


@pytest.mark.parametrize(
    ("given_up", "unnamed", "found"),
    [(12, 11, 11), (3, 4, 2), (1, 4, 0), (0, 4, 0), (9, 4, 4)],
    ids=["all", "others are tried again", "those that are named", "an older build", "more than there are"],
)
def test_of_the_rows_that_a_report_does_not_name_those_that_are_given_up_are_told_apart(
    given_up: int, unnamed: int, found: int
) -> None:
    named = [wire.Refusal(1, "a", 5, wire.RowFailure.BLOCKED), wire.Refusal(1, "b", 6, wire.RowFailure.RETRYING)]
    told = report("0" * 16, refusals=named, unnamed_refusals=unnamed, given_up=given_up)
    assert told.unnamed_given_up == found
