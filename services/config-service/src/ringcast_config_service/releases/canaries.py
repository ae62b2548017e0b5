"""Finds the first wave of a release that begins with the workers that have a label: the partitions that they own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast_wire import ConditionFailedError, EventLog, LimitExceededError, Mode, UnavailableError, limits

from ringcast_config_service.releases.canary import LabelledOwners, labelled_owners
from ringcast_config_service.releases.fleet import ask_fleet
from ringcast_config_service.repository import Canary, Release, Repository, StoreRecord

log = EventLog(logging.getLogger(__name__))

_KEYS_AT_ONCE: Final = 8
"""Keys whose workers one instance asks at once, for all calls together; others wait."""


class Canaries:
    """The canaries that one instance looks for."""

    def __init__(self, nc: Client, js: JetStreamContext, repository: Repository) -> None:
        self._nc = nc
        self._js = js
        self._stores = repository.stores
        self._releases = repository.releases
        self._turns = asyncio.Semaphore(_KEYS_AT_ONCE)

    async def find(self, release: Release, label: str) -> Canary:
        """The partitions of a staged release that workers with a label own now, in each key that it writes to there.

        In a store of mode FULL each worker owns all. There is at least one with the label then, and another one; they
        are to lay the rows over.

        Raises:
            ConditionFailedError: there are none, or nobody else owns any.
            LimitExceededError: the release has more than workers lay over.
            UnavailableError: a worker has not answered, or they do not agree on who owns what; or NATS does not answer.
        """
        refused = f"{release.place} can't be published with the canary {label}"
        record = await self._stores.get_record(release.store)
        full = record.settings_now.mode is Mode.FULL
        if full:
            check_size(release)
        keys = await self._releases.key_partitions(release.store, release.number)
        found = dict(
            zip(keys, await asyncio.gather(*(self._ask(record, label, *each) for each in keys.items())), strict=True)
        )
        for key, owners in found.items():
            if owners.lack is not None:
                raise UnavailableError(f"{refused}: who owns what of {key!r} is not known: {owners.lack.sentence}")
        workers = sorted({worker for owners in found.values() for worker in owners.workers})
        if not workers:
            raise ConditionFailedError(f"{refused}: no worker of its keys has this label", field="canary")
        if full and (missing := sorted(key for key in keys if not found[key].workers)):
            raise ConditionFailedError(f"{refused}: no worker of its key {missing[0]!r} has this label", field="canary")
        if not any(owners.shared for owners in found.values()):
            raise ConditionFailedError(
                f"{refused}: workers with this label own all partitions of its keys, so nobody would be spared",
                field="canary",
            )
        others = {number for key in keys for number in keys[key] - found[key].partitions if not full}
        partitions = frozenset(set().union(*keys.values()) - others)
        if not partitions:
            where = ", in each key that it writes to there" if len(keys) > 1 else ""
            raise ConditionFailedError(
                f"{refused}: no partition that it writes to has an owner with this label{where}", field="canary"
            )
        log.info(
            "release.canary",
            store=release.store,
            release=release.number,
            canary=label,
            workers=workers,
            partitions=len(partitions),
        )
        return Canary(label, frozenset() if full else partitions, provisional=full)

    async def _ask(self, store: StoreRecord, label: str, key: str, partitions: Collection[int]) -> LabelledOwners:
        async with self._turns:
            before, found, after = await ask_fleet(self._nc, self._js, store, key)
        full = store.settings_now.mode is Mode.FULL
        return labelled_owners(label, key, partitions, before, found, after, full=full)


def check_size(release: Release) -> None:
    """Refuses a release with more than workers of a store of mode FULL lay over what they have.

    Raises:
        LimitExceededError: it has.
    """
    for what, value, most in (
        ("rows", release.rows, limits.MAX_PROVISIONAL_ROWS),
        ("bytes", release.bytes, limits.MAX_PROVISIONAL_BYTES),
    ):
        if value > most:
            raise LimitExceededError(
                f"{release.place} can't be published with a canary in a store of mode FULL: it has {value} {what}, the "
                f"limit is {most}",
                field="canary",
            )
