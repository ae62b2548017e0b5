"""The JSON web tokens of NATS's auth callout (its JWT format v2): what a server asks, and what it is answered.

A token is three parts in Base64 for URLs: a header, claims, and the signature over both with Ed25519, which NATS calls
``ed25519-nkey``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any, Final

import msgspec
from ringcast_wire import InvalidInputError

from ringcast_config_service.callout.keys import Signer, verified

AUDIENCE: Final = "nats-authorization-request"
_ALGORITHM: Final = "ed25519-nkey"
_HEADER: Final = b'{"typ":"JWT","alg":"ed25519-nkey"}'


class ServerId(msgspec.Struct):
    """The server that asks: its public key, and the one to encrypt for."""

    id: str
    xkey: str = ""


class ClientInfo(msgspec.Struct):
    """The connection that it asks about: its number on the server, and the host at its other end."""

    id: int = 0
    host: str = ""


class ConnectOptions(msgspec.Struct):
    """What the client has sent of the login."""

    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    auth_token: str = ""


class Question(msgspec.Struct):
    """What the server asks."""

    server_id: ServerId
    user_nkey: str
    client_info: ClientInfo = msgspec.field(default_factory=ClientInfo)
    connect_opts: ConnectOptions = msgspec.field(default_factory=ConnectOptions)
    type: str = ""


class Request(msgspec.Struct):
    """A request of a server. Times are in seconds of the clock; after ``exp`` it has stopped waiting."""

    iss: str
    aud: str
    nats: Question
    iat: int = 0
    exp: int = 0


class _Header(msgspec.Struct):
    alg: str


_read_header = msgspec.json.Decoder(_Header).decode
_read_request = msgspec.json.Decoder(Request).decode
_write = msgspec.json.Encoder().encode


def read_request(token: bytes) -> Request:
    """A request that its server has signed.

    Raises:
        InvalidInputError: it is none; the message shows nothing of it.
    """
    try:
        header, claims, signature = token.split(b".")
        if _read_header(_from_base64(header)).alg != _ALGORITHM:
            raise InvalidInputError("the request has another algorithm than ed25519-nkey")
        request = _read_request(_from_base64(claims))
        signed = _from_base64(signature)
    except (ValueError, binascii.Error, msgspec.DecodeError) as error:
        # The reason may show a part of the request, where a token is.
        raise InvalidInputError("the request is no JSON web token of NATS") from error
    if request.aud != AUDIENCE or request.nats.type != "authorization_request":
        raise InvalidInputError("the request is not one for authorization")
    if request.iss != request.nats.server_id.id or not verified(request.iss, token.rpartition(b".")[0], signed):
        raise InvalidInputError("the request is not signed by the server that it names")
    return request


def user_token(
    signer: Signer,
    *,
    user: str,
    name: str,
    account: str,
    publish: list[str],
    subscribe: list[str],
    issued_at: int,
    expires_at: int,
) -> str:
    """What a user may do: the subjects, in this account, until ``expires_at`` (seconds of the clock)."""
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    nats = {
        "pub": {"allow": publish},
        "sub": {"allow": subscribe},
        **unlimited,
        "allowed_connection_types": ["STANDARD"],
        "type": "user",
        "version": 2,
    }
    claims = {"sub": user, "name": name, "aud": account, "iat": issued_at, "exp": expires_at, "nats": nats}
    return _signed(signer, claims)


def answer_token(signer: Signer, request: Request, *, issued_at: int, jwt: str = "", error: str = "") -> str:
    """The answer to a request: what the user may do, or why there is none."""
    nats: dict[str, Any] = {"jwt": jwt} if jwt else {"error": error}
    nats |= {"type": "authorization_response", "version": 2}
    claims = {"sub": request.nats.user_nkey, "aud": request.nats.server_id.id, "iat": issued_at, "nats": nats}
    return _signed(signer, claims)


def _signed(signer: Signer, claims: dict[str, Any]) -> str:
    claims = {"iss": signer.public, **claims}
    # As NATS's own library makes ids; they let two answers be told apart.
    claims["jti"] = base64.b32encode(hashlib.sha256(_write(claims)).digest()).rstrip(b"=").decode()
    text = _to_base64(_HEADER) + b"." + _to_base64(_write(claims))
    return (text + b"." + _to_base64(signer.sign(text))).decode()


def _to_base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _from_base64(data: bytes) -> bytes:
    return base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)
