"""How a process proves to etcd who it is, and how it knows that it talks to the right one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
from ringcast_wire import InvalidInputError, check_login_settings, shown_path

_FILES: Final = ("tls_ca_file", "tls_cert_file", "tls_key_file")


@dataclass(frozen=True, kw_only=True)
class EtcdLogin:
    """A user and password, a certificate, both or none. Files are paths."""

    user: str = ""
    """Needs a ``password``."""
    password: str = field(default="", repr=False)
    """Of the ``user``."""
    tls: bool = False
    """Whether to use TLS; any of the files means it too."""
    tls_ca_file: str = ""
    """Certificates that may sign the server's; empty: those that the system trusts."""
    tls_cert_file: str = ""
    """A certificate of our own, for a server that asks for one; ``tls_key_file`` is its key."""
    tls_key_file: str = ""
    """The key of ``tls_cert_file``."""

    def check_login(self) -> None:
        """Looks whether the settings make sense together, and whether the files are there.

        Raises:
            InvalidInputError: they don't; the message names the setting, and never a password.
        """
        check_login_settings(self, pairs=(("user", "password"), ("tls_cert_file", "tls_key_file")), files=_FILES)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """For a channel; ``None``: without TLS.

        Raises:
            InvalidInputError: a file can't be read.
        """
        if not (self.tls or self.tls_ca_file or self.tls_cert_file):
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=self._read("tls_ca_file"),
            private_key=self._read("tls_key_file"),
            certificate_chain=self._read("tls_cert_file"),
        )

    def _read(self, name: str) -> bytes | None:
        path = getattr(self, name)
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            raise InvalidInputError(f"{name} {shown_path(path)} can't be read: {error.strerror}", field=name) from error
