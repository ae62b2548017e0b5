"""The gRPC API: protobuf in, handlers, protobuf out; errors become a status and trailing metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from ringcast_service import Context
from ringcast_wire.grpc import (
    SERVICE_NAME,
    add_ConfigServiceServicer_to_server,
    pb,
)

from ringcast_config_service.access import Access
from ringcast_config_service.audit import AuditTrail
from ringcast_config_service.grpc.admission import Admission, CallKind
from ringcast_config_service.grpc.audit_calls import AuditCalls
from ringcast_config_service.grpc.bulk_stream import BulkStream
from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.change_stream import ChangeStream
from ringcast_config_service.grpc.connections import ConnectionSettings, channel_options
from ringcast_config_service.grpc.dead_letter_calls import DeadLetterCalls
from ringcast_config_service.grpc.draining import Draining
from ringcast_config_service.grpc.guard import GuardedServer
from ringcast_config_service.grpc.health import Health
from ringcast_config_service.grpc.input import answer, send
from ringcast_config_service.grpc.lists import Lists
from ringcast_config_service.grpc.messages import (
    revision_message,
    row_message,
)
from ringcast_config_service.grpc.policy_calls import PolicyCalls
from ringcast_config_service.grpc.release_calls import ReleaseCalls
from ringcast_config_service.grpc.role_calls import RoleCalls
from ringcast_config_service.grpc.rows import authorship, call_terms, delete_input, keyed_rows, put_input
from ringcast_config_service.grpc.schema_calls import SchemaCalls
from ringcast_config_service.grpc.state_calls import StateCalls, partition_of
from ringcast_config_service.grpc.status_calls import StatusCalls
from ringcast_config_service.grpc.store_calls import StoreCalls
from ringcast_config_service.grpc.stream_life import StreamLives
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.lifecycle import Lifecycle
from ringcast_config_service.logins import Logins
from ringcast_config_service.policies import Policies
from ringcast_config_service.releases.driver import Releases
from ringcast_config_service.releases.proofs import Proofs
from ringcast_config_service.repository import HistoryFilter, ListedRow, ListFilter, Revision, WriteOutcome
from ringcast_config_service.security import Security
from ringcast_config_service.telemetry import Telemetry
from ringcast_config_service.value_schemas import ValueSchemas
from ringcast_config_service.writes.group_writer import GroupWriter

T = TypeVar("T")

HEALTH_NAME: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_KINDS: Final = {
    f"{SERVICE_NAME}/Write": CallKind.BULK,
    f"{SERVICE_NAME}/Change": CallKind.CHANGES,
    f"{SERVICE_NAME}/List": CallKind.LIST,
    f"{SERVICE_NAME}/History": CallKind.LIST,
    f"{SERVICE_NAME}/ListAsOf": CallKind.LIST,
    f"{SERVICE_NAME}/Diff": CallKind.LIST,
    f"{SERVICE_NAME}/ListAudit": CallKind.LIST,
    f"{SERVICE_NAME}/VerifyAudit": CallKind.LIST,
    f"{SERVICE_NAME}/ListDeadLetters": CallKind.LIST,
    f"{SERVICE_NAME}/DiscardDeadLetters": CallKind.LIST,
    f"{SERVICE_NAME}/ReplayDeadLetters": CallKind.LIST,
    f"{HEALTH_NAME}/Check": CallKind.HEALTH_CHECK,
    f"{HEALTH_NAME}/Watch": CallKind.HEALTH_WATCH,
    f"{reflection.SERVICE_NAME}/ServerReflectionInfo": CallKind.REFLECTION,
}


class Services(NamedTuple):
    """What carries out the calls of the API."""

    handlers: Handlers
    lifecycle: Lifecycle
    policies: Policies
    schemas: ValueSchemas
    releases: Releases
    proofs: Proofs
    access: Access
    dead_letters: DeadLetterCalls
    status: StatusCalls
    writer: GroupWriter
    """Writes the rows of streams."""
    telemetry: Telemetry
    audit: AuditTrail


class GrpcServer:
    """The server with the API, health and reflection. ``port`` is known after :meth:`start`."""

    def __init__(
        self,
        services: Services,
        listen: str,
        security: Security,
        logins: Logins,
        *,
        change_stream_s: float,
        list_snapshot_s: float,
        connections: ConnectionSettings,
    ) -> None:
        self._listen = listen
        self._security = security
        self.port = 0
        self.health = Health()
        self._draining = Draining()
        # No maximum_concurrent_rpcs: it would count refused calls and health watches too.
        self._server = grpc.aio.server(options=channel_options(connections))
        access = services.access
        logins.is_revoked, access.logins = access.is_revoked, logins
        self._admission = admission = Admission(logins, services.telemetry.measures.refusals)
        guarded: Any = GuardedServer(self._server, admission, access, self._draining, _KINDS)
        self._lives = StreamLives(change_stream_s)
        lists = Lists(list_snapshot_s, lambda context: admission.check_login(context, CallKind.LIST))
        add_ConfigServiceServicer_to_server(_Servicer(services, self._lives, lists), guarded)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, guarded)
        names = (SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME)
        add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
        add_reflection(reflection.aio.ReflectionServicer(names), guarded)

    @property
    def open_calls(self) -> int:
        """Calls that have not ended, health checks apart."""
        return self._admission.open_calls

    async def start(self) -> None:
        """Listens.

        Raises:
            OSError: the address can't be used.
        """
        try:
            credentials = self._security.server_credentials()
            if credentials is None:
                self.port = self._server.add_insecure_port(self._listen)
            else:
                self.port = self._server.add_secure_port(self._listen, credentials)
        except RuntimeError as error:
            raise OSError(f"the gRPC address {self._listen} can't be used: is it in use?") from error
        await self._server.start()

    def drain(self) -> None:
        """Takes no new calls, and has streams of writes end once what was read is answered."""
        self._draining.on = True
        self._lives.stop()

    async def drained(self, grace_s: float) -> None:
        """Returns when no call runs; streams of answers are ended after so long."""
        async with asyncio.TaskGroup() as tasks:
            ending = tasks.create_task(self._end_streams(grace_s))
            await self._admission.wait_idle()
            ending.cancel()

    def resume(self) -> None:
        """Takes calls again."""
        self._draining.on = False
        self._lives.resume()

    async def _end_streams(self, grace_s: float) -> None:
        await asyncio.sleep(grace_s)
        self._draining.end_streams()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, lets the running ones finish for so long, then ends them."""
        self.drain()
        await self._server.stop(grace_s)


class _Servicer(StoreCalls, PolicyCalls, SchemaCalls, ReleaseCalls, RoleCalls, AuditCalls, StateCalls):
    """Every method hands its work to :func:`answer`, which maps errors."""

    def __init__(self, services: Services, lives: StreamLives, lists: Lists) -> None:
        StoreCalls.__init__(self, services.handlers, services.lifecycle, services.access)
        PolicyCalls.__init__(self, services.policies)
        SchemaCalls.__init__(self, services.schemas)
        ReleaseCalls.__init__(self, services.releases, services.proofs)
        AuditCalls.__init__(self, services.audit)
        StateCalls.__init__(self, services.handlers, lists, services.access)
        self._dead_letters = services.dead_letters
        self._status = services.status
        self._writer = services.writer
        self._lives = lives
        self._telemetry = services.telemetry

    async def GetServiceStatus(self, _request: pb.GetServiceStatusRequest, _context: Context) -> pb.ServiceStatus:
        return self._status.status()

    async def Put(self, request: pb.PutRequest, context: Context) -> pb.PutResponse:
        async def work() -> tuple[int, WriteOutcome]:
            terms = call_terms(context, traceparent, request)
            row = put_input(request)
            return await self._handlers.write_one(request.store, request.key, row, terms, caller_of(context))

        with self._telemetry.call("config.service.put", context.invocation_metadata()) as traceparent:
            partition, outcome = await answer(context, work())
        return pb.PutResponse(partition=partition, version=outcome.versions[0])

    async def Delete(self, request: pb.DeleteRequest, context: Context) -> pb.DeleteResponse:
        async def work() -> tuple[int, WriteOutcome]:
            terms = call_terms(context, traceparent, request)
            row = delete_input(request)
            return await self._handlers.write_one(request.store, request.key, row, terms, caller_of(context))

        with self._telemetry.call("config.service.delete", context.invocation_metadata()) as traceparent:
            partition, outcome = await answer(context, work())
        return pb.DeleteResponse(existed=outcome.deleted > 0, partition=partition, version=outcome.versions[0])

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        async def work() -> list[tuple[int, int]]:
            terms = call_terms(context, traceparent, request)
            return await self._handlers.commit(request.store, keyed_rows(request), terms, caller_of(context))

        with self._telemetry.call("config.service.commit", context.invocation_metadata()) as traceparent:
            done = await answer(context, work())
        rows = [pb.Committed(partition=partition, version=version) for partition, version in done]
        return pb.CommitResponse(rows=rows)

    async def Change(self, _requests: AsyncIterator[pb.Changes], context: Context) -> None:
        stream = ChangeStream(self._handlers, self._writer, context)
        with self._lives.of(stream, caller_of(context)):
            await answer(context, stream.run())

    async def Write(self, _requests: AsyncIterator[pb.WriteBatch], context: Context) -> None:
        with self._telemetry.call("config.service.write", context.invocation_metadata()) as traceparent:
            stream = BulkStream(self._handlers, self._writer, context, traceparent)
            with self._lives.of(stream, caller_of(context)):
                await answer(context, stream.run())

    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        rows = await answer(context, self._handlers.get(request.store, request.key, request.row_ids))
        return pb.GetResponse(rows=map(row_message, rows))

    async def List(self, request: pb.ListRequest, context: Context) -> None:
        query = ListFilter(partition_of(request), request.include_deleted, request.limit)

        async def pages(after: tuple[int, str] | None, limit: int) -> AsyncGenerator[list[ListedRow], None]:
            if after is not None:  # in a further snapshot: the role may be gone
                self._access.check("List", caller_of(context), request)
            return await self._handlers.list_rows(request.store, request.key, replace(query, after=after, limit=limit))

        await answer(
            context,
            self._lists.send(
                context,
                pages,
                query.limit,
                position=lambda row: (row.partition, row.row.row_id),
                to_message=row_message,
                pack=lambda part: pb.ListResponse(rows=part),
            ),
        )

    async def History(self, request: pb.HistoryRequest, context: Context) -> None:
        words = partition_of(request), request.row_id or None, request.since, request.limit
        query = HistoryFilter(*words, previous=request.with_previous)

        async def pages(after: tuple[int, int] | None, limit: int) -> AsyncGenerator[list[Revision], None]:
            if after is not None:
                self._access.check("History", caller_of(context), request)
            return await self._handlers.history(request.store, request.key, replace(query, after=after, limit=limit))

        await answer(
            context,
            self._lists.send(
                context,
                pages,
                query.limit,
                position=lambda revision: (revision.partition, revision.row.version),
                to_message=revision_message,
                pack=lambda part: pb.HistoryResponse(revisions=part),
            ),
        )

    async def Heads(self, request: pb.HeadsRequest, context: Context) -> pb.HeadsResponse:
        found = await answer(context, self._handlers.heads(request.store, request.key, request.release))
        return pb.HeadsResponse(heads=found.heads, history_id=found.history)

    async def ListDeadLetters(self, request: pb.ListDeadLettersRequest, context: Context) -> pb.ListDeadLettersResponse:
        return await answer(context, self._dead_letters.list(request))

    async def ReplayDeadLetters(self, request: pb.ReplayDeadLettersRequest, context: Context) -> None:
        async def run() -> None:
            async with aclosing(self._dead_letters.replay(request, authorship(caller_of(context)))) as replies:
                async for reply in replies:
                    await send(context, reply)

        await answer(context, run())

    async def DiscardDeadLetters(
        self, request: pb.DiscardDeadLettersRequest, context: Context
    ) -> pb.DiscardDeadLettersResponse:
        return await answer(context, self._dead_letters.discard(request, authorship(caller_of(context))))
