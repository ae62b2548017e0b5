"""What stores allow: their policies, set and looked at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ringcast_wire import EventLog, InvalidInputError, StorePolicy, check_policy, check_policy_name, names

from ringcast_config_service.repository import SERVICE, Authorship, PolicyChange, Repository, StoreInfo
from ringcast_config_service.repository.mapping import store_deleted

log = EventLog(logging.getLogger(__name__))


class PolicyState(NamedTuple):
    """The policies of a store, and what is used of them: rows and bytes with those of deleted keys, keys without."""

    store: str
    policy: StorePolicy
    rows: int
    bytes: int
    keys: int


class Policies:
    """``forget`` is called with the name of a store whose policies have changed: other instances read the settings of
    a store every few seconds. The limits of whole stores count at once, for all instances."""

    def __init__(self, repository: Repository, *, forget: Callable[[str], None] = lambda _: None) -> None:
        self._stores = repository.stores
        self._policies = repository.policies
        self._forget = forget

    async def show(self, name: str) -> PolicyState:
        """The policies of a store that is not deleted."""
        info = await self._stores.get_store(names.check_name("name", name), include_deleted=True)
        if info.record.deletion is not None:
            raise store_deleted(name, info.record.deletion)
        return _state(info)

    async def change(
        self, name: str, wanted: StorePolicy, lift: Iterable[str] = (), *, by: Authorship = SERVICE
    ) -> PolicyState:
        """Sets the policies that ``wanted`` has, and removes those that ``lift`` names; the others stay.

        Raises:
            InvalidInputError: a value is out of range, a name is none, or a policy is set and removed at once.
        """
        change = PolicyChange(check_policy(wanted), frozenset(map(check_policy_name, lift)))
        if both := [policy for policy in sorted(change.lift) if getattr(wanted, policy) is not None]:
            raise InvalidInputError(f"{both[0]} is set and lifted at once: one of them is needed", field=both[0])
        info = await self._policies.set_policy(names.check_name("name", name), change, by)
        self._forget(name)
        log.info("store.policy_set", store=name, **change.details())
        return _state(info)


def _state(info: StoreInfo) -> PolicyState:
    return PolicyState(
        info.record.name,
        info.record.policy,
        sum(key.rows for key in info.keys),
        sum(key.bytes for key in info.keys),
        sum(key.deletion is None for key in info.keys),
    )
