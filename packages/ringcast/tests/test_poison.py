"""What becomes of a change whose handler fails every time, against a real NATS server and config service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import nats
import pytest
from ringcast import Change, DeadLetter, PoisonPolicy
from ringcast._delivery import failures
from ringcast_testkit import PATIENCE_S
from ringcast_wire import names
from ringcast_wire.reports import MAX_REFUSALS, ReportAsker, ReportRound, RowFailure, WorkerReport

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store


class Picky:
    """A handler that refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.took: list[tuple[str, str | None]] = []

    def __call__(self, change: Change) -> None:
        if change.row_id in self.refused:
            raise ValueError(f"not {change.row_id}")
        self.took.append((change.row_id, change.value))


async def test_a_dead_letter_says_everything_and_the_rest_goes_on(store: Store) -> None:
    await store.create(partition_count=1)
    handler = Picky()
    handler.refused = {"bad", "large"}
    large = "x" * 1_000_000
    async with store.worker(handler=handler, poison_policy=PoisonPolicy.DEAD_LETTER, handler_tries=2) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        _, bad = await store.put("bad", "v", colour="red")
        await store.put("large", large + '"' * 40_000)
        partition, version = await store.put("good", "w")
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert handler.took == [("good", "w")]
        stats = worker.stats()
        assert (stats.poisoned, stats.dead_letters, stats.dead_letter_failures, stats.blocked) == (2, 2, 0, 0)
        assert worker.get("list", "bad") is not None
    client = await nats.connect(store.nats_url)
    try:
        js = client.jetstream()
        stream = names.dead_stream(store.name)
        letters = [
            msgspec.json.decode((await js.get_msg(stream, sequence)).data or b"", type=DeadLetter)
            for sequence in (1, 2)
        ]
    finally:
        await client.close()
    first, second = sorted(letters, key=lambda letter: letter.row_id)  # rows are handled side by side
    assert (first.store, first.key, first.partition, first.row_id) == (store.name, "list", 0, "bad")
    assert (first.version, first.value, first.metadata, first.deleted) == (bad, "v", {"colour": "red"}, False)
    assert (first.error, first.tries, first.worker_id) == ("ValueError('not bad')", 2, f"{store.name}-w")
    assert (second.row_id, second.value, second.left_out) == ("large", None, True)


async def test_a_dead_letter_that_nobody_takes_is_sent_again_and_its_event_waits(store: Store) -> None:
    await store.create(partition_count=1)
    handler = Picky()
    handler.refused = {"bad"}
    client = await nats.connect(store.nats_url)
    try:
        js = client.jetstream()
        stream = names.dead_stream(store.name)
        config = (await js.stream_info(stream)).config
        await js.delete_stream(stream)
        async with store.worker(handler=handler, poison_policy="dead-letter", handler_tries=1) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            partition, version = await store.put("bad", "v")
            async with asyncio.timeout(PATIENCE_S):
                while worker.stats().dead_letter_failures == 0:
                    await client.flush()
            assert worker.applied("list")[partition] < version
            await js.add_stream(config)
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
            assert worker.stats().dead_letters == 1
    finally:
        await client.close()


async def test_a_blocked_row_waits_with_its_newest_change_and_other_rows_go_on(store: Store) -> None:
    await store.create(partition_count=1)
    handler = Picky()
    handler.refused = {"bad"}
    async with store.worker(handler=handler, poison_policy=PoisonPolicy.BLOCK, handler_tries=1) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for row_id, value in (("bad", "1"), ("good", "1"), ("bad", "2"), ("good", "2"), ("bad", "3")):
            partition, version = await store.put(row_id, value)
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert handler.took == [("good", "1"), ("good", "2")]
        (row,) = worker.blocked()
        assert (row.change.row_id, row.change.value, row.error) == ("bad", "3", "ValueError('not bad')")
        assert (worker.stats().poisoned, worker.stats().blocked) == (1, 1)
        assert not await worker.unblock("list", "bad")
        assert await worker.unblock("list", "good")
        handler.refused = set()
        assert await worker.unblock("list", "bad")
        assert worker.blocked("list") == []
        partition, version = await store.put("bad", "4")
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert handler.took == [("good", "1"), ("good", "2"), ("bad", "3"), ("bad", "4")]
        handler.refused = {"bad"}
        partition, version = await store.put("bad", "5")
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert len(worker.blocked()) == 1
    handler.refused = set()
    async with store.worker(handler=handler) as again:  # nothing is lost over a restart: partitions come whole
        await again.wait_ready(timeout_s=PATIENCE_S)
    assert ("bad", "5") in handler.took


async def _asked(store: Store, ranges: list[int], timeout_s: float = PATIENCE_S) -> ReportRound:
    client = await nats.connect(store.nats_url)
    try:
        return await ReportAsker(client).ask(
            store.name, "list", [f"{store.name}-w"], ranges=ranges, timeout_s=timeout_s
        )
    finally:
        await client.close()


async def _refused(store: Store, ranges: list[int]) -> WorkerReport:
    """What the worker says that its handler did not take of these revisions."""
    return (await _asked(store, ranges)).reports[f"{store.name}-w"]


async def test_a_report_is_of_no_newer_wire_version_than_its_asker_reads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.create(partition_count=1)
    monkeypatch.setattr("ringcast_wire._common.versions.WIRE_VERSIONS", (1, 3))
    async with store.worker(handler=Picky()) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert (await _refused(store, [])).wire_version == 1
        monkeypatch.setattr("ringcast_wire._reports.asking.NEWEST_WIRE_VERSION", 3)
        assert (await _refused(store, [])).wire_version == 3


async def test_what_was_refused_is_in_the_report_of_those_revisions(store: Store) -> None:
    await store.create(partition_count=1)
    handler = Picky()
    handler.refused = {"bad"}
    async with store.worker(handler=handler, poison_policy=PoisonPolicy.BLOCK, handler_tries=1) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        _, first = await store.put("bad", "v")
        _, good = await store.put("good", "v")
        await worker.wait_for("list", 0, good, timeout_s=PATIENCE_S)
        (refusal,) = (await _refused(store, [0, first, good])).refusals or []
        assert (refusal.row_id, refusal.version, refusal.what) == ("bad", first, RowFailure.BLOCKED)
        assert refusal.error == "ValueError('not bad')"
        assert (await _refused(store, [0, good, good])).refusals == []
        _, newer = await store.put("bad", "w")
        await worker.wait_for("list", 0, newer, timeout_s=PATIENCE_S)
        assert (await _refused(store, [0, first, first])).refusals == [], "it is overwritten"
        (refusal,) = (await _refused(store, [0, newer, newer])).refusals or []
        assert refusal.version == newer, "it is held back with its newest change"
        handler.refused = set()
        assert await worker.unblock("list", "bad")
        assert (await _refused(store, [0, first, newer])).refusals == []


@pytest.mark.parametrize("policy", list(PoisonPolicy))
async def test_ranges_are_read_only_where_something_may_have_been_refused(store: Store, policy: PoisonPolicy) -> None:
    """What shows it is a request whose ranges can't be read."""
    await store.create(partition_count=1)
    unreadable = [0, 2, 1]
    handler = Picky()
    async with store.worker(handler=handler, poison_policy=policy, handler_tries=1) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        _, version = await store.put("bad", "v")
        await worker.wait_for("list", 0, version, timeout_s=PATIENCE_S)
        report = await _refused(store, unreadable)
        assert (report.refusals, report.unnamed_refusals, report.given_up) == ([], 0, 0)
        handler.refused = {"bad"}
        _, version = await store.put("bad", "w")
        await worker.wait_for("list", 0, version, timeout_s=PATIENCE_S)
        assert (await _asked(store, unreadable, timeout_s=0.5)).silent == (f"{store.name}-w",)
        assert [each.row_id for each in (await _refused(store, [0, 1, version])).refusals or []] == ["bad"]


@pytest.mark.parametrize("policy", [PoisonPolicy.DROP, PoisonPolicy.BLOCK])
async def test_every_row_that_is_given_up_is_counted(store: Store, policy: PoisonPolicy) -> None:
    await store.create(partition_count=1)
    handler = Picky()
    rows = [f"row{number}" for number in range(MAX_REFUSALS + 4)]
    handler.refused = set(rows)
    async with store.worker(handler=handler, poison_policy=policy, handler_tries=1) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        versions = [(await store.put(row_id, "v"))[1] for row_id in rows]
        await worker.wait_for("list", 0, versions[-1], timeout_s=PATIENCE_S)
        report = await _refused(store, [0, versions[0], versions[-1]])
        assert (len(report.refusals or []), report.unnamed_refusals) == (MAX_REFUSALS, 4)
        assert (report.given_up, report.unnamed_given_up) == (MAX_REFUSALS + 4, 4)
        report = await _refused(store, [0, versions[0], versions[2]])
        assert (report.unnamed_refusals, report.given_up) == (0, 3)


async def test_what_is_forgotten_is_said_to_be_unknown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_FAILURES", 1)
    await store.create(partition_count=1)
    handler = Picky()
    handler.refused = {"a", "b"}
    async with store.worker(handler=handler, poison_policy=PoisonPolicy.DROP, handler_tries=1) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        _, first = await store.put("a", "v")
        await worker.wait_for("list", 0, first, timeout_s=PATIENCE_S)
        _, last = await store.put("b", "v")
        await worker.wait_for("list", 0, last, timeout_s=PATIENCE_S)
        report = await _refused(store, [0, first, last])
        assert [each.row_id for each in report.refusals or []] == ["b"]
        assert (report.unnamed_refusals, report.given_up) == (1, 1), "of what is forgotten nobody knows what it was"
        later = await _refused(store, [0, last, last])
        assert ([each.row_id for each in later.refusals or []], later.unnamed_refusals) == (["b"], 0)
