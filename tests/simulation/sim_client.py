"""What a config service uses of nats-py, with the library's names, types and errors, over the models of the server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import nats.errors
from nats.js.api import ConsumerConfig, StreamConfig, StreamState
from nats.js.errors import KeyDeletedError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from ringcast_wire import names
from ringcast_wire.permissions import API

from tests.simulation.broker import Broker
from tests.simulation.connection import SimConnection, SimMessage, at_once, matches
from tests.simulation.engine import Process
from tests.simulation.jetstream import NO_RESPONDERS, Message
from tests.simulation.network import ConflictError, Link, TransientError

_NO_STREAM: Final = 10059
_NO_MESSAGE: Final = 10037
_DIRECT_GET: Final = f"{API}.DIRECT.GET.KV_"
_BUCKET_INFO: Final = f"{API}.STREAM.INFO.KV_"


class SimClient(SimConnection):
    """The part of ``nats.aio.client.Client`` that the service uses."""

    failure = nats.errors.TimeoutError
    is_closed = False
    pending_data_size = 0

    def __init__(self, process: Process, link: Link, broker: Broker, max_payload: int) -> None:
        super().__init__(process, link, broker)
        self.max_payload = max_payload
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        """Is awaited before an answer to a fetch goes out."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection just now."""
        return self.link.connected

    def jetstream(self) -> SimJetStream:
        """JetStream over this connection."""
        return SimJetStream(self)

    async def flush(self) -> None:
        """Waits for the server."""
        await self.ask(lambda: None)

    async def subscribe(self, subject: str, queue: str = "", *, cb: Callable[[Any], Any]) -> SimSubscription:
        """Subscribes, to what ``cb`` takes."""
        self.callbacks[subject] = at_once(cb)
        if queue:
            self.broker.responders.append(self)
        return SimSubscription(self, subject)

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Sends an event to the stream, or an answer to a worker."""
        if subject.startswith("config.notify."):
            self.link.send(self._store, subject, payload, reply, headers or {}, lossy=True)
            return
        if subject.startswith(_DIRECT_GET):
            bucket = subject.removeprefix(_DIRECT_GET)
            self.link.send(self.read, bucket, json.loads(payload)["multi_last"], reply, lossy=True)
            return
        if self.before_answer is not None and not subject.startswith("config.report."):
            await self.before_answer()
        self.send(subject, payload, reply, headers)

    async def request(self, subject: str, payload: bytes = b"", *, timeout: float) -> SimpleNamespace:
        """What the server says of the account, or of a bucket; every account is empty, and without limits."""
        assert timeout > 0
        found: dict[str, Any] = {}
        if subject.startswith(_BUCKET_INFO):
            pattern = json.loads(payload)["subjects_filter"]
            found = await self.ask(self._bucket_info, subject.removeprefix(_BUCKET_INFO), pattern, changes=False)
        else:
            assert subject == f"{API}.INFO"
            await self.flush()
        return SimpleNamespace(data=json.dumps(found).encode())

    def _bucket_info(self, name: str, pattern: str) -> dict[str, Any]:
        """What the server that takes writes in says: the subjects that match, and the number of the last message."""
        bucket = self.broker.buckets.get(name)
        if bucket is None:
            return {"error": {"code": 404}}
        prefix = f"$KV.{name}."
        there = [f"{prefix}{key}" for key, entry in bucket.entries.items() if entry.value is not None]
        subjects = {each: 1 for each in there if matches(pattern, each)}
        return {"total": len(subjects), "state": {"last_seq": bucket.sequence, "subjects": subjects}}

    def _store(self, subject: str, payload: bytes, reply: str, headers: dict[str, str]) -> None:
        answer = SimMessage(reply, "", b"", NO_RESPONDERS)
        try:
            sequence, duplicate = self.broker.store_event(subject, payload, headers[names.HEADER_MSG_ID])
        except TransientError:
            pass
        else:
            answer = SimMessage(reply, "", json.dumps({"seq": sequence, "duplicate": duplicate}).encode())
        if not self.link.answers_lost:
            self.link.deliver(self.hear, [answer], lossy=True)


class SimSubscription:
    """The part of a subscription that the service uses."""

    def __init__(self, client: SimClient, subject: str) -> None:
        self._client = client
        self._subject = subject

    async def unsubscribe(self) -> None:
        """Ends it."""
        self._client.callbacks.pop(self._subject, None)


def _found(config: StreamConfig) -> SimpleNamespace:
    """What is asked of a stream besides its settings is not modelled: it looks empty, and kept by one server."""
    return SimpleNamespace(config=config, state=StreamState(0, 0, 0, 0, 0), cluster=None)


class SimJetStream:
    """The part of ``nats.js.JetStreamContext`` that the service uses."""

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self._broker = client.broker
        self._nc = client  # as the library has it
        self._pending: dict[str, list[Message]] = {}

    async def stream_info(self, name: str) -> Any:
        """What a stream is like."""
        config = await self._client.ask(self._broker.configs.get, name)
        if config is None:
            raise NotFoundError(code=404, err_code=_NO_STREAM, description="stream not found")
        return _found(config)

    async def add_stream(self, config: StreamConfig) -> Any:
        """Makes a stream, unless it is there."""
        await self._client.ask(self._broker.make, config)
        return _found(config)

    update_stream = add_stream

    async def key_value(self, bucket: str) -> SimKeyValue:
        """A bucket that is there."""
        await self.stream_info(f"KV_{bucket}")
        return SimKeyValue(self._client, bucket)

    async def get_msg(self, stream: str, *, seq: int, direct: bool) -> Any:
        """A message by its number."""
        assert direct
        assert stream
        found = await self._client.ask(lambda: self._broker.events().messages.get(seq))
        if found is None:
            raise NotFoundError(code=404, err_code=_NO_MESSAGE, description="message not found")
        return SimpleNamespace(data=found.data, headers={names.HEADER_MSG_ID: found.msg_id})

    async def add_consumer(self, stream: str, config: ConsumerConfig) -> Any:
        """A consumer that gives the last event of each subject, without payloads."""
        assert config.headers_only
        await self.stream_info(stream)
        name = self._client.new_inbox()
        found = await self._client.ask(lambda: self._broker.events().last_messages())
        self._pending[name] = list(found)
        return SimpleNamespace(name=name, num_pending=len(found))

    async def pull_subscribe_bind(self, *, consumer: str, stream: str) -> SimPull:
        """Where to pull from it."""
        assert stream
        return SimPull(self._client, self._pending[consumer])

    async def delete_consumer(self, stream: str, consumer: str) -> None:
        """Deletes it."""
        assert stream
        del self._pending[consumer]


class SimPull:
    """The part of a pull subscription that the service uses."""

    def __init__(self, client: SimClient, messages: list[Message]) -> None:
        self._client = client
        self._messages = messages

    async def fetch(self, batch: int, timeout: float) -> list[Any]:  # as the library has it
        """The next messages."""
        assert timeout
        await self._client.flush()
        some, self._messages = self._messages[:batch], self._messages[batch:]
        return [SimMessage(each.subject, "", b"", {names.HEADER_MSG_ID: each.msg_id}) for each in some]

    async def unsubscribe(self) -> None:
        """Ends it."""


class SimKeyValue:
    """The part of ``nats.js.kv.KeyValue`` that the service uses."""

    def __init__(self, client: SimClient, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    async def get(self, key: str) -> Any:
        """What stands under a key."""
        found = await self._client.ask(self._client.broker.get, self._bucket, key)
        if found is None:
            raise KeyNotFoundError
        if found.value is None:
            raise KeyDeletedError(found)
        return SimpleNamespace(value=found.value, revision=found.revision)

    async def create(self, key: str, value: bytes) -> None:
        """Writes an entry where there is none."""
        if isinstance(await self._client.ask(self._client.broker.put, self._bucket, key, value, 0), ConflictError):
            raise KeyWrongLastSequenceError("wrong last sequence")

    async def put(self, key: str, value: bytes) -> None:
        """Writes an entry, whatever stands there."""
        await self._client.ask(self._client.broker.overwrite, self._bucket, key, value)

    async def delete(self, key: str) -> None:
        """Deletes an entry."""
        await self._client.ask(self._client.broker.overwrite, self._bucket, key, None)
