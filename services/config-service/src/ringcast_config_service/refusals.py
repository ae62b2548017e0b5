"""Calls and connections that are refused before anything is done: each is counted, some are logged."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from typing import Final

from ringcast_wire import EventLog, limits

from ringcast_config_service.caller import Caller

log = EventLog(logging.getLogger(__name__))

REASONS: Final = (
    *("no_token", "unknown_token", "expired_token", "invalid_token", "no_issuer_keys"),
    *("limit_total", "limit_principal", "limit_host", "no_role"),
)
CONNECTION: Final = "connection"
"""The kind of what fails before there is a call."""
NO_CERTIFICATE: Final = "no_certificate"
REFUSED_CERTIFICATE: Final = "refused_certificate"
NO_HANDSHAKE: Final = "no_handshake"
HANDSHAKE_REASONS: Final = (NO_CERTIFICATE, REFUSED_CERTIFICATE, NO_HANDSHAKE)
"""Why a connection with TLS comes to nothing; the last one: the client speaks no TLS, or another one."""
_QUIET_S: Final = 60.0
"""From one line about a host and reason to the next."""
_MAX_QUIET: Final = 1_024
"""Hosts and reasons that are remembered; with more, the oldest are forgotten and may be logged again."""
_LINES: Final = 20
"""Lines in each such time, however many hosts there are."""


class Refusals:
    """Counts by kind of call and reason, and logs what a person has to know: a bounded number of lines a minute."""

    def __init__(self) -> None:
        kinds = (("unary", REASONS), (CONNECTION, HANDSHAKE_REASONS))
        self.counts = Counter({(kind, reason): 0 for kind, reasons in kinds for reason in reasons})
        self._quiet: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._window_ends = 0.0
        self._lines = 0

    def login(self, kind: str, reason: str, host: str) -> None:
        """A call had no valid token."""
        self.counts[kind, reason] += 1
        if (unlogged := self._may_log(reason, host)) is not None:
            log.warning("login.refused", host=host, call=kind, reason=reason, unlogged=unlogged)

    def handshake(self, reason: str, error: str) -> None:
        """A connection to the port with TLS came to nothing. gRPC doesn't say whose it was."""
        self.counts[CONNECTION, reason] += 1
        if (unlogged := self._may_log(reason, "")) is not None:
            log.warning("handshake.failed", reason=reason, error=error, unlogged=unlogged)

    def call(self, kind: str, reason: str, host: str) -> None:
        """A call was one too many."""
        self.counts[kind, reason] += 1
        if (unlogged := self._may_log(reason, host)) is not None:
            log.warning("call.refused", host=host, call=kind, reason=reason, unlogged=unlogged)

    def role(self, method: str, caller: Caller, role: str, store: str) -> None:
        """A principal has no role for a call. ``store``: of a bounded length."""
        self.counts["unary", "no_role"] += 1
        if (unlogged := self._may_log(f"no_role of {caller.principal}", caller.host)) is not None:
            log.warning(
                "role.missing",
                principal=caller.principal,
                role=role,
                store=store,
                method=method,
                host=caller.host,
                unlogged=unlogged,
            )

    def worker(self, reason: str, worker_id: str, host: str) -> None:
        """NATS lets a worker not in. ``worker_id``: as it calls itself."""
        if (unlogged := self._may_log(f"worker {reason}", host)) is not None:
            shown_id = worker_id[: limits.MAX_NAME_LENGTH]
            log.warning("callout.refused", worker=shown_id, host=host, reason=reason, unlogged=unlogged)

    def _may_log(self, reason: str, host: str) -> int | None:
        """Lines of this host and reason that were left out since the last one; None where this one is left out too."""
        now = time.monotonic()
        until, unlogged = self._quiet.get((host, reason), (0.0, 0))
        if now < until or not self._has_lines(now):
            self._remember(host, reason, max(until, now), unlogged + 1)
            return None
        self._remember(host, reason, now + _QUIET_S, 0)
        return unlogged

    def _remember(self, host: str, reason: str, until: float, unlogged: int) -> None:
        self._quiet[host, reason] = until, unlogged
        self._quiet.move_to_end((host, reason))
        if len(self._quiet) > _MAX_QUIET:
            self._quiet.popitem(last=False)

    def _has_lines(self, now: float) -> bool:
        if now >= self._window_ends:
            self._window_ends, self._lines = now + _QUIET_S, 0
        self._lines += 1
        return self._lines <= _LINES
