"""The message bus of a worker, as a protocol: :class:`NatsBus` implements it over NATS.

Everything behind this file is the same whatever carries the messages: no other room knows a client of NATS, its types
or its errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec
from ringcast_wire import EventLog, RingcastError, UnavailableError

from ringcast._bus.refusals import Refusals
from ringcast._common.config import WorkerConfig

RECONNECT_MOST_S: Final = 5.0
"""Between two attempts to connect: for so long a worker may stay away when NATS is back. An attempt costs little."""


class BusError(Exception):
    """A call failed, and may be tried again: the connection broke, or there was no answer in time."""


class RejectedError(BusError):
    """JetStream rejected a request. ``code``: its own number of the reason (10071, say)."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class NotFoundError(RejectedError):
    """There is no such stream, consumer or message."""


class NoJetStreamError(RejectedError):
    """No server answers for JetStream."""


TRANSIENT: Final = (BusError, UnavailableError, TimeoutError, OSError)
"""What a call over the bus may fail with and is worth another try."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns errors of the bus into :class:`UnavailableError`."""
    try:
        yield
    except RingcastError:
        raise
    except TRANSIENT as error:
        raise UnavailableError(f"{what} failed: {type(error).__name__} {error}".rstrip()) from error


class Message(Protocol):
    """A message that came. That of a stream has a ``reply`` that ``read_place`` reads."""

    @property
    def subject(self) -> str: ...

    @property
    def reply(self) -> str: ...

    @property
    def data(self) -> bytes: ...

    @property
    def headers(self) -> dict[str, str] | None: ...


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message that has to be acknowledged: ``reply`` is where. ``trace``: its trace header, if it has one."""

    subject: str
    reply: str
    data: bytes
    trace: str | None = None


class StoredMessage(NamedTuple):
    """A message as a stream has it. ``sequence``: its number there."""

    sequence: int
    data: bytes
    headers: dict[str, str]


class EventConsumer(NamedTuple):
    """A durable consumer that is pulled from: the last event of each subject, then every new one, acknowledged each."""

    name: str
    filters: Sequence[str]
    ack_wait_s: float
    max_ack_pending: int
    inactive_threshold_s: float


class WatchConsumer(NamedTuple):
    """A consumer that delivers to ``inbox``: the last message of each subject, then every new one, unacknowledged."""

    name: str
    inbox: str
    filters: Sequence[str]
    heartbeat_s: float
    inactive_threshold_s: float


class ConsumerState(NamedTuple):
    """The state of a consumer that a server has just made or changed, in messages."""

    pending: int
    delivered: int


class Acknowledgements(Protocol):
    """Acknowledges deliveries, by the ``reply`` of each. None of its calls raises errors of the bus."""

    def add(self, tokens: list[str]) -> None:
        """Acknowledges deliveries soon. While the connection is lost they are dropped: the deliveries come again."""

    async def run(self) -> None:
        """Sends acknowledgements until cancelled."""

    async def flush(self) -> None:
        """Sends the acknowledgements that wait."""

    async def report_progress(self, tokens: Sequence[str]) -> None:
        """Reports that these deliveries are being worked on: the server restarts their acknowledgement timeout."""


class Bus(Protocol):
    """A connection to the bus, which reconnects when it is lost.

    Every call that waits for the other side raises :class:`BusError` or ``OSError`` when the connection breaks or
    nothing comes in time, and :class:`~ringcast._bus.refusals.RefusedError` when the subject is not this user's.
    """

    refusals: Refusals
    closed: asyncio.Future[None]
    """Ends when the connection does; with an error if the server does not let this worker reconnect."""

    @property
    def acks(self) -> Acknowledgements:
        """Acknowledges what :meth:`delivered` delivers."""

    async def connect(self, config: WorkerConfig) -> None:
        """Connects; after a failure it may be tried again.

        Raises:
            UnavailableError: no server answered within ``connect_timeout_s``.
        """

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection just now."""

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, and stays so."""

    @property
    def lost_for_s(self) -> float:
        """How long there has been no connection, from the start on; 0 while there is one. From any thread."""

    @property
    def max_message_bytes(self) -> int:
        """What the server takes in one message, headers included."""

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is lost."""

    def on_back(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is back; a method of an object as long as that is used elsewhere."""

    def new_inbox(self) -> str:
        """A subject for answers that no other has."""

    def api(self, call: str) -> str:
        """The subject of a call of JetStream's API, which has another prefix for users of another account."""

    async def publish(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Sends a message, and does not wait until it is received."""

    async def store(self, subject: str, payload: bytes, headers: dict[str, str]) -> int:
        """Publishes a message that a stream takes in, waits until it has it, and returns its number there.

        Raises:
            RejectedError: the stream does not take it.
        """

    async def last_message(self, stream: str, subject: str, *, newest: bool = False) -> StoredMessage:
        """The last message of a subject, from any server that has the stream.

        ``newest``: from the one that takes writes in. The others may lag behind.

        Raises:
            NotFoundError: there is none.
        """

    async def check_stream(self, stream: str) -> None:
        """Looks whether there is a stream.

        Raises:
            NotFoundError: there is none.
            NoJetStreamError: no server has JetStream.
        """

    async def put_consumer(self, stream: str, consumer: EventConsumer | WatchConsumer) -> ConsumerState:
        """Makes a consumer with a name, or changes it, and waits until the server has confirmed that.

        Raises:
            RejectedError: the server does not make it.
        """

    async def delete_consumer(self, stream: str, name: str) -> bool:
        """Deletes a consumer; whether there was one."""

    def subscribed(
        self, subject: str, callback: Callable[[Message], Awaitable[None]]
    ) -> AbstractAsyncContextManager[None]:
        """Subscribes to an inbox for a while, across reconnects. The user of it bounds what may be on its way."""

    def delivered(
        self, inbox: str, take: Callable[[Sequence[Delivery]], None], other: Callable[[Message], None]
    ) -> AbstractAsyncContextManager[None]:
        """Subscribes below an inbox where a consumer delivers; ``take`` gets what came at once, ``other`` the rest.

        The rest are the server's own status messages, and now and then a delivery that came in two reads.
        """


OpenBus: TypeAlias = Callable[[WorkerConfig, EventLog], AbstractAsyncContextManager[Bus]]
"""Makes a bus that is still to be connected, and closes it in the end."""


@asynccontextmanager
async def connected(open_bus: OpenBus, config: WorkerConfig, log: EventLog) -> AsyncIterator[Bus]:
    """Connects, and closes in the end.

    Raises:
        UnavailableError: no server answered within ``connect_timeout_s``.
    """
    async with open_bus(config, log) as bus:
        await bus.connect(config)
        yield bus
