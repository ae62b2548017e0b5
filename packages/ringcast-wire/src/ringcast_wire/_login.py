"""How a process proves to NATS who it is, and how it knows that it talks to the right one."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ringcast_wire._errors import InvalidInputError, shown_path
from ringcast_wire._login_settings import check_login_settings

_FILES: Final = ("credentials_file", "nkey_seed_file", "tls_ca_file", "tls_cert_file", "tls_key_file")


class NatsLogin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user and password, a credentials file (JWT) or a file with an nkey's seed; or none of them. Files are paths.

    TLS is used if a ``tls_`` file is named or a server's address begins with ``tls://``. The handshake then comes first
    of all, so nobody in between can talk the client into sending a password in the clear; the server needs
    ``handshake_first`` for it.
    """

    user: str = ""
    """Needs a ``password``."""
    password: str = ""
    """Of the ``user``. It is never shown."""
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
        check_login_settings(self, pairs=(("user", "password"), ("tls_cert_file", "tls_key_file")), files=_FILES)

    def connect_options(self, servers: Sequence[str]) -> dict[str, Any]:
        """The arguments of ``nats.connect`` that it takes to log in at these servers.

        Raises:
            InvalidInputError: a certificate or key can't be read.
        """
        given = {
            "user": self.user,
            "password": self.password,
            "user_credentials": self.credentials_file,
            "nkeys_seed": self.nkey_seed_file,
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value}
        if self.tls_ca_file or self.tls_cert_file or any(server.startswith("tls://") for server in servers):
            options |= {"tls": self._tls(), "tls_handshake_first": True}
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


def without_passwords(servers: Sequence[str]) -> str:
    """Addresses for a message: what stands before an ``@`` may be a password, and is left out."""
    return ", ".join(_bare(server) for server in servers)


def _bare(server: str) -> str:
    scheme, separator, rest = server.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
