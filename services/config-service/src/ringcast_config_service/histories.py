"""Notices that the record went back, and begins a new history before new writes overtake what was lost.

A database that was restored, or failed over to a copy that lagged, gives revisions again that workers have seen with
other contents. Four things show it:

- The database's own identity, on each new connection (:mod:`~ringcast_config_service.repository.postgres.history`).
- The stream: it holds the last event of each partition. A head below its revision, in the same history, is one that
  went back. So is the record where an event is of a later history than it knows, by the ordinal in its id: the same
  backup was restored again, or an older one. A store is compared before its first write after the start of this
  service or of the database server.
- The mark of the record, which rises every :data:`LOOK_S`: tables that were put back under a running service have an
  earlier one.
- A duplicate: the broker has a message of that id already, with other content.

Where the broker has lost the stream as well, nothing shows it: then a new history begins in any case, unless this
service has compared the store while the stream was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError
from ringcast_wire import (
    EventLog,
    KeyDeletedError,
    ProtocolError,
    RingcastError,
    StoreDeletedError,
    UnknownKeyError,
    UnknownStoreError,
    decode_event,
    names,
)

from ringcast_config_service.nats.calls import nats_calls
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.repository import (
    SERVICE,
    Authorship,
    OutboxRecord,
    Repository,
    StoreRecord,
    history_ordinal,
)
from ringcast_config_service.telemetry import Telemetry

log = EventLog(logging.getLogger(__name__))

_READ_EVENTS: Final = 500
_READ_TIMEOUT_S: Final = 5.0
_CONSUMER_LIFE_S: Final = 30.0
LOOK_S: Final = 10.0
"""How often the mark is looked at. Until then writes go on in a record that was put back."""
MAX_DUPLICATES: Final = 16
"""Duplicates of a store that wait to be checked; of more only the newest are."""


class _NoStreamError(Exception):
    """A store has no stream."""


class Histories:
    """Stores whose record has been compared with what was published; :meth:`run` checks duplicates."""

    def __init__(
        self, js: JetStreamContext, repository: Repository, provisioner: Provisioner, telemetry: Telemetry
    ) -> None:
        self._js = js
        self._stores = repository.stores
        self._reader = repository.reader
        self._histories = repository.histories
        self._provisioner = provisioner
        self._measures = telemetry.measures
        self._compared: dict[str, int] = {}
        self._comparing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._duplicates: dict[str, deque[tuple[OutboxRecord, int]]] = defaultdict(lambda: deque(maxlen=MAX_DUPLICATES))
        self._arrived = asyncio.Event()

    def is_open(self, store: str) -> bool:
        """Whether a store may be written to without further ado."""
        return self._compared.get(store) == self._histories.generation

    async def open(self, store: str) -> None:
        """Returns once a store may be written to: its heads are not below what was published.

        Raises:
            UnavailableError: the database or NATS does not answer, so it can't be decided.
            UnknownStoreError: there is no such store.
        """
        if self.is_open(store):
            return
        async with self._comparing[store]:
            if not self.is_open(store):
                generation = self._histories.generation
                await self._compare(store)
                self._compared[store] = generation

    def created(self, store: str) -> None:
        """A store was created just now: nothing was ever published of its history."""
        self._compared[store] = self._histories.generation

    def forget(self, store: str) -> None:
        """A store is deleted: one that is created again under its name is another."""
        self._compared.pop(store, None)
        self._comparing.pop(store, None)
        self._duplicates.pop(store, None)

    async def before_events(self, store: StoreRecord) -> StoreRecord:
        """The stream of a store's events is not there: it is new, or the broker has lost it.

        Returns the store's record, as it is when the stream is made.
        """
        async with self._comparing[store.name]:
            if not self.is_open(store.name):
                generation = self._histories.generation
                await self._compare_with_nothing(store.name, store.history_id)
                self._compared[store.name] = generation
        return await self._stores.get_record(store.name)

    async def begin(
        self, store: str, reason: str, *, instead_of: str | None = None, by: Authorship = SERVICE, after: int = 0
    ) -> str:
        """Begins a new history of a store; returns its id. ``after``: the highest ordinal of a history that was seen.

        Raises:
            UnknownStoreError: there is no such store.
        """
        history = await self._histories.new_history(store, instead_of=instead_of, by=by, after=after)
        self._measures.histories[reason] += 1
        log.warning("history.began", store=store, reason=reason, before=instead_of, after=history)
        self._provisioner.check_now()  # the settings on the bus name it
        return history

    def duplicate(self, record: OutboxRecord, seq: int) -> None:
        """The broker has had an event before, as message ``seq``."""
        self._duplicates[record.subject.split(".", 3)[2]].append((record, seq))
        self._arrived.set()

    async def watch(self) -> None:
        """Looks at the mark now and then, for as long as it is not cancelled."""
        while True:
            with contextlib.suppress(RingcastError):  # the readiness of the instance says that the database is away
                if stores := await self._histories.look():
                    self._measures.histories["put_back"] += stores
                    self._provisioner.check_now()  # the settings on the bus name the histories
            await asyncio.sleep(LOOK_S)

    async def run(self) -> None:
        """Checks duplicates for as long as it is not cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._duplicates:  # more can come while one is checked
                store, waiting = self._duplicates.popitem()
                for record, seq in waiting:
                    with contextlib.suppress(RingcastError):  # the heads show it when the service starts again
                        await self._check_duplicate(store, record, seq)

    async def _check_duplicate(self, store: str, record: OutboxRecord, seq: int) -> None:
        current = (await self._stores.get_record(store)).history_id
        with _comparing(store):
            try:
                stored = await self._js.get_msg(names.notify_stream(store), seq=seq, direct=True)
            except NotFoundError:
                return
        ours, theirs = decode_event(record.payload), decode_event(stored.data or b"")
        if (ours.prev, ours.rev, ours.committed_at_ms) != (theirs.prev, theirs.rev, theirs.committed_at_ms):
            log.error(
                "history.forked",
                store=store,
                subject=record.subject,
                rev=ours.rev,
                committed_at_ms=ours.committed_at_ms,
                published_before=theirs.committed_at_ms,
            )
            await self.begin(store, "forked", instead_of=current)

    async def _compare(self, store: str) -> None:
        """Compares the heads of a store with its last events."""
        current = (await self._stores.get_record(store)).history_id
        published: dict[str, dict[int, tuple[int, str]]] = defaultdict(dict)
        try:
            async for msg in self._last_events(store):
                with contextlib.suppress(ProtocolError):  # not a message of the service: workers skip it too
                    place = names.parse_notify_subject(msg.subject)
                    found = names.parse_event_msg_id((msg.headers or {}).get(names.HEADER_MSG_ID, ""))
                    published[place.config_key][place.partition] = found
        except _NoStreamError:
            await self._compare_with_nothing(store, current)
            return
        for key, partitions in published.items():
            try:
                heads = await self._reader.heads(store, key)
            except (UnknownKeyError, UnknownStoreError, KeyDeletedError, StoreDeletedError):
                continue  # if it is created again, it has a history of its own; a deleted one takes no writes
            behind = [
                partition
                for partition, (rev, history) in partitions.items()
                if partition < len(heads.heads) and _is_behind(heads.history, heads.heads[partition], history, rev)
            ]
            if behind:
                log.error(
                    "history.went_back",
                    store=store,
                    key=key,
                    partitions=len(behind),
                    partition=behind[0],
                    head=heads.heads[behind[0]],
                    published=partitions[behind[0]][0],
                )
                seen = max(history_ordinal(history) for found in published.values() for _, history in found.values())
                await self.begin(store, "went_back", instead_of=current, after=seen)
                return

    async def _compare_with_nothing(self, store: str, seen: str) -> None:
        """Whether the record went back can't be decided, unless it has nothing that could have been published.

        ``seen``: the history that the store had before the stream was looked for. If it has another by now, another
        instance has missed the stream too: one new history is enough, and each has workers fetch everything.
        """
        info = await self._stores.get_store(store)
        if info.keys and info.record.history_id == seen:
            await self.begin(store, "stream_lost", instead_of=seen)

    async def _last_events(self, store: str) -> AsyncIterator[Msg]:
        """The last event of each partition, without its payload."""
        stream = names.notify_stream(store)
        with _comparing(store):
            try:
                info = await self._js.add_consumer(
                    stream,
                    ConsumerConfig(
                        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
                        filter_subject=names.notify_stream_subjects(store),
                        headers_only=True,
                        ack_policy=AckPolicy.NONE,
                        inactive_threshold=_CONSUMER_LIFE_S,
                        mem_storage=True,
                        num_replicas=1,
                    ),
                )
            except NotFoundError as error:
                raise _NoStreamError from error
            subscription = await self._js.pull_subscribe_bind(consumer=info.name, stream=stream)
            try:
                left = info.num_pending or 0
                while left > 0:
                    for msg in await subscription.fetch(min(left, _READ_EVENTS), timeout=_READ_TIMEOUT_S):
                        left -= 1
                        yield msg
            finally:
                await subscription.unsubscribe()
                with contextlib.suppress(APIError, nats.errors.Error, TimeoutError):
                    await self._js.delete_consumer(stream, info.name)


def _is_behind(history: str, head: int, published_history: str, published: int) -> bool:
    """Whether a partition at a head of a history is behind what was published of it."""
    if history == published_history:
        return head < published
    return history_ordinal(history) < history_ordinal(published_history)


def _comparing(store: str) -> AbstractContextManager[None]:
    return nats_calls(
        f"store {store!r} takes no writes yet: its record has to be compared with the events on NATS, "
        "which does not answer"
    )
