"""What a store needs on NATS: its streams and buckets, as :mod:`streams` says.

Made when the store is created and at start, and checked every half minute, because a NATS server may have lost its
disk, or have them from another version. The settings come last: a store exists for workers once its bucket holds all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Final

import msgspec
import nats.errors
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue
from ringcast_wire import (
    EventLog,
    Migration,
    MismatchError,
    RingcastError,
    Stage,
    Strategy,
    event_within,
    field_text,
    names,
)

from ringcast_config_service.nats import streams
from ringcast_config_service.nats.broker import StreamStates
from ringcast_config_service.nats.bus_removal import (
    always,
    clear_deletion,
    clear_wishes,
    mark_deletion,
    remove_store,
)
from ringcast_config_service.nats.calls import nats_calls
from ringcast_config_service.nats.migration_checks import check_step
from ringcast_config_service.nats.steps import WIRE_SETTING, ensure_step, last_step
from ringcast_config_service.nats.streams import StreamSizes
from ringcast_config_service.repository import StoreRecord, StoreRepository
from ringcast_config_service.telemetry import Telemetry

log = EventLog(logging.getLogger(__name__))

_AT_ONCE: Final = 4
_NAME_IN_USE: Final = 10058  # a stream of that name exists with another configuration
_NO_ROOM: Final = frozenset({10047, 10028, 10005, 10002})
"""Not enough storage on the server, for the account, or on any server of the cluster."""


class Provisioner:
    """Makes what is missing and changes what is otherwise; safe to call from several instances and tasks at once."""

    def __init__(
        self,
        js: JetStreamContext,
        repository: StoreRepository,
        *,
        replicas: int,
        interval_s: float,
        sizes: StreamSizes | None = None,
        telemetry: Telemetry,
    ) -> None:
        self._js = js
        self._repository = repository
        self._replicas = replicas
        self._interval_s = interval_s
        self._sizes = sizes or StreamSizes()
        self._measures = telemetry.measures
        self._check = asyncio.Event()
        self._failing: dict[str, str] = {}
        """Why each store that is not provided for is not."""
        self.states = StreamStates()
        """What was found of each stream."""
        self._newer: set[str] = set()
        """The streams that a newer build has made, or changed: they are left as they are."""
        self._smaller: dict[str, int] = {}
        """The size of each stream that has less room than it should have."""
        self.on_made: Callable[[], None] = lambda: None
        """Called when a stream was made: what could not be published before can be now."""
        self.before_events: Callable[[StoreRecord], Awaitable[StoreRecord]] = _as_it_is
        """Called before the stream of a store's events is made; returns the store's record as it is then."""

    @property
    def failing(self) -> int:
        """How many stores are not provided for."""
        return len(self._failing)

    @property
    def problems(self) -> dict[str, str]:
        """Why each of them is not."""
        return dict(self._failing)

    async def ensure(self, store: StoreRecord) -> None:
        """Makes everything that workers of a store need.

        A store that is purged meanwhile, by this or another instance, leaves nothing of it: with the old settings the
        name could not be used again.

        Raises:
            MismatchError: NATS holds other settings for this store, as another database would have left them.
            UnavailableError: NATS can't be reached or refuses; the next check repairs it.
        """
        failure: RingcastError | None = None
        try:
            await self._provide(store)
        except RingcastError as error:
            failure = error
        now = await self._record(store.name)
        if now is not None and now.created_at_ms == store.created_at_ms:
            if failure is not None:
                raise failure
            return
        await self.remove(store.name)
        if now is not None and now.deletion is None:
            await self._provide(now)

    async def _provide(self, store: StoreRecord) -> None:
        self._measures.provision_failures[store.name] += 0  # so that the counter is there before the first failure
        with _preparing(store.name):
            await self._ensure_stream(streams.leases(self._sizes))
            for config in streams.of_store(store.name, self._sizes):
                if config.name == names.notify_stream(store.name) and not await self._exists(config.name):
                    store = await self.before_events(store)
                await self._ensure_stream(config)
            if store.settings.strategy is Strategy.STICKY or (store.migration is not None and store.migration.is_on):
                age_ms = int(time.time() * 1000) - store.created_at_ms
                await self._ensure_stream(streams.owners(store.name, self._sizes, age_ms))
                await self._ensure_stream(streams.wishes(store.name))
            settings = await self._js.key_value(names.meta_bucket(store.name))
            await self._ensure_settings(store, settings)
            await clear_deletion(settings)
            await self._ensure_groups(store.name)

    async def last_step(self, store: StoreRecord) -> Migration | None:
        """The last step of a store, also if its database has forgotten it, restored to an earlier state.

        Raises:
            UnavailableError: NATS does not say.
        """
        with nats_calls(f"the step of store {store.name!r} can't be read now", ": try again"):
            return await last_step(self._js, store)

    async def check_step(self, store: StoreRecord, stage: Stage) -> None:
        """Looks whether the workers of a store are ready for a stage, once NATS has the step that is there.

        Raises:
            ConditionFailedError: a worker is not.
            UnavailableError: NATS does not say.
        """
        if store.migration is not None:
            await self.ensure(store)
            with nats_calls(f"the workers of store {store.name!r} can't be looked at now", ": try again"):
                await check_step(self._js, store, stage)

    async def mark_deleted(self, store: StoreRecord) -> None:
        """Workers that start are refused from now on, with a sentence that the store is deleted."""
        with _preparing(store.name):
            await mark_deletion(self._js, store)

    async def remove(
        self, store: str, is_there: Callable[[], Awaitable[bool]] = always, check: Callable[[], None] = lambda: None
    ) -> None:
        """Removes everything that :meth:`ensure` has made for a store alone; harmless when it is gone already.

        ``is_there`` and ``check``: as :func:`remove_store` has them.
        """
        with _preparing(store):
            await remove_store(self._js, store, is_there, check)

    async def remove_key(self, store: str, key: str, check: Callable[[], None] = lambda: None) -> None:
        """Ends what operators want of a key that is purged; harmless when nothing is there.

        ``check`` is called right before, and may raise.
        """
        with nats_calls(f"key {key!r} of store {store!r} can't be removed from NATS now", ": it is tried again"):
            await clear_wishes(self._js, store, key, check)

    async def ensure_all(self) -> None:
        """Looks after every store; what stands in the way of one does not keep the next from its turn."""
        records = await self._repository.store_records()
        hands = asyncio.Semaphore(_AT_ONCE)  # a stream that does not answer takes seconds
        async with asyncio.TaskGroup() as tasks:
            for record in records:
                tasks.create_task(self._try(record, hands))
        known = {record.name for record in records}
        self.states.keep({record.name for record in records if record.deletion is None})
        self._failing = {store: why for store, why in self._failing.items() if store in known}

    async def _try(self, record: StoreRecord, hands: asyncio.Semaphore) -> None:
        try:
            async with hands:
                # As it is now: until its turn came it may have been deleted, restored or purged.
                now = await self._record(record.name)
                if now is not None:
                    await (self.ensure(now) if now.deletion is None else self.mark_deleted(now))
        except RingcastError as error:
            self._failed(record.name, error)
        except Exception as error:
            log.error("provision.error", store=record.name, exc_info=True)
            self._failed(record.name, error)
        else:
            if self._failing.pop(record.name, None) is not None:
                log.info("provision.recovered", store=record.name)

    async def _record(self, name: str) -> StoreRecord | None:
        """A store as the database has it at this moment, also if it is deleted."""
        return next((record for record in await self._repository.store_records() if record.name == name), None)

    def check_now(self) -> None:
        """Wakes :meth:`run`: a stream was missing, or NATS is back."""
        self._check.set()

    async def run(self) -> None:
        """Checks every store at once, then at intervals or when woken."""
        while True:
            self._check.clear()
            try:
                await self.ensure_all()
            except RingcastError as error:
                log.warning("provision.postponed", error=error)
            if await event_within(self._check, self._interval_s):
                await asyncio.sleep(0.1)  # many may call at once

    def _failed(self, store: str, error: Exception) -> None:
        """Says it once, and again when the reason is another."""
        self._measures.provision_failures[store] += 1
        why = field_text(error)
        if self._failing.get(store) != why:
            level = logging.CRITICAL if isinstance(error, MismatchError) else logging.ERROR
            log.log(level, "provision.failed", store=store, error=why)
            self._failing[store] = why

    # ---- streams

    async def _exists(self, stream: str) -> bool:
        try:
            await self._js.stream_info(stream)
        except NotFoundError:
            return False
        return True

    async def _ensure_stream(self, config: StreamConfig) -> None:
        assert config.name is not None
        try:
            await self._bring_in_line(config)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            self.states.could_not_see(config.name, error)
            raise

    async def _bring_in_line(self, config: StreamConfig) -> None:
        assert config.name is not None
        try:
            info = await self._js.stream_info(config.name)
        except NotFoundError:
            await self._make(config)
            return
        self.states.saw(config, info)
        if (layout := streams.layout_of(info.config)) > streams.LAYOUT:
            self._say_newer(config.name, layout)
        elif changes := streams.differences(config, info.config):
            await self._change(config, info.config, changes)
        else:
            self._has_size(config, info.config.max_bytes)

    def _say_newer(self, name: str, layout: int) -> None:
        if name not in self._newer:
            self._newer.add(name)
            self._smaller.pop(name, None)
            log.info("provision.newer_stream", stream=name, layout=layout, known=streams.LAYOUT)

    async def _make(self, config: StreamConfig) -> None:
        """Makes a stream, smaller than it should be where there is no more room: a small one is better than none."""
        config = config.evolve(num_replicas=self._replicas)
        size = config.max_bytes or 0
        while True:
            try:
                info = await self._js.add_stream(config.evolve(max_bytes=size))
            except APIError as error:
                if error.err_code == _NAME_IN_USE:
                    return  # another instance was faster, or the next check changes it
                if error.err_code not in _NO_ROOM or size <= streams.SMALLEST_BYTES:
                    raise
                size = max(streams.SMALLEST_BYTES, size // 2)
            else:
                self.states.saw(config, info)
                self._has_size(config, size)
                self.on_made()
                return

    async def _change(self, config: StreamConfig, found: StreamConfig, changes: dict[str, object]) -> None:
        """Changes a stream that is there. Where it can't have the room that it should, it keeps what it has."""
        try:
            self.states.saw(config, await self._js.update_stream(found.evolve(**changes)))
        except APIError as error:
            if error.err_code not in _NO_ROOM or "max_bytes" not in changes:
                raise
            del changes["max_bytes"]
            if (found.max_bytes or 0) <= 0:
                changes["max_bytes"] = streams.SMALLEST_BYTES
            if changes:
                self.states.saw(config, await self._js.update_stream(found.evolve(**changes)))
            self._has_size(config, found.max_bytes)
            return
        log.info("provision.changed", stream=config.name, settings=",".join(sorted(changes)))
        self._has_size(config, config.max_bytes)

    def _has_size(self, config: StreamConfig, size: int | None) -> None:
        """Says of a stream that is smaller than it should be, once."""
        assert config.name is not None
        wanted = config.max_bytes or 0
        if size is None or size >= wanted:
            self._smaller.pop(config.name, None)
        elif self._smaller.get(config.name) != size:
            self._smaller[config.name] = size
            log.warning("provision.small_stream", stream=config.name, max_bytes=size, wanted=wanted)

    async def _ensure_groups(self, store: str) -> None:
        """The bucket of the store's groups. Where there is no room for it the store is served all the same."""
        config = streams.groups(store, self._sizes)
        try:
            await self._ensure_stream(config)
        except APIError as error:
            if error.err_code not in _NO_ROOM:
                raise
            self._has_size(config, 0)

    # ---- settings

    async def _ensure_settings(self, store: StoreRecord, bucket: KeyValue) -> None:
        """Each entry is created with compare-and-set, and read back where it was there before."""
        for setting, value in store.settings.to_kv().items():
            if setting == WIRE_SETTING:
                await ensure_step(bucket, store)
                continue
            found = await _create_or_get(bucket, setting, value)
            if found != value:
                raise MismatchError(
                    f"store {store.name!r} has {setting} {value.decode()} in the database, NATS says "
                    f"{found.decode(errors='replace')}",
                    field=setting,
                )
        await _put_if_other(bucket, names.SETTING_HISTORY, msgspec.json.encode(store.history_id))


async def _as_it_is(store: StoreRecord) -> StoreRecord:
    return store


async def _put_if_other(bucket: KeyValue, key: str, value: bytes) -> None:
    try:
        if (await bucket.get(key)).value == value:
            return
    except KeyNotFoundError:
        pass
    await bucket.put(key, value)


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


def _preparing(store: str) -> AbstractContextManager[None]:
    return nats_calls(
        f"store {store!r} is recorded, but NATS can't prepare it for workers now",
        ": it is tried again once NATS answers",
    )
