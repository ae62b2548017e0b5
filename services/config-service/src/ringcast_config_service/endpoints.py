"""Servers of the operator that the service asks: where one is, how the service logs in there, what is said of one that
does not answer, and requests over HTTP. Clients never name one."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from ringcast_service import ConfigError
from ringcast_wire import InvalidInputError, shown
from ringcast_wire.grpc import read_login_file, read_tokens

_MAX_URL: Final = 512
_GRPC_PREFIXES: Final = ("grpc://", "grpcs://")


class EndpointLogin(NamedTuple):
    """What a request is sent with. ``token``: empty for none; ``tls``: ``True`` for the machine's own authorities;
    ``ca``: the authorities that ``tls`` is made of, in PEM, empty for those."""

    token: str
    tls: ssl.SSLContext | bool
    ca: bytes = b""

    def hidden(self, text: str) -> str:
        """What a server has said, without the token: it may repeat what it was sent, and logs and clients see it."""
        return text.replace(self.token, "…") if self.token else text


class Endpoint(NamedTuple):
    """A server as settings name it, whose names begin with ``name``: ``prometheus`` for ``prometheus_url``.

    ``takes_grpc``: whether it may be one of gRPC too, with a URL of our own making."""

    name: str
    url: str
    token_file: str
    ca_file: str
    takes_grpc: bool = False

    @property
    def is_grpc(self) -> bool:
        """Whether it is asked over gRPC."""
        return self.takes_grpc and self.url.startswith(_GRPC_PREFIXES)

    def check(self) -> None:
        """Looks whether the settings make sense together, and the files can be used.

        Raises:
            ConfigError: they don't; the message names the setting.
        """
        name = self.name
        if not self.url:
            for setting, path in ((f"{name}_token", self.token_file), (f"{name}_ca", self.ca_file)):
                if path:
                    raise ConfigError(f"{setting} is given without {name}_url")
            return
        try:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
            port = parts.port  # raises where it is none
        except ValueError:
            host = ""
        login = parts.username is not None or "@" in parts.netloc if host else False
        if (
            not host
            or login
            or not (parts.scheme in {"http", "https"} or (self.is_grpc and port and not parts.path))
            or not {"?", "#"}.isdisjoint(self.url)
            or len(self.url) > _MAX_URL
        ):
            grpc = ", or grpc:// or grpcs:// with a host and a port" if self.takes_grpc else ""
            raise ConfigError(
                f"{name}_url {'with a login in it' if login else shown(self.url)} can't be used: http:// or "
                f"https:// with a host is allowed, and a port and a path{grpc}, of {_MAX_URL} characters at most"
            )
        if parts.scheme in {"https", "grpcs"}:
            pass
        elif self.ca_file:
            raise ConfigError(f"{name}_ca is given, and {name}_url is not {parts.scheme}s://")
        elif self.token_file and not _is_loopback(host):
            raise ConfigError(
                f"{name}_token is given, and {name}_url is neither {parts.scheme}s:// nor at a loopback address: "
                "anybody on the way could read the token"
            )
        try:
            self.login()
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error

    def login(self) -> EndpointLogin:
        """What the files say now.

        Raises:
            InvalidInputError: one can't be read, or is no such file.
        """
        token = ""
        if self.token_file:
            field = f"{self.name}_token"
            try:
                token = read_tokens(self.token_file)[0]
            except InvalidInputError as error:
                raise InvalidInputError(f"{field}: {error}", field=field) from error
        if not self.ca_file:
            return EndpointLogin(token, True)
        field = f"{self.name}_ca"
        data = read_login_file(field, self.ca_file)
        try:
            return EndpointLogin(token, ssl.create_default_context(cadata=data.decode("ascii")), data)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInputError(f"{field} is not a PEM file with certificates", field=field) from error


class NoAnswerError(Exception):
    """A server has not answered, or more than is read. The text says why; ``detail`` is for the log alone, since it may
    name hosts and files."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(why)
        self.detail = detail


def silent(server: str, timeout_s: float) -> str:
    """No answer has come in time."""
    return f"{server} does not answer within {timeout_s:g} s"


def too_large(max_bytes: int) -> str:
    """More has come than is read."""
    return f"the answer is larger than {max_bytes} bytes"


def unaccepted_certificate(server: str) -> str:
    """It is not the one that it should be, as far as TLS can tell."""
    return f"the certificate of {server} is not accepted"


def unreachable(server: str) -> str:
    """There is no connection."""
    return f"{server} can't be reached"


def refused_login(server: str, status: int | str) -> str:
    """The server asks for another login, or a login at all."""
    return f"{server} does not accept the login of the service (status {status})"


def wrong_status(server: str, status: int | str) -> str:
    """The server has answered that it does not answer."""
    return f"{server} answers with the status {status}"


def session(connections: int) -> aiohttp.ClientSession:
    """For so many requests at once; each has a connection of its own."""
    connector = aiohttp.TCPConnector(limit=connections, force_close=True)
    # What is not unpacked can't become larger than the limit that is looked at.
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)


async def post(
    client: aiohttp.ClientSession,
    url: str,
    login: EndpointLogin,
    *,
    data: Any,
    server: str,
    timeout_s: float,
    max_bytes: int,
    content_type: str = "",
) -> tuple[int, bytes]:
    """The status and the body of an answer. ``server``: how sentences name the server.

    Raises:
        NoAnswerError: there is none within ``timeout_s``, or a larger one than ``max_bytes``.
    """
    headers = {"Accept-Encoding": "identity"}
    if content_type:
        headers["Content-Type"] = content_type
    if login.token:
        headers["Authorization"] = f"Bearer {login.token}"
    body = bytearray()
    try:
        # A redirect could lead to an address that nobody has allowed.
        async with client.post(
            url,
            data=data,
            headers=headers,
            allow_redirects=False,
            ssl=login.tls,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer:
            async for part in answer.content.iter_chunked(16_384):
                body += part
                if len(body) > max_bytes:
                    raise NoAnswerError(too_large(max_bytes))
            return answer.status, bytes(body)
    except TimeoutError:
        raise NoAnswerError(silent(server, timeout_s)) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAnswerError(_problem(server, error), shown(login.hidden(str(error)), 200)) from error


async def read_login(endpoint: Endpoint, server: str) -> EndpointLogin:
    """The login for a request, read in a thread.

    Raises:
        NoAnswerError: it can't be read.
    """
    try:
        return await asyncio.to_thread(endpoint.login)
    except InvalidInputError as error:
        raise NoAnswerError(f"the service can't read its login for {server}", str(error)) from error


def _problem(server: str, error: Exception) -> str:
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        return unaccepted_certificate(server)
    if isinstance(error, aiohttp.ClientConnectorError):
        return unreachable(server)
    return f"{server} does not answer as it should ({type(error).__name__})"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
