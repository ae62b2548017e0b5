"""What an agent tells of itself, for people and for ``ringcast agent status``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ringcast_meta.cluster import MemberState

from ringcast_heartbeat_agent.config import VERSION, Config
from ringcast_heartbeat_agent.dispatch.groups import Dispatch
from ringcast_heartbeat_agent.followers import Followers
from ringcast_heartbeat_agent.leases.host import HostLeases


class Status:
    """How an agent is now, as one JSON document."""

    def __init__(
        self,
        config: Config,
        followers: Followers,
        dispatch: Dispatch,
        leases: HostLeases | None,
        *,
        connected: Callable[[], bool],
        state: Callable[[], MemberState],
    ) -> None:
        self._config = config
        self._followers = followers
        self._dispatch = dispatch
        self._leases = leases
        self._connected = connected
        self._state = state
        self._since = time.monotonic()

    def document(self) -> dict[str, Any]:
        """Workers, leases, groups and their consumers; numbers are as of now."""
        return {
            "agent_id": self._config.agent_id,
            "pid": os.getpid(),
            "version": VERSION,
            "uptime_s": round(time.monotonic() - self._since, 3),
            "connected": self._connected(),
            "stopping": self._dispatch.stopping,
            "state": self._state(),
            "workers": [each.status() for each in self._followers],
            "leases": self._leases.status() if self._leases is not None else None,
            "groups": self._dispatch.status(),
        }
