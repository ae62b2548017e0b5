"""The life of stores and keys: what may change, deleting, restoring within a retention, purging."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
from ringcast_wire import (
    DEFAULT_CALL_BOUND_MS,
    DEFAULT_LEASE_TTL_MS,
    EventLog,
    InvalidInputError,
    Mode,
    RingcastError,
    Stage,
    StoreSettings,
    Strategy,
    check_gone,
    check_ownership_times,
    limits,
    names,
    stage_name,
)

from ringcast_config_service.maintenance import Term
from ringcast_config_service.migrations import next_step
from ringcast_config_service.nats.gone import GoneWorkers
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.repository import (
    SERVICE,
    Authorship,
    DatabaseClock,
    Deletion,
    KeyStats,
    Repository,
    StoreInfo,
    StoreRecord,
)

log = EventLog(logging.getLogger(__name__))


class Lifecycle:
    """``forget`` is called with the name of a store whose settings may have changed."""

    def __init__(
        self,
        repository: Repository,
        provisioner: Provisioner,
        *,
        gone: GoneWorkers,
        retention_ms: int,
        forget: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._clock: DatabaseClock = repository
        self._stores = repository.stores
        self._deletions = repository.deletions
        self._provisioner = provisioner
        self._gone = gone
        self._retention_ms = retention_ms
        self._forget = forget

    async def update_store(
        self,
        name: str,
        *,
        inline_max_bytes: int | None,
        partition_count: int | None,
        mode: Mode | None,
        strategy: Strategy | None,
        lease_ttl_ms: int | None,
        call_bound_ms: int | None,
        by: Authorship = SERVICE,
    ) -> StoreInfo:
        """Changes what is not locked; a locked setting may be named with the value that it has."""
        found = await self._stores.get_store(names.check_name("name", name))
        locked = {
            "partition_count": partition_count,
            "mode": mode,
            "strategy": strategy,
            "lease_ttl_ms": lease_ttl_ms,
            "call_bound_ms": call_bound_ms,
        }
        for setting, wanted in locked.items():
            has = getattr(found.record.settings_now, setting)
            if wanted not in (None, has):
                was = f"was locked at {has} when it was created" if has is not None else "goes with the strategy sticky"
                raise InvalidInputError(f"{setting} of store {name!r} {was}: it can't become {wanted}", field=setting)
        if inline_max_bytes is None:
            return found
        found = await self._stores.update_store(name, check_inline(inline_max_bytes), by)
        self._forget(name)
        return found

    async def migrate_store(
        self,
        name: str,
        stage: Stage,
        *,
        lease_ttl_ms: int | None,
        call_bound_ms: int | None,
        gone: Sequence[str] = (),
        by: Authorship = SERVICE,
    ) -> StoreInfo:
        """Takes a step of a migration, if the workers are ready for it, and returns once NATS has it.

        The database refuses it where another step was taken since the workers were looked at. Nothing waits for the
        workers that are ``gone`` from then on, whether the step is taken or not.
        """
        check_gone(gone)
        found = await self._stores.get_store(names.check_name("name", name))
        record = replace(found.record, migration=await self._provisioner.last_step(found.record))
        step = next_step(record, stage, lease_ttl_ms, call_bound_ms, await self._clock.clock_ms())
        if gone:
            if record.migration is None or not record.migration.is_on:
                raise InvalidInputError(
                    f"store {name!r} does not migrate: it waits for no worker that could be gone", field="gone"
                )
            await self._provisioner.ensure(record)
            await self._gone.declare(record, gone, by)
        if step is not None:
            await self._provisioner.check_step(record, stage)
        elif record.migration != found.record.migration:
            step = record.migration  # it was taken once, by a database that has been restored to an earlier state
        if step is not None:
            found = await self._stores.migrate_store(name, found.record.migration, step, by)
            log.info("store.migrated", store=name, stage=stage_name(stage), step=step.number)
        self._forget(name)
        await self._provisioner.ensure(found.record)
        return found

    async def delete_store(self, name: str, *, purge: bool, by: Authorship = SERVICE) -> StoreInfo:
        """Deletes a store; with ``purge`` for good, and returns when its name is free."""
        info = await self._deletions.delete_store(names.check_name("name", name), await self._deletion(purge), by)
        self._forget(name)
        log.info("store.deleted", store=name, purge=purge)
        if purge:
            await self._purge_store(name)
        else:
            await self._mark(info.record)
        return info

    async def restore_store(self, name: str, *, by: Authorship = SERVICE) -> StoreInfo:
        """Undoes a deletion."""
        now_ms = await self._clock.clock_ms()
        info = await self._deletions.restore_store(names.check_name("name", name), now_ms, by)
        self._forget(name)
        log.info("store.restored", store=name)
        await self._provisioner.ensure(info.record)
        return info

    async def delete_key(self, store: str, key: str, *, purge: bool, by: Authorship = SERVICE) -> KeyStats:
        """The same for a key."""
        names.check_name("store", store)
        found = await self._deletions.delete_key(store, names.check_name("key", key), await self._deletion(purge), by)
        log.info("key.deleted", store=store, key=key, purge=purge)
        if purge:
            await self._purge_key(store, key)
        return found

    async def restore_key(self, store: str, key: str, *, by: Authorship = SERVICE) -> KeyStats:
        """The same for a key."""
        names.check_name("store", store)
        now_ms = await self._clock.clock_ms()
        found = await self._deletions.restore_key(store, names.check_name("key", key), now_ms, by)
        log.info("key.restored", store=store, key=key)
        return found

    async def purge_expired(self, term: Term) -> None:
        """A duty of maintenance: purges all whose retention is over; what fails for one does not keep the rest."""
        try:
            expired = await self._deletions.expire_deleted(term.lead, await self._clock.clock_ms())
        except RingcastError as error:
            log.warning("purge.postponed", error=error)
            return
        for store, key in expired.keys:
            try:
                await self._purge_key(store, key, term)
            except RingcastError as error:
                log.warning("key.purge_postponed", store=store, key=key, error=error)
        for store in expired.stores:
            try:
                await self._purge_store(store, term)
            except RingcastError as error:
                log.warning("store.purge_postponed", store=store, error=error)

    async def _purge_store(self, name: str, term: Term | None = None) -> None:
        """``term``: none where a caller has asked for it, who waits until the name is free."""
        lead = None if term is None else term.lead
        while await self._deletions.purge_rows(name, None, lead):
            pass
        found = await self._record(name)
        if found is None or found.deletion is None or found.deletion.expires_at_ms:
            self._forget(name)
            return  # another instance was faster, and the name may be that of a new store by now
        created_at_ms = found.created_at_ms

        async def is_there() -> bool:
            """Whether the name is still that of the store that is purged, and not of one made since."""
            now = await self._record(name)
            return now is not None and now.deletion is not None and now.created_at_ms == created_at_ms

        # Before the record: if this breaks off in between, the next purge still knows that something is to be removed.
        await self._provisioner.remove(name, is_there, _no_check if term is None else term.check)
        await self._deletions.drop_store(name, lead, created_at_ms=created_at_ms)
        self._forget(name)
        log.info("store.purged", store=name)
        found = await self._record(name)
        if found is not None and found.deletion is None:
            await self._provisioner.ensure(found)  # another instance was faster: what was removed may be of a new store

    async def _record(self, name: str) -> StoreRecord | None:
        return next((record for record in await self._stores.store_records() if record.name == name), None)

    async def _purge_key(self, store: str, key: str, term: Term | None = None) -> None:
        lead = None if term is None else term.lead
        while await self._deletions.purge_rows(store, key, lead):
            pass
        found = await self._stores.get_store(store, include_deleted=True)
        if found.record.settings_now.strategy is Strategy.STICKY:
            await self._provisioner.remove_key(store, key, _no_check if term is None else term.check)
        await self._deletions.drop_key(store, key, lead)
        log.info("key.purged", store=store, key=key)

    async def _deletion(self, purge: bool) -> Deletion:
        now_ms = await self._clock.clock_ms()
        return Deletion(now_ms, 0 if purge else now_ms + self._retention_ms)

    async def _mark(self, record: StoreRecord) -> None:
        """NATS may be away: the provisioner marks the store at its next check."""
        try:
            await self._provisioner.mark_deleted(record)
        except RingcastError as error:
            log.warning("store.mark_postponed", store=record.name, error=error)


def _no_check() -> None:
    """Of a purge that a caller has asked for: any instance may do it."""


def with_times(settings: StoreSettings) -> StoreSettings:
    """The settings of a store that is to be created, with the default of each time that it has and that is not given.

    Raises:
        InvalidInputError: a time is out of range, or the strategy has none, or does not go with the mode.
    """
    given = {name: getattr(settings, name) for name in sorted(StoreSettings.OPTIONAL, reverse=True)}
    if settings.strategy is not Strategy.STICKY:
        for name, value in given.items():
            if value is not None:
                raise InvalidInputError(
                    f"{name} {value} does not go with the strategy {settings.strategy}: only sticky has it", field=name
                )
        return settings
    if settings.mode is not Mode.PARTITIONED:
        raise InvalidInputError(
            f"the strategy sticky does not go with the mode {settings.mode}: only PARTITIONED has owners", field="mode"
        )
    ttl_ms = DEFAULT_LEASE_TTL_MS if settings.lease_ttl_ms is None else settings.lease_ttl_ms
    bound_ms = DEFAULT_CALL_BOUND_MS if settings.call_bound_ms is None else settings.call_bound_ms
    check_ownership_times(ttl_ms, bound_ms)
    return msgspec.structs.replace(settings, lease_ttl_ms=ttl_ms, call_bound_ms=bound_ms)


def check_inline(value: int) -> int:
    """Returns ``value`` if values of so many bytes may travel in an event.

    Raises:
        InvalidInputError: it is too large.
    """
    if value > limits.MAX_INLINE_BYTES:
        raise InvalidInputError(
            f"inline_max_bytes {value} is too large: at most {limits.MAX_INLINE_BYTES} are allowed",
            field="inline_max_bytes",
        )
    return value
