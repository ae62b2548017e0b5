"""How a client proves to the config service who it is, and how it knows that it talks to the right one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from ringcast_wire._common.errors import InvalidInputError, shown, shown_path
from ringcast_wire._connections.login_settings import check_login_settings, read_login_file, text_lines
from ringcast_wire.addresses import TLS_PREFIX, without_passwords

ENV_PREFIX: Final = "RINGCAST_SERVICE_"

TOKEN: Final = re.compile(r"[\x21-\x7e]{16,4096}", re.ASCII)
_FILES: Final = ("tls_ca_file", "tls_cert_file", "tls_key_file", "token_file")


class ServiceLogin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paths of the files that it takes to talk to a config service with TLS; none of them: without.

    TLS is used if a ``tls_`` file is named or the address begins with ``tls://``. A channel keeps the certificates and
    the key that the files had when it was made: who keeps one for long makes another when :meth:`stamp` has changed.
    """

    tls_ca_file: str = ""
    """Certificates that may sign the service's; empty: those that the system trusts."""
    tls_cert_file: str = ""
    """A certificate of our own, for a service that asks for one; ``tls_key_file`` is its key."""
    tls_key_file: str = ""
    token_file: str = ""
    """Its first line is sent with each call. The client reads it each time, so it may be replaced; only over TLS."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> ServiceLogin:
        """What the environment says: RINGCAST_SERVICE_TLS_CA_FILE and so on, by the names of the fields."""
        env = os.environ if env is None else env
        return cls(**{name: env.get(f"{ENV_PREFIX}{name.upper()}", "") for name in _FILES})

    def check_login(self, address: str) -> None:
        """Looks whether the settings make sense together and with an address, and whether the files are there.

        Raises:
            InvalidInputError: they don't; the message names the setting.
        """
        check_login_settings(self, pairs=(("tls_cert_file", "tls_key_file"),), files=_FILES)
        if self.token_file:
            if not self.uses_tls(address):
                raise InvalidInputError(
                    f"token_file is given without TLS at {shown(without_passwords([address]))}: the token would be sent"
                    f" in the clear; begin the address with {TLS_PREFIX} or name a tls_ca_file",
                    field="token_file",
                )
            read_tokens(self.token_file)

    def stamp(self) -> tuple[int, ...]:
        """Another value once a ``tls_`` file was replaced; what is not there just now counts as one of its own."""
        found: list[int] = []
        for path in filter(None, (self.tls_ca_file, self.tls_cert_file, self.tls_key_file)):
            try:
                stat = os.stat(path)
            except OSError:
                found.append(-1)
            else:
                found += (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        return tuple(found)

    def channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """A channel for blocking calls.

        Raises:
            InvalidInputError: the login does not hold, or one of its files can't be read.
        """
        target, credentials = self._prepare(address)
        if credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, credentials, options)

    def aio_channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
        """A channel for asyncio; raises as :meth:`channel`."""
        target, credentials = self._prepare(address)
        if credentials is None:
            return grpc.aio.insecure_channel(target, options)
        return grpc.aio.secure_channel(target, credentials, options)

    def uses_tls(self, address: str) -> bool:
        """Whether a channel to this address is one with TLS."""
        return address.startswith(TLS_PREFIX) or bool(self.tls_ca_file or self.tls_cert_file)

    def _prepare(self, address: str) -> tuple[str, grpc.ChannelCredentials | None]:
        self.check_login(address)
        target = address.removeprefix(TLS_PREFIX)
        if not self.uses_tls(address):
            return target, None
        ca, key, cert = (
            read_login_file(name, getattr(self, name)) if getattr(self, name) else None
            for name in ("tls_ca_file", "tls_key_file", "tls_cert_file")
        )
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
        if self.token_file:
            token = grpc.metadata_call_credentials(_TokenFromFile(self.token_file))
            credentials = grpc.composite_channel_credentials(credentials, token)
        return target, credentials


class _TokenFromFile(grpc.AuthMetadataPlugin):
    """Sends what the file says when the call is made."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, _context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        try:
            token = read_tokens(self._path)[0]
        except InvalidInputError as error:
            callback((), error)
        else:
            callback((("authorization", f"Bearer {token}"),), None)


def read_tokens(path: str) -> list[str]:
    """The tokens of a file, one a line; blank lines and those that begin with ``#`` don't count.

    Raises:
        InvalidInputError: the file can't be read, holds none, or one is not 16 to 4096 visible ASCII characters. No
            message says what a token is.
    """
    lines = text_lines(read_login_file("token_file", path))
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise InvalidInputError(f"token_file {shown_path(path)} holds no token", field="token_file")
    for number, token in enumerate(found, 1):
        if TOKEN.fullmatch(token) is None:
            raise InvalidInputError(
                f"token_file {shown_path(path)}: token {number} is not 16 to 4096 visible ASCII characters",
                field="token_file",
            )
    return found
