"""Who may talk to the gRPC API: TLS, certificates of clients, and tokens."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import grpc
from ringcast_service import ConfigError, setting
from ringcast_wire import EventLog, InvalidInputError
from ringcast_wire.grpc import read_login_file
from ringcast_wire.tokens import KnownToken, read_known_tokens

from ringcast_config_service.watched_file import WatchedFile

log = EventLog(logging.getLogger(__name__))


class Certificates(NamedTuple):
    """What is in the files."""

    key: bytes
    cert: bytes
    ca: bytes | None

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """The same for gRPC."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.cert)], self.ca)


class CertificateChanges:
    """What gRPC is told before each handshake.

    Only what is new: each configuration that it gets takes the place of the one before, which other handshakes may be
    using at that moment. With one for each connection that ended the process after some hundred.
    """

    def __init__(self, read: Callable[[], Certificates], known: Certificates) -> None:
        self._read = read
        self._known = known
        self._lock = threading.Lock()  # gRPC asks from threads of its own

    def next(self) -> grpc.ServerCertificateConfiguration | None:
        """What the files say now, if they have changed and can be used; ``None``: as before."""
        try:
            found = self._read()
        except InvalidInputError as error:
            log.error("certificate.unreadable", error=error)
            return None
        with self._lock:
            if found == self._known:
                return None
            self._known = found
            return found.configuration()


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Files; without any, every client that reaches the port may read and write.

    All may be replaced while the service runs: certificates hold for the next connection, tokens for the next call. One
    that can't be used then is logged, and what was before stays.
    """

    tls_cert_file: str = setting(
        "", "Certificate of the gRPC port, PEM; none: no TLS.", flag="tls-cert", metavar="FILE"
    )
    tls_key_file: str = setting("", "Its key.", flag="tls-key", metavar="FILE")
    client_ca_file: str = setting(
        "", "Who may sign the certificates that clients must show.", flag="client-ca", metavar="FILE"
    )
    token_file: str = setting(
        "",
        "Tokens that clients must send one of: a line each, `NAME sha256:DIGEST`.",
        flag="tokens",
        metavar="FILE",
    )

    def check(self) -> None:
        """Looks whether the files make sense together and can be read.

        Raises:
            ConfigError: they don't; the message names the setting.
        """
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            there, missing = ("tls_cert", "tls_key")[:: 1 if self.tls_cert_file else -1]
            raise ConfigError(f"{there} is given without {missing}: both are needed")
        for name, path in (("client_ca", self.client_ca_file), ("tokens", self.token_file)):
            if path and not self.tls_cert_file:
                raise ConfigError(f"{name} is given without tls_cert: it needs TLS")
        try:
            if self.tls_cert_file:
                self._certificates()
            if self.token_file:
                read_known_tokens(self.token_file)
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """What the port is opened with; ``None`` for one without TLS."""
        if not self.tls_cert_file:
            return None
        files = self._certificates()
        return grpc.dynamic_ssl_server_credentials(
            files.configuration(),
            CertificateChanges(self._certificates, files).next,  # type: ignore[arg-type]  # the stubs know no None
            bool(self.client_ca_file),
        )

    @property
    def uses_tls(self) -> bool:
        """Whether the port is opened with TLS."""
        return bool(self.tls_cert_file)

    def _certificates(self) -> Certificates:
        cert = read_login_file("tls_cert", self.tls_cert_file)
        key = read_login_file("tls_key", self.tls_key_file)
        ca = read_login_file("client_ca", self.client_ca_file) if self.client_ca_file else None
        for name, data in (("tls_cert", cert), ("tls_key", key), ("client_ca", ca)):
            if data is not None and b"-----BEGIN " not in data:
                raise InvalidInputError(f"{name} is not a PEM file", field=name)
        return Certificates(key, cert, ca)


class Tokens:
    """The tokens of a file, read again when it changes."""

    def __init__(self, path: str) -> None:
        self._file: WatchedFile[list[KnownToken]] = WatchedFile(path, read_known_tokens, [])

    def find(self, sent: bytes) -> KnownToken | None:
        """What the file says now of the token with this digest; ``None``: nothing."""
        found = None
        for known in self.known():  # all of them, so that the time reveals nothing
            if hmac.compare_digest(known.digest, sent):
                found = known
        return found

    @property
    def unusable(self) -> bool:
        """Whether the file can't be used as it is now, and what it said before counts."""
        return self._file.unusable

    def known(self) -> list[KnownToken]:
        """The tokens in the file now, revoked and expired ones too."""
        return self._file.now()
