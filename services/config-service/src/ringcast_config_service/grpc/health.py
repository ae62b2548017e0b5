"""``grpc.health.v1``, for probes and load balancers."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringcast_service import Context, end_call

from ringcast_config_service.grpc.input import send

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):
    """The state of each name. A watcher that does not read holds up no other, as it would in gRPC's own servicer."""

    def __init__(self) -> None:
        self._states: dict[str, bool] = {}
        self._changed = asyncio.Event()

    def set(self, name: str, serving: bool) -> None:
        """States whether what the name stands for is served."""
        if self._states.get(name) is not serving:
            self._states[name] = serving
            self._changed.set()
            self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        serving = self._states.get(request.service)
        if serving is None:
            await end_call(context, grpc.StatusCode.NOT_FOUND, "no service of that name is known here")
        return health_pb2.HealthCheckResponse(status=_SERVING if serving else _NOT_SERVING)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        sent = None
        while True:
            changed = self._changed
            serving = self._states.get(request.service)
            status = _UNKNOWN if serving is None else _SERVING if serving else _NOT_SERVING
            if status != sent:
                await send(context, health_pb2.HealthCheckResponse(status=status))
                sent = status
            await changed.wait()
