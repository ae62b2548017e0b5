"""A credential that expires ends no worker: with a new one in the file, it is back."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import nkeys
import pytest
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until

UNLIMITED = {"subs": -1, "data": -1, "payload": -1}


class Identity:
    """A key pair of NATS, and the tokens that it signs."""

    def __init__(self, prefix: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), prefix)
        self.pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self.pair.public_key.decode()

    def sign(self, subject: Identity, claims: dict[str, Any], *, expires_in_s: float | None = None) -> str:
        """A token by which this one vouches for ``subject``."""
        body: dict[str, Any] = {"iss": self.public, "sub": subject.public, "name": "test", "iat": int(time.time())}
        body["nats"] = {"version": 2, **claims}
        if expires_in_s is not None:
            body["exp"] = int(time.time() + expires_in_s)
        digest = hashlib.new("sha512_256", json.dumps(body).encode()).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        words = ".".join(_encoded(json.dumps(part).encode()) for part in (head, body))
        return f"{words}.{_encoded(self.pair.sign(words.encode()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Operator:
    """Whom a server trusts: an account for everything, and users of it."""

    def __init__(self) -> None:
        self.operator = Identity(nkeys.PREFIX_BYTE_OPERATOR)
        self.system, self.account = Identity(nkeys.PREFIX_BYTE_ACCOUNT), Identity(nkeys.PREFIX_BYTE_ACCOUNT)
        self.users: dict[Path, Identity] = {}

    def settings(self) -> dict[str, Any]:
        """For the server's configuration."""
        most = {**UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
        stored = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        accounts = {self.system: {"limits": most}, self.account: {"limits": {**most, **stored}}}
        return {
            "operator": self.operator.sign(self.operator, {"type": "operator"}),
            "system_account": self.system.public,
            "resolver": "MEMORY",
            "resolver_preload": {
                account.public: self.operator.sign(account, {"type": "account", **claims})
                for account, claims in accounts.items()
            },
        }

    def write(self, path: Path, *, expires_in_s: float | None = None) -> None:
        """Puts credentials of a user into a file, in one step."""
        user = self.users.setdefault(path, Identity(nkeys.PREFIX_BYTE_USER))
        claims = {"type": "user", **UNLIMITED, "pub": {}, "sub": {}}
        token = self.account.sign(user, claims, expires_in_s=expires_in_s)
        line = "-" * 5
        new = path.with_suffix(".new")
        new.write_text(
            f"{line}BEGIN NATS USER JWT{line}\n{token}\n{line}-END NATS USER JWT{line}-\n\n"
            f"{line}BEGIN USER NKEY SEED{line}\n{user.seed.decode()}\n{line}-END USER NKEY SEED{line}-\n"
        )
        new.rename(path)


async def test_a_credential_that_expires_and_is_renewed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    operator = Operator()
    of_service, of_worker = tmp_path / "service.creds", tmp_path / "worker.creds"
    operator.write(of_service)
    options = ("--nats-credentials", str(of_service))
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with (
        NatsServer(tmp_path / "nats", **operator.settings()) as server,
        ConfigServiceProcess(tmp_path, nats_url=server.url, database=database, options=options) as service,
    ):
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("s", partition_count=4)
            operator.write(of_worker, expires_in_s=8.0)
            worker = Worker(
                store="s", keys=["list"], servers=server.url, worker_id="w", credentials_file=str(of_worker)
            )
            async with worker:
                await worker.wait_ready(timeout_s=PATIENCE_S)
                await until(lambda: not worker.health().connected)
                of_worker.write_text("half of a fi")  # as one who writes it in place might leave it for a moment
                await until(lambda: "event=nats.unexpected_error" in caplog.text)
                operator.write(of_worker)
                await until(lambda: worker.health().ready)
                written = await client.put("s", "list", "a", "1")
                await worker.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)
    (lost,) = [record for record in caplog.records if record.getMessage().startswith("event=nats.disconnected")]
    assert "xpired" in getattr(lost, "error", "")
