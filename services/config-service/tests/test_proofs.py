"""How many proofs an instance makes at once: calls for one release share a try, and there are only so many tries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast_config_service.releases import proofs as proofs_module
from ringcast_config_service.releases.fleet import ask_fleet
from ringcast_config_service.releases.proofs import Proof, Proofs
from ringcast_config_service.repository import StoreRecord
from ringcast_testkit import until
from ringcast_wire import (
    WIRE_VERSION,
    LeaseRecord,
    LimitExceededError,
    NodeRecord,
    StoreSettings,
    encode_record,
    names,
    split_chunks,
)
from ringcast_wire._reports import asking
from ringcast_wire.buckets import subject_of
from ringcast_wire.grpc import pb
from ringcast_wire.reports import (
    Refusal,
    RowFailure,
    WorkerKind,
    WorkerReport,
    decode_report_request,
    encode_report,
    ranges_of,
)

CALLS = 20


class Bench:
    """A store with published releases, each of a key of its own, and the questions that its workers would get."""

    def __init__(self, service: Any, store: str) -> None:
        self._service, self._store = service, store
        self._questions: dict[str, Any] = {}
        self.proofs: Proofs = service.app.core.proofs

    async def release(self, key: str) -> int:
        stub, nc = self._service.stub, self._service.nc
        row = pb.KeyedWrite(key=key, row=pb.RowWrite(row_id="row", value="v", if_absent=True))
        staged = await stub.StageRelease(
            pb.StageReleaseRequest(store=self._store, stage_id=key, rows=[row], complete=True)
        )
        await stub.PublishRelease(pb.PublishReleaseRequest(store=self._store, number=staged.number))

        async def is_published() -> bool:
            found = await stub.GetRelease(pb.GetReleaseRequest(store=self._store, number=staged.number))
            return bool(found.state == pb.RELEASE_STATE_PUBLISHED)

        await until(is_published)
        self._questions[key] = await nc.subscribe(names.report_subject(self._store, key))
        await nc.flush()
        return int(staged.number)

    def prove(self, number: int) -> asyncio.Task[Proof]:
        return asyncio.create_task(self.proofs.prove(self._store, number))

    async def questions(self, key: str) -> int:
        """How many there were so far."""
        await self._service.nc.flush()
        count: int = self._questions[key].pending_msgs
        return count


async def register(js: JetStreamContext, store: str, worker_id: str) -> None:
    """Has a worker of key ``k`` registered and alive."""
    node = NodeRecord(slot=0, lease=worker_id, incarnation="i")
    lease = LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1)
    await js.publish(subject_of(names.nodes_bucket(store), names.node_key("k", worker_id)), encode_record(node))
    await js.publish(subject_of(names.LEASES_BUCKET, worker_id), encode_record(lease))


class Answerer:
    """Answers as workers do. ``refuses``: of each worker what it says of rows that it may have refused."""

    def __init__(self, nc: Client, store: str, refuses: dict[str, bool | None]) -> None:
        self._nc, self._store = nc, store
        self.refuses = refuses
        self.silent_to_ranges: set[str] = set()
        self.asked: list[dict[int, tuple[int, int]]] = []

    async def answer(self, message: Any) -> None:
        request = decode_report_request(message.data)
        ranges = ranges_of(request)
        self.asked.append(ranges)
        for worker_id, refuses in self.refuses.items():
            if ranges and worker_id in self.silent_to_ranges:
                continue
            named = [Refusal(number, "row", last, RowFailure.DROPPED) for number, (_, last) in ranges.items()]
            report = WorkerReport(
                WIRE_VERSION,
                request.round_id,
                *("i", "1", 1, WorkerKind.APPLICATION, "digest", "history", [], []),
                refusals=[] if refuses is False else named,
                may_have_refused=refuses,
            )
            subject = names.reported_subject(self._store, "k", worker_id, request.round_id)
            for chunk in split_chunks(encode_report(report), 65_536):
                await self._nc.publish(subject, chunk.data, headers={names.HEADER_CHUNK: chunk.header})


@pytest.fixture
async def bench(service: Any, store_name: str) -> Bench:
    await service.create(store_name)
    return Bench(service, store_name)


async def test_calls_for_one_release_share_a_try_also_when_one_gives_up(bench: Bench) -> None:
    number = await bench.release("k")
    given_up, *others = [bench.prove(number) for _ in range(CALLS)]
    await asyncio.sleep(0)  # each has begun
    given_up.cancel()
    found = await asyncio.gather(*others)
    assert {proof.certificate for proof in found} == {None}
    assert found[0].lacks[0].sentence == "no worker is registered and alive"
    assert await bench.questions("k") == 1
    assert (await bench.prove(number)).lacks == found[0].lacks
    assert await bench.questions("k") == 2, "a later call gets no answer of before it"


async def test_no_more_releases_than_may_be_are_proven_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs_module, "MAX_PROOFS", 2)
    numbers = [await bench.release(f"k{number}") for number in range(3)]
    tries = [bench.prove(number) for number in numbers[:2]]
    await asyncio.sleep(0)  # both have begun
    with pytest.raises(LimitExceededError, match="2 releases are being proven here: no more are at once") as refused:
        await bench.prove(numbers[2])
    assert refused.value.retry_after_s
    joined = await bench.prove(numbers[0])
    assert joined is await tries[0], "one that is under way is no more"
    await tries[1]
    assert (await bench.prove(numbers[2])).lacks
    assert [await bench.questions(f"k{number}") for number in range(3)] == [1, 1, 1]


async def test_rounds_of_one_key_that_overlap_do_not_share_answers(
    bench: Bench, service: Any, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads the registrations first: an answer to the question of the other may be older than that."""
    monkeypatch.setattr(asking, "JOIN_WITHIN_S", 60.0)
    await bench.release("k")
    js, silent = service.nc.jetstream(), f"{store_name}-silent"
    await register(js, store_name, silent)
    store = StoreRecord(store_name, StoreSettings(partition_count=8), 0, 1)

    async def is_asked() -> bool:
        return await bench.questions("k") > 0

    first = asyncio.create_task(ask_fleet(service.nc, js, store, "k"))
    await until(is_asked)
    second = await ask_fleet(service.nc, js, store, "k")
    assert [(await first).found.silent, second.found.silent] == [(silent,), (silent,)]
    assert await bench.questions("k") == 2


async def test_the_revisions_are_sent_only_where_a_worker_may_have_refused_something(
    service: Any, store_name: str
) -> None:
    await service.create(store_name)
    js, ranges = service.nc.jetstream(), {1: (4, 6), 3: (1, 1)}
    clean, dropped, older = (f"{store_name}-{name}" for name in ("clean", "dropped", "older"))
    answerer = Answerer(service.nc, store_name, {clean: False})
    await service.nc.subscribe(names.report_subject(store_name, "k"), cb=answerer.answer)
    store = StoreRecord(store_name, StoreSettings(partition_count=8), 0, 1)
    await register(js, store_name, clean)
    found = (await ask_fleet(service.nc, js, store, "k", ranges)).found
    assert (answerer.asked, found.reports[clean].refusals) == ([{}], [])

    answerer.refuses |= {dropped: True, older: None}
    for worker_id in (dropped, older):
        await register(js, store_name, worker_id)
    found = (await ask_fleet(service.nc, js, store, "k", ranges)).found
    assert answerer.asked[1:] == [{}, ranges]
    named = {name: [each.partition for each in report.refusals or ()] for name, report in found.reports.items()}
    assert (named, found.silent) == ({clean: [], dropped: [1, 3], older: [1, 3]}, ())

    answerer.silent_to_ranges = {clean, dropped}
    found = (await ask_fleet(service.nc, js, store, "k", ranges)).found
    assert (set(found.reports), found.silent) == ({clean, older}, (dropped,)), "an answer without ranges is none"
