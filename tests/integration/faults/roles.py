"""Who may call the services, where a system has it: TLS, a token for each principal, and roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trustme
from ringcast_client import ConfigServiceClient
from ringcast_wire import PermissionDeniedError, Role, UnauthenticatedError
from ringcast_wire.grpc import ServiceLogin
from ringcast_wire.tokens import make_token, token_line

ROOT: Final = "root"
"""Admin of all stores."""
LOAD: Final = "load"
"""Writer of the store."""
READER: Final = "reader"
FLEET: Final = "fleet"
"""The workers, where the services say who may log in to NATS; reader of the store."""
NOBODY: Final = "nobody"
"""Has a token and no role."""
STRANGER: Final = "stranger"
"""Has a token that no service knows."""


class ServiceRoles:
    """What the services are started with, and how each principal logs in."""

    def __init__(self, directory: Path, store: str) -> None:
        directory.mkdir()
        self._directory = directory
        self._store = store
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self._ca = self._write("ca.pem", authority.cert_pem.bytes())
        cert = self._write("tls.crt", issued.cert_chain_pems[0].bytes())
        key = self._write("tls.key", issued.private_key_pem.bytes())
        tokens = {name: make_token() for name in (ROOT, LOAD, READER, NOBODY)}
        lines = "".join(f"{token_line(name, token)}\n" for name, token in tokens.items())
        known = self._write("tokens", lines.encode())
        for name, token in {**tokens, STRANGER: make_token()}.items():
            self._write(f"token-of-{name}", token.encode())
        self.options = ("--tls-cert", cert, "--tls-key", key, "--tokens", known)

    def login(self, principal: str) -> ServiceLogin:
        """How a principal logs in."""
        return ServiceLogin(tls_ca_file=self._ca, token_file=str(self._directory / f"token-of-{principal}"))

    @asynccontextmanager
    async def client(self, address: str, principal: str) -> AsyncIterator[ConfigServiceClient]:
        """A client of a service, for a moment."""
        async with ConfigServiceClient(address, login=self.login(principal), timeout_s=5.0) as client:
            yield client

    async def grant(self, address: str) -> None:
        """Grants the roles, in a database that may have none."""
        async with self.client(address, ROOT) as root:
            await root.grant_role(ROOT, "*", Role.ADMIN)
            await root.grant_role(LOAD, self._store, Role.WRITER)
            await root.grant_role(READER, self._store, Role.READER)
            await root.grant_role(FLEET, self._store, Role.READER)

    async def let_in(self, address: str, key: str) -> list[str]:
        """What a service lets somebody do who must not, in sentences."""
        found = []
        for principal in (READER, NOBODY, STRANGER):
            async with self.client(address, principal) as client:
                try:
                    await client.put(self._store, key, "of-an-intruder", principal)
                except (PermissionDeniedError, UnauthenticatedError):
                    continue
                found.append(f"the service at {address} let {principal} write to {self._store}/{key}")
        return found

    def _write(self, name: str, data: bytes) -> str:
        path = self._directory / name
        path.write_bytes(data)
        return str(path)
