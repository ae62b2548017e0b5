"""What this instance says of itself in the cluster."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Final

from ringcast_meta.cluster import MemberKind, MemberRecord, MemberState, ServiceLoad

from ringcast_config_service.telemetry import Measures

_MAX_HOST_CHARS: Final = 48


def new_instance_id() -> str:
    """``<host>-<random>``: no other instance has it, nor this one after a restart."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:_MAX_HOST_CHARS]
    return f"{host}-{secrets.token_hex(4)}"


class InstanceReport:
    """Makes the record of an instance: each call is a report, and rates are since the one before."""

    def __init__(
        self,
        instance_id: str,
        addresses: Callable[[], Mapping[str, str]],
        measures: Measures,
        *,
        state: Callable[[], MemberState],
        leads: Callable[[], bool],
        open_calls: Callable[[], int],
    ) -> None:
        self._id = instance_id
        self._addresses = addresses
        self._measures = measures
        self._state = state
        self._leads = leads
        self._open_calls = open_calls
        self._started_at_ms = int(time.time() * 1000)
        self._last = (time.monotonic(), time.process_time(), self._writes())

    def __call__(self) -> MemberRecord:
        addresses = self._addresses()
        return MemberRecord(
            kind=MemberKind.SERVICE,
            id=self._id,
            address=addresses["grpc"],
            metrics=addresses.get("metrics", ""),
            host=socket.gethostname()[:256],
            pid=os.getpid(),
            version=version("ringcast-config-service"),
            state=self._state(),
            leads=self._leads(),
            started_at_ms=self._started_at_ms,
            reported_at_ms=int(time.time() * 1000),
            load=self._load(),
        )

    def _load(self) -> ServiceLoad:
        now = time.monotonic(), time.process_time(), self._writes()
        past_s, busy_s, writes = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        measures = self._measures
        return ServiceLoad(
            writes_per_s=round(writes / max(past_s, 0.001), 1),
            outbox_events=measures.outbox.depth,
            outbox_age_s=round(measures.outbox_age_s, 1),
            waiting_fetches=int(measures.gauges["fetches_waiting"]()),
            open_calls=self._open_calls(),
            cpu=round(busy_s / max(past_s, 0.001), 2),
        )

    def _writes(self) -> int:
        return sum(self._measures.writes.values())
