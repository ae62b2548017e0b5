"""The calls that create, look at, change, delete and restore stores and keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ringcast_wire import (
    MAX_LEASE_TTL_MS,
    MIN_LEASE_TTL_MS,
    NO_POLICY,
    Mode,
    Stage,
    StorePolicy,
    Strategy,
    check_gone,
    names,
)
from ringcast_wire.grpc import MODES, STAGES, STRATEGIES, pb

from ringcast_client._calls.calls import Calls
from ringcast_client._common.input import check_inline, check_range, where
from ringcast_client._common.records import (
    KeyInfo,
    StoreInfo,
    StorePolicyInfo,
    key_info,
    policy_info,
    policy_request,
    store_info,
)


class StoreCalls:
    """A part of the client of the config service."""

    _calls: Calls

    async def create_store(
        self,
        name: str,
        *,
        partition_count: int,
        mode: Mode = Mode.PARTITIONED,
        strategy: Strategy = Strategy.JUMP,
        inline_max_bytes: int | None = None,
        lease_ttl_ms: int | None = None,
        call_bound_ms: int | None = None,
    ) -> StoreInfo:
        """Creates a store, or returns the one there is if its settings are the same.

        ``inline_max_bytes``: the largest value that a change event carries, in bytes (0 to 4096, by default 256).

        Of the strategy ``sticky`` alone: ``lease_ttl_ms``, how long a lease lasts after its refresh was asked for (100
        to 3,600,000, by default 10,000), and ``call_bound_ms``, the bound on one handler call (2.5 % to 50 % of the
        lease, by default 1,000).

        Raises:
            InvalidInputError: a time is out of range, or does not go with the strategy; or the strategy does not go
                with the mode.
            AlreadyExistsError: there is one with other settings.
            LimitExceededError: there are 50 stores.
        """
        request = pb.CreateStoreRequest(
            name=names.check_name("store", name),
            partition_count=names.check_partition_count(partition_count),
            mode=MODES[mode],
            strategy=STRATEGIES[strategy],
        )
        if inline_max_bytes is not None:
            request.inline_max_bytes = check_inline(inline_max_bytes)
        _set_times(request, lease_ttl_ms, call_bound_ms)
        return store_info(await self._calls.unary(self._calls.rpc.CreateStore, request))

    async def get_store(self, name: str, *, include_deleted: bool = False) -> StoreInfo:
        """A store with its keys; with ``include_deleted`` also if it is deleted, and with the keys that are.

        Raises:
            UnknownStoreError: there is none of that name.
            StoreDeletedError: it is deleted.
        """
        request = pb.GetStoreRequest(name=names.check_name("store", name), include_deleted=include_deleted)
        return store_info(await self._calls.unary(self._calls.rpc.GetStore, request))

    async def list_stores(self, *, include_deleted: bool = False) -> list[StoreInfo]:
        """Every store with its keys; with ``include_deleted`` those that are deleted too."""
        request = pb.ListStoresRequest(include_deleted=include_deleted)
        reply = await self._calls.unary(self._calls.rpc.ListStores, request)
        return [store_info(store) for store in reply.stores]

    async def new_history(self, name: str) -> StoreInfo:
        """Begins a new history of a store, after its database was taken back to an earlier state.

        The service does so by itself where it notices. Workers then take every partition whole, and hand over what
        differs from what they have.

        Raises:
            UnknownStoreError: there is none of that name.
        """
        request = pb.NewHistoryRequest(name=names.check_name("store", name))
        return store_info(await self._calls.unary(self._calls.rpc.NewHistory, request))

    async def update_store(
        self,
        name: str,
        *,
        inline_max_bytes: int | None = None,
        partition_count: int | None = None,
        mode: Mode | None = None,
        strategy: Strategy | None = None,
        lease_ttl_ms: int | None = None,
        call_bound_ms: int | None = None,
    ) -> StoreInfo:
        """Changes what is not locked at creation: ``inline_max_bytes``. Returns the store as it is then.

        Raises:
            InvalidInputError: another value is given for a setting that is locked; it is named.
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        request = pb.UpdateStoreRequest(name=names.check_name("store", name))
        if inline_max_bytes is not None:
            request.inline_max_bytes = check_inline(inline_max_bytes)
        if partition_count is not None:
            request.partition_count = names.check_partition_count(partition_count)
        if mode is not None:
            request.mode = MODES[mode]
        if strategy is not None:
            request.strategy = STRATEGIES[strategy]
        _set_times(request, lease_ttl_ms, call_bound_ms)
        return store_info(await self._calls.unary(self._calls.rpc.UpdateStore, request))

    async def migrate_store(
        self,
        name: str,
        stage: Stage,
        *,
        lease_ttl_ms: int | None = None,
        call_bound_ms: int | None = None,
        gone: Sequence[str] = (),
    ) -> StoreInfo:
        """Takes a step of the migration of a store to exclusive ownership; returns the store as it is then.

        From ``OFF`` it goes to ``SHADOW``: workers compute who would own what, and nobody obeys. From there to
        ``VALIDATE`` and ``SWITCH``, from both back to ``SHADOW``, and from there to ``OFF``. ``FINISH`` ends it after
        ``SWITCH``: the store has the strategy ``sticky`` then, for good. Where the store is at that stage already
        nothing changes. ``lease_ttl_ms`` and ``call_bound_ms`` go with the step to ``SHADOW`` alone, and are as for
        :meth:`create_store`.

        ``gone``: ids of up to 200 workers that are gone for good. Nothing waits for them from then on, also where the
        step is not taken. It is your word that no process of them runs, or goes on: otherwise rows may have two owners.

        Raises:
            InvalidInputError: the store can't go to that stage; or a time is out of range, or does not go with it; or
                ``gone`` has a name twice, or one that the store has no record of.
            LimitExceededError: ``gone`` has more than 200 workers.
            ConditionFailedError: the workers are not ready for it; or another step was taken at this moment; or one
                that is said to be gone gives a sign of life.
            UnavailableError: NATS does not answer. If the step is taken, the service goes on trying.
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        request = pb.MigrateStoreRequest(
            name=names.check_name("store", name), stage=STAGES[stage], gone=check_gone(gone)
        )
        _set_times(request, lease_ttl_ms, call_bound_ms)
        return store_info(await self._calls.unary(self._calls.rpc.MigrateStore, request))

    async def get_store_policy(self, name: str) -> StorePolicyInfo:
        """What a store allows, and how much of it is used.

        Raises:
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        request = pb.GetStorePolicyRequest(name=names.check_name("store", name))
        return policy_info(await self._calls.unary(self._calls.rpc.GetStorePolicy, request))

    async def set_store_policy(
        self, name: str, policy: StorePolicy = NO_POLICY, *, lift: Collection[str] = ()
    ) -> StorePolicyInfo:
        """Sets the policies that ``policy`` has, removes those that ``lift`` names, and leaves the others.

        A limit below what is there keeps that from growing. Limits of rows, bytes and keys count at once. Where several
        instances of the service run the others know of a new ``max_row_bytes`` within 5 s.

        Raises:
            InvalidInputError: a value is out of range, or a name is none.
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        return policy_info(await self._calls.unary(self._calls.rpc.SetStorePolicy, policy_request(name, policy, lift)))

    async def delete_store(self, name: str, *, purge: bool = False) -> StoreInfo:
        """Deletes a store: every read and write of it is refused from now on, and its workers end.

        It can be restored within the service's retention (7 days by default). With ``purge`` it can't: its rows are
        removed, and its name is free when this returns. Deleting again changes nothing, unless it asks for the purge.

        Raises:
            UnknownStoreError: there is no such store.
            LimitExceededError: 50 stores are deleted and not purged yet.
        """
        request = pb.DeleteStoreRequest(name=names.check_name("store", name), purge=purge)
        return store_info(await self._calls.unary(self._calls.rpc.DeleteStore, request))

    async def restore_store(self, name: str) -> StoreInfo:
        """Undoes the deletion of a store; one that is not deleted is left alone.

        Raises:
            UnknownStoreError: there is no such store, or no more.
            StoreDeletedError: it is too late.
        """
        request = pb.RestoreStoreRequest(name=names.check_name("store", name))
        return store_info(await self._calls.unary(self._calls.rpc.RestoreStore, request))

    async def delete_key(self, store: str, key: str, *, purge: bool = False) -> KeyInfo:
        """The same for a config key. A deleted key does not count to the 100 that a store may have.

        Raises:
            UnknownStoreError, StoreDeletedError, UnknownKeyError: there is no such key.
            LimitExceededError: 1,000 keys of the store are deleted and not purged yet.
        """
        request = pb.DeleteKeyRequest(**where(store, key), purge=purge)
        return key_info(await self._calls.unary(self._calls.rpc.DeleteKey, request))

    async def restore_key(self, store: str, key: str) -> KeyInfo:
        """Undoes the deletion of a config key; one that is not deleted is left alone.

        Raises:
            UnknownStoreError, StoreDeletedError, UnknownKeyError: there is no such key, or no more.
            KeyDeletedError: it is too late.
            LimitExceededError: the store has 100 keys without it.
        """
        return key_info(await self._calls.unary(self._calls.rpc.RestoreKey, pb.RestoreKeyRequest(**where(store, key))))


def _set_times(
    request: pb.CreateStoreRequest | pb.UpdateStoreRequest | pb.MigrateStoreRequest,
    lease_ttl_ms: int | None,
    call_bound_ms: int | None,
) -> None:
    """Sets those that are given. The bound on a call is checked by the service, which knows the lease."""
    if lease_ttl_ms is not None:
        request.lease_ttl_ms = check_range("lease_ttl_ms", lease_ttl_ms, MIN_LEASE_TTL_MS, MAX_LEASE_TTL_MS)
    if call_bound_ms is not None:
        request.call_bound_ms = check_range("call_bound_ms", call_bound_ms, 1, MAX_LEASE_TTL_MS)
