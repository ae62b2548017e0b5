"""``ringcast keyring`` and ``--key-ring`` against real servers: what is stored, printed and refused."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.cli_process import Cli


def _ring(cli: Cli, file: Path, *words: object) -> str:
    cli.ok("keyring", "create", file, "--encrypt", "*/secret*", *words)
    return str(file)


def test_a_key_ring_from_its_making_to_its_last_key(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "ring.json"
    made = cli.ok("keyring", "create", file, "--encrypt", "a/*", "--accept-clear", "a/b", "--json").document
    assert (made["active"], made["encrypt"], made["accept_clear"]) == ("k1", ["a/*"], ["a/b"])
    assert file.stat().st_mode & 0o777 == 0o600
    (secret,) = json.loads(file.read_text())["keys"].values()
    assert "exists already" in cli.refused("keyring", "create", file, "--encrypt", "a/*")
    cli.ok("keyring", "add", file, "k2")
    assert "'k2' is in the key ring already" in cli.refused("keyring", "add", file, "k2")
    assert cli.ok("keyring", "show", file, "--json").document["active"] == "k1"
    assert "k2" in cli.ok("keyring", "activate", file, "k2").out
    assert "'k9' is not in the key ring, which has k1, k2" in cli.refused("keyring", "activate", file, "k9")
    assert "'k2' is active: activate another one first" in cli.refused("keyring", "remove", file, "k2")
    shown = cli.ok("keyring", "show", file)
    assert secret not in shown.out
    assert made["keys"]["k1"] in shown.out, "the fingerprint stays"
    cli.ok("keyring", "remove", file, "k1")
    assert list(cli.ok("keyring", "show", file, "--json").document["keys"]) == ["k2"]
    assert "encrypt 'everything' is not STORE/KEY" in cli.refused("keyring", "create", "x", "--encrypt", "everything")
    assert cli("keyring", "create", "x").code == 2
    file.chmod(0o644)
    assert "has the mode 0644: others may not read it" in cli.refused("keyring", "show", file)


def test_every_command_that_writes_seals_and_every_one_that_reads_opens(cli: Cli, store: str, tmp_path: Path) -> None:
    ring = _ring(cli, tmp_path / "ring.json")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "imported", "value": "clear text", "metadata": {"owner": "abuse"}}\n')
    commit = '{"key": "secret", "row_id": "committed", "value": "clear text"}\n'
    with_ring = Cli(tmp_path, key_ring=ring)
    with_ring.env.update({name: cli.env[name] for name in ("RINGCAST_SERVICE", "RINGCAST_SERVERS")})
    with_ring.ok("put", store, "secret", "put", "clear text")
    cli.ok("import", store, "secret", rows, "--key-ring", ring)
    cli.ok("--key-ring", ring, "commit", store, "-", stdin=commit)
    for listed in (cli.ok("list", store, "secret", "--json"), cli.ok("history", store, "secret", "--json")):
        assert {row["row_id"] for row in listed.documents} == {"put", "imported", "committed"}
        assert {row["metadata"]["enc-kid"] for row in listed.documents} == {"k1"}
        assert "clear text" not in listed.out
    for words in (("list", store, "secret", "--json"), ("history", store, "secret", "--json")):
        found = {row["row_id"]: (row["value"], row["metadata"]) for row in with_ring.ok(*words).documents}
        assert found["imported"] == ("clear text", {"owner": "abuse"})
        assert {value for value, _ in found.values()} == {"clear text"}
    assert with_ring.ok("get", store, "secret", "put").out == "clear text\n"
    assert "clear text" not in with_ring.ok("get", store, "secret", "put", "--key-ring", "").out

    again = with_ring.ok("import", store, "secret", rows)
    assert "0 written, 0 deleted, 1 unchanged" in again.out
    synced = with_ring.ok("sync", store, "secret", rows, "--max-delete-share", 1)
    assert "0 added, 0 changed, 2 deleted, 1 unchanged" in synced.out


def test_rotation_and_errors(cli: Cli, store: str, tmp_path: Path) -> None:
    ring = _ring(cli, tmp_path / "ring.json")
    rows = tmp_path / "rows.csv"
    rows.write_text("row_id,value\na,1\nb,2\n")
    cli.ok("sync", store, "secret", rows, "--key-ring", ring)
    cli.ok("keyring", "add", ring, "k2")
    cli.ok("keyring", "activate", ring, "k2")
    assert "2 unchanged" in cli.ok("sync", store, "secret", rows, "--key-ring", ring).out
    assert (
        "2 would be changed" in cli.ok("sync", store, "secret", rows, "--key-ring", ring, "--reseal", "--dry-run").out
    )
    done = cli.ok("keyring", "reseal", store, "secret", "--key-ring", ring, "--json").document
    assert done == {"rows": 2, "resealed": 2, "conflicts": 0, "first_conflicts": []}
    assert "2 unchanged" in cli.ok("sync", store, "secret", rows, "--key-ring", ring, "--reseal").out

    other = _ring(cli, tmp_path / "other.json", "--key-id", "k2")
    assert cli.refused("list", store, "secret", "--key-ring", other).endswith("another key of that id than its writer")
    cli.ok("put", store, "secret", "clear", "text")
    refused = cli.refused("get", store, "secret", "clear", "--key-ring", ring)
    assert refused == f"row 'clear' of {store}/secret is clear text, and the key ring says that this list is encrypted"
    assert "can't be read: No such file" in cli.refused("get", store, "secret", "a", "--key-ring", "none.json")
    assert "key_ring is missing" in cli.refused("keyring", "reseal", store, "secret")
    large = "x" * 900_000
    refused = cli.refused("put", store, "secret", "a", "--file", "-", "--key-ring", ring, stdin=large)
    assert "once its value is encrypted; the limit is 1048576" in refused
