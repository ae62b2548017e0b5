"""Serving a worker's metrics for as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ringcast_wire import InvalidInputError, shown

from ringcast._common.measures import Metrics, NoMetrics

OFF: Final = "off"


@asynccontextmanager
async def endpoint(listen: str, metrics: Metrics | None) -> AsyncIterator[tuple[Metrics, str]]:
    """Gives the collector of the metrics, and the address where they are served, if they are.

    Raises:
        InvalidInputError: ``listen`` is not ``off`` or ``host:port``, or what is needed to serve is not there.
        UnavailableError: the address can't be used.
    """
    if listen == OFF:
        yield metrics or NoMetrics(), ""
        return
    try:
        from ringcast.metrics import PrometheusMetrics  # heavy, and an extra
    except ImportError as error:
        raise _refusal(listen, "needs prometheus-client: install ringcast[metrics]") from error
    found = PrometheusMetrics.of_process() if metrics is None else metrics
    if not isinstance(found, PrometheusMetrics):
        raise _refusal(listen, "can serve PrometheusMetrics only: give those as metrics, or none")
    server = found.serve(listen)
    try:
        yield found, server.address
    finally:
        await asyncio.to_thread(server.close)


def _refusal(listen: str, reason: str) -> InvalidInputError:
    return InvalidInputError(f"metrics_listen {shown(listen)} {reason}", field="metrics_listen")
