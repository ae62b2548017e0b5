"""The gRPC server, and Dapr's API on it: the methods of ``dapr.proto.runtime.v1.Dapr`` that concern configuration."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from ringcast.hosting import ConfigurationItem
from ringcast_service import Context, end_call
from ringcast_wire import limits
from ringcast_wire.dispatch import add_DispatchServicer_to_server

from ringcast_heartbeat_agent._proto import dapr_messages_pb2 as pb
from ringcast_heartbeat_agent.clients import Here, Trusted, enter
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.handlers import Handlers
from ringcast_heartbeat_agent.dispatch.transport import DispatchServicer
from ringcast_heartbeat_agent.errors import DaprError, StoppedError, no_shutdown, unsubscribe_message
from ringcast_heartbeat_agent.telemetry import Measures

SERVICE: Final = "dapr.proto.runtime.v1.Dapr"
_TOKEN: Final = "dapr-api-token"  # noqa: S105  # the name of the header
_SPARE_CALLS: Final = 256
"""Calls besides the subscriptions that may be under way."""
_LEAST_PING_MS: Final = 1_000
"""How often clients may ping; those that do it more often, a few times in a row, lose their connection."""


class GrpcServer:
    """Listens from :meth:`start` to :meth:`stop`."""

    def __init__(
        self, config: Config, handlers: Handlers, dispatch: DispatchServicer, measures: Measures, here: Here
    ) -> None:
        self._handlers = handlers
        self._here = here
        self._measures = measures
        self._listen = config.grpc_listen
        self.port = 0
        self._server = grpc.aio.server(
            interceptors=(_RequireToken(config, here),) if config.api_token else (),
            options=(
                ("grpc.max_receive_message_length", limits.MIB),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", 30_000),  # a client whose host has gone does not say so
                # Dapr's SDK for Java pings every 10 s, and a client that pings more often than allowed is disconnected.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", _LEAST_PING_MS),
                ("grpc.keepalive_timeout_ms", 10_000),
            ),
            maximum_concurrent_rpcs=config.max_subscriptions + config.max_consumers + _SPARE_CALLS,
        )
        self._server.add_generic_rpc_handlers((self._methods(), _Unserved()))
        add_DispatchServicer_to_server(dispatch, self._server)

    async def start(self) -> None:
        """Takes the port.

        Raises:
            OSError: it can't be used.
        """
        try:
            self.port = self._here.port = self._server.add_insecure_port(self._listen)
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
        set_metadata = grpc.unary_unary_rpc_method_handler(
            self._set_metadata, pb.SetMetadataRequest.FromString, pb.Empty.SerializeToString
        )
        shutdown = grpc.unary_unary_rpc_method_handler(self._shutdown, pb.Empty.FromString, pb.Empty.SerializeToString)
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetMetadata": metadata,
            "SetMetadata": set_metadata,
            "Shutdown": shutdown,
        }
        for name, method in (("Get", get), ("Subscribe", subscribe), ("Unsubscribe", unsubscribe)):
            methods[f"{name}Configuration"] = methods[f"{name}ConfigurationAlpha1"] = method
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _get(self, request: pb.GetConfigurationRequest, context: Context) -> pb.GetConfigurationResponse:
        with self._timed("get") as outcome:
            try:
                keys = list(request.keys)
                items = await self._handlers.get(request.store_name, keys, request.metadata)
                answer = pb.GetConfigurationResponse(items=_items(items))
                self._handlers.check_size(request.store_name, keys, answer.ByteSize())
            except DaprError as error:
                await _abort(context, error, outcome)
        return answer

    async def _subscribe(self, request: pb.SubscribeConfigurationRequest, context: Context) -> None:
        with self._timed("subscribe") as outcome:
            await enter(context.peer(), self._here)
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
            await end_call(context, error.status, str(error))
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
            described: dict[str, Any] = self._handlers.metadata()
            return pb.GetMetadataResponse(
                id=described["id"],
                runtime_version=described["runtimeVersion"],
                extended_metadata=described["extended"],
                registered_components=[pb.RegisteredComponents(**component) for component in described["components"]],
            )

    async def _set_metadata(self, request: pb.SetMetadataRequest, context: Context) -> pb.Empty:
        with self._timed("set_metadata") as outcome:
            try:
                self._handlers.set_metadata(request.key, request.value)
            except DaprError as error:
                await _abort(context, error, outcome)
        return pb.Empty()

    async def _shutdown(self, _request: pb.Empty, context: Context) -> pb.Empty:
        with self._timed("shutdown") as outcome:
            await _abort(context, no_shutdown(), outcome)

    @contextmanager
    def _timed(self, method: str) -> Iterator[list[str]]:
        """Counts a call and its time; what goes wrong is put into the list that it gives."""
        since, outcome = time.monotonic(), [""]
        try:
            yield outcome
        finally:
            self._measures.request_answered("grpc", method, outcome[-1] or "ok", time.monotonic() - since)


class _Unserved(grpc.GenericRpcHandler):
    """Refuses the methods of Dapr that are not about configuration, and says so."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Takes every method of Dapr's service that nothing before it has taken."""
        service, _, method = str(handler_call_details.method).strip("/").rpartition("/")
        if service != SERVICE:
            return None

        async def refuse(_requests: Any, context: Context) -> None:
            await end_call(
                context,
                grpc.StatusCode.UNIMPLEMENTED,
                f"{SERVICE}/{method[:128]} is not served: "
                "this is no daprd, but a Ringcast agent, which serves configuration and metadata",
            )

        return grpc.stream_stream_rpc_method_handler(refuse)


class _RequireToken(grpc.aio.ServerInterceptor):
    """Lets in clients that send the token, in Dapr's words, and users that need none."""

    def __init__(self, config: Config, here: Here) -> None:
        self._here = here
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
            if given or not await self._trusted.includes(context.peer(), self._here):
                await end_call(context, grpc.StatusCode.UNAUTHENTICATED, why)
            return await method(request, context)

        return handler._replace(**{field: check})


def _items(items: Mapping[str, ConfigurationItem]) -> dict[str, pb.ConfigurationItem]:
    return {
        name: pb.ConfigurationItem(value=item.value, version=item.version, metadata=item.metadata)
        for name, item in items.items()
    }


async def _abort(context: Context, error: DaprError, outcome: list[str]) -> NoReturn:
    outcome.append(error.code)
    await end_call(context, error.status, str(error))
