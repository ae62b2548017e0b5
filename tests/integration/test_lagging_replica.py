"""A server of NATS that lags behind, in a real cluster: tools read what the others have.

The records are written here as a service and a worker write them, but the lease, which stays however slow the machine
is.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from ringcast.fleet import FleetReader, RowAnswers
from ringcast.groups import read_groups
from ringcast.topology import read_topology
from ringcast_testkit import PATIENCE_S, NatsServer, ReservedPort, TcpProxy, until, until_done
from ringcast_wire import (
    Event,
    GroupSeal,
    HeadsReply,
    LeaseRecord,
    NodeRecord,
    StoreSettings,
    UnavailableError,
    encode,
    encode_record,
    names,
    split_chunks,
)
from ringcast_wire.buckets import stream_of, subject_of

STORE, KEY, ROW, REVISION = "s", "k", "row", 7
META, NODES, GROUPS = (make(STORE) for make in (names.meta_bucket, names.nodes_bucket, names.groups_bucket))
BUCKETS = (META, NODES, GROUPS, names.LEASES_BUCKET)
STREAMS = (*map(stream_of, BUCKETS), names.notify_stream(STORE))
READS = 12
"""As many as make sure that the server that lags behind answers some of their requests."""
T = TypeVar("T")
NOT_NOW = (nats.errors.Error, nats.js.errors.Error, TimeoutError)


class Site(NamedTuple):
    """Servers that store, and ``edge``, which stores nothing: what it is asked goes to any of them.

    ``lagging`` reaches the others over ``links``, and ``edge`` directly.
    """

    keeping_up: NatsServer
    lagging: NatsServer
    edge: NatsServer
    links: tuple[TcpProxy, ...]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    ports = {name: ReservedPort() for name in ("n0", "n1", "lagging", "edge")}
    nowhere = ReservedPort()
    with ExitStack() as stack:
        links = tuple(stack.enter_context(TcpProxy(ports[name].number)) for name in ("n0", "n1"))
        routes = {
            "n0": [ports["n1"].number],
            "n1": [ports["n0"].number],
            "lagging": [link.port for link in links],
            "edge": [ports[name].number for name in ("n0", "n1", "lagging")],
        }

        def server(name: str) -> NatsServer:
            cluster = {
                "name": "ringcast-test",
                "listen": ports[name].address,
                "routes": [f"nats-route://127.0.0.1:{port}" for port in routes[name]],
                "advertise": nowhere.address,  # else others would tell of it, and no link would be the only one
                "no_advertise": True,
            }
            without: dict[str, Any] = {"jetstream": False} if name == "edge" else {}
            return stack.enter_context(NatsServer(tmp_path / name, server_name=name, cluster=cluster, **without))

        servers = {name: server(name) for name in ports}
        yield Site(servers["n0"], servers["lagging"], servers["edge"], links)


async def test_tools_do_not_take_what_a_server_that_lags_behind_has_for_the_truth(site: Site) -> None:
    async with await nats.connect(site.keeping_up.url) as client, await nats.connect(site.edge.url) as edge:
        js = client.jetstream(timeout=1)
        await _create(js)
        for link in site.links:
            link.silence()
        await _until_led(js)
        async with await nats.connect(site.lagging.url) as alone:
            # It hears of no leader, so it says itself how many messages there are; and it answers direct reads.
            await _until_led(alone.jetstream(timeout=1), by_none=True)
        await _write(js)
        await client.subscribe(
            names.fetch_subject(STORE, KEY, names.FETCH_HEADS), cb=functools.partial(_answer_heads, client)
        )
        await _reads_differ(edge)
        for _ in range(READS):
            await _read_all(site.edge.url)


async def _create(js: JetStreamContext) -> None:
    """The streams of a store, with three copies each."""
    configs = [
        StreamConfig(
            name=stream_of(bucket),
            subjects=[subject_of(bucket, ">")],
            max_msgs_per_subject=1,
            num_replicas=3,
            allow_direct=True,
        )
        for bucket in BUCKETS
    ]
    subjects = [names.notify_stream_subjects(STORE)]
    configs.append(StreamConfig(name=STREAMS[-1], subjects=subjects, num_replicas=3, allow_direct=True))
    for config in configs:
        # Servers that have elected a leader know each other a little later.
        await until_done(functools.partial(js.add_stream, config), *NOT_NOW)
    for field, value in StoreSettings(partition_count=1).to_kv().items():
        await _store(js, subject_of(META, field), value)


async def _write(js: JetStreamContext) -> None:
    """A worker that serves the key, a position of a group, and an event."""
    node = NodeRecord(slot=0, lease="w1", incarnation="i")
    lease = LeaseRecord(incarnation="i", host="h", pid=7, started_at_ms=1)
    seal = GroupSeal(history="h", revision=REVISION, sealed_at_ms=1)
    await _store(js, subject_of(NODES, names.node_key(KEY, "w1")), encode_record(node))
    await _store(js, subject_of(names.LEASES_BUCKET, "w1"), encode_record(lease))
    await _store(js, subject_of(GROUPS, names.seal_key(KEY, "g", 0)), encode_record(seal))
    await _store(js, names.notify_subject(STORE, KEY, 0), encode(Event(1, 0, REVISION, 1, None, "h")))


async def _store(js: JetStreamContext, subject: str, value: bytes) -> None:
    await until_done(lambda: js.publish(subject, value), *NOT_NOW)


async def _answer_heads(client: Client, request: Msg) -> None:
    """As the config service says how far the key is."""
    (chunk,) = split_chunks(encode(HeadsReply(1, [REVISION], "h", [1])), max_payload=client.max_payload)
    await client.publish(request.reply, chunk.data, headers={names.HEADER_CHUNK: chunk.header})


async def _until_led(js: JetStreamContext, *, by_none: bool = False) -> None:
    """Waits until a server says of each stream that it has a leader, or that it hears of none."""

    async def is_so(stream: str) -> bool:
        try:
            cluster = (await js.stream_info(stream)).cluster
            await js.get_last_msg(stream, "any", direct=True)
        except nats.js.errors.NotFoundError:
            return cluster is not None and bool(cluster.leader) is not by_none
        except NOT_NOW:  # it leaves the answer to a leader that it hears of, or the direct read to another one
            return False
        raise AssertionError("there is no such message")

    for stream in STREAMS:
        await until(functools.partial(is_so, stream))


async def _reads_differ(edge: Client) -> None:
    """Waits until each stream was read from a server that has the newest message, and from one that has not."""
    subjects = {
        stream_of(NODES): subject_of(NODES, names.node_key(KEY, "w1")),
        stream_of(names.LEASES_BUCKET): subject_of(names.LEASES_BUCKET, "w1"),
        stream_of(GROUPS): subject_of(GROUPS, names.seal_key(KEY, "g", 0)),
        names.notify_stream(STORE): names.notify_subject(STORE, KEY, 0),
    }
    for stream, subject in subjects.items():
        found = set[bool]()

        async def differ(stream: str = stream, subject: str = subject, found: set[bool] = found) -> bool:
            reply = await edge.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", timeout=PATIENCE_S)
            found.add((reply.headers or {}).get("Status") is None)
            return len(found) == 2

        await until(differ)


async def _read_all(url: str) -> None:
    async def row() -> RowAnswers:
        async with FleetReader.open(url) as reader:
            return await reader.row(STORE, KEY, ROW, patience_s=0.001)

    topology = await _read(lambda: read_topology(url, STORE, KEY))
    assert [(member.worker_id, member.alive) for member in topology.members] == [("w1", True)]
    assert topology.owners == ("w1",)
    (group,) = await _read(lambda: read_groups(url, STORE, KEY))
    assert [held.revision for held in group.partitions] == [REVISION]
    assert (await _read(row)).published == REVISION


async def _read(call: Callable[[], Awaitable[T]]) -> T:
    """What a tool reads. On a slow machine there may be no leader for a while: it says so, and is called again."""
    found: list[T] = []

    async def read() -> None:
        found.append(await call())

    await until_done(read, UnavailableError)
    return found[-1]
