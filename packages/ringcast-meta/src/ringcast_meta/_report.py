"""The record of this process as it is now, and how busy the process is."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

from ringcast_wire import NEWEST_WIRE_VERSION

from ringcast_meta._members import AgentLoad, MemberKind, MemberRecord, MemberState, ServiceLoad


class MemberReport:
    """Makes the record of this process: each call is a report, as :class:`~ringcast_meta.cluster.Presence` wants it.

    ``addresses``: where it listens, by what it serves there: ``grpc``, and ``metrics`` if that is on.
    ``load`` is called with the seconds since the report before, and the share of one core that the process took.
    """

    def __init__(
        self,
        kind: MemberKind,
        member_id: str,
        version: str,
        *,
        addresses: Callable[[], Mapping[str, str]],
        state: Callable[[], MemberState],
        load: Callable[[float, float], ServiceLoad | AgentLoad],
        leads: Callable[[], bool] = lambda: False,
    ) -> None:
        self._kind = kind
        self._id = member_id
        self._version = version
        self._addresses = addresses
        self._state = state
        self._load = load
        self._leads = leads
        self._started_at_ms = int(time.time() * 1000)
        self._last = time.monotonic(), time.process_time()

    def __call__(self) -> MemberRecord:
        addresses = self._addresses()
        now = time.monotonic(), time.process_time()
        past_s, busy_s = max(now[0] - self._last[0], 0.001), now[1] - self._last[1]
        self._last = now
        return MemberRecord(
            kind=self._kind,
            id=self._id,
            address=addresses["grpc"],
            metrics=addresses.get("metrics", ""),
            host=socket.gethostname()[:256],
            pid=os.getpid(),
            version=self._version,
            state=self._state(),
            leads=self._leads(),
            wire=NEWEST_WIRE_VERSION,
            started_at_ms=self._started_at_ms,
            reported_at_ms=int(time.time() * 1000),
            load=self._load(past_s, round(busy_s / past_s, 2)),
        )
