"""Who may log in to NATS where the services answer that: workers with a token, whom no file of a server names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringcast_wire.tokens import make_token
from ringcast_wire.worker_tokens import worker_token_line

from tests.integration.callout_nats import accounts
from tests.integration.faults.roles import FLEET
from tests.integration.faults.users import Users
from tests.integration.infra_nats import WORKER_API

_ANYONE = "anyone"
_WORKERS = ("worker", "joiner")
"""What the ids of all workers begin with: they share a token, as a fleet does."""


class CalloutUsers(Users):
    """With the accounts that make_accounts.py prints.

    The services, and the faults themselves, have a user that may do everything in the account of the streams.
    """

    def __init__(self, directory: Path, store: str, keys: Sequence[str], partitions: int) -> None:
        super().__init__(store, keys, [], partitions, token=False)
        directory.mkdir()
        self._token = make_token()
        tokens = directory / "worker-tokens"
        scopes = [f"worker={some}* {store}/{','.join(keys)}" for some in _WORKERS]
        tokens.write_text("".join(worker_token_line(FLEET, self._token, scope) + "\n" for scope in scopes))
        options = accounts("--new-keys", str(directory)).split()
        text = accounts("--partitions", str(partitions), "--tools-store", store, *options)
        text = re.sub(r"\$NATS_\w+_PASSWORD", f'"{_ANYONE}"', text)
        # A fault of its own fills the broker with a stream that has no limit.
        text = text.replace("jetstream: { max_bytes_required: true }", "jetstream: enabled", 1)
        text = text.replace("users: [", f"users: [\n{{ user: {_ANYONE}, password: {_ANYONE} }}", 1)
        self._accounts = text.replace("auth_users: [", f"auth_users: [{_ANYONE}, ", 1)
        self.service_options = (
            *("--callout-tokens", str(tokens), "--callout-issuer", str(directory / "issuer.seed")),
            *("--callout-xkey", str(directory / "xkey.seed"), "--callout-password", _ANYONE),
            *("--callout-partitions", str(partitions), "--callout-valid", "20s"),
        )

    def settings(self) -> dict[str, Any]:
        """For the configuration of a server."""
        return {"include": self._accounts}

    def login(self, worker: str) -> dict[str, Any]:
        """How a worker logs in, as arguments of its own or of ``nats.connect``."""
        return {"user": worker, "password": self._token} if worker.startswith(_WORKERS) else {}

    def anyone(self) -> dict[str, Any]:
        """How whoever may do everything logs in, as arguments of ``nats.connect``."""
        return {"user": _ANYONE, "password": _ANYONE}

    def worker_settings(self) -> dict[str, Any]:
        """What every worker needs to know."""
        return {"jetstream_api": WORKER_API}

    def address(self, port: int, of: str = "") -> str:
        """Of a server, for a worker; or for whoever has no login of its own."""
        login = "" if of.startswith(_WORKERS) else f"{_ANYONE}:{_ANYONE}@"
        return f"nats://{login}127.0.0.1:{port}"
