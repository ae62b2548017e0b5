"""The caller of a request: what limits and fair queues count by, and what is written down as the author."""

from __future__ import annotations

from typing import Final, NamedTuple


class Caller(NamedTuple):
    """``principal``: whose credential it is (the name of the token, ``certificate:`` and the name in it, or ``host:``
    and the host of a client without either; the name of a token has no colon, so none stands for another);
    ``connection``: which of the principal's connections, since several clients may share a token; ``host``: where the
    connection comes from (of IPv6 the /64, which one host may have whole); ``reason``: why it calls, if it says so."""

    principal: str
    connection: str
    host: str = ""
    reason: str = ""


LOCAL: Final = Caller("local", "local", "local")
"""The service itself."""
