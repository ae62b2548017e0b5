"""The endpoint that Prometheus scrapes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client.registry import CollectorRegistry
from ringcast_wire import UnavailableError
from ringcast_wire.prometheus import OFF, MetricsServer

from ringcast_service._errors import ConfigError


@asynccontextmanager
async def serving_metrics(
    listen: str, registry: CollectorRegistry, ready: Callable[[], bool] | None = None
) -> AsyncIterator[str]:
    """Serves the metrics, and gives the address; nothing, where ``listen`` is ``off``. ``ready``: what ``/ready`` says.

    From before the start until after the end, so that a slow stop can be watched.

    Raises:
        ConfigError: the address can't be used.
    """
    if listen == OFF:
        yield ""
        return
    try:
        server = MetricsServer(listen, registry, ready)
    except UnavailableError as error:
        raise ConfigError(str(error)) from error
    try:
        yield server.address
    finally:
        await asyncio.to_thread(server.close)
