"""The calls for stores and keys as a whole."""

from __future__ import annotations

from ringcast_service import Context
from ringcast_wire import Role, StoreSettings
from ringcast_wire.grpc import ConfigServiceServicer, pb

from ringcast_config_service.access import Access
from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.input import answer
from ringcast_config_service.grpc.messages import (
    MODES,
    STAGES,
    STRATEGIES,
    choice,
    info_message,
    key_message,
    store_message,
)
from ringcast_config_service.grpc.rows import authorship
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.lifecycle import Lifecycle


class StoreCalls(ConfigServiceServicer):
    """Creates, lists, changes, deletes and restores stores, and deletes and restores keys."""

    def __init__(self, handlers: Handlers, lifecycle: Lifecycle, access: Access) -> None:
        self._handlers = handlers
        self._lifecycle = lifecycle
        self._access = access

    async def CreateStore(self, request: pb.CreateStoreRequest, context: Context) -> pb.Store:
        async def work() -> pb.Store:
            inline = request.inline_max_bytes if request.HasField("inline_max_bytes") else None
            settings = StoreSettings(
                partition_count=request.partition_count,
                mode=choice("mode", MODES, request.mode),
                strategy=choice("strategy", STRATEGIES, request.strategy),
                lease_ttl_ms=request.lease_ttl_ms if request.HasField("lease_ttl_ms") else None,
                call_bound_ms=request.call_bound_ms if request.HasField("call_bound_ms") else None,
            )
            return store_message(
                await self._handlers.create_store(request.name, settings, inline, authorship(caller_of(context)))
            )

        return await answer(context, work())

    async def GetStore(self, request: pb.GetStoreRequest, context: Context) -> pb.Store:
        call = self._handlers.get_store(request.name, include_deleted=request.include_deleted)
        return info_message(await answer(context, call))

    async def ListStores(self, request: pb.ListStoresRequest, context: Context) -> pb.ListStoresResponse:
        stores = await answer(context, self._handlers.list_stores(include_deleted=request.include_deleted))
        caller = caller_of(context)
        seen = [info for info in stores if self._access.may(caller, Role.READER, info.record.name)]
        return pb.ListStoresResponse(stores=map(info_message, seen))

    async def UpdateStore(self, request: pb.UpdateStoreRequest, context: Context) -> pb.Store:
        async def work() -> pb.Store:
            info = await self._lifecycle.update_store(
                request.name,
                inline_max_bytes=request.inline_max_bytes if request.HasField("inline_max_bytes") else None,
                partition_count=request.partition_count if request.HasField("partition_count") else None,
                mode=choice("mode", MODES, request.mode) if request.HasField("mode") else None,
                strategy=choice("strategy", STRATEGIES, request.strategy) if request.HasField("strategy") else None,
                lease_ttl_ms=request.lease_ttl_ms if request.HasField("lease_ttl_ms") else None,
                call_bound_ms=request.call_bound_ms if request.HasField("call_bound_ms") else None,
                by=authorship(caller_of(context)),
            )
            return info_message(info)

        return await answer(context, work())

    async def MigrateStore(self, request: pb.MigrateStoreRequest, context: Context) -> pb.Store:
        async def work() -> pb.Store:
            info = await self._lifecycle.migrate_store(
                request.name,
                choice("stage", STAGES, request.stage),
                lease_ttl_ms=request.lease_ttl_ms if request.HasField("lease_ttl_ms") else None,
                call_bound_ms=request.call_bound_ms if request.HasField("call_bound_ms") else None,
                gone=list(request.gone),
                by=authorship(caller_of(context)),
            )
            return info_message(info)

        return await answer(context, work())

    async def DeleteStore(self, request: pb.DeleteStoreRequest, context: Context) -> pb.Store:
        call = self._lifecycle.delete_store(request.name, purge=request.purge, by=authorship(caller_of(context)))
        return info_message(await answer(context, call))

    async def RestoreStore(self, request: pb.RestoreStoreRequest, context: Context) -> pb.Store:
        call = self._lifecycle.restore_store(request.name, by=authorship(caller_of(context)))
        return info_message(await answer(context, call))

    async def DeleteKey(self, request: pb.DeleteKeyRequest, context: Context) -> pb.KeyInfo:
        by = authorship(caller_of(context))
        call = self._lifecycle.delete_key(request.store, request.key, purge=request.purge, by=by)
        return key_message(await answer(context, call))

    async def RestoreKey(self, request: pb.RestoreKeyRequest, context: Context) -> pb.KeyInfo:
        call = self._lifecycle.restore_key(request.store, request.key, by=authorship(caller_of(context)))
        return key_message(await answer(context, call))

    async def NewHistory(self, request: pb.NewHistoryRequest, context: Context) -> pb.Store:
        call = self._handlers.new_history(request.name, authorship(caller_of(context)))
        return info_message(await answer(context, call))
