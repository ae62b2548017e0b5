"""The calls that read a key as it was, and what differs between two states of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from ringcast_service import Context
from ringcast_wire import HeadsReply
from ringcast_wire.grpc import ConfigServiceServicer, pb

from ringcast_config_service.access import Access
from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.input import answer
from ringcast_config_service.grpc.lists import Lists
from ringcast_config_service.grpc.messages import difference_message, row_message
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.repository import Difference, KeyState, ListedRow, ListFilter


class StateCalls(ConfigServiceServicer):
    """Lists that are read at certain revisions, so that all snapshots in which they are read have the same."""

    def __init__(self, handlers: Handlers, lists: Lists, access: Access) -> None:
        self._handlers = handlers
        self._lists = lists
        self._access = access

    async def ListAsOf(self, request: pb.ListAsOfRequest, context: Context) -> None:
        query = ListFilter(partition_of(request), limit=request.limit)

        async def send() -> None:
            then = await self._state(request, request.state)

            async def pages(after: tuple[int, str] | None, limit: int) -> AsyncGenerator[list[ListedRow], None]:
                self._check_again("ListAsOf", request, context, after)
                further = replace(query, after=after, limit=limit)
                return await self._handlers.rows_as_of(request.store, request.key, then, further)

            await self._lists.send(
                context,
                pages,
                query.limit,
                position=lambda row: (row.partition, row.row.row_id),
                to_message=row_message,
                pack=lambda part: pb.ListResponse(rows=part),
            )

        await answer(context, send())

    async def Diff(self, request: pb.DiffRequest, context: Context) -> None:
        query = ListFilter(partition_of(request), limit=request.limit)

        async def send() -> None:
            before, after = await self._state(request, request.before), await self._state(request, request.after)

            async def pages(behind: tuple[int, str] | None, limit: int) -> AsyncGenerator[list[Difference], None]:
                self._check_again("Diff", request, context, behind)
                further = replace(query, after=behind, limit=limit)
                return await self._handlers.differences(request.store, request.key, before, after, further)

            await self._lists.send(
                context,
                pages,
                query.limit,
                position=lambda found: (found.partition, found.row_id),
                to_message=difference_message,
                pack=lambda part: pb.DiffResponse(rows=part),
            )

        await answer(context, send())

    async def _state(self, request: pb.ListAsOfRequest | pb.DiffRequest, state: pb.KeyState) -> HeadsReply:
        release = state.release if state.HasField("release") else None
        at_ms = state.time_ms if state.HasField("time_ms") else None
        return await self._handlers.state(request.store, request.key, KeyState(release, at_ms))

    def _check_again(
        self,
        method: str,
        request: pb.ListAsOfRequest | pb.DiffRequest,
        context: Context,
        after: tuple[int, str] | None,
    ) -> None:
        if after is not None:  # in a further snapshot: the role may be gone
            self._access.check(method, caller_of(context), request)


def partition_of(request: pb.ListRequest | pb.HistoryRequest | pb.ListAsOfRequest | pb.DiffRequest) -> int | None:
    """The one partition that is asked for; ``None``: all of them."""
    return request.partition if request.HasField("partition") else None
