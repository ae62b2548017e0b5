"""A store of peers gets exclusive ownership and loses it again, while workers in processes of their own serve it."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
from ringcast import Change, MismatchError
from ringcast.hosting import take_replays
from ringcast.topology import read_topologies
from ringcast.wishes import drain_worker, follow_drain, undrain_worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import (
    PATIENCE_S,
    ConfigServiceProcess,
    History,
    NatsServer,
    Report,
    TcpProxy,
    WorkerProcess,
    WrittenFleet,
    until,
    until_done,
)
from ringcast_wire import ConditionFailedError, InvalidInputError, Stage, Strategy, UnavailableError, names
from ringcast_wire.owner_records import Rule, Table, decode_table

PARTITIONS = 8
ROWS = 24
HANDLER_S = 0.003


@dataclass(frozen=True)
class Call:
    """One call of a handler. ``token`` is ``None`` where it did not return."""

    worker: tuple[str, int]
    began: int
    ended: int
    token: int | None


def calls_of(history: History) -> dict[int, list[Call]]:
    """By partition. One that was halted within a call, or killed, counts until then: nothing outside can stop it."""
    open_calls: dict[tuple[str, int], dict[tuple[str, int], tuple[int, int]]] = defaultdict(dict)
    found: dict[int, list[Call]] = defaultdict(list)
    for report in sorted(history.reports(), key=lambda report: report.at_ns):
        worker = report.worker_id, report.life
        if report.event == "begun":
            open_calls[worker][report.fields["row_id"], report.fields["version"]] = (
                report.fields["partition"],
                report.at_ns,
            )
        elif report.event == "row":
            begun = open_calls[worker].pop((report.fields["row_id"], report.fields["version"]), None)
            if begun is not None:
                found[begun[0]].append(Call(worker, begun[1], report.at_ns, report.fields["token"]))
        elif report.event in ("killed", "paused"):
            for partition, began in open_calls.pop(worker, {}).values():
                found[partition].append(Call(worker, began, report.at_ns, None))
    return found


def check_calls(history: History, of_peers: set[int]) -> int:
    """Looks whether calls kept to what is promised; returns how many were an owner's.

    Beside a call of an owner there is none of another process. Tokens of a partition rise, but for calls of peers that
    nothing has let start: these have none. Each token of an owner is one process's.
    """
    owned = 0
    for partition, calls in calls_of(history).items():
        calls.sort(key=lambda call: call.began)
        by_token: dict[int, set[tuple[str, int]]] = defaultdict(set)
        newest = 0
        for call in calls:
            if call.token:
                assert call.token >= newest, f"partition {partition}: {call} after the token {newest}"
                newest = call.token
                if call.token not in of_peers:
                    by_token[call.token].add(call.worker)
                    owned += 1
        assert all(len(workers) == 1 for workers in by_token.values()), by_token
        for one, other in itertools.combinations(calls, 2):
            if other.began < one.ended and one.began < other.ended and one.worker != other.worker:
                exclusive = [each for each in (one, other) if each.token and each.token not in of_peers]
                assert not exclusive, f"partition {partition}: {one} beside {other}"
    return owned


@dataclass
class Fleet(WrittenFleet):
    """Workers in processes of their own, while rows are written all the time, and their operator."""

    of_peers: set[int] = field(default_factory=lambda: {0})
    """The tokens of calls by the peer rule."""

    async def take(self, stage: Stage, gone: Sequence[str] = ()) -> None:
        """Takes a step once the workers are ready for it, and those that are gone give no sign of life."""
        step = partial(self.store.client.migrate_store, self.store.name, stage, gone=gone)
        await until_done(step, ConditionFailedError, UnavailableError)

    async def table(self) -> Table | None:
        async with await nats.connect(self.store.nats_url) as client:
            bucket = await client.jetstream().key_value(names.owners_bucket(self.store.name))
            try:
                return decode_table((await bucket.get(names.table_key("list"))).value or b"", PARTITIONS)
            except nats.js.errors.NotFoundError:
                return None

    async def has_rule(self, rule: Rule, number: int) -> bool:
        """Whether the table has a rule, and follows a step. Notes the token of peers."""
        table = await self.table()
        if table is None or table.rule is not rule or table.step < number:
            return False
        if rule is Rule.PEERS:
            self.of_peers.add(table.since)
        return True

    async def until_rule(self, rule: Rule) -> None:
        step = (await self.store.client.get_store(self.store.name)).migration.number
        await until(lambda: self.has_rule(rule, step))

    async def until_served(self, is_meant: Callable[[int], bool], workers: int) -> None:
        """Waits until each partition has been called anew with such a token, by so many workers."""
        begin = len(self.history.reports())

        def is_so() -> bool:
            calls = [
                each for each in self.history.reports(begin) if each.event == "row" and is_meant(each.fields["token"])
            ]
            partitions = {each.fields["partition"] for each in calls}
            return len(partitions) == PARTITIONS and len({each.worker_id for each in calls}) >= workers

        assert await asyncio.to_thread(self.history.wait, is_so, PATIENCE_S)

    def is_of_owner(self, token: int) -> bool:
        return token not in self.of_peers


@pytest.fixture
async def fleet(store: Any) -> AsyncIterator[Fleet]:
    """At the shadow, with short times."""
    await store.create(partition_count=PARTITIONS)
    await store.client.migrate_store(store.name, Stage.SHADOW, lease_ttl_ms=2_000, call_bound_ms=200)
    history, place = History(), {"servers": store.nats_url, "store": store.name, "keys": ("list",)}
    workers = [
        WorkerProcess(f"{store.name}-{name}", history=history, handler_delay_s=HANDLER_S, **place) for name in "abc"
    ]
    fleet = Fleet(store, history, workers)
    async with fleet.serving(ROWS):
        yield fleet
    assert check_calls(history, fleet.of_peers) > 0


async def test_there_and_back_while_a_worker_is_killed_and_one_halted(fleet: Fleet) -> None:
    first, halted, killed = fleet.workers
    await fleet.until_served(lambda token: token == 0, 3)
    await fleet.take(Stage.VALIDATE)
    await fleet.until_rule(Rule.PEERS)
    await fleet.take(Stage.SWITCH)
    halted.pause()
    killed.kill()
    await fleet.until_rule(Rule.OWNERS)
    await fleet.until_served(fleet.is_of_owner, 1)
    halted.resume()
    killed.start()
    await fleet.until_served(fleet.is_of_owner, 3)
    await fleet.take(Stage.SHADOW)
    first.kill()
    first.start()
    await fleet.until_rule(Rule.PEERS)
    await fleet.take(Stage.OFF)
    await fleet.until_served(lambda token: token == 0, 3)


async def test_it_finishes_while_a_worker_is_halted_and_one_is_killed(fleet: Fleet) -> None:
    """One misses the step, and one is started after it. The store has the strategy sticky for all three."""
    client, store = fleet.store.client, fleet.store.name
    drained, halted, killed = fleet.workers
    place = fleet.store.nats_url, store, drained.worker_id
    await fleet.until_served(lambda token: token == 0, 3)
    await fleet.take(Stage.VALIDATE)
    await fleet.until_rule(Rule.PEERS)
    await fleet.take(Stage.SWITCH)
    await fleet.until_rule(Rule.OWNERS)
    with pytest.raises(InvalidInputError, match="which takes the strategy sticky"):
        await drain_worker(*place)
    halted.pause()
    killed.kill()
    await fleet.take(Stage.FINISH)
    found = await client.get_store(store)
    assert (found.strategy, found.lease_ttl_ms, found.call_bound_ms) == (Strategy.STICKY, 2_000, 200)
    killed.start()
    await fleet.until_served(fleet.is_of_owner, 2)
    halted.resume()
    await fleet.until_served(fleet.is_of_owner, 3)
    await drain_worker(*place)
    seen = [progress async for progress in follow_drain(*place, ["list"])]
    assert [each.partitions for each in seen[-1]] == [0]
    await undrain_worker(*place)
    await fleet.until_served(fleet.is_of_owner, 3)


async def test_it_goes_on_without_a_worker_that_is_gone_until_it_is_back(fleet: Fleet) -> None:
    """One is killed in the shadow, and has no agent that sees it. Its operator knows that its machine is destroyed."""
    client, store = fleet.store.client, fleet.store.name
    lives, _, killed = fleet.workers
    await fleet.until_served(lambda token: token == 0, 3)
    killed.kill()
    await fleet.take(Stage.VALIDATE)
    await fleet.until_rule(Rule.PEERS)
    waits = f"workers {killed.worker_id} of key 'list' are not guarded"

    async def is_all_that_is_waited_for() -> bool:
        with pytest.raises(ConditionFailedError) as refused:
            await client.migrate_store(store, Stage.SWITCH)
        return str(refused.value).endswith(waits)

    await until(is_all_that_is_waited_for)
    with pytest.raises(ConditionFailedError, match=f"the worker '{lives.worker_id}' is not gone: "):
        await client.migrate_store(store, Stage.SWITCH, gone=[lives.worker_id, killed.worker_id])
    (shown,) = await read_topologies(fleet.store.nats_url, store)
    assert shown.shadow is not None
    assert shown.shadow.unguarded == (killed.worker_id,)
    await fleet.take(Stage.SWITCH, gone=[killed.worker_id])
    await fleet.until_rule(Rule.OWNERS)
    await fleet.until_served(fleet.is_of_owner, 2)
    (shown,) = await read_topologies(fleet.store.nats_url, store)
    assert shown.shadow is not None
    assert shown.shadow.unguarded == ()
    killed.start()
    await fleet.until_served(fleet.is_of_owner, 3)
    await fleet.take(Stage.FINISH)
    await fleet.until_served(fleet.is_of_owner, 3)


@dataclass(frozen=True)
class Place:
    """A store of servers that may be killed.

    A write is tried again as long as the service refuses it: it may have to compare the store with NATS first.
    """

    name: str
    nats_url: str
    client: ConfigServiceClient

    async def put(self, row_id: str, value: str) -> None:
        """Writes a row."""
        await until_done(partial(self.client.put, self.name, "list", row_id, value), UnavailableError)

    async def delete(self, row_id: str) -> None:
        """Deletes a row."""
        await until_done(partial(self.client.delete, self.name, "list", row_id), UnavailableError)


@pytest.fixture
async def alone(nats_server: NatsServer, tmp_path: Path, store_name: str) -> AsyncIterator[Fleet]:
    """The same with a NATS server and a config service of its own, which looks after its buckets all the time."""
    database, often = f"sqlite:{tmp_path / 'ringcast.db'}", ("--provision-interval", "500ms")
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database, options=often) as service:
        async with ConfigServiceClient(service.address) as client:
            await client.create_store(store_name, partition_count=PARTITIONS)
            await client.migrate_store(store_name, Stage.SHADOW, lease_ttl_ms=2_000, call_bound_ms=200)
            history = History()
            place: dict[str, Any] = {"servers": nats_server.url, "store": store_name, "keys": ("list",)}
            workers = [
                WorkerProcess(f"{store_name}-{name}", history=history, handler_delay_s=HANDLER_S, **place)
                for name in "abc"
            ]
            fleet = Fleet(Place(store_name, nats_server.url, client), history, workers)
            async with fleet.serving(ROWS):
                yield fleet
            assert check_calls(history, fleet.of_peers) > 0


async def restart(server: NatsServer, fleet: Fleet, settled: Callable[[], Awaitable[None]]) -> None:
    """NATS is killed, and started again at once."""
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def lose_the_metadata(server: NatsServer, fleet: Fleet, settled: Callable[[], Awaitable[None]]) -> None:
    """NATS loses the step, and a worker is started meanwhile; later all of the metadata. The service writes it again.

    A worker that starts while there is no store ends with an error: so that waits until all are there.
    """
    bucket = names.meta_bucket(fleet.store.name)
    async with await nats.connect(server.url) as client:
        js = client.jetstream()
        meta = await js.key_value(bucket)
        step = (await meta.get(names.META_MIGRATION)).value

        async def is_back() -> bool:
            try:
                return (await meta.get(names.META_MIGRATION)).value == step
            except nats.errors.Error:
                return False

        await asyncio.to_thread(fleet.workers[2].terminate)  # a kill would have it wait for its own lease
        await meta.delete(names.META_MIGRATION)
        await asyncio.to_thread(fleet.workers[2].start)
        await until(is_back)
        await settled()
        await js.delete_stream(f"KV_{bucket}")  # its messages alone can't be purged
        await until(is_back)


@pytest.mark.parametrize("outage", [restart, lose_the_metadata])
async def test_an_outage_in_each_phase(
    alone: Fleet,
    nats_server: NatsServer,
    outage: Callable[[NatsServer, Fleet, Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    """No row is lost, and none has two owners, whatever NATS does in the shadow, validate, switch and finish."""
    await alone.until_served(lambda token: token == 0, 3)
    for stage, rule, is_meant in (
        (Stage.SHADOW, Rule.PEERS, lambda token: token == 0),
        (Stage.VALIDATE, Rule.PEERS, lambda token: token > 0),
        (Stage.SWITCH, Rule.OWNERS, alone.is_of_owner),
        (Stage.FINISH, Rule.OWNERS, alone.is_of_owner),
    ):

        async def settled(rule: Rule = rule, is_meant: Callable[[int], bool] = is_meant) -> None:
            await alone.until_rule(rule)
            await alone.until_served(is_meant, 3)

        await alone.take(stage)
        await outage(nats_server, alone, settled)
        await settled()


async def test_keys_with_a_slow_handler_that_fails_at_first_while_a_worker_is_stopped_in_order(store: Any) -> None:
    """It stops right after the step to ``SWITCH``: each key of the store gets owners, and no row is lost."""
    await store.create(partition_count=PARTITIONS)
    await store.client.migrate_store(store.name, Stage.SHADOW, lease_ttl_ms=2_000, call_bound_ms=200)
    keys, failed, told = ("list", "other"), set[Any](), set[Any]()

    async def handler(change: Change) -> None:
        row = change.key, change.row_id, change.value
        if row not in failed:
            failed.add(row)
            raise ValueError("once")
        await asyncio.sleep(0.05)
        told.add(row)

    async def write(value: str) -> set[Any]:
        rows = {(key, f"row{number}", value) for key in keys for number in range(ROWS)}
        for key, row_id, _ in rows:
            await store.client.put(store.name, key, row_id, value)
        return rows

    fleet = Fleet(store, History(), [])
    async with store.worker("a", keys, handler=handler) as stays:
        async with store.worker("b", keys, handler=handler) as stops:
            await until(lambda: stays.owned("list") and stops.owned("other"))
            await fleet.take(Stage.VALIDATE)
            await write("1")
            await fleet.take(Stage.SWITCH)
        await write("2")
        await fleet.take(Stage.FINISH)
        wanted = await write("3")
        await until(lambda: wanted <= told)
        assert [len(stays.owned(key)) for key in keys] == [PARTITIONS] * 2


async def test_a_group_of_an_agent_is_refused_from_validate_on(store: Any) -> None:
    await store.create(partition_count=PARTITIONS)
    await store.client.migrate_store(store.name, Stage.SHADOW)
    await store.client.migrate_store(store.name, Stage.VALIDATE)
    worker = store.worker("a")
    take_replays(worker, lambda request, row, answer: lambda: None)
    with pytest.raises(MismatchError, match="is at the stage validate, where no groups of an agent are served"):
        await worker.start()


async def test_a_cache_is_not_handed_over_before_the_step_is_known(
    store: Any, service_nats: NatsServer, tmp_path: Path
) -> None:
    """The store migrated when it was written, so another worker may own by now what it has."""
    await store.create(partition_count=PARTITIONS)
    await store.client.migrate_store(store.name, Stage.SHADOW, lease_ttl_ms=2_000, call_bound_ms=200)
    for number in range(ROWS):
        await store.put(f"row{number}", "1")
    told: list[str] = []
    with TcpProxy(service_nats.port) as proxy:
        place = {"servers": f"nats://127.0.0.1:{proxy.port}", "cache_dir": str(tmp_path)}
        for is_cut in (False, True):
            told.clear()
            if is_cut:
                proxy.cut()
            async with store.worker("w", handler=lambda change: told.append(change.row_id), **place) as worker:
                if is_cut:
                    assert sum(1 for _ in worker.rows("list")) == ROWS, "they are there"
                    assert (worker.owned("list"), told) == (frozenset(), [])
                    proxy.resume()
                await until(lambda: len(set(told)) == ROWS)


def report(event: str, worker_id: str, at_ns: int, **fields: Any) -> Report:
    return Report(worker_id, 1, event, at_ns, {"partition": 3, "row_id": worker_id, "version": 1, **fields})


@pytest.mark.parametrize(
    ("one", "other", "is_found"),
    [
        ((1, 5, 0), (2, 3, 0), False),  # peers
        ((1, 5, 7), (2, 3, 7), False),  # peers that are guarded
        ((1, 5, 0), (2, 3, 9), True),  # a peer that nothing has let start, beside an owner
        ((1, 5, 7), (2, 3, 9), True),  # a peer beside an owner
        ((1, 2, 9), (3, 4, 8), True),  # tokens that fall
        ((1, 2, 9), (3, 4, 9), True),  # two owners of one token
        ((1, 2, 9), (3, 4, 0), False),
        ((1, None, 0), (3, 4, 9), True),  # a call that does not return
    ],
)
def test_the_judge(one: tuple[int, int | None, int], other: tuple[int, int, int], is_found: bool) -> None:
    history = History()
    for worker_id, (began, ended, token) in (("a", one), ("b", other)):
        history.add(report("begun", worker_id, began))
        if ended is not None:
            history.add(report("row", worker_id, ended, token=token))
    history.add(report("killed", "a", 9))
    if is_found:
        with pytest.raises(AssertionError):
            check_calls(history, {0, 7})
    else:
        check_calls(history, {0, 7})
