"""``ringcast release approve|revoke`` of principals with tokens, and a service that is killed in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire.tokens import token_line

from tests.integration.cli_process import Cli

PRINCIPALS = ("root", "alice", "bob", "carol")


@pytest.fixture
def service(nats_server: NatsServer, tmp_path: Path) -> Iterator[ConfigServiceProcess]:
    """An instance that asks for tokens, with a NATS server of its own: another database would answer for this one."""

    def private(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.touch(0o600)
        path.write_bytes(data)
        return str(path)

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    tokens = {name: f"the-token-of-{name}-which-is-long" for name in PRINCIPALS}
    for name, token in tokens.items():
        private(f"of-{name}", token.encode())
    lines = "".join(f"{token_line(name, token)}\n" for name, token in tokens.items())
    options = (
        *("--tls-cert", private("cert.pem", b"".join(pem.bytes() for pem in issued.cert_chain_pems))),
        *("--tls-key", private("key.pem", issued.private_key_pem.bytes())),
        *("--tokens", private("tokens", lines.encode())),
    )
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    made = ConfigServiceProcess(tmp_path / "service", nats_url=nats_server.url, database=database, options=options)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def of(nats_server: NatsServer, service: ConfigServiceProcess, tmp_path: Path) -> Callable[[str], Cli]:
    """The command of a principal."""

    def cli(name: str) -> Cli:
        return Cli(
            tmp_path,
            servers=nats_server.url,
            service=service.address,
            service_tls_ca_file=str(tmp_path / "ca.pem"),
            service_token_file=str(tmp_path / f"of-{name}"),
        )

    return cli


def test_four_eyes(of: Callable[[str], Cli], service: ConfigServiceProcess, tmp_path: Path) -> None:
    root, alice, bob, carol = map(of, PRINCIPALS)
    root.ok("role", "grant", "*", "admin", "root")
    root.ok("store", "create", "lists", "--partitions", 8)
    for name, role in (("alice", "writer"), ("bob", "approver"), ("carol", "approver")):
        root.ok("role", "grant", "lists", role, name)
    root.ok("put", "lists", "list", "b", "0")
    root.ok("store", "policy", "set", "lists", "--approvals", 2, "--releases-only")
    file = tmp_path / "list.csv"
    file.write_text("row_id,value\na,1\nb,0\n")
    assert alice.ok("release", "stage", "lists", "--key", f"list={file}").out.endswith("release 1 of lists is staged\n")

    assert "the policy approvals of its store wants 2, and it has 0" in alice.refused("release", "publish", "lists", 1)
    assert "has no role approver for store 'lists'" in alice.refused("release", "approve", "lists", 1)
    digest = bob.ok("release", "show", "lists", 1, "--json").document["digest"]
    said = bob.refused("release", "approve", "lists", 1, "--digest", "1-0")
    assert said == f"release 1 of store 'lists' has the digest {digest}, not '1-0': look at it again"
    said = bob.ok("--reason", "I have looked", "release", "approve", "lists", 1, "--digest", digest).out
    assert said == "release 1 of lists has 1 approval: it waits for 1 more approval\n"
    service.kill()
    service.start()
    assert carol.ok("release", "approve", "lists", 1, "--json").document["approvals_needed"] == 2
    assert carol.ok("release", "revoke", "lists", 1).out.endswith("has 1 approval: it waits for 1 more approval\n")
    shown = alice.ok("release", "show", "lists", 1).out.splitlines()
    assert shown[2] == f"digest {digest}"
    assert shown[3].startswith("approved ")
    assert shown[3].endswith(" by bob: I have looked")
    assert shown[4] == "it waits for 1 more approval"
    why = alice.ok("why", "lists", "list", "a").out
    assert "release    1, staged: it has not changed the row yet; it waits for 1 more approval" in why
    said = alice.refused("release", "publish", "lists", 1)
    assert "wants 2, and it has 1 (of 'bob'): other principals than its author" in said
    assert carol.ok("release", "approve", "lists", 1).out.endswith("has 2 approvals: none more is needed\n")
    service.kill()
    service.start()
    alice.ok("release", "publish", "lists", 1)
    assert alice.rows("lists") == {"a": "1", "b": "0"}
    assert "can't be revoked: it is published" in carol.refused("release", "revoke", "lists", 1)
    alice.ok("release", "undo", "lists", 1)
    # A refused call is noted a moment later, and a kill may come before.
    entries = [
        entry for entry in root.ok("audit", "list", "lists", "--json").documents if entry["outcome"] != "refused"
    ]
    found = [entry["action"] for entry in entries]
    assert [found.count(action) for action in ("ApproveRelease", "RevokeApproval", "PublishRelease")] == [3, 1, 1]
