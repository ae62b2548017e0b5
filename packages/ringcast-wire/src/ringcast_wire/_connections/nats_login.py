"""How a process proves to NATS who it is, and how it knows that it talks to the right one."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar

import msgspec

from ringcast_wire._common.errors import InvalidInputError, shown_path
from ringcast_wire._connections.login_settings import check_login_settings, read_login_file

T = TypeVar("T")

_BROKEN: Final = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, ssl.SSLError)
"""A server was there. One that refuses a login closes the connection at once, and sometimes nothing else is seen."""

_FILES: Final = ("password_file", "credentials_file", "nkey_seed_file", "tls_ca_file", "tls_cert_file", "tls_key_file")
_REFUSAL: Final = re.compile(r"authorization (violation|failed)|authentication (expired|revoked)", re.IGNORECASE)


class NatsLogin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user and password, a credentials file (JWT) or a file with an nkey's seed; or none of them. Files are paths.

    All files are read each time that a client connects, so that what they hold may be replaced while it runs.

    TLS is used if a ``tls_`` file is named or a server's address begins with ``tls://``. The handshake then comes first
    of all, so nobody in between can talk the client into sending a password in the clear; the server needs
    ``handshake_first`` for it.
    """

    user: str = ""
    """Needs a ``password`` or a ``password_file``."""
    password: str = ""
    """Of the ``user``. It is never shown."""
    password_file: str = ""
    """A file whose first line is the password of the ``user``; it is read again for each connection."""
    credentials_file: str = ""
    """A file with a user's JWT and the seed that belongs to it, as ``nsc`` writes it."""
    nkey_seed_file: str = ""
    """A file with the seed of a user's nkey."""
    tls_ca_file: str = ""
    """Certificates that may sign the server's; empty: those that the system trusts."""
    tls_cert_file: str = ""
    """A certificate of our own, for a server that asks for one; ``tls_key_file`` is its key."""
    tls_key_file: str = ""
    """The key of ``tls_cert_file``."""

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown_fields = (f"{name}={'…' if name == 'password' and value else repr(value)}" for name, value in fields)
        return f"{type(self).__name__}({', '.join(shown_fields)})"

    def check_login(self) -> None:
        """Looks whether the settings make sense together, and whether the files are there.

        Raises:
            InvalidInputError: they don't; the message names the setting, and never a password.
        """
        ways = [name for name in ("user", "credentials_file", "nkey_seed_file") if getattr(self, name)]
        if len(ways) > 1:
            raise InvalidInputError(f"{' and '.join(ways)} are given: one of them is allowed", field=ways[1])
        if self.password and self.password_file:
            raise InvalidInputError(
                "password and password_file are given: one of them is allowed", field="password_file"
            )
        password = "password_file" if self.password_file else "password"
        check_login_settings(self, pairs=(("user", password), ("tls_cert_file", "tls_key_file")), files=_FILES)
        if self.password_file:
            _read_password(self.password_file)

    def connect_options(self, servers: Sequence[str]) -> dict[str, Any]:
        """The arguments of ``nats.connect`` that it takes to log in at these servers.

        Raises:
            InvalidInputError: a certificate or key can't be read. Where a file can't be read later, as the client
                connects again, it gets an ``OSError``, and tries once more.
        """
        given = {
            "user": self.user,
            "password": partial(_later, _read_password, self.password_file) if self.password_file else self.password,
            "user_credentials": self.credentials_file,
            "nkeys_seed": self.nkey_seed_file,
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value}
        if self.tls_ca_file or self.tls_cert_file or any(server.startswith("tls://") for server in servers):
            self._tls()  # what can't be used is told at once
            options |= {"tls": _FreshContext(self._tls), "tls_handshake_first": True}
        return options

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file or None)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"tls_ca_file {shown_path(self.tls_ca_file)} holds no certificates that can be read: {error}",
                field="tls_ca_file",
            ) from error
        try:
            if self.tls_cert_file:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        except (OSError, ValueError) as error:
            raise InvalidInputError(
                f"tls_cert_file {shown_path(self.tls_cert_file)} and its key can't be used: {error}",
                field="tls_cert_file",
            ) from error
        return context


class _FreshContext(ssl.SSLContext):
    """Makes a new context for each handshake, from what the files hold then. A client keeps the one that it gets."""

    def __new__(cls, _make: Callable[[], ssl.SSLContext]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        self._make = make

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """What asyncio and uvloop call to begin a handshake."""
        return _later(self._make).wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def _read_password(path: str) -> str:
    """The first line of a file.

    Raises:
        InvalidInputError: the file can't be read, is larger than 64 KiB, no UTF-8, or its first line is empty.
    """
    try:
        first = read_login_file("password_file", path).split(b"\n", 1)[0].decode().rstrip("\r")
    except UnicodeDecodeError:
        raise InvalidInputError(f"password_file {shown_path(path)} is no UTF-8", field="password_file") from None
    if not first:
        raise InvalidInputError(f"password_file {shown_path(path)} begins with an empty line", field="password_file")
    return first


def _later(read: Callable[..., T], *args: str) -> T:
    """Reads as a client connects: it tries again after an ``OSError``, and ends for good after any other."""
    try:
        return read(*args)
    except InvalidInputError as error:
        raise OSError(str(error)) from None


def login_refusal(error: Exception) -> str:
    """The server's words, if an error of the NATS client says that it refuses the login; nothing for any other.

    A server that asks for another client certificate ends the handshake with an alert.
    """
    text = str(error).removeprefix("nats: ").strip("'\" ")
    if isinstance(error, ssl.SSLError) and "alert" in text.lower():
        return text
    return text if _REFUSAL.search(text) else ""


class LoginRefusals:
    """Whether servers refuse the login of one connection now, from the errors of its attempts, one after the other.

    Nothing says which server an error is of. A refusal counts until the login is accepted, or until as many attempts as
    there are servers have met none that even listens: of several servers some may be away while the others refuse.
    """

    words = ""
    """What the server said that refused last; empty: none does."""

    def __init__(self) -> None:
        self._away = 0

    def note(self, error: Exception, servers: int) -> str:
        """Takes the error of an attempt to connect to one of so many servers; what it says of a refusal."""
        if found := login_refusal(error):
            self.words, self._away = found, 0
        elif isinstance(error, OSError) and not isinstance(error, _BROKEN):
            self._away += 1
            if self._away >= servers:
                self.words = ""
        return found

    def accepted(self) -> None:
        """An attempt has succeeded."""
        self.words, self._away = "", 0
