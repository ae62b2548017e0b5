"""The gRPC server, and Dapr's API on it: the methods of ``dapr.proto.runtime.v1.Dapr`` that concern configuration."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio
from ringcast_wire import limits

from ringcast_heartbeat_agent._proto import dapr_messages_pb2 as pb
from ringcast_heartbeat_agent._proto.dispatch_pb2_grpc import add_DispatchServicer_to_server
from ringcast_heartbeat_agent.clients import Trusted, enter
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.errors import DaprError, StoppedError, unsubscribe_message
from ringcast_heartbeat_agent.handlers import Handlers
from ringcast_heartbeat_agent.items import Item
from ringcast_heartbeat_agent.telemetry import Measures
from ringcast_heartbeat_agent.transport_dispatch import DispatchServicer

SERVICE: Final = "dapr.proto.runtime.v1.Dapr"
_TOKEN: Final = "dapr-api-token"  # noqa: S105  # the name of the header
_SPARE_CALLS: Final = 256
"""Calls besides the subscriptions that may be under way."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class GrpcServer:
    """Listens from :meth:`start` to :meth:`stop`."""

    def __init__(self, config: Config, handlers: Handlers, dispatch: DispatchServicer, measures: Measures) -> None:
        self._handlers = handlers
        self._measures = measures
        self._listen = config.grpc_listen
        self.port = 0
        self._server = grpc.aio.server(
            interceptors=(_RequireToken(config),) if config.api_token else (),
            options=(
                ("grpc.max_receive_message_length", limits.MIB),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", 30_000),  # a client whose host has gone does not say so
                ("grpc.keepalive_timeout_ms", 10_000),
            ),
            maximum_concurrent_rpcs=config.max_subscriptions + config.max_consumers + _SPARE_CALLS,
        )
        self._server.add_generic_rpc_handlers((self._methods(),))
        add_DispatchServicer_to_server(dispatch, self._server)

    async def start(self) -> None:
        """Takes the port.

        Raises:
            OSError: it can't be used.
        """
        try:
            self.port = self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OSError(f"grpc_listen {self._listen} can't be used: {error}") from error
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, and waits for those under way."""
        await self._server.stop(grace_s)

    def _methods(self) -> grpc.GenericRpcHandler:
        get = grpc.unary_unary_rpc_method_handler(
            self._get, pb.GetConfigurationRequest.FromString, pb.GetConfigurationResponse.SerializeToString
        )
        subscribe = grpc.unary_stream_rpc_method_handler(
            self._subscribe,
            pb.SubscribeConfigurationRequest.FromString,
            pb.SubscribeConfigurationResponse.SerializeToString,
        )
        unsubscribe = grpc.unary_unary_rpc_method_handler(
            self._unsubscribe,
            pb.UnsubscribeConfigurationRequest.FromString,
            pb.UnsubscribeConfigurationResponse.SerializeToString,
        )
        metadata = grpc.unary_unary_rpc_method_handler(
            self._metadata, pb.GetMetadataRequest.FromString, pb.GetMetadataResponse.SerializeToString
        )
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"GetMetadata": metadata}
        for name, method in (("Get", get), ("Subscribe", subscribe), ("Unsubscribe", unsubscribe)):
            methods[f"{name}Configuration"] = methods[f"{name}ConfigurationAlpha1"] = method
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _get(self, request: pb.GetConfigurationRequest, context: Context) -> pb.GetConfigurationResponse:
        with self._timed("get") as outcome:
            try:
                items = await self._handlers.get(request.store_name, list(request.keys))
            except DaprError as error:
                await _abort(context, error, outcome)
        return pb.GetConfigurationResponse(items=_items(items))

    async def _subscribe(self, request: pb.SubscribeConfigurationRequest, context: Context) -> None:
        with self._timed("subscribe") as outcome:
            await enter(context.peer())
            try:
                subscription = await self._handlers.subscribe(
                    request.store_name, list(request.keys), "grpc", request.metadata
                )
            except DaprError as error:
                await _abort(context, error, outcome)
        try:
            await context.write(pb.SubscribeConfigurationResponse(id=subscription.id))
            async for batch in subscription.batches():
                await context.write(pb.SubscribeConfigurationResponse(id=subscription.id, items=_items(batch)))
                self._measures.sent["grpc"] += len(batch)
                subscription.delivered(batch)
        except StoppedError as error:
            await context.abort(error.status, str(error))
        finally:  # the client has gone, too
            subscription.end()
            self._handlers.drop(subscription)

    async def _unsubscribe(
        self, request: pb.UnsubscribeConfigurationRequest, _context: Context
    ) -> pb.UnsubscribeConfigurationResponse:
        with self._timed("unsubscribe"):
            if self._handlers.unsubscribe(request.id):
                return pb.UnsubscribeConfigurationResponse(ok=True)
            return pb.UnsubscribeConfigurationResponse(ok=False, message=unsubscribe_message(request.id))

    async def _metadata(self, _request: pb.GetMetadataRequest, _context: Context) -> pb.GetMetadataResponse:
        with self._timed("metadata"):
            told: dict[str, Any] = self._handlers.metadata()
            return pb.GetMetadataResponse(
                id=told["id"],
                runtime_version=told["runtimeVersion"],
                extended_metadata=told["extended"],
                registered_components=[pb.RegisteredComponents(**component) for component in told["components"]],
            )

    @contextmanager
    def _timed(self, method: str) -> Iterator[list[str]]:
        """Counts a call and its time; what goes wrong is put into the list that it gives."""
        since, outcome = time.monotonic(), [""]
        try:
            yield outcome
        finally:
            self._measures.asked("grpc", method, outcome[-1] or "ok", time.monotonic() - since)


class _RequireToken(grpc.aio.ServerInterceptor):
    """Lets in who sends the token, in Dapr's words, and users that need none."""

    def __init__(self, config: Config) -> None:
        self._token = config.api_token.encode()
        self._trusted = Trusted(config.trusted_uids())

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        given = [str(value).encode() for name, value in details.invocation_metadata or () if name == _TOKEN]
        if handler is None or (given and hmac.compare_digest(given[0], self._token)):
            return handler
        why = "authentication error: api token mismatch" if given else "missing api token in request metadata"

        fields = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
        field = fields[2 * handler.request_streaming + handler.response_streaming]
        method = getattr(handler, field)

        async def check(request: Any, context: Context) -> Any:
            if given or not await self._trusted.includes(context.peer()):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, why)
            return await method(request, context)

        return handler._replace(**{field: check})


def _items(items: Mapping[str, Item]) -> dict[str, pb.ConfigurationItem]:
    return {
        name: pb.ConfigurationItem(value=item.value, version=item.version, metadata=item.metadata)
        for name, item in items.items()
    }


async def _abort(context: Context, error: DaprError, outcome: list[str]) -> NoReturn:
    outcome.append(error.code)
    await context.abort(error.status, str(error))
