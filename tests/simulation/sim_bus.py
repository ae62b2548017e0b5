"""The bus of a worker in the simulation: the same calls as over NATS, to the models of the server and the network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from ringcast._bus.bus import (
    BusError,
    ConsumerState,
    Delivery,
    EventConsumer,
    Message,
    NotFoundError,
    RejectedError,
    StoredMessage,
    WatchConsumer,
)
from ringcast._bus.refusals import Refusals
from ringcast._common.config import WorkerConfig
from ringcast._common.place import read_place
from ringcast._protocol.kv_mirror import Entry
from ringcast_wire import EventLog, UnavailableError
from ringcast_wire.buckets import EXPECTED_AMONG

from tests.simulation import jetstream
from tests.simulation.broker import Broker, Watcher
from tests.simulation.connection import SimConnection, SimMessage, at_once
from tests.simulation.engine import Process
from tests.simulation.jetstream import BEAT, NO_RESPONDERS, Stream
from tests.simulation.network import ConflictError, Link, MissingError

MOST_UPDATE_S: Final = (0.05, 0.05, 0.5)
_API: Final = "$JS.API"
_WRONG_LAST_SEQUENCE: Final = 10071
_CONNECT_AGAIN_S: Final = 0.5


class Host(Protocol):
    """The process that has the bus."""

    process: Process
    link: Link
    broker: Broker

    def received(self, token: str, message: jetstream.Message) -> None:
        """An event has come, which ``token`` acknowledges."""


class SimBus(SimConnection):
    """:class:`ringcast._bus.bus.Bus` over a :class:`Link`."""

    failure = BusError

    def __init__(self, host: Host, log: EventLog) -> None:
        super().__init__(host.process, host.link, host.broker)
        self.refusals = Refusals(log)
        self.acks = _Acks(self)
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._host = host
        self._takers: dict[str, Callable[[Sequence[Delivery]], None]] = {}
        self._lost: list[Callable[[], None]] = []
        self._back: list[Callable[[], None]] = []
        self._lost_at: float | None = self.loop.time()
        self._established = False

    @classmethod
    @asynccontextmanager
    async def prepared(cls, host: Host, _config: WorkerConfig, log: EventLog) -> AsyncIterator[SimBus]:
        """One that is still to :meth:`connect`; closes it in the end."""
        bus = cls(host, log)
        try:
            yield bus
        finally:
            bus._lost, bus._back = [], []
            if not bus.closed.done():
                bus.closed.set_result(None)
            bus.callbacks.clear()
            bus._takers.clear()

    async def connect(self, config: WorkerConfig) -> None:
        """Connects."""
        until = self.loop.time() + config.connect_timeout_s
        while not self.link.connect():
            if self.loop.time() >= until:
                raise UnavailableError("NATS did not answer")
            await asyncio.sleep(_CONNECT_AGAIN_S)
        self._established = True
        self._lost_at = None
        self.link.on_lost.append(lambda: self.in_loop(self._on_lost))
        self.link.on_back.append(lambda: self.in_loop(self._on_back))

    # ---- the connection

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._established and self.link.connected

    @property
    def is_closed(self) -> bool:
        """Whether it is closed."""
        return self.closed.done()

    @property
    def lost_for_s(self) -> float:
        """How long there has been no connection."""
        return 0.0 if self._lost_at is None else self.loop.time() - self._lost_at

    @property
    def max_message_bytes(self) -> int:
        """As a server's default."""
        return 1 << 20

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is lost."""
        self._lost.append(callback)

    def on_back(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is back."""
        self._back.append(callback)

    def _on_lost(self) -> None:
        self._lost_at = self.loop.time()
        for callback in self._lost:
            callback()

    def _on_back(self) -> None:
        self._lost_at = None
        for callback in self._back:
            callback()

    # ---- requests

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        """Publishes an entry of a bucket with compare-and-set."""
        bucket, key = _of_bucket(subject)
        value = None if "KV-Operation" in headers else payload
        last = int(headers["Nats-Expected-Last-Subject-Sequence"])
        pattern = headers.get(EXPECTED_AMONG, "")
        found = await self.ask(self.broker.put, bucket, key, value, last, _of_bucket(pattern)[1] if pattern else "")
        if isinstance(found, ConflictError):
            raise RejectedError("wrong last sequence", _WRONG_LAST_SEQUENCE)
        return int(found)

    async def last_message(self, stream: str, subject: str, *, newest: bool = False) -> StoredMessage:
        """The last message of a subject of a bucket."""
        bucket, key = _of_bucket(subject)
        found: Entry | None = await self.ask(self.broker.get, bucket, key, changes=False)
        if found is None:
            raise NotFoundError(f"{stream} has no message of {subject}", 0)
        headers = {"KV-Operation": "DEL"} if found.value is None else {}
        return StoredMessage(found.revision, found.value or b"", headers)

    async def check_stream(self, stream: str) -> None:
        """Looks whether there is a bucket."""
        there = await self.ask(lambda: stream.removeprefix("KV_") in self.broker.buckets, changes=False)
        if not there:
            raise NotFoundError(f"there is no stream {stream}", 0)

    async def put_consumer(self, stream: str, consumer: EventConsumer | WatchConsumer) -> ConsumerState:
        """Makes a consumer, or changes it."""
        if isinstance(consumer, EventConsumer):
            filters = frozenset(consumer.filters)
            # The server takes that long for some hundred filters.
            takes_s = self.link.network.random.uniform(0.0, self.link.network.random.choice(MOST_UPDATE_S))
            await self.ask(lambda: self.broker.events().put_consumer(consumer.name, filters), takes_s=takes_s)
            return ConsumerState(0, 0)
        prefixes = tuple(_of_bucket(pattern)[1].rstrip("*>") for pattern in consumer.filters)
        watch = _Watch(self, stream, consumer)
        watcher = Watcher(self.link, consumer.name, prefixes, consumer.heartbeat_s, watch.take)
        pending = await self.ask(self._watch, stream.removeprefix("KV_"), watcher, watch)
        return ConsumerState(pending, 0)

    def _watch(self, bucket: str, watcher: Watcher, watch: _Watch) -> int:
        found = self.broker.watch(bucket, watcher)
        watch.begin(found)
        self.broker.beat(bucket, watcher, watch.beat)
        return len(found)

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Deletes a consumer."""
        if stream.startswith("KV_"):
            return bool(await self.ask(self.broker.unwatch, stream.removeprefix("KV_"), name))
        found = await self.ask(self._drop_consumer, name)
        return not isinstance(found, MissingError)

    def _drop_consumer(self, name: str) -> None:
        if self.broker.stream is None:
            raise MissingError(name)
        self.broker.stream.delete_consumer(name)

    # ---- messages

    def api(self, call: str) -> str:
        """The subject of a call of JetStream's API."""
        return f"{_API}.{call}"

    async def publish(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Sends a request to the server, or to the config service."""
        if self.closed.done():
            raise BusError("the connection is closed")
        if subject.startswith(f"{_API}.CONSUMER.MSG.NEXT."):
            name = subject.rpartition(".")[2]
            self.link.send(self._pull, name, json.loads(payload), reply, lossy=True)
        elif subject.startswith(f"{_API}.DIRECT.GET."):
            bucket = subject.rpartition(".")[2].removeprefix("KV_")
            self.link.send(self.read, bucket, json.loads(payload)["multi_last"], reply, lossy=True)
        else:
            self.send(subject, payload, reply, headers)

    @asynccontextmanager
    async def subscribed(self, subject: str, callback: Callable[[Message], Awaitable[None]]) -> AsyncIterator[None]:
        """Subscribes for a while."""
        self.callbacks[subject] = at_once(callback)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self.callbacks.pop(subject, None)

    @asynccontextmanager
    async def delivered(
        self, inbox: str, take: Callable[[Sequence[Delivery]], None], other: Callable[[Message], None]
    ) -> AsyncIterator[None]:
        """Subscribes to deliveries for a while."""
        self.callbacks[f"{inbox}.*"] = other
        self._takers[inbox] = take
        try:
            yield
        finally:
            self.callbacks.pop(f"{inbox}.*", None)
            self._takers.pop(inbox, None)

    # ---- events

    def _pull(self, name: str, wanted: dict[str, int], reply: str) -> None:
        inbox = reply.rpartition(".")[0]

        def take(message: jetstream.Message, token: str) -> None:
            self.in_loop(lambda: self._deliver(inbox, message, token))

        def send_status(headers: dict[str, str]) -> None:
            self.hear([SimMessage(reply, "", b"", headers)])

        pull = jetstream.Pull(self.link, take, send_status, wanted["idle_heartbeat"] / 1e9, wanted["expires"] / 1e9)
        if self.broker.stream is None:
            self.link.deliver(send_status, NO_RESPONDERS, lossy=True)
        else:
            self.broker.stream.pull(name, pull, wanted["batch"])

    def _deliver(self, inbox: str, message: jetstream.Message, token: str) -> None:
        if (take := self._takers.get(inbox)) is not None:
            self._host.received(token, message)
            take([Delivery(message.subject, token, message.data)])


class _Acks:
    """:class:`ringcast._bus.bus.Acknowledgements`: each is sent at once."""

    def __init__(self, bus: SimBus) -> None:
        self._bus = bus

    def add(self, tokens: list[str]) -> None:
        """Acknowledges deliveries."""
        self._send(tokens, Stream.ack)

    async def run(self) -> None:
        """They have been sent."""
        await self._bus.loop.create_future()

    async def flush(self) -> None:
        """They have been sent."""

    async def report_progress(self, tokens: Sequence[str]) -> None:
        """Reports to the server that deliveries are being worked on."""
        self._send(list(tokens), Stream.in_progress)

    def _send(self, tokens: list[str], call: Callable[[Stream, str, int], None]) -> None:
        if self._bus.link.connected:
            self._bus.link.send(self._receive, tokens, call, lossy=True)

    def _receive(self, tokens: list[str], call: Callable[[Stream, str, int], None]) -> None:
        if self._bus.broker.stream is not None:
            for consumer, sequence in map(_delivered, tokens):
                call(self._bus.broker.stream, consumer, sequence)


class _Watch:
    """The server's side of a watch: numbers what it delivers."""

    def __init__(self, bus: SimBus, stream: str, consumer: WatchConsumer) -> None:
        self._bus = bus
        self._head = f"$JS.ACK.{stream}.{consumer.name}.1"
        self._prefix = f"$KV.{stream.removeprefix('KV_')}."
        self._inbox = consumer.inbox
        self._sequence = 0

    def begin(self, found: dict[str, Entry]) -> None:
        """What there is."""
        entries = sorted(found.items(), key=lambda one: one[1].revision)
        self._send([self._message(key, entry, len(entries) - at) for at, (key, entry) in enumerate(entries, 1)])

    def take(self, key: str, entry: Entry) -> None:
        """What comes."""
        self._send([self._message(key, entry, 0)])

    def beat(self) -> None:
        """A heartbeat."""
        headers = {**BEAT, "Nats-Last-Consumer": str(self._sequence)}
        self._send([SimMessage(self._inbox, "", b"", headers)])

    def _send(self, messages: list[SimMessage]) -> None:
        if messages:
            self._bus.link.deliver(self._bus.hear, messages, self._inbox)

    def _message(self, key: str, entry: Entry, pending: int) -> SimMessage:
        self._sequence += 1
        reply = f"{self._head}.{entry.revision}.{self._sequence}.0.{pending}"
        headers = {"KV-Operation": "DEL"} if entry.value is None else None
        return SimMessage(self._prefix + key, reply, entry.value or b"", headers)


def _of_bucket(subject: str) -> tuple[str, str]:
    """The bucket and the key that a subject stands for."""
    _, bucket, key = subject.split(".", 2)
    return bucket, key


def _delivered(token: str) -> tuple[str, int]:
    """The consumer and the stream's sequence of a delivery."""
    place = read_place(token)
    assert place is not None
    return token.split(".")[3], place.stream_sequence
