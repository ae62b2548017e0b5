"""Requests that a web page of another site makes a browser on this host send: they are not answered.

A page can name the agent's address, or have its own name point there; it can't send what it likes as ``Host``, and
can't leave ``Origin`` and ``Sec-Fetch-Site`` out. Over gRPC a browser can't call.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from ringcast_wire import shown

from ringcast_heartbeat_agent.config import Config


class PageGuard:
    """Which requests are refused. Names that the agent may be called by are ``localhost`` and ``allowed_hosts``."""

    def __init__(self, config: Config) -> None:
        listen = config.http_listen.rpartition(":")[0].strip("[]")
        self._names = {"localhost", listen.lower(), *(name.lower() for name in config.allowed_hosts)}

    def refusal(self, headers: Mapping[str, str]) -> str:
        """Why a request is not answered; nothing if it is."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return f"host {shown(host)} is no name of this agent: allowed_hosts names further ones"
        if origin := headers.get("origin", ""):
            return f"requests of web pages are not answered: this one is of {shown(origin)}"
        if (site := headers.get("sec-fetch-site", "none")) != "none":
            return f"requests of web pages are not answered: this one is {shown(site)}"
        return ""

    def _is_ours(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        if not colon or not port.isdecimal():
            name = host
        name = name.removeprefix("[").removesuffix("]").lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # an address is nobody's to point elsewhere
