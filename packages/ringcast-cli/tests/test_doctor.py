"""What ``ringcast doctor`` concludes from what it found, where real servers would take long to come to it."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from ringcast.fleet import KeyLag, WorkerLag
from ringcast_cli._common.config import resolve
from ringcast_cli._diagnosis.doctor import diagnose, is_local
from ringcast_cli._diagnosis.doctor_command import exit_code
from ringcast_cli._diagnosis.doctor_facts import _own, _shown, gather
from ringcast_cli._diagnosis.doctor_model import Facts, Finding, Result, SeenMember, SeenService, Waiting
from ringcast_client import JetStreamStatus, ServiceStatus, StoreInfo, StreamStatus
from ringcast_wire import Mode, StoreSettings, Strategy

NOW_S = 1_700_000_000.0
STREAM = StreamStatus("config_notify_s", "s", "events", 10, 100, 100, False, 1, 2, 1_000, 3, 0, (), "", 1_000)
JETSTREAM = JetStreamStatus(1, 50, 100, 1, 1, 100, 10, 100, 10, 100)
STATUS = ServiceStatus("i", "0.1.0", 0, (), {}, 3, (STREAM,), JETSTREAM, "")


def _facts(*, clock_s: float = 0.0, stream: dict[str, Any] | None = None, **status: Any) -> Facts:
    made = replace(STATUS, streams=(replace(STREAM, **(stream or {})),), **status)
    return Facts(NOW_S, (SeenService("127.0.0.1:1", True, made, "", clock_s, 0.1),))


def _store(name: str) -> StoreInfo:
    return StoreInfo(name, 1, Mode.PARTITIONED, Strategy.JUMP, "h", 1, 0, ())


def _of(check: str, facts: Facts) -> list[Finding]:
    return [finding for name, finding in diagnose(facts) if name == check]


@pytest.mark.parametrize(
    ("check", "facts", "result", "words"),
    [
        ("services_answer", _facts(not_served=("bus",)), Result.FAILURE, "it does not serve bus"),
        ("clocks_agree", _facts(clock_s=-60), Result.WARNING, "config service 127.0.0.1:1 by -60 s"),
        ("clocks_agree", _facts(clock_s=5.05), Result.OK, "those of 1 processes"),
        ("stores_are_provided_for", _facts(problems={"s": "no room"}), Result.FAILURE, "no room"),
        ("streams_are_well", _facts(), Result.OK, "1 have a leader"),
        ("streams_are_well", _facts(stream={"problem": "it has no leader"}), Result.FAILURE, "it has no leader"),
        ("streams_are_well", _facts(stream={"problem": "no room", "kind": "groups"}), Result.WARNING, "no room"),
        ("streams_are_well", _facts(stream={"differs": ("allow_rollup_hdrs",)}), Result.WARNING, "allow_rollup_hdrs"),
        ("streams_are_well", _facts(stream={"max_bytes": 50}), Result.WARNING, "50 bytes of room, and should have 100"),
        ("streams_are_well", _facts(stream={"replicas_behind": 1}), Result.WARNING, "1 of its 3 copies are away"),
        ("streams_are_well", _facts(stream={"replicas": 1}), Result.WARNING, "1 copies, and the config service"),
        (
            "streams_are_well",
            replace(_facts(), stores=(_store("s"), _store("new"))),
            Result.UNKNOWN,
            "the config service has not looked at them yet",
        ),
        ("nothing_is_nearly_full", _facts(), Result.OK, "it does not tell its disk"),
        ("nothing_is_nearly_full", _facts(stream={"bytes": 95}), Result.OK, "90 % full"),  # it drops its oldest
        ("nothing_is_nearly_full", _facts(stream={"bytes": 95, "refuses": True}), Result.WARNING, "95 of 100 bytes"),
        ("nothing_is_nearly_full", _facts(stream={"consumers": 1_000}), Result.FAILURE, "1000 of 1000 consumers"),
        (
            "nothing_is_nearly_full",
            _facts(jetstream=replace(JETSTREAM, disk_reserved=90)),
            Result.WARNING,
            "90 of 100 bytes of disk are reserved",
        ),
        (
            "nothing_is_nearly_full",
            _facts(jetstream=replace(JETSTREAM, streams=95)),
            Result.WARNING,
            "95 of 100 streams are there",
        ),
        ("nothing_is_nearly_full", _facts(jetstream=None, jetstream_problem="silent"), Result.UNKNOWN, "silent"),
        ("streams_are_well", _facts(stream={"age_ms": 200_000}), Result.WARNING, "what is known of it is 200 s old"),
        (
            "services_answer",
            Facts(NOW_S, (SeenService("10.0.0.1:1", True, None, "the token is unknown", refused=True),)),
            Result.FAILURE,
            "it does not let this client in: the token is unknown",
        ),
        (
            "no_dead_letters_wait",
            replace(_facts(), dead_letters={"s": Waiting(1_000, more=True)}),
            Result.WARNING,
            "at least 1000 wait",
        ),
        ("no_dead_letters_wait", replace(_facts(), dead_letters={"s": Waiting(0)}), Result.OK, "none waits"),
        (
            "members_report",
            replace(_facts(), members=(SeenMember("agent", "host-1", "0.1.0", 30.0),)),
            Result.FAILURE,
            "it has not reported for 30 s",
        ),
        (
            "versions_agree",
            replace(_facts(), members=(SeenMember("agent", "host-1", "0.2.0", None),)),
            Result.WARNING,
            "0.1.0: 127.0.0.1:1; 0.2.0: agent host-1",
        ),
    ],
)
def test_what_is_concluded(check: str, facts: Facts, result: Result, words: str) -> None:
    (finding,) = _of(check, facts)
    assert finding.result is result, finding
    assert words in finding.sentence
    if result is not Result.UNKNOWN:
        assert bool(finding.todo) is (result in (Result.WARNING, Result.FAILURE))


async def test_the_files_of_all_secrets_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = tmp_path / "secret"
    open_to_all.write_text("secret")
    open_to_all.chmod(0o644)
    config = resolve({"service": "127.0.0.1:1", "servers": "nats://127.0.0.1:1", "key_ring": str(open_to_all)}, {})
    monkeypatch.setenv("RINGCAST_USER", "u")
    monkeypatch.setenv("RINGCAST_PASSWORD_FILE", str(open_to_all))
    found = _of("secrets_are_kept", await gather(replace(config, timeout_s=0.2), None, 0.2))
    assert [(each.result, each.about) for each in found] == [
        (Result.FAILURE, f"key_ring {open_to_all}"),
        (Result.FAILURE, f"nats password_file {open_to_all}"),
    ]


def test_histories_that_differ_are_not_well() -> None:
    workers = tuple(WorkerLag(f"w{number}", True, "", history=f"h{number}") for number in (1, 2))
    settings = StoreSettings(partition_count=1)
    lag = KeyLag("s", "k", settings, False, 0, (), workers, (), {}, 0, 0.1, history="h1")
    found = _of("histories_agree", Facts(NOW_S, lags={("s", "k"): lag}))
    assert [(each.result, each.about) for each in found] == [(Result.FAILURE, "worker w2 of s/k")]


def test_where_nothing_could_be_looked_at_nothing_is_well() -> None:
    found = diagnose(Facts(NOW_S, (SeenService("10.0.0.1:1", True, None, "permission denied"),), clear=("10.0.0.1",)))
    assert not [each for each in found if each[1].result in (Result.OK, Result.FAILURE)]


def test_the_exit_code_counts_what_could_not_be_checked() -> None:
    nothing = dict.fromkeys(Result, 0)
    codes = {result: exit_code({**nothing, result: 1}) for result in Result}
    assert codes == {Result.OK: 0, Result.WARNING: 3, Result.UNKNOWN: 3, Result.FAILURE: 1}


@pytest.mark.parametrize(
    ("address", "local"),
    [
        *(("127.0.0.1:1", True), ("tls://localhost:1", True), ("nats://u:p@[::1]:4222", True), ("10.0.0.1:1", False)),
        *(("nats://localhost", True), ("nats://u:p@127.0.0.1", True), ("nats://10.0.0.1", False), ("[:1", False)),
    ],
)
def test_which_addresses_are_of_this_machine(address: str, local: bool) -> None:
    assert is_local(address) is local


async def test_certificates_of_a_server_and_of_our_own(tmp_path: Path) -> None:
    soon = _certificate(tmp_path / "soon", datetime.now(UTC) + timedelta(days=3))
    past = _certificate(tmp_path / "past", datetime.now(UTC) - timedelta(days=1))
    found = []
    for cert, key in (soon, past):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert, key)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        found.append(await _shown("server", f"tls://127.0.0.1:{port}", (str(cert), "", ""), 10, []))
        server.close()
    found.append(_own("own", str(soon[0])))
    found.append(_own("none", str(tmp_path / "none")))
    now_s = datetime.now(UTC).timestamp()
    results = [finding.result for finding in _of("certificates_last", Facts(now_s, certificates=tuple(found)))]
    assert results == [Result.WARNING, Result.FAILURE, Result.WARNING, Result.UNKNOWN]
    assert "expired" in found[1].problem


def _certificate(path: Path, until: datetime) -> tuple[Path, Path]:
    """One for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(until - timedelta(days=30)).not_valid_after(until)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(here, critical=False).sign(key, hashes.SHA256())
    cert, secret = path.with_suffix(".pem"), path.with_suffix(".key")
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return cert, secret
