"""NATS servers that ask the config service what a worker may do: infra/nats with the auth callout."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringcast_testkit import ConfigServiceProcess
from ringcast_wire.tokens import make_token
from ringcast_wire.worker_tokens import worker_token_line

from tests.integration.infra_nats import InfraNats, make_accounts

SCOPE = "gateway/blocklist,suffixes"


def accounts(*words: str) -> str:
    """What make_accounts.py prints."""
    made = make_accounts(*words)
    made.check_returncode()
    return made.stdout


class CalloutNats(InfraNats):
    """No worker is named in the server's files: each has a token, which is in the service's file from the start on.

    ``workers``: their ids and what they are for; others are added with :meth:`add`. ``static``: workers that are named
    in the files, as make_accounts.py takes them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        workers: Mapping[str, str] | None = None,
        static: Sequence[str] = (),
        encrypted: bool = True,
        main: str = "nats.conf",
        env: Mapping[str, str] | None = None,
        shared: CalloutNats | None = None,
    ) -> None:
        """``shared``: another server of the same cluster, whose keys and tokens this one has."""
        passwords = {f"NATS_WORKER_{spec.split('=')[0].upper().replace('-', '_')}_PASSWORD": "pw-" for spec in static}
        generated = {name: f"pw-{secrets.token_hex(12)}" for name in ("NATS_CALLOUT_PASSWORD", *passwords)}
        super().__init__(directory, main=main, env=generated | dict(env or {}))
        if shared is None:
            self.keys = directory / "keys"
            self.keys.mkdir()
            self.token_file = directory / "worker-tokens"
            self.token_file.write_text("none\n")
            self.tokens: dict[str, str] = {}
            self.options = accounts("--new-keys", str(self.keys)).split()
        else:
            self.keys, self.token_file = shared.keys, shared.token_file
            self.tokens, self.options = shared.tokens, shared.options
        self._encrypted = encrypted
        options = self.options if encrypted else self.options[:2]
        words = ("--partitions", "256", "--tools-store", "gateway", *options, *static)
        (self.configuration / "accounts.conf").write_text(accounts(*words))
        if workers is None:
            workers = {f"worker-{number}": SCOPE for number in range(3)}
        for worker_id, scope in workers.items():
            self.add(worker_id, scope)

    def add(self, worker_id: str, scope: str, *, principal: str = "", kind: str = "worker") -> str:
        """Makes a token for an id, or for all with a prefix (``fleet-*``), and adds its line; the token."""
        self.tokens[worker_id] = token = make_token()
        line = worker_token_line(principal or worker_id.replace("*", "all"), token, f"{kind}={worker_id} {scope}")
        before = self.token_file.read_text().removeprefix("none\n")
        self.token_file.write_text(f"{before}{line}\n")
        return token

    def remove(self, principal: str) -> None:
        """Removes the lines of a principal."""
        lines = self.token_file.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"{principal} ")]
        assert len(kept) < len(lines)
        # As an editor or Kubernetes does: a file that is half written is never seen.
        new = self.token_file.with_suffix(".new")
        new.write_text("".join(kept))
        new.replace(self.token_file)

    def login(self, user: str) -> dict[str, str]:
        """A worker's id and token; other users have passwords."""
        for worker_id, token in self.tokens.items():
            if user == worker_id or (worker_id.endswith("*") and user.startswith(worker_id[:-1])):
                return {"user": user, "password": token}
        return super().login(user)

    def service(self, directory: Path, *options: str) -> ConfigServiceProcess:
        """A config service that answers the callout, too."""
        return super().service(directory, *self.callout_options(), *options)

    def callout_options(self) -> tuple[str, ...]:
        """What makes a config service answer it."""
        words = ["--callout-tokens", str(self.token_file), "--callout-issuer", str(self.keys / "issuer.seed")]
        words += ["--callout-password", self.env["NATS_CALLOUT_PASSWORD"], "--callout-partitions", "256"]
        if self._encrypted:
            words += ["--callout-xkey", str(self.keys / "xkey.seed")]
        return tuple(words)

    def refusals(self) -> list[str]:
        """What the server was told that it shall not let in, as it logged it."""
        found = (re.search(r"Auth callout service returned an error: (.*)", line) for line in self.log())
        return [match[1] for match in found if match]
