"""Replays of dead letters by real workers: what is handed over, to whom, in which order, and what is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from ringcast import Change, PoisonPolicy, Worker
from ringcast.dispatch import Delivery
from ringcast_client import ConfigServiceClient, DeadLetterRecord, ReplayOutcome, ReplayResult
from ringcast_testkit import PATIENCE_S, AgentProcess
from ringcast_testkit.dispatch import following, status_until
from ringcast_wire import LimitExceededError, Mode

from tests.integration.cli_process import Servers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("replays")) as started:
        yield started


class Handler:
    """Refuses what it is told to refuse, and writes down what it takes; ``gate``: rows whose calls wait for it."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.took: list[tuple[str, str | None]] = []
        self.versions: list[int] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.begun: dict[str, asyncio.Event] = {}
        self.running: Counter[str] = Counter()
        self.most = 0
        """Calls for one row that were running at once."""

    def hold(self, row_id: str) -> None:
        """The next calls for a row wait until :meth:`let_go`."""
        self.gates[row_id], self.begun[row_id] = asyncio.Event(), asyncio.Event()

    async def __call__(self, change: Change) -> None:
        self.running[change.row_id] += 1
        self.most = max(self.most, self.running[change.row_id])
        try:
            if (gate := self.gates.get(change.row_id)) is not None:
                self.begun[change.row_id].set()
                await gate.wait()
            if change.row_id in self.refused:
                raise ValueError(f"not {change.row_id} {change.value}")
            self.took.append((change.row_id, change.value))
            self.versions.append(change.version)
        finally:
            self.running[change.row_id] -= 1


class Bench:
    """A store, its client, and workers of it that end with the test."""

    def __init__(self, servers: Servers, store: str, client: ConfigServiceClient, stack: AsyncExitStack) -> None:
        self.servers, self.store, self.client, self._stack = servers, store, client, stack

    async def worker(self, handler: Any, name: str = "w", **settings: Any) -> Worker:
        made: dict[str, Any] = {
            "keys": ["list"],
            "handler_tries": 1,
            "poison_policy": PoisonPolicy.DEAD_LETTER,
            "worker_id": f"{self.store}-{name}",
            **settings,
        }
        worker = Worker(servers=self.servers.nats.url, store=self.store, handler=handler, **made)
        await self._stack.enter_async_context(worker)
        await worker.wait_ready(timeout_s=PATIENCE_S)
        return worker

    async def put(self, row_id: str, value: str, *workers: Worker) -> None:
        """Writes a row, and returns when the workers have been through it."""
        result = await self.client.put(self.store, "list", row_id, value)
        for worker in workers:
            await worker.wait_for("list", result.partition, result.version, timeout_s=PATIENCE_S)

    async def letters(self) -> list[DeadLetterRecord]:
        return [letter async for letter in self.client.dead_letters(self.store, oldest_first=True)]

    async def replay(self, *numbers: int, patience_s: float = PATIENCE_S) -> list[ReplayResult]:
        wanted = numbers or [letter.number for letter in await self.letters()]
        results = self.client.replay_dead_letters(self.store, wanted, patience_s=patience_s)
        return sorted([result async for result in results], key=lambda result: result.number)


@pytest.fixture
async def bench(servers: Servers, store_name: str) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack, ConfigServiceClient(servers.service.address) as client:
        await client.create_store(store_name, partition_count=2)
        yield Bench(servers, store_name, client, stack)


def outcomes(results: list[ReplayResult]) -> list[ReplayOutcome]:
    return [result.outcome for result in results]


async def test_the_row_is_handed_over_as_it_is_now(bench: Bench) -> None:
    handler = Handler("same", "newer", "gone")
    worker = await bench.worker(handler)
    for row_id in ("same", "newer", "gone"):
        await bench.put(row_id, "1", worker)
    handler.refused = {"newer"}
    await bench.put("newer", "2", worker)  # a second dead letter of the row
    handler.refused.clear()
    await bench.put("newer", "3", worker)
    deleted = await bench.client.delete(bench.store, "list", "gone")
    await worker.wait_for("list", deleted.partition, deleted.version, timeout_s=PATIENCE_S)
    before = len(handler.took)
    results = await bench.replay()
    assert outcomes(results) == [ReplayOutcome.HANDLED] * 4
    assert {result.worker_id for result in results} == {worker.config.worker_id}
    assert sorted(handler.took[before:], key=repr) == [("gone", None), ("newer", "3"), ("same", "1")]
    assert await bench.letters() == []
    assert worker.stats().replays == 3
    assert worker.blocked() == []
    assert outcomes(await bench.replay(1, 99)) == [ReplayOutcome.NOT_THERE] * 2


async def test_one_that_fails_again_comes_again_with_a_count(bench: Bench) -> None:
    handler = Handler("bad")
    worker = await bench.worker(handler)
    await bench.put("bad", "1", worker)
    for count in range(1, 4):
        (result,) = await bench.replay()
        assert (result.outcome, result.why) == (ReplayOutcome.FAILED_AGAIN, "ValueError('not bad 1')")
        (letter,) = await bench.letters()
        assert (letter.row_id, letter.replays, letter.error) == ("bad", count, "ValueError('not bad 1')")
        assert letter.number > result.number
    handler.refused.clear()
    await bench.put("bad", "2", worker)
    assert handler.took == [("bad", "2")]  # the row is as free as any
    assert outcomes(await bench.replay()) == [ReplayOutcome.HANDLED]


async def test_without_an_owner_it_is_kept_and_the_next_owner_takes_it(bench: Bench) -> None:
    first = Handler("bad")
    worker = await bench.worker(first, "first")
    await bench.put("bad", "1", worker)
    await worker.stop()
    (result,) = await bench.replay(patience_s=1.0)
    assert result.outcome is ReplayOutcome.KEPT
    assert "a worker that owns partition" in result.why
    assert "does not answer: it is kept" in result.why
    assert len(await bench.letters()) == 1
    second = Handler()
    other = await bench.worker(second, "second")
    second.took.clear()
    (result,) = await bench.replay()
    assert (result.outcome, result.worker_id) == (ReplayOutcome.HANDLED, other.config.worker_id)
    assert second.took == [("bad", "1")]


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [(PoisonPolicy.DROP, "it failed again, and was dropped"), (PoisonPolicy.BLOCK, "its row is blocked: ValueError(")],
)
async def test_what_another_policy_does_with_it_keeps_it(bench: Bench, policy: PoisonPolicy, sentence: str) -> None:
    worker = await bench.worker(Handler("bad"), "first")
    await bench.put("bad", "1", worker)
    await worker.stop()
    handler = Handler()
    worker = await bench.worker(handler, poison_policy=policy)
    handler.refused = {"bad"}
    (result,) = await bench.replay()
    assert result.outcome is ReplayOutcome.KEPT
    assert sentence in result.why
    assert len(await bench.letters()) == 1
    handler.refused.clear()
    if policy is PoisonPolicy.BLOCK:
        (row,) = worker.blocked()
        assert row.change.row_id == "bad"
        (result,) = await bench.replay()
        assert "the worker blocks the row" in result.why
        assert await worker.unblock("list", "bad")
    assert outcomes(await bench.replay()) == [ReplayOutcome.HANDLED]


async def test_no_old_value_comes_after_a_newer_one(bench: Bench) -> None:
    """A change that comes while its row is replayed waits for the end of that, and rows beside it go on."""
    handler = Handler("row")
    worker = await bench.worker(handler)
    await bench.put("row", "1", worker)
    handler.refused.clear()
    handler.hold("row")
    replaying = asyncio.create_task(bench.replay())
    await asyncio.wait_for(handler.begun["row"].wait(), PATIENCE_S)
    await bench.put("row", "2", worker)
    await bench.put("row", "3", worker)
    await bench.put("beside", "1", worker)
    assert handler.took == [("beside", "1")]
    assert worker.blocked() == []
    handler.gates["row"].set()
    (result,) = await replaying
    assert result.outcome is ReplayOutcome.HANDLED
    assert handler.took == [("beside", "1"), ("row", "1"), ("row", "3")]
    await bench.put("row", "4", worker)
    assert handler.took[-1] == ("row", "4")


async def test_a_replay_waits_for_what_was_written_before_it(bench: Bench) -> None:
    handler = Handler("row")
    worker = await bench.worker(handler)
    await bench.put("row", "1", worker)
    handler.refused.clear()
    handler.hold("row")
    await bench.put("row", "2")
    await asyncio.wait_for(handler.begun["row"].wait(), PATIENCE_S)
    (result,) = await bench.replay(patience_s=0.2)
    assert (result.outcome, result.worker_id) == (ReplayOutcome.KEPT, worker.config.worker_id)
    assert "the worker has handed over revision 1 of 2" in result.why
    handler.gates["row"].set()
    assert outcomes(await bench.replay()) == [ReplayOutcome.HANDLED]
    assert handler.took == [("row", "2"), ("row", "2")]
    assert handler.most == 1


async def test_a_replay_waits_for_the_call_that_has_its_row(bench: Bench) -> None:
    first = ("a", "b", "c", "d")
    handler = Handler(*first, "row")
    worker = await bench.worker(handler)
    for row_id in (*first, "row"):
        await bench.put(row_id, "1", worker)
    handler.refused.clear()
    for row_id in first:
        handler.hold(row_id)
    replaying = asyncio.create_task(bench.replay())  # four at once, so that of the row has to wait
    for row_id in first:
        await asyncio.wait_for(handler.begun[row_id].wait(), PATIENCE_S)
    handler.hold("row")
    await bench.put("row", "2")
    await asyncio.wait_for(handler.begun["row"].wait(), PATIENCE_S)
    for row_id in first:
        handler.gates[row_id].set()
    async with asyncio.timeout(PATIENCE_S):
        while worker.stats().replays < 5:
            await bench.client.heads(bench.store, "list")
    assert handler.running["row"] == 1
    handler.gates["row"].set()
    assert outcomes(await replaying) == [ReplayOutcome.HANDLED] * 5
    assert [value for row_id, value in handler.took if row_id == "row"] == ["2", "2"]
    assert handler.most == 1


async def test_a_partition_that_is_lost_meanwhile_leaves_the_dead_letter(bench: Bench) -> None:
    handler = Handler("row")
    worker = await bench.worker(handler, drain_timeout_s=0.1)
    await bench.put("row", "1", worker)
    handler.hold("row")
    replaying = asyncio.create_task(bench.replay(patience_s=1.0))
    await asyncio.wait_for(handler.begun["row"].wait(), PATIENCE_S)
    await worker.stop()
    (result,) = await replaying
    assert result.outcome is ReplayOutcome.KEPT
    assert len(await bench.letters()) == 1


async def test_in_mode_full_only_the_worker_that_gave_up_takes_it(servers: Servers, bench: Bench) -> None:
    full = Bench(servers, f"{bench.store}f", bench.client, bench._stack)
    await full.client.create_store(full.store, partition_count=2, mode=Mode.FULL)
    picky, other = Handler("bad"), Handler()
    first = await full.worker(picky, "first")
    second = await full.worker(other, "second")
    await full.put("bad", "1", first, second)
    picky.refused.clear()
    (result,) = await full.replay()
    assert (result.outcome, result.worker_id) == (ReplayOutcome.HANDLED, first.config.worker_id)
    assert (picky.took, other.took) == ([("bad", "1")], [("bad", "1")])


async def test_an_observer_takes_its_own_and_no_other(bench: Bench) -> None:
    picky, watching = Handler(), Handler("bad")
    owner = await bench.worker(picky, "owner")
    observer = await bench.worker(watching, "observer", observe=True)
    await bench.put("bad", "1", owner, observer)
    watching.refused.clear()
    (result,) = await bench.replay()
    assert (result.outcome, result.worker_id) == (ReplayOutcome.HANDLED, observer.config.worker_id)
    picky.refused = {"other"}
    await bench.put("other", "1", owner, observer)
    picky.refused.clear()
    (result,) = await bench.replay()
    assert (result.outcome, result.worker_id) == (ReplayOutcome.HANDLED, owner.config.worker_id)


async def test_two_operators_at_once_lose_nothing(bench: Bench) -> None:
    handler = Handler(*(f"r{number}" for number in range(20)))
    worker = await bench.worker(handler)
    for number in range(20):
        await bench.put(f"r{number}", "1")
    await worker.wait_until("list", lambda: worker.stats().dead_letters == 20, timeout_s=PATIENCE_S)
    handler.refused = {"r7"}
    numbers = [letter.number for letter in await bench.letters()]
    both = await asyncio.gather(bench.replay(*numbers), bench.replay(*numbers))
    assert all(result.outcome is not ReplayOutcome.KEPT or "already" in result.why for some in both for result in some)
    assert sorted(set(handler.took)) == sorted((f"r{number}", "1") for number in range(20) if number != 7)
    left = await bench.letters()
    assert {letter.row_id for letter in left} == {"r7"}
    assert {letter.replays for letter in left} == {1}


async def test_too_many_operators_are_refused(bench: Bench) -> None:
    rows = [f"r{number}" for number in range(6)]
    handler = Handler(*rows)
    worker = await bench.worker(handler)
    for row_id in rows:
        await bench.put(row_id, "1", worker)
    handler.refused.clear()
    for row_id in rows:
        handler.hold(row_id)
    # None ends while the handler holds its row, so they are under way at the same time.
    several = [asyncio.create_task(bench.replay(letter.number)) for letter in await bench.letters()]
    ended = asyncio.as_completed(several, timeout=PATIENCE_S)
    for _ in range(2):
        with pytest.raises(LimitExceededError, match="4 replays are under way here: at most 4 may be"):
            await next(ended)
    for gate in handler.gates.values():
        gate.set()
    assert [outcomes(await each) for each in ended] == [[ReplayOutcome.HANDLED]] * 4


# ---- groups of an agent


@pytest.fixture(scope="module")
def agent(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    options = ("--max-tries", "1", "--linger", "0.5")
    with AgentProcess(tmp_path_factory.mktemp("agent"), nats_url=servers.nats.url, options=options) as started:
        yield started


class Answers:
    """Rejects the rows that it is told to, and acknowledges the others."""

    def __init__(self, *rejected: str) -> None:
        self.rejected = set(rejected)

    def __call__(self, delivery: Delivery) -> None:
        delivery.reject("no") if delivery.row_id in self.rejected else delivery.ack()


async def test_a_group_is_handed_the_row_as_it_is_now(bench: Bench, agent: AgentProcess) -> None:
    answers = Answers("bad", "gone")
    async with following(agent, bench.store, answer=answers, poison_policy="dead-letter") as one:
        await bench.put("bad", "1")
        await bench.put("gone", "1")
        await status_until(agent, bench.store, lambda group: group["counts"]["dead_lettered"] == 2)
        assert [(letter.group, letter.replays) for letter in await bench.letters()] == [("g", 0)] * 2
        (first, second) = await bench.replay()
        assert (first.outcome, second.outcome) == (ReplayOutcome.FAILED_AGAIN, ReplayOutcome.FAILED_AGAIN)
        assert "rejected by one: no" in first.why
        letters = await bench.letters()
        assert [(letter.group, letter.replays) for letter in letters] == [("g", 1)] * 2
        assert min(letter.number for letter in letters) > second.number
        answers.rejected.clear()
        await bench.put("bad", "2")
        await bench.client.delete(bench.store, "list", "gone")
        await one.values({"bad": "2", "gone": None})
        before = len(one.deliveries)
        assert outcomes(await bench.replay()) == [ReplayOutcome.HANDLED] * 2
        again = {delivery.row_id: delivery.value for delivery in one.deliveries[before:]}
        assert again == {"bad": "2", "gone": None}
        assert await bench.letters() == []


async def test_a_dead_letter_of_a_group_that_is_not_there_is_kept(bench: Bench, agent: AgentProcess) -> None:
    answers = Answers("bad")
    async with following(agent, bench.store, answer=answers, poison_policy="dead-letter"):
        await bench.put("bad", "1")
        await status_until(agent, bench.store, lambda group: group["counts"]["dead_lettered"] == 1)
    answers.rejected.clear()
    async with following(agent, bench.store, group="other", answer=answers):
        async with asyncio.timeout(PATIENCE_S):
            while not (sentence := (await bench.replay())[0].why).endswith("has the partition now, and no group g"):
                assert "has ended" in sentence or "could not be handed over" in sentence or "no consumer" in sentence
        assert len(await bench.letters()) == 1
        async with following(agent, bench.store, answer=answers, changes_only=True) as one:
            async with asyncio.timeout(PATIENCE_S):
                # The group that was there before may not have let go of the partition yet.
                while (result := (await bench.replay())[0]).outcome is ReplayOutcome.KEPT:
                    assert "waits for the partition" in result.why
            assert result.outcome is ReplayOutcome.HANDLED
            # Twice where the group, which began anew, was also told what it had not settled.
            assert {delivery.row_id for delivery in one.deliveries} == {"bad"}


async def test_a_worker_does_not_take_the_dead_letter_of_a_group_nor_an_agent_that_of_a_worker(
    bench: Bench, agent: AgentProcess
) -> None:
    handler = Handler("bad")
    worker = await bench.worker(handler)
    await bench.put("bad", "1", worker)
    await worker.stop()
    async with following(agent, bench.store, answer=Answers("bad"), poison_policy="dead-letter"):
        await status_until(agent, bench.store, lambda group: group["counts"]["dead_lettered"] == 1)
        first, _ = await bench.replay()
        assert first.outcome is ReplayOutcome.KEPT
        assert "it hands rows only to the groups of an agent" in first.why
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(agent.status))["workers"]:
            await bench.client.heads(bench.store, "list")
    handler.refused.clear()
    await bench.worker(handler, "other")
    for_worker, for_group = await bench.replay(1, max(letter.number for letter in await bench.letters()))
    assert for_worker.outcome is ReplayOutcome.HANDLED
    assert for_group.outcome is ReplayOutcome.KEPT
    assert "no agent runs it: group g is not there" in for_group.why
