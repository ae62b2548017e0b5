"""Exclusive ownership with the accounts of infra/nats: they are enough for it, and what a worker is kept from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from nats.js import api
from nats.js.errors import BadRequestError, NotFoundError
from ringcast import Change, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, attempt, until, until_workers
from ringcast_wire import Strategy, limits, names

from tests.integration.callout_nats import CalloutNats
from tests.integration.infra_nats import WORKER_API, Bus, InfraNats, connected

PARTITIONS, ROWS = 4, 40
OWNERS, WISHES = names.owners_bucket("gateway"), names.wishes_bucket("gateway")
ME, OTHER = "worker-0", "worker-1"
TABLE, TERM = names.table_key("blocklist"), names.term_key("blocklist")
WATCH, THEIR_WATCH = (names.watch_name("gateway", worker) for worker in (ME, OTHER))
MINE = (names.session_key(ME), names.load_key(ME), names.state_key("blocklist", ME), TERM, TABLE)


@pytest.fixture(scope="module")
def service(server: InfraNats, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigServiceProcess]:
    with server.service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
async def made(service: ConfigServiceProcess) -> AsyncIterator[ConfigServiceClient]:
    """The store `gateway`."""
    await create(service)
    async with ConfigServiceClient(service.address) as client:
        yield client


async def create(service: ConfigServiceProcess) -> None:
    """Makes the store `gateway` with exclusive ownership and short times, unless it is there."""
    async with ConfigServiceClient(service.address) as client:
        if not await client.list_stores():
            await client.create_store(
                "gateway",
                partition_count=PARTITIONS,
                strategy=Strategy.STICKY,
                lease_ttl_ms=2_000,
                call_bound_ms=200,
            )


class Small(NamedTuple):
    """A server and a service of a test's own, with the same store, whose bucket of owners has 1 MiB."""

    server: InfraNats
    service: ConfigServiceProcess


@pytest.fixture(params=[InfraNats, CalloutNats])
async def small(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Small]:
    """With passwords in the files, and with tokens."""
    server = request.param(tmp_path)
    with server, server.service(tmp_path, "--members-max-bytes", "1MiB") as service:
        await create(service)
        yield Small(server, service)


@pytest.fixture
async def worker(server: InfraNats, made: ConfigServiceClient) -> AsyncIterator[Bus]:
    async with connected(server, ME) as bus:
        yield bus


def serves(workers: tuple[Worker, ...], *, each: int) -> bool:
    rows = sum(worker.row_count("blocklist") for worker in workers)
    return rows == ROWS and all(len(worker.owned("blocklist")) == each for worker in workers)


async def test_workers_start_and_hand_over_and_a_purge_ends_what_is_wanted_of_a_key(
    server: InfraNats, made: ConfigServiceClient
) -> None:
    for number in range(ROWS):
        await made.put("gateway", "blocklist", f"row{number}", "1")
    async with connected(server, "tools") as tools:
        wished = await tools.nc.request(
            f"$KV.{WISHES}.blocklist.wishes", b'{"drains": ["worker-2"]}', timeout=PATIENCE_S
        )
        assert b"error" not in wished.data
        async with server.worker("worker-0") as first:
            async with server.worker("worker-1") as second:
                both = (first, second)
                await until_workers(both, "blocklist", lambda: serves(both, each=PARTITIONS // 2))
                async with server.worker("worker-2") as drained:
                    put = await made.put("gateway", "blocklist", "row7", "2")
                    (owner,) = [one for one in both if put.partition in one.owned("blocklist")]
                    await owner.wait_for("blocklist", put.partition, put.version, timeout_s=PATIENCE_S)
                    assert not drained.owned("blocklist")
            await until_workers((first,), "blocklist", lambda: serves((first,), each=PARTITIONS))
        asked = json.dumps({"last_by_subj": f"$KV.{OWNERS}.{TABLE}"}).encode()
        read = await tools.nc.request(f"{WORKER_API}.DIRECT.GET.KV_{OWNERS}", asked, timeout=PATIENCE_S)
        assert json.loads(read.data)["epoch"] > 1
        await made.delete_key("gateway", "blocklist", purge=True)
        wishes = f"$KV.{WISHES}.{names.wishes_key('blocklist')}"
        gone = await tools.nc.request(f"{WORKER_API}.DIRECT.GET.KV_{WISHES}.{wishes}", timeout=PATIENCE_S)
        assert (gone.headers or {})["KV-Operation"] == "DEL"
        assert await tools.refused() == []
    assert [line for line in server.violations() if "nobody.may" not in line] == []


@pytest.mark.parametrize(
    "subject",
    [
        f"$KV.{OWNERS}.{names.session_key(OTHER)}",
        f"$KV.{OWNERS}.{names.state_key('blocklist', OTHER)}",
        f"$KV.{OWNERS}.{names.state_key('elsewhere', ME)}",
        f"$KV.{OWNERS}.{names.term_key('elsewhere')}",
        f"$KV.{OWNERS}.{names.table_key('elsewhere')}",
        f"$KV.{WISHES}.{names.wishes_key('blocklist')}",
        f"$KV.{names.owners_bucket('other')}.{TABLE}",
        f"{WORKER_API}.DIRECT.GET.KV_{WISHES}",
        f"{WORKER_API}.STREAM.PURGE.KV_{OWNERS}",
        f"{WORKER_API}.STREAM.DELETE.KV_{OWNERS}",
        f"{WORKER_API}.STREAM.MSG.DELETE.KV_{OWNERS}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{OWNERS}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{OWNERS}.{THEIR_WATCH}",
        f"{WORKER_API}.CONSUMER.DELETE.KV_{OWNERS}.{THEIR_WATCH}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{WISHES}.{THEIR_WATCH}",
        f"{WORKER_API}.CONSUMER.DELETE.KV_{WISHES}.{THEIR_WATCH}",
    ],
)
@attempt(
    "a worker of a store of exclusive ownership",
    "write sessions, states, terms or tables that are not its own, or what operators want; call JetStream beyond its "
    "own watch",
    "NATS refuses each of 16 subjects: permissions violation",
)
async def test_a_worker_may_not_publish(worker: Bus, subject: str) -> None:
    await worker.nc.publish(subject, b"x", reply=worker.nc.new_inbox())
    (reason,) = await worker.refused()
    assert "permissions violation for publish" in reason


@pytest.mark.parametrize(
    "name", [TERM, TABLE, names.session_key(ME), names.load_key(ME), names.state_key("blocklist", ME)]
)
@attempt(
    "tools and the config service",
    "write who owns what",
    "NATS refuses: permissions violation. The service may write, and so delete, what workers say of themselves, "
    "which takes no partition from one that lives",
)
async def test_tools_and_the_service_may_not_write_what_workers_write(
    server: InfraNats, made: ConfigServiceClient, operator: Bus, name: str
) -> None:
    async with connected(server, "tools") as tools:
        for bus in (tools, operator):
            await bus.nc.publish(f"$KV.{OWNERS}.{name}", b"", headers={"KV-Operation": "DEL"})
            if bus is operator and name == names.state_key("blocklist", ME):
                assert await bus.refused() == [], "of a worker that an operator says is gone"
                continue
            (reason,) = await bus.refused()
            assert "permissions violation for publish" in reason


@pytest.mark.parametrize("rollup", ["all", "sub"])
@pytest.mark.parametrize("name", MINE)
@attempt(
    "a worker of a store of exclusive ownership",
    "empty the bucket of owners",
    "refused (rollup not permitted); nothing is stored",
)
async def test_a_worker_can_not_empty_the_bucket_of_owners(worker: Bus, operator: Bus, name: str, rollup: str) -> None:
    before = await sequences(operator)
    headers = {"Nats-Rollup": rollup}
    reply = await worker.nc.request(f"$KV.{OWNERS}.{name}", b"{}", timeout=PATIENCE_S, headers=headers)
    assert b"rollup not permitted" in reply.data
    assert await sequences(operator) == before


@attempt(
    "a worker of a store of exclusive ownership",
    "forge a session or a wish by an answer or a watch of NATS",
    "nothing is stored; a watch into its own stream is refused (forms a cycle)",
)
async def test_a_worker_can_have_no_answer_and_no_watch_put_into_the_buckets(worker: Bus, operator: Bus) -> None:
    """NATS sends an answer wherever the request says: it would be another's session, or what an operator wants."""
    await worker.nc.request(f"$KV.{OWNERS}.{names.state_key('blocklist', ME)}", b"forged", timeout=PATIENCE_S)
    before = await sequences(operator)
    prefix, own = f"$KV.{OWNERS}.", names.state_key("blocklist", ME)
    requests = {
        f"{WORKER_API}.DIRECT.GET.KV_{OWNERS}.{prefix}{own}": b"",
        f"{WORKER_API}.DIRECT.GET.KV_{OWNERS}": json.dumps({"multi_last": [prefix + own]}).encode(),
    }
    targets = [
        f"{prefix}{names.session_key(OTHER)}",
        f"{prefix}{names.state_key('blocklist', OTHER)}",
        f"$KV.{WISHES}.{names.wishes_key('blocklist')}",
    ]
    for subject, payload in requests.items():
        for target in targets:
            await worker.nc.publish(subject, payload, reply=target)
    inbox = worker.nc.new_inbox()
    heard = await worker.nc.subscribe(f"{inbox}.*")
    for number, (subject, payload) in enumerate(requests.items()):
        await worker.nc.publish(subject, payload, reply=f"{inbox}.{number}")
        await heard.next_msg(timeout=PATIENCE_S)
    js = worker.nc.jetstream(prefix=WORKER_API)
    with suppress(NotFoundError):
        await js.delete_consumer(f"KV_{OWNERS}", WATCH)  # of a worker before
    for target in targets[:2]:  # in the same stream
        with pytest.raises(BadRequestError, match="forms a cycle"):
            await watch(worker, target)
    await watch(worker, targets[2])
    await worker.nc.request(f"{prefix}{own}", b"forged again", timeout=PATIENCE_S)
    await js.delete_consumer(f"KV_{OWNERS}", WATCH)
    await watch(worker, f"{inbox}.watch")
    await heard.next_msg(timeout=PATIENCE_S)
    assert await worker.refused() == []
    after = await sequences(operator)
    assert after[f"KV_{WISHES}"] == before[f"KV_{WISHES}"]
    assert after[f"KV_{OWNERS}"] == before[f"KV_{OWNERS}"] + 1  # what it wrote itself


@attempt(
    "a worker of a store of exclusive ownership",
    "fill the bucket of owners with its records",
    "on one server, sessions are refreshed all the same, and owners serve",
)
async def test_owners_go_on_when_another_worker_has_filled_the_bucket(small: Small) -> None:
    """A refresh takes the place of the one before, which a full bucket allows as long as it is not larger. Each names
    the one before: a number that gets more digits."""
    changes: asyncio.Queue[Change] = asyncio.Queue()
    states = [names.state_key(key, OTHER) for key in ("blocklist", "suffixes")]
    theirs = [*states, names.session_key(OTHER), names.table_key("suffixes"), names.term_key("suffixes")]
    async with (
        ConfigServiceClient(small.service.address) as client,
        small.server.worker(ME, handler=changes.put) as owner,
        connected(small.server, OTHER) as hostile,
    ):

        async def wrote(name: str, size: int) -> int:
            """The number of the message; 0 where there is no room for it."""
            reply = await hostile.nc.request(f"$KV.{OWNERS}.{name}", b"x" * size, timeout=PATIENCE_S)
            return int(json.loads(reply.data)["seq"])

        async def refreshed() -> int:
            asked = json.dumps({"last_by_subj": f"$KV.{OWNERS}.{names.session_key(ME)}"}).encode()
            reply = await hostile.nc.request(f"{WORKER_API}.DIRECT.GET.KV_{OWNERS}", asked, timeout=PATIENCE_S)
            return int((reply.headers or {})["Nats-Sequence"])

        await owner.wait_until("blocklist", lambda: len(owner.owned("blocklist")) == PARTITIONS, timeout_s=PATIENCE_S)
        await client.put("gateway", "blocklist", "row", "1")
        async with asyncio.timeout(PATIENCE_S):
            before = await changes.get()
        for name in theirs:
            size = 0
            for bit in reversed(range(limits.MAX_TABLE_BYTES.bit_length() - 1)):
                size += (1 << bit) * bool(await wrote(name, size + (1 << bit)))
        while await wrote(theirs[-1], size + 1):  # the owner's report of its loads may take less room by now
            size += 1
        last = await wrote(theirs[-1], size)
        while len(str(last)) == len(str(await refreshed())):
            last = await wrote(theirs[-1], size)

        async def went_on() -> bool:
            return await refreshed() > last

        await until(went_on)
        await client.put("gateway", "blocklist", "row", "2")
        async with asyncio.timeout(PATIENCE_S):
            after = await changes.get()
        assert (after.value, after.token) == ("2", before.token), "the session has not ended"
        assert owner.health().ready


async def watch(worker: Bus, deliver_to: str) -> None:
    config = api.ConsumerConfig(
        name=WATCH,
        deliver_subject=deliver_to,
        deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
        ack_policy=api.AckPolicy.NONE,
        filter_subjects=[f"$KV.{OWNERS}.>"],
        idle_heartbeat=0.1,
    )
    await worker.nc.jetstream(prefix=WORKER_API).add_consumer(f"KV_{OWNERS}", config)


async def sequences(operator: Bus) -> dict[str, Any]:
    js = operator.nc.jetstream()
    return {stream: (await js.stream_info(stream)).state.last_seq for stream in (f"KV_{OWNERS}", f"KV_{WISHES}")}
