"""Who makes a call, as far as its connection tells: what limits and fair queues count by."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from ringcast_config_service.transport_input import Context

_SCHEME: Final = "bearer "


class Caller(NamedTuple):
    """``principal``: whose credential it is (a digest of the token, the name in the certificate, or the host of one
    without either); ``connection``: which of the principal's connections, since several clients may share a token."""

    principal: str
    connection: str


LOCAL: Final = Caller("local", "local")
"""The service itself."""


def caller_of(context: Context) -> Caller:
    """The caller of a gRPC call that was let in."""
    connection = str(context.peer())
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and str(value).lower().startswith(_SCHEME):
            token = str(value)[len(_SCHEME) :].strip()
            return Caller("token:" + hashlib.sha256(token.encode()).hexdigest()[:16], connection)
    for common_name in context.auth_context().get("x509_common_name") or ():
        return Caller("certificate:" + common_name.decode(errors="replace"), connection)
    return Caller("host:" + connection.rpartition(":")[0], connection)
