"""The caller of a request: what limits and fair queues count by."""

from __future__ import annotations

from typing import Final, NamedTuple


class Caller(NamedTuple):
    """``principal``: whose credential it is (a digest of the token, the name in the certificate, or the host of one
    without either); ``connection``: which of the principal's connections, since several clients may share a token;
    ``host``: where the connection comes from (of IPv6 the /64, which one host may have whole)."""

    principal: str
    connection: str
    host: str = ""


LOCAL: Final = Caller("local", "local", "local")
"""The service itself."""
