"""The calls that change, delete and restore stores and keys."""

from __future__ import annotations

from typing import Any

from ringcast_wire import Mode, Strategy, names
from ringcast_wire.grpc import pb

from ringcast._admin_input import check_inline, where
from ringcast._admin_records import KeyInfo, StoreInfo, key_info, pb_mode, pb_strategy, store_info


class LifecycleCalls:
    """A part of the client of the config service."""

    async def update_store(
        self,
        name: str,
        *,
        inline_max_bytes: int | None = None,
        partition_count: int | None = None,
        mode: Mode | None = None,
        strategy: Strategy | None = None,
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
            request.mode = pb_mode(mode)
        if strategy is not None:
            request.strategy = pb_strategy(strategy)
        return store_info(await self._unary(self._rpc().UpdateStore, request))

    async def delete_store(self, name: str, *, purge: bool = False) -> StoreInfo:
        """Deletes a store: every read and write of it is refused from now on, and its workers end.

        It can be restored within the service's retention (7 days by default). With ``purge`` it can't: its rows are
        removed, and its name is free when this returns. Deleting again changes nothing, unless it asks for the purge.

        Raises:
            UnknownStoreError: there is no such store.
            LimitExceededError: 50 stores are deleted and not purged yet.
        """
        request = pb.DeleteStoreRequest(name=names.check_name("store", name), purge=purge)
        return store_info(await self._unary(self._rpc().DeleteStore, request))

    async def restore_store(self, name: str) -> StoreInfo:
        """Undoes the deletion of a store; one that is not deleted is left alone.

        Raises:
            UnknownStoreError: there is no such store, or no more.
            StoreDeletedError: it is too late.
        """
        request = pb.RestoreStoreRequest(name=names.check_name("store", name))
        return store_info(await self._unary(self._rpc().RestoreStore, request))

    async def delete_key(self, store: str, key: str, *, purge: bool = False) -> KeyInfo:
        """The same for a config key. A deleted key does not count to the 100 that a store may have.

        Raises:
            UnknownStoreError, StoreDeletedError, UnknownKeyError: there is no such key.
            LimitExceededError: 1,000 keys of the store are deleted and not purged yet.
        """
        request = pb.DeleteKeyRequest(**where(store, key), purge=purge)
        return key_info(await self._unary(self._rpc().DeleteKey, request))

    async def restore_key(self, store: str, key: str) -> KeyInfo:
        """Undoes the deletion of a config key; one that is not deleted is left alone.

        Raises:
            UnknownStoreError, StoreDeletedError, UnknownKeyError: there is no such key, or no more.
            KeyDeletedError: it is too late.
            LimitExceededError: the store has 100 keys without it.
        """
        return key_info(await self._unary(self._rpc().RestoreKey, pb.RestoreKeyRequest(**where(store, key))))

    def _rpc(self) -> Any:
        raise NotImplementedError

    async def _unary(self, method: Any, request: Any, metadata: Any = None) -> Any:
        raise NotImplementedError
