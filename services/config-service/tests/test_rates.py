"""Rows a second of a store: how requests are dealt with, over a clock of the test's own, and as clients see it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from ringcast_config_service.caller import Caller
from ringcast_config_service.repository import StoreRecord
from ringcast_config_service.security import Security
from ringcast_config_service.telemetry import Measures
from ringcast_config_service.writes import group_writer
from ringcast_config_service.writes.rates import STREAM_WAIT_S, Claim, FairBucket, WriteRates
from ringcast_testkit import PATIENCE_S
from ringcast_wire import ErrorCode, LimitExceededError, StorePolicy, StoreSettings
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, error_from_rpc, pb
from ringcast_wire.tokens import token_line

Running = Any  # of conftest.py
Keys = Any  # of conftest.py


class Run:
    """A bucket, and when each request came and began, in virtual time."""

    def __init__(self, rate: float, burst: float) -> None:
        self.bucket = FairBucket(rate, burst, 0.0)
        self.now_s = 0.0
        self.began: list[tuple[float, str, int, float]] = []
        """When, whose, how many rows, and after what wait."""

    def ask(self, principal: str, rows: int) -> Claim:
        at_s = self.now_s
        claim = Claim(principal, rows, lambda: self.began.append((self.now_s, principal, rows, self.now_s - at_s)))
        self.bucket.add(claim, self.now_s)
        return claim

    def go_on(self, until_s: float) -> None:
        while not self.bucket.is_idle and self.now_s + self.bucket.next_s() <= until_s:
            self.now_s += max(self.bucket.next_s(), 1e-9)
            self.bucket.advance(self.now_s)
        self.now_s = max(self.now_s, until_s)
        self.bucket.advance(self.now_s)

    def rows(self, principal: str = "") -> int:
        return sum(rows for _, whose, rows, _ in self.began if principal in ("", whose))


def test_a_burst_begins_at_once_and_then_the_rate_counts() -> None:
    run = Run(rate=100, burst=1_000)
    for _ in range(12):
        run.ask("a", 100)
    assert len(run.began) == 10
    run.go_on(1.5)
    assert [round(at_s, 6) for at_s, *_ in run.began[10:]] == [1.0]
    run.go_on(500)
    assert run.rows() == 1_200
    run.ask("a", 1_000)  # a long pause fills the bucket, and no more
    run.ask("a", 1)
    assert run.rows() == 2_200


def test_a_principal_that_writes_little_is_not_held_up_by_bulk_writes() -> None:
    run = Run(rate=1_000, burst=1_000)
    for _ in range(200):
        run.ask("bulk", 1_000)
        run.ask("other bulk", 500)
    for turn in range(1, 101):
        run.go_on(turn / 2)
        run.ask("little", 2)
    run.go_on(60)
    waits = [wait_s for _, whose, _, wait_s in run.began if whose == "little"]
    assert len(waits) == 100
    assert max(waits) <= 2 * 3 / 1_000 + 1e-6
    assert abs(run.rows("bulk") - run.rows("other bulk")) <= 2_000
    assert run.rows() >= 60_000 - 2_000  # nothing of the rate is lost


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_max_min_fair(seed: int) -> None:
    """Principals ask at random: no window has more than the burst and the rate, each gets what it asks for up to the
    fair share, and what those leave goes to the others."""
    draw = random.Random(seed)
    rate, burst, seconds = draw.choice([100, 5_000]), 1_000, 100
    wanted = {f"p{number}": draw.uniform(0.05, 1.5) * rate for number in range(draw.randint(1, 6))}
    run = Run(rate, burst)
    asked: dict[str, float] = dict.fromkeys(wanted, 0.0)
    for tick in range(seconds * 10):
        run.go_on(tick / 10)
        for principal, per_s in wanted.items():
            while asked[principal] < per_s * tick / 10:
                rows = draw.randint(1, max(1, min(200, int(per_s))))
                asked[principal] += rows
                run.ask(principal, rows)
    run.go_on(seconds)
    left: float = rate
    fair: dict[str, float] = {}
    for number, (principal, per_s) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        fair[principal] = min(per_s, left / (len(wanted) - number))
        left -= fair[principal]
    for principal, per_s in fair.items():
        assert run.rows(principal) >= 0.97 * per_s * seconds - 400, f"seed {seed}"
    for first in range(0, len(run.began), 37):
        total, start_s = 0, run.began[first][0]
        for at_s, _, rows, _ in run.began[first:]:
            total += rows
            assert total <= burst + rate * (at_s - start_s) + 200 * len(wanted), f"seed {seed}"


def test_what_was_dealt_out_for_a_request_that_is_gone_goes_back() -> None:
    run = Run(rate=10, burst=1_000)
    run.ask("a", 1_000)
    gone = run.ask("a", 100)
    run.go_on(5)
    run.bucket.remove(gone, run.now_s)
    assert run.bucket.is_idle
    run.ask("b", 50)
    assert run.rows("b") == 50
    run.bucket.remove(gone, run.now_s)


def test_large_requests_get_through_beside_one_that_asks_all_the_time() -> None:
    """Each takes longer than anybody waits, and is made again when it was told to be."""
    rate = 20
    run = Run(rate, burst=1_000)
    run.ask("hostile", 1_000)
    hostile: list[Claim] = []
    large, since_s, again_s, seconds = None, 0.0, 0.0, 500
    for second in range(seconds):
        run.go_on(second)
        hostile = [claim for claim in hostile if not claim.may_begin]
        hostile += [run.ask("hostile", 1) for _ in range(2 * rate - len(hostile))]
        if large is not None and large.may_begin:
            large = None
        elif large is not None and second - since_s >= STREAM_WAIT_S:
            wait_s = min(60.0, run.bucket.wait_s(large))
            run.bucket.remove(large, run.now_s, wait_s + 5.0)
            large, again_s = None, second + wait_s
        if large is None and second >= again_s:
            large, since_s = run.ask("large", 1_000), second
    assert run.rows("large") >= 4_000  # of 5,000, the last of which has not come through
    assert run.rows() >= 0.97 * rate * seconds


def test_what_is_kept_for_one_that_does_not_come_again_goes_back() -> None:
    run = Run(rate=10, burst=1_000)
    run.ask("a", 1_000)
    refused = run.ask("gone", 1_000)
    run.go_on(10)
    run.bucket.remove(refused, run.now_s, 60.0)
    assert run.bucket.is_idle
    run.ask("b", 600)
    run.go_on(70 + 10)
    assert run.rows("b") == 600  # its half, 350, and what was kept for the other, 450


def test_another_rate_counts_at_once() -> None:
    run = Run(rate=1, burst=1_000)
    run.ask("a", 1_000)
    run.ask("a", 100)
    run.bucket.change(100, 1_000, run.now_s)
    run.go_on(1)
    assert run.rows() == 1_100


def store(**policy: Any) -> StoreRecord:
    return StoreRecord("s", StoreSettings(partition_count=4), 0, 0, policy=StorePolicy(**policy))


async def test_each_instance_has_a_bucket_of_its_own() -> None:
    for _ in range(2):
        rates = WriteRates(Measures(), lambda: 0.0)
        await rates.take(store(max_rows_per_second=1), 1_000, Caller("p", "c"), 0.01)
        with pytest.raises(LimitExceededError) as caught:
            await rates.take(store(max_rows_per_second=1), 2, Caller("p", "c"), 0.01)
        assert caught.value.retry_after_s == 2.0
        assert str(caught.value) == (
            "store 's' takes 1 rows a second by its policy max_rows_per_second: this write of 2 rows would have to "
            "wait for another 2 s"
        )
        await rates.take(store(), 1_000_000, Caller("p", "c"), 0.01)


async def test_requests_that_wait_begin_and_those_that_are_cancelled_do_not() -> None:
    measures = Measures()
    rates = WriteRates(measures)
    here = store(max_rows_per_second=5_000)
    await rates.take(here, 5_000, Caller("p", "c"), 1.0)
    waiting = [asyncio.create_task(rates.take(here, 100, Caller(f"p{n % 3}", "c"), 60.0)) for n in range(9)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert measures.writes_slowed == {("s", "waited"): 8}


async def _put_many(service: Running, store_name: str, row_id: str) -> None:
    """On a slow machine what comes in meanwhile is enough for a few."""
    for _ in range(1_000):
        await service.put(store_name, row_id)


async def put(service: Running, store_name: str, row_id: str) -> Any:
    with pytest.raises(Exception, match="max_rows_per_second") as caught:
        await _put_many(service, store_name, row_id)
    return error_from_rpc(caught.value)  # type: ignore[arg-type]


async def test_a_call_beyond_the_rate_is_told_when_to_come_again(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_writer, "CALL_WAIT_S", 0.05)
    await service.create(store_name)
    policy = pb.StorePolicy(max_rows_per_second=2)
    await service.stub.SetStorePolicy(pb.SetStorePolicyRequest(name=store_name, policy=policy))
    rows = [pb.RowWrite(row_id=f"r{number}", value="1") for number in range(1_000)]
    await service.write(store_name, rows)
    error = await put(service, store_name, "one more")
    assert (error.code, error.field) == (ErrorCode.LIMIT_EXCEEDED, "max_rows_per_second")
    assert 0.0 < error.retry_after_s <= 0.5
    change = pb.RowChange(number=1, row_id="by a stream", value="1")
    changes = service.stub.Change(iter([pb.Changes(store=store_name, key="k", changes=[change])]))
    (answer,) = [result async for found in changes for result in found.results]
    assert not answer.error  # it waited


async def test_a_bulk_write_is_slowed_down_and_not_refused(service: Running, store_name: str) -> None:
    await service.create(store_name)
    policy = pb.StorePolicy(max_rows_per_second=4_000, burst_rows=1_000)
    await service.stub.SetStorePolicy(pb.SetStorePolicyRequest(name=store_name, policy=policy))
    batches = [[pb.RowWrite(row_id=f"r{n}.{number}", value="1") for number in range(1_000)] for n in range(8)]
    results = await service.write(store_name, *batches)
    assert sum(result.written for result in results) == 8_000
    measures = service.app._telemetry.measures
    assert measures.writes_slowed[store_name, "waited"] >= 1
    assert measures.writes_slowed[store_name, "refused"] == 0


class Bulk:
    """Bulk streams of one principal, each of which writes a batch after the other for as long as the test runs."""

    STREAMS, ROWS = 6, 500

    def __init__(self, stub: ConfigServiceStub, store_name: str) -> None:
        self.answered = 0
        self._stub = stub
        self._store = store_name
        self._answer = asyncio.Condition()

    async def next_answer(self) -> None:
        """Returns when another batch has been written: then those of the other streams wait for their rows."""
        before = self.answered
        async with asyncio.timeout(PATIENCE_S), self._answer:
            await self._answer.wait_for(lambda: self.answered > before)

    async def write(self, stream: int) -> None:
        call = self._stub.Write(self._batches(stream))
        async for result in call:
            assert (result.written, len(result.rejected)) == (self.ROWS, 0), result
            async with self._answer:
                self.answered += 1
                self._answer.notify_all()

    async def _batches(self, stream: int) -> AsyncIterator[pb.WriteBatch]:
        sequence = 0
        while True:
            rows = [pb.RowWrite(row_id=f"{stream}.{number}", value=f"{sequence}") for number in range(self.ROWS)]
            yield pb.WriteBatch(store=self._store, key="bulk", sequence=sequence, rows=rows)
            sequence += 1


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> dict[Claim, int]:
    """By how many requests each one of a service was overtaken, once it has come until it began."""
    waiting: set[Claim] = set()
    found: dict[Claim, int] = {}

    class Followed(Claim):
        __slots__ = ()

        def __init__(self, principal: str, rows: int, on_grant: Callable[[], None]) -> None:
            def begins() -> None:
                waiting.discard(self)
                for other in waiting:
                    found[other] += 1
                on_grant()

            super().__init__(principal, rows, begins)
            waiting.add(self)
            found[self] = 0

    monkeypatch.setattr("ringcast_config_service.writes.rates.Claim", Followed)
    return found


async def test_one_principal_that_writes_in_bulk_holds_up_no_other(
    start: Any, nats_url: str, tmp_path: Path, store_name: str, keys: Keys, overtaken: dict[Claim, int]
) -> None:
    """Half a second of the rate apart, one with a token of its own puts two rows, while batches of the other wait for
    2.5 s: a call waits for 1 s at most, so it would be refused if both were one principal."""
    tokens = {name: f"the-token-of-{name}-which-is-long" for name in ("bulk", "little")}
    file = keys.write("named", "".join(f"{token_line(name, token)}\n" for name, token in tokens.items()).encode())
    security = Security(tls_cert_file=keys.cert, tls_key_file=keys.key, token_file=file)
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(start(nats_url, f"sqlite:{tmp_path / 'rates.db'}", security=security))
        stubs = {}
        for name, token in tokens.items():
            login = ServiceLogin(tls_ca_file=keys.ca, token_file=keys.write(f"of-{name}", token.encode()))
            channel = await stack.enter_async_context(login.aio_channel(service.app.grpc_address, ()))
            stubs[name] = ConfigServiceStub(channel)
        await stubs["little"].CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=8))
        policy = pb.StorePolicy(max_rows_per_second=1_000, burst_rows=1_000)
        await stubs["little"].SetStorePolicy(pb.SetStorePolicyRequest(name=store_name, policy=policy))
        bulk = Bulk(stubs["bulk"], store_name)
        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(bulk.write(number)) for number in range(bulk.STREAMS)]
            while bulk.answered < 2:  # all that the bucket had
                await bulk.next_answer()
            for turn in range(12):
                await bulk.next_answer()
                rows = [pb.KeyedWrite(key="k", row=pb.RowWrite(row_id=row_id, value=f"{turn}")) for row_id in "ab"]
                done = await stubs["little"].Commit(pb.CommitRequest(store=store_name, writes=rows), timeout=PATIENCE_S)
                assert len(done.rows) == 2
            for stream in streams:
                stream.cancel()
        little = [count for claim, count in overtaken.items() if claim.rows == 2]
        assert len(little) == 12
        assert max(little) <= 1, "it waits for the batch that has got most of its rows, and for no other"
        slowed = service.app._telemetry.measures.writes_slowed
        assert slowed[store_name, "refused"] == 0
        assert slowed[store_name, "waited"] >= 10
