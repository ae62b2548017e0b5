"""The caller of a call, as far as its connection shows."""

from __future__ import annotations

import ipaddress
import math
import re
import urllib.parse
from collections.abc import Iterable
from contextvars import ContextVar
from functools import lru_cache
from typing import Final

from ringcast_service import Context
from ringcast_wire import InvalidInputError, check_reason, names

from ringcast_config_service.caller import Caller, Login, line_of

MAX_CERTIFICATE_NAME: Final = 128
_SCHEME: Final = "bearer "
_NAMES_IN_CERTIFICATE: Final = ("x509_common_name", "x509_subject_alternative_name")
"""Many certificates have no common name any more."""
_CERTIFICATE: Final = "x509_pem_cert"
_MILLISECONDS: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


_ADMITTED: ContextVar[Caller] = ContextVar("ringcast_caller")


def caller_of(context: Context) -> Caller:
    """The caller of a gRPC call that was admitted; of any other, what its connection alone shows."""
    return _ADMITTED.get(None) or connection_of(context)


def admitted(caller: Caller) -> None:
    """Remembers the caller of the call that the running task serves."""
    _ADMITTED.set(caller)


def connection_of(context: Context) -> Caller:
    """The caller by the connection alone: an unchecked token proves nothing, and may change with each call."""
    connection = str(context.peer())
    host = host_of(connection)
    facts = context.auth_context()
    found = [name for kind in _NAMES_IN_CERTIFICATE for name in facts.get(kind) or ()]
    if found and not _any_cut(facts.get(_CERTIFICATE) or ()):
        for name in found:
            if name:
                return Caller("certificate:" + certificate_name(name), connection, host)
    return Caller("host:" + host, connection, host)


def _any_cut(certificates: Iterable[bytes]) -> bool:
    """Whether gRPC has cut off a name in one of these certificates.

    The first caller with one waits for the import, a tenth of a second; where none has any, the start does not.
    """
    from ringcast_config_service.grpc.cut_names import has_cut_name

    return any(map(has_cut_name, certificates))


def token_caller(context: Context, login: Login) -> Caller:
    """The caller with a token that was found to prove this."""
    connection = str(context.peer())
    return Caller(login.principal, connection, host_of(connection), "", login.groups, login.expires_at_s)


def certificate_name(name: bytes) -> str:
    """A name in a certificate as one line of text of at most 128 characters; different for different names."""
    return line_of(name, MAX_CERTIFICATE_NAME)


def bearer_tokens(context: Context) -> list[str]:
    """The tokens that a call came with; more or less than one is wrong."""
    found = [str(value) for name, value in context.invocation_metadata() or () if name == "authorization"]
    return [text[len(_SCHEME) :].strip() if text.lower().startswith(_SCHEME) else "" for text in found]


def reason_of(context: Context) -> str:
    """The reason that a call came with, empty for none.

    Raises:
        InvalidInputError: there are several, or it is too long, or more than a line.
    """
    found = [value for name, value in context.invocation_metadata() or () if name == names.GRPC_REASON_KEY]
    if not found:
        return ""
    if len(found) > 1:
        raise InvalidInputError(f"reason is given {len(found)} times: once is allowed", field="reason")
    value = found[0]
    return check_reason(value.decode(errors="replace") if isinstance(value, bytes) else value)


def patience_of(context: Context) -> float:
    """How long the client of a stream waits for an answer, in seconds; infinite where it does not say so."""
    for name, value in context.invocation_metadata() or ():
        if name == names.GRPC_PATIENCE_KEY and _MILLISECONDS.fullmatch(str(value)):
            return int(value) / 1000
    return math.inf


@lru_cache(4_096)
def host_of(peer: str) -> str:
    """The host of ``ipv4:127.0.0.1:1234`` or ``ipv6:%5B::1%5D:1234``."""
    family, _, rest = peer.partition(":")
    host = urllib.parse.unquote(rest).rpartition(":")[0] or rest
    if family != "ipv6":
        return host
    try:
        address = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
