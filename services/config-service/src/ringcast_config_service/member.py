"""What this instance says of itself in the cluster."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable
from typing import Final

from ringcast_meta.cluster import ServiceLoad

from ringcast_config_service.telemetry import Measures

_MAX_HOST_CHARS: Final = 48


def new_instance_id() -> str:
    """``<host>-<random>``: no other instance has it, nor this one after a restart."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:_MAX_HOST_CHARS]
    return f"{host}-{secrets.token_hex(4)}"


class InstanceLoad:
    """How busy an instance is: rates are since the call before."""

    def __init__(self, measures: Measures, open_calls: Callable[[], int]) -> None:
        self._measures = measures
        self._open_calls = open_calls
        self._last_writes = self._writes()

    def __call__(self, past_s: float, cpu: float) -> ServiceLoad:
        measures, writes = self._measures, self._writes()
        new, self._last_writes = writes - self._last_writes, writes
        return ServiceLoad(
            writes_per_s=round(new / past_s, 1),
            outbox_events=measures.outbox.depth,
            outbox_age_s=round(measures.outbox_age_s, 1),
            waiting_fetches=int(measures.gauges["fetches_waiting"]()),
            open_calls=self._open_calls(),
            cpu=cpu,
        )

    def _writes(self) -> int:
        return sum(self._measures.writes.values())
