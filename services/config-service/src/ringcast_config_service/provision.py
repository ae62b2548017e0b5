"""What a store needs on NATS: its stream and buckets.

Made when the store is created, at start, and looked after every half minute, because a NATS server may have lost its
disk. The metadata comes last: a store exists for workers once its bucket holds every setting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, BadRequestError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue
from ringcast_wire import MismatchError, RingcastError, UnavailableError, limits, names

from ringcast_config_service.bus_removal import clear_deletion, mark_deletion, remove_store
from ringcast_config_service.repository import Repository, StoreRecord

log = logging.getLogger(__name__)

_EVENTS_PER_PARTITION = 64
_DUPLICATE_WINDOW_S = 120
_NODE_TTL_S = 86_400
_DEAD_LETTERS = 100_000
_DEAD_LETTER_AGE_S = 30 * 86_400
_NAME_IN_USE = 10058  # a stream of that name exists with another configuration


class Provisioner:
    """Makes what is missing; safe to call from several instances and tasks at once."""

    def __init__(self, js: JetStreamContext, repository: Repository, *, replicas: int, interval_s: float) -> None:
        self._js = js
        self._repository = repository
        self._replicas = replicas
        self._interval_s = interval_s
        self._look = asyncio.Event()

    async def ensure(self, store: StoreRecord) -> None:
        """Makes everything that workers of a store need.

        Raises:
            MismatchError: NATS holds other settings for this store, as another database would have left them.
            UnavailableError: NATS can't be reached; the next look makes up for it.
        """
        async with _nats_calls(store.name):
            await self._ensure_bucket(names.LEASES_BUCKET, limits.LEASE_TTL_S)
            await self._ensure_bucket(names.nodes_bucket(store.name), _NODE_TTL_S)
            await self._ensure_stream(store.name)
            await self._ensure_dead_stream(store.name)
            settings = await self._ensure_bucket(names.meta_bucket(store.name), None)
            await self._ensure_settings(store, settings)
            await clear_deletion(settings)

    async def ensure_all(self) -> None:
        """Looks after every store; logs what stands in the way of one and goes on with the next."""
        for record in await self._repository.store_records():
            try:
                if record.deletion is None:
                    await self.ensure(record)
                else:
                    await self.mark_deleted(record)
            except MismatchError as error:
                log.critical("store=%s error=%s", record.name, error)

    async def mark_deleted(self, store: StoreRecord) -> None:
        """Has workers that start be refused with a sentence that says what became of the store."""
        async with _nats_calls(store.name):
            await mark_deletion(self._js, store)

    async def remove(self, store: str) -> None:
        """Removes everything that :meth:`ensure` has made for a store alone; harmless when it is gone already."""
        async with _nats_calls(store):
            await remove_store(self._js, store)

    def look_again(self) -> None:
        """Wakes :meth:`run`: a stream was missing, or NATS is back."""
        self._look.set()

    async def run(self) -> None:
        """Looks after every store at once, then at intervals or when woken."""
        while True:
            self._look.clear()
            try:
                await self.ensure_all()
            except RingcastError as error:
                log.warning("stores can't be looked after now: %s", error)
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._look.wait()
                await asyncio.sleep(0.1)  # many may call at once
            except TimeoutError:
                pass

    async def _ensure_bucket(self, bucket: str, ttl_s: int | None) -> KeyValue:
        try:
            return await self._js.key_value(bucket)
        except NotFoundError:
            pass
        marker = limits.LIMIT_MARKER_TTL_S if ttl_s else None
        try:
            return await self._js.create_key_value(
                bucket=bucket, history=1, ttl=ttl_s, limit_marker_ttl=marker, replicas=self._replicas, direct=True
            )
        except BadRequestError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            return await self._js.key_value(bucket)  # another instance was faster

    async def _ensure_stream(self, store: str) -> None:
        try:
            await self._js.stream_info(names.notify_stream(store))
        except NotFoundError:
            await self._js.add_stream(
                StreamConfig(
                    name=names.notify_stream(store),
                    subjects=[names.notify_stream_subjects(store)],
                    storage=StorageType.FILE,
                    max_msgs_per_subject=_EVENTS_PER_PARTITION,
                    discard=DiscardPolicy.OLD,
                    duplicate_window=_DUPLICATE_WINDOW_S,
                    allow_direct=True,
                    num_replicas=self._replicas,
                )
            )

    async def _ensure_dead_stream(self, store: str) -> None:
        try:
            await self._js.stream_info(names.dead_stream(store))
        except NotFoundError:
            await self._js.add_stream(
                StreamConfig(
                    name=names.dead_stream(store),
                    subjects=[names.dead_stream_subjects(store)],
                    storage=StorageType.FILE,
                    max_msgs=_DEAD_LETTERS,
                    max_age=_DEAD_LETTER_AGE_S,
                    discard=DiscardPolicy.OLD,
                    duplicate_window=_DUPLICATE_WINDOW_S,
                    allow_direct=True,
                    num_replicas=self._replicas,
                )
            )

    async def _ensure_settings(self, store: StoreRecord, bucket: KeyValue) -> None:
        """Each entry is created with compare-and-set, and read back where it was there before."""
        for setting, value in store.settings.to_kv().items():
            found = await _create_or_get(bucket, setting, value)
            if found != value:
                raise MismatchError(
                    f"store {store.name!r} has {setting} {value.decode()} in the database, NATS says "
                    f"{found.decode(errors='replace')}",
                    field=setting,
                )


async def _create_or_get(bucket: KeyValue, key: str, value: bytes) -> bytes:
    """The value of the entry, which is ``value`` if there was none."""
    try:
        entry = await bucket.get(key)
        if entry.value is not None:
            return entry.value
    except KeyNotFoundError:
        pass
    try:
        await bucket.create(key, value)
    except KeyWrongLastSequenceError:
        return (await bucket.get(key)).value or b""
    return value


@asynccontextmanager
async def _nats_calls(store: str) -> AsyncIterator[None]:
    try:
        yield
    except (nats.errors.Error, APIError, TimeoutError, OSError) as error:
        raise UnavailableError(
            f"store {store!r} is recorded, but NATS can't prepare it for workers now "
            f"({str(error) or type(error).__name__}): this goes on by itself once NATS answers"
        ) from error
