"""What a worker's user and the config service's are kept from, asked of a real server with the files of infra/nats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from nats.js import api
from nats.js.errors import APIError, NotFoundError
from ringcast.fleet import FleetReader
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, attempt, until
from ringcast_wire import limits, names
from ringcast_wire.reports import ReportAsker

from tests.integration.infra_nats import WORKER_API, Bus, InfraNats, connected, prepared_service

STREAM = names.notify_stream("gateway")
EVENT = names.notify_subject("gateway", "blocklist", 3)
NODES = names.nodes_bucket("gateway")
META = names.meta_bucket("gateway")
LEASES = names.LEASES_BUCKET
ME, OTHER, THIRD = "worker-0", "worker-1", "worker-2"
MINE, THEIRS = (names.consumer_name("ringcast", worker) for worker in (ME, OTHER))
WATCH, THEIR_WATCH = (names.watch_name("gateway", worker) for worker in (ME, OTHER))


@pytest.fixture(scope="module")
def service(server: InfraNats, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigServiceProcess]:
    """With the store `gateway`, 4 partitions, and a row."""
    rows = {"blocklist": {f"row{number}": "value" for number in range(20)}}
    with prepared_service(server, tmp_path_factory.mktemp("service"), partitions=4, rows=rows) as running:
        yield running


@pytest.fixture
async def worker(server: InfraNats, service: ConfigServiceProcess) -> AsyncIterator[Bus]:
    async with connected(server, ME) as bus:
        yield bus


@pytest.mark.parametrize(
    "subject",
    [
        EVENT,
        f"$KV.{META}.mode",
        f"$KV.{META}.partition_count",
        f"$KV.{LEASES}.{OTHER}",
        f"$KV.{NODES}.blocklist.{OTHER}",
        f"$KV.{NODES}.elsewhere.slot.0",
        names.fetch_subject("gateway", "elsewhere", "full"),
        names.fetch_subject("other", "blocklist", 0),
        f"{WORKER_API}.CONSUMER.MSG.NEXT.{STREAM}.{THEIRS}",
        f"{WORKER_API}.CONSUMER.CREATE.{STREAM}.{THEIRS}",
        f"{WORKER_API}.CONSUMER.DELETE.{STREAM}.{THEIRS}",
        f"{WORKER_API}.CONSUMER.CREATE.{STREAM}",
        f"{WORKER_API}.CONSUMER.INFO.{STREAM}.{THEIRS}",
        f"$JS.ACK.{STREAM}.{THEIRS}.1.1.1.1.0",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{NODES}.{THEIR_WATCH}",
        f"{WORKER_API}.CONSUMER.DELETE.KV_{NODES}.{THEIR_WATCH}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{NODES}",
        f"{WORKER_API}.CONSUMER.CREATE.KV_{META}.{WATCH}",
        f"{WORKER_API}.DIRECT.GET.{STREAM}",
        f"{WORKER_API}.DIRECT.GET.KV_{LEASES}.$KV.{LEASES}.{OTHER}",
        f"{WORKER_API}.STREAM.DELETE.{STREAM}",
        f"{WORKER_API}.STREAM.PURGE.{STREAM}",
        f"{WORKER_API}.STREAM.MSG.DELETE.{names.dead_stream('gateway')}",
        f"$JS.API.STREAM.MSG.DELETE.{names.dead_stream('gateway')}",
        f"{WORKER_API}.DIRECT.GET.{names.dead_stream('gateway')}",
        f"{WORKER_API}.STREAM.UPDATE.{STREAM}",
        f"{WORKER_API}.STREAM.CREATE.mine",
        f"{WORKER_API}.STREAM.MSG.GET.{STREAM}",
        f"{WORKER_API}.STREAM.MSG.GET.KV_{names.CLUSTER_BUCKET}",
        f"$KV.{names.CLUSTER_BUCKET}.agents.{ME}",
        f"{WORKER_API}.STREAM.NAMES",
        "$JS.API.STREAM.NAMES",
        "$JS.API.INFO",
        "$SYS.REQ.SERVER.PING",
        f"$KV.{names.groups_bucket('gateway')}.{names.seal_key('blocklist', 'g', 0)}",
        f"{WORKER_API}.DIRECT.GET.KV_{names.groups_bucket('gateway')}",
        "config.dead.gateway.other.0",
        "config.dead.other.blocklist.0",
        names.replay_subject("gateway", "blocklist"),
        names.replayed_subject("gateway", "blocklist", OTHER),
        names.replayed_subject("gateway", "elsewhere", ME),
        names.report_subject("gateway", "blocklist"),
        names.reported_subject("gateway", "blocklist", OTHER, "r"),
        names.reported_subject("gateway", "elsewhere", ME, "r"),
        names.reported_subject("other", "blocklist", ME, "r"),
        "anything",
    ],
)
@attempt(
    "a worker",
    "write events, settings, leases, slots, group positions, dead letters or reports of others; register in the "
    "cluster; call JetStream beyond its own consumer; ask for stores and keys that are not its own",
    "NATS refuses each of 46 subjects: permissions violation",
)
async def test_a_worker_may_not_publish(worker: Bus, subject: str) -> None:
    await worker.nc.publish(subject, b"x", reply=worker.nc.new_inbox())
    (reason,) = await worker.refused()
    assert "permissions violation for publish" in reason


@pytest.mark.parametrize(
    "subject",
    [
        f"{names.inbox_prefix(OTHER)}.>",
        f"{names.SERVICE_INBOX_PREFIX}.>",
        "_INBOX.>",
        "config.fetch.>",
        names.FETCH_SUBJECTS,
        "config.notify.>",
        EVENT,
        f"$KV.{LEASES}.>",
        f"$KV.{META}.>",
        "$JS.ACK.>",
        names.replay_subject("gateway", "elsewhere"),
        names.replay_subject("other", "blocklist"),
        "config.replay.>",
        names.REPLAYED_SUBJECTS,
        names.report_subject("gateway", "elsewhere"),
        "config.report.>",
        names.reported_subject("gateway", "blocklist", "*", "*"),
        "_R_.>",
        ">",
    ],
)
@attempt(
    "a worker",
    "listen to fetches, replays, reports, inboxes, acknowledgements or buckets of others, or to everything",
    "NATS refuses each of 19 subjects: permissions violation",
)
async def test_a_worker_may_not_listen(worker: Bus, subject: str) -> None:
    await worker.nc.subscribe(subject)
    (reason,) = await worker.refused()
    assert "permissions violation for subscription" in reason


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.PURGE.x",
        names.dead_subject("gateway", "blocklist", 0),
        names.replayed_subject("gateway", "blocklist", ME),
        f"$JS.API.DIRECT.GET.{STREAM}.{EVENT}",
        f"$JS.API.DIRECT.GET.KV_{LEASES}.$KV.{LEASES}.{ME}",
        f"$KV.{LEASES}.{ME}",
        f"$KV.{NODES}.blocklist.{ME}",
        names.fetch_subject("gateway", "blocklist", 0),
        f"{names.inbox_prefix(ME)}.x",
        names.reported_subject("gateway", "blocklist", ME, "r"),
        "$SYS.REQ.SERVER.PING",
    ],
)
@attempt(
    "the config service (its user on NATS)",
    "act as a worker, answer for one, or read events and leases",
    "NATS refuses: permissions violation",
)
async def test_the_service_may_not_publish(operator: Bus, subject: str) -> None:
    await operator.nc.publish(subject, b"x")
    (reason,) = await operator.refused()
    assert "permissions violation for publish" in reason


@pytest.mark.parametrize("subject", ["config.notify.>", f"{names.inbox_prefix(ME)}.>", names.FETCH_SUBJECTS, ">"])
@attempt(
    "the config service (its user on NATS)",
    "listen to events, to inboxes of workers, or to fetches outside of its queue group",
    "NATS refuses: permissions violation",
)
async def test_the_service_may_not_listen(operator: Bus, subject: str) -> None:
    await operator.nc.subscribe(subject)  # to fetches only as one of its group
    (reason,) = await operator.refused()
    assert "permissions violation for subscription" in reason


@pytest.mark.parametrize(
    "subject",
    [
        names.reported_subject("gateway", "blocklist", ME, "r"),
        names.report_subject("other", "blocklist"),
        f"{WORKER_API}.DIRECT.GET.{STREAM}",
        f"{WORKER_API}.DIRECT.GET.{names.notify_stream('other')}.{names.notify_subject('other', 'blocklist', 0)}",
        EVENT,
    ],
)
@attempt(
    "a tool (its user on NATS)",
    "answer for a worker, ask workers of other stores, read events but the last of a partition, or write one",
    "NATS refuses each of 5 subjects: permissions violation",
)
async def test_a_tool_may_not_publish(server: InfraNats, service: ConfigServiceProcess, subject: str) -> None:
    async with connected(server, "tools") as bus:
        await bus.nc.publish(subject, b"x", reply=bus.nc.new_inbox())
        (reason,) = await bus.refused()
    assert "permissions violation for publish" in reason


async def test_a_tool_may_ask_workers_how_far_they_are(
    server: InfraNats, service: ConfigServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request and answers go from account to account.

    The other worker has no lease in this file: what is forged would look like one.
    """
    for name, value in {**server.login("tools"), "jetstream_api": WORKER_API}.items():
        monkeypatch.setenv(f"RINGCAST_{name.upper()}", value)
    async with server.worker(ME) as me, server.worker(THIRD) as third, FleetReader.open(server.url) as reader:
        for worker in (me, third):
            await worker.wait_ready(timeout_s=PATIENCE_S)
        await until(lambda: len(me.owned("blocklist")) + len(third.owned("blocklist")) == 4)
        found = await reader.lag("gateway", "blocklist", patience_s=PATIENCE_S)
        answers = await reader.row("gateway", "blocklist", "row1", patience_s=PATIENCE_S)
    assert [each.worker_id for each in found.workers if each.answered] == [ME, THIRD]
    assert (found.silent, found.behind) == ((), 0)
    assert answers.published
    owners = [report.row.owned for report in answers.round.reports.values() if report.row is not None]
    assert sorted(owners) == [False, True]


async def test_the_service_may_ask_workers_how_far_they_are(server: InfraNats, operator: Bus) -> None:
    """Beside the tools: an answer goes to both accounts, and each round takes its own."""
    async with server.worker(ME) as me, server.worker(THIRD) as third, connected(server, "tools") as tools:
        for worker in (me, third):
            await worker.wait_ready(timeout_s=PATIENCE_S)
        rounds = [
            ReportAsker(bus.nc).ask("gateway", "blocklist", [ME, THIRD], timeout_s=PATIENCE_S)
            for bus in (operator, tools)
        ]
        for found in await asyncio.gather(*rounds):
            assert sorted(found.reports) == [ME, THIRD]
            assert (found.silent, found.left_out) == ((), 0)
    assert await operator.refused() == []


async def test_what_a_worker_needs_is_not_refused(worker: Bus) -> None:
    """The same look at refusals finds none, so that the tests above don't pass for another reason."""
    await worker.nc.subscribe(f"{names.inbox_prefix(ME)}.x.*")
    for subject in (f"$KV.{LEASES}.{ME}", f"$KV.{NODES}.blocklist.{ME}", f"$KV.{NODES}.blocklist.slot.0"):
        await worker.nc.publish(subject, b"{}")
    assert await worker.refused() == []
    reply = await worker.nc.request(names.fetch_subject("gateway", "blocklist", names.FETCH_HEADS), timeout=PATIENCE_S)
    assert names.HEADER_CHUNK in (reply.headers or {})


@pytest.mark.parametrize("rollup", ["all", "sub"])
@pytest.mark.parametrize(
    "subject",
    [
        f"$KV.{LEASES}.{ME}",
        f"$KV.{NODES}.blocklist.{ME}",
        f"$KV.{NODES}.blocklist.slot.1",
        "config.dead.gateway.blocklist.0",
    ],
)
@attempt(
    "a worker",
    "empty a bucket or stream by a message that rolls it up",
    "refused (rollup not permitted); nothing is stored",
)
async def test_a_worker_can_empty_no_bucket(worker: Bus, operator: Bus, subject: str, rollup: str) -> None:
    """One message that rolls a bucket up would take the leases of all others."""
    before = await sequences(operator)
    reply = await worker.nc.request(subject, b"{}", timeout=PATIENCE_S, headers={"Nats-Rollup": rollup})
    assert b"rollup not permitted" in reply.data
    assert await sequences(operator) == before


@pytest.mark.parametrize(
    "subject", [f"$KV.{LEASES}.{ME}", f"$KV.{NODES}.blocklist.{ME}", f"$KV.{NODES}.blocklist.slot.1"]
)
@attempt(
    "a worker",
    "fill the buckets with large records",
    "refused (message size)",
)
async def test_a_worker_can_write_no_large_record(worker: Bus, subject: str) -> None:
    reply = await worker.nc.request(subject, b"x" * (limits.MAX_RECORD_BYTES + 1), timeout=PATIENCE_S)
    assert b"message size exceeds maximum allowed" in reply.data


@pytest.mark.parametrize("bucket", [LEASES, NODES, META])
@attempt(
    "the config service (its user on NATS)",
    "delete leases, members or settings by JetStream",
    "refused (message delete not permitted)",
)
async def test_the_service_can_delete_no_message_of_a_bucket(operator: Bus, bucket: str) -> None:
    """It may delete dead letters, and NATS can't tell their streams from others by name."""
    js = operator.nc.jetstream()
    with pytest.raises(APIError, match="message delete not permitted"):
        await js.delete_msg(f"KV_{bucket}", 1)


@attempt(
    "the config service (its user on NATS)",
    "make a stream without a limit, which could take the room of the leases",
    "refused (max bytes)",
)
async def test_a_stream_without_a_limit_is_refused(operator: Bus) -> None:
    """It could take the room of the leases."""
    with pytest.raises(APIError, match="requires a stream config to have max bytes"):
        await operator.nc.jetstream().add_stream(api.StreamConfig(name="greedy", subjects=["greedy"]))


@attempt(
    "a worker",
    "forge an event, lease or setting by having an answer of NATS sent to its subject",
    "nothing is stored",
)
async def test_a_worker_can_have_no_answer_put_into_a_stream(worker: Bus, operator: Bus) -> None:
    """NATS sends an answer wherever the request says. Each of these would forge an event, a lease or a setting."""
    await worker.nc.publish(f"$KV.{LEASES}.{ME}", b"forged")
    await create_consumer(worker, MINE, filter_subjects=[names.notify_subject("gateway", "blocklist", 1)])
    requests = {
        f"{WORKER_API}.DIRECT.GET.KV_{LEASES}.$KV.{LEASES}.{ME}": b"",
        f"{WORKER_API}.DIRECT.GET.KV_{LEASES}": json.dumps({"multi_last": [f"$KV.{LEASES}.>"]}).encode(),
        f"{WORKER_API}.STREAM.INFO.KV_{META}": b"",
        f"{WORKER_API}.CONSUMER.MSG.NEXT.{STREAM}.{MINE}": b'{"batch": 1, "no_wait": true}',
        f"$KV.{LEASES}.{ME}": b"again",
        names.fetch_subject("gateway", "blocklist", names.FETCH_FULL): b"",
    }
    targets = (EVENT, f"$KV.{LEASES}.{OTHER}", f"$KV.{META}.mode", f"$KV.{NODES}.blocklist.{OTHER}")
    before = await sequences(operator)
    for subject, payload in requests.items():
        for target in targets:
            await worker.nc.publish(subject, payload, reply=target)
    # The same requests again: once they are answered, those before them are.
    inbox = worker.nc.new_inbox()
    answers = await worker.nc.subscribe(f"{inbox}.*")
    for number, (subject, payload) in enumerate(requests.items()):
        await worker.nc.publish(subject, payload, reply=f"{inbox}.{number}")
        await answers.next_msg(timeout=PATIENCE_S)
    assert await worker.refused() == []
    assert await sequences(operator) == before
    leases = await operator.nc.jetstream().stream_info(f"KV_{LEASES}", subjects_filter=f"$KV.{LEASES}.{OTHER}")
    assert not leases.state.subjects


@attempt(
    "a worker",
    "forge an event, lease, setting or dead letter by a consumer that pushes to its subject",
    "nothing is stored",
)
async def test_a_watch_of_a_worker_can_feed_no_stream(worker: Bus, operator: Bus) -> None:
    """A consumer pushes wherever it was told to: its messages and heartbeats must not be stored there."""
    js = worker.nc.jetstream(prefix=WORKER_API)
    await worker.nc.request(f"$KV.{NODES}.blocklist.{ME}", b"forged", timeout=PATIENCE_S)
    inbox = worker.nc.new_inbox()
    heard = await worker.nc.subscribe(inbox)
    for stream, consumer in ((STREAM, MINE), (f"KV_{NODES}", WATCH)):  # of a worker before
        with suppress(NotFoundError):
            await js.delete_consumer(stream, consumer)
    before = await sequences(operator)
    for target in (EVENT, f"$KV.{META}.mode", f"$KV.{LEASES}.{OTHER}", names.dead_subject("gateway", "blocklist", 0)):
        await create_watch(worker, target)
        await create_consumer(worker, MINE, deliver_subject=inbox, idle_heartbeat=0.1, filter_subjects=[EVENT])
        for _ in range(4):  # heartbeats of the second say that the first has had its time
            await heard.next_msg(timeout=PATIENCE_S)
        await js.delete_consumer(f"KV_{NODES}", WATCH)
        await js.delete_consumer(STREAM, MINE)
    assert await worker.refused() == []
    assert await sequences(operator) == before


async def create_consumer(worker: Bus, name: str, **options: Any) -> None:
    config = api.ConsumerConfig(name=name, durable_name=name, ack_policy=api.AckPolicy.EXPLICIT, **options)
    await worker.nc.jetstream(prefix=WORKER_API).add_consumer(STREAM, config)


async def create_watch(worker: Bus, deliver_to: str) -> None:
    config = api.ConsumerConfig(
        name=WATCH,
        deliver_subject=deliver_to,
        deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
        ack_policy=api.AckPolicy.NONE,
        filter_subjects=[f"$KV.{NODES}.>"],
        idle_heartbeat=0.1,
    )
    await worker.nc.jetstream(prefix=WORKER_API).add_consumer(f"KV_{NODES}", config)


async def sequences(operator: Bus) -> dict[str, int]:
    """The last sequence of every stream but the leases', which end by themselves."""
    js = operator.nc.jetstream()
    streams = (STREAM, f"KV_{NODES}", f"KV_{META}", names.dead_stream("gateway"))
    return {stream: (await js.stream_info(stream)).state.last_seq for stream in streams}
