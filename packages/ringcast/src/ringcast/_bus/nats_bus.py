"""The bus over NATS: reconnects for ever, and maps the client's messages and errors to those of the bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext, api
from nats.js import errors as js_errors
from ringcast_wire import EventLog, UnavailableError, field_text, names, without_passwords

from ringcast._bus.bus import (
    BusError,
    ConsumerState,
    Delivery,
    EventConsumer,
    Message,
    NoJetStreamError,
    NotFoundError,
    RejectedError,
    StoredMessage,
    WatchConsumer,
)
from ringcast._bus.connection_state import CLIENT_ERRORS, ConnectionState
from ringcast._bus.nats_acks import NatsAcks
from ringcast._bus.nats_client import LIBRARY_VERSION, library_is_known
from ringcast._bus.parser import batching_client, deliver_batches, end_batches
from ringcast._common.config import NatsParser, WorkerConfig

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 5.0
_MANY_ACKS: Final = 64
_CANCEL_AGAIN_S: Final = 0.1


@contextmanager
def _our_errors() -> Iterator[None]:
    """Turns the client's errors into those of the bus."""
    try:
        yield
    except js_errors.NotFoundError as error:
        raise NotFoundError(str(error), error.err_code or 0) from error
    except js_errors.ServiceUnavailableError as error:
        raise NoJetStreamError(str(error), error.err_code or 0) from error
    except js_errors.APIError as error:
        raise RejectedError(str(error), error.err_code or 0) from error
    except nats.errors.Error as error:
        raise BusError(field_text(error)) from error


async def within(timeout_s: float, attempts: Coroutine[Any, Any, None]) -> None:
    """Awaits what tries again until it is cancelled, such as a first connection, for so long at most.

    Cancelling it once is not enough: the library may lose a cancellation, and it would try for ever.

    Raises:
        TimeoutError: it took longer. It has ended all the same.
    """
    task = asyncio.create_task(attempts)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if not task.done():
            raise TimeoutError
        task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_AGAIN_S)
        if not task.cancelled():
            task.exception()  # else asyncio logs that it was never retrieved


class NatsBus:
    """:class:`ringcast._bus.bus.Bus` over one connection to NATS.

    ``closed`` ends with an error if NATS does not let this worker reconnect.

    ``batches``: deliveries are read with :class:`BatchParser`, if the library is of a version that it knows.
    """

    def __init__(self, log: EventLog, api_prefix: str, *, batches: bool = True) -> None:
        if batches and not library_is_known():
            batches = False
            log.warning("nats.library_unknown", found=LIBRARY_VERSION)
        self._batches = batches
        self._nc = batching_client(batches=batches)
        self._js: JetStreamContext = self._nc.jetstream(prefix=api_prefix, timeout=REQUEST_TIMEOUT_S)
        self._api_prefix = api_prefix
        self._state = ConnectionState(log)
        self.closed = self._state.closed
        self.refusals = self._state.refusals
        self._log = log
        self.acks = NatsAcks(lambda: self._nc, log)

    @classmethod
    @asynccontextmanager
    async def prepared(cls, config: WorkerConfig, log: EventLog) -> AsyncIterator[NatsBus]:
        """One that is still to :meth:`connect`; closes it in the end."""
        bus = cls(log, config.jetstream_api, batches=config.nats_parser is NatsParser.BATCH)
        try:
            yield bus
        finally:
            bus._state.end()
            await _close(bus._nc, log)

    async def connect(self, config: WorkerConfig) -> None:
        """Connects; after a failure it may be tried again.

        Raises:
            UnavailableError: no server answered within ``connect_timeout_s``.
        """
        self._state.attempt(config.servers)
        self.acks.many = min(_MANY_ACKS, config.max_ack_pending // 2)
        try:
            await _connect(self._nc, config, self._state)
        except BaseException:
            client, self._nc = self._nc, batching_client(batches=self._batches)
            self._js = self._nc.jetstream(prefix=self._api_prefix, timeout=REQUEST_TIMEOUT_S)
            await _close(client, self._log)
            raise
        self._state.establish()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._nc.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, and stays so."""
        return self._nc.is_closed

    @property
    def max_message_bytes(self) -> int:
        """What the server takes in one message, headers included."""
        return self._nc.max_payload

    def new_inbox(self) -> str:
        """A subject for answers that no other has."""
        return self._nc.new_inbox()

    def api(self, call: str) -> str:
        """The subject of a call of JetStream's API, which has another prefix for users of another account."""
        return f"{self._api_prefix}.{call}"

    async def publish(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Sends a message, and does not wait until it is received."""
        with _our_errors():
            await self._nc.publish(subject, payload, reply=reply, headers=headers)

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        """Publishes a message that a stream takes in, waits until it has it, and returns its number there."""
        with _our_errors():
            async with self.refusals.fail_fast(subject):
                return (await self._js.publish(subject, payload, headers=headers)).seq

    async def last_message(self, stream: str, subject: str, *, newest: bool = False) -> StoredMessage:
        """The last message of a subject, from any server that has the stream, or from the one that takes writes in."""
        asked = f"STREAM.MSG.GET.{stream}" if newest else f"DIRECT.GET.{stream}.{subject}"
        with _our_errors():
            async with self.refusals.fail_fast(self.api(asked)):
                found = await self._js.get_msg(stream, subject=subject, direct=not newest)
        assert found.seq is not None
        return StoredMessage(found.seq, found.data or b"", found.headers or {})

    async def check_stream(self, stream: str) -> None:
        """Looks whether there is a stream."""
        with _our_errors():
            async with self.refusals.fail_fast(self.api(f"STREAM.INFO.{stream}")):
                await self._js.stream_info(stream)

    async def put_consumer(self, stream: str, consumer: EventConsumer | WatchConsumer) -> ConsumerState:
        """Makes a consumer with a name, or changes it, and waits until the server has confirmed that."""
        with _our_errors():
            async with self.refusals.fail_fast(self.api(f"CONSUMER.CREATE.{stream}.{consumer.name}")):
                info = await self._js.add_consumer(stream, _consumer_config(consumer))
        delivered = info.delivered.consumer_seq if info.delivered else 0
        return ConsumerState(info.num_pending or 0, delivered)

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Deletes a consumer; whether there was one."""
        try:
            with _our_errors():
                async with self.refusals.fail_fast(self.api(f"CONSUMER.DELETE.{stream}.{name}")):
                    return await self._js.delete_consumer(stream, name)
        except NotFoundError:
            return False

    @asynccontextmanager
    async def subscribed(self, subject: str, callback: Callable[[Message], Awaitable[None]]) -> AsyncIterator[None]:
        """Subscribes to an inbox for a while, across reconnects. The user of it bounds what may be on its way."""
        async with self._subscribed(subject, callback):
            yield

    @asynccontextmanager
    async def delivered(
        self, inbox: str, take: Callable[[Sequence[Delivery]], None], other: Callable[[Message], None]
    ) -> AsyncIterator[None]:
        """Subscribes below an inbox where a consumer delivers; ``take`` gets what came at once, ``other`` the rest.

        The rest are the server's own status messages, and now and then a delivery that came in two reads.
        """

        async def direct(msg: Msg) -> None:
            other(msg)

        async with self._subscribed(f"{inbox}.*", direct) as subscription:
            if not self._batches:
                yield
                return
            deliver_batches(self._nc, subscription, take, other)
            try:
                yield
            finally:
                end_batches(self._nc, subscription)

    @asynccontextmanager
    async def _subscribed(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]]
    ) -> AsyncIterator[Subscription]:
        try:
            with _our_errors():
                subscription = await self._nc.subscribe(subject, cb=callback, pending_bytes_limit=0)
        except OSError:
            # The connection broke just now. The client has the subscription all the same, and sends it when it is back.
            subscription = next(sub for sub in self._nc._subs.values() if sub.subject == subject)
        try:
            yield subscription
        finally:
            if not self._nc.is_closed:
                with suppress(*CLIENT_ERRORS):
                    await subscription.unsubscribe()

    @property
    def lost_for_s(self) -> float:
        """How long there has been no connection, from the start on; 0 while there is one."""
        return self._state.lost_for_s

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is lost."""
        self._state.on_lost(callback)

    def on_back(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is back; a method of an object as long as that is used elsewhere."""
        self._state.on_back(callback)


async def _connect(client: Client, config: WorkerConfig, state: ConnectionState) -> None:
    options: dict[str, Any] = {
        "servers": list(config.servers),
        "name": config.name,
        "inbox_prefix": names.inbox_prefix(config.worker_id),
        **config.connect_options(config.servers),
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.2,
        "connect_timeout": 5,
        "ping_interval": 10,
        "max_outstanding_pings": 2,
        **state.callbacks(),
    }
    servers = without_passwords(config.servers)
    try:
        await within(config.connect_timeout_s, client.connect(**options))
    except TimeoutError as error:
        if state.refusals.login:
            raise UnavailableError(state.refusals.login) from error
        reason = f": {state.last_error}" if state.last_error else ""
        raise UnavailableError(
            f"NATS at {servers} did not answer within {config.connect_timeout_s:g} s{reason}"
        ) from error
    except (nats.errors.Error, OSError, ValueError) as error:
        raise UnavailableError(f"NATS at {servers} refused the connection: {error}") from error


async def _close(client: Client, log: EventLog) -> None:
    if client._flush_queue is None:
        return  # it was never connected
    try:
        await client.close()
    except CLIENT_ERRORS as error:
        # The client stops half-way if the server goes away at that moment; its tasks must not outlive the bus.
        log.debug("nats.close_failed", error=error)
        for subscription in list(client._subs.values()):
            subscription._stop_processing()
        if client._transport is not None:
            client._transport.close()


def _consumer_config(consumer: EventConsumer | WatchConsumer) -> api.ConsumerConfig:
    match consumer:
        case EventConsumer():
            return api.ConsumerConfig(
                name=consumer.name,
                durable_name=consumer.name,
                deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=consumer.ack_wait_s,
                max_ack_pending=consumer.max_ack_pending,
                filter_subjects=list(consumer.filters),
                inactive_threshold=consumer.inactive_threshold_s,
            )
        case WatchConsumer():
            return api.ConsumerConfig(
                name=consumer.name,
                deliver_subject=consumer.inbox,
                deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
                ack_policy=api.AckPolicy.NONE,
                filter_subjects=list(consumer.filters),
                idle_heartbeat=consumer.heartbeat_s,
                inactive_threshold=consumer.inactive_threshold_s,
                mem_storage=True,
                num_replicas=1,
            )
