"""TLS handshakes that fail are counted and logged, and nothing else of standard error is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ringcast_config_service.refusals import HANDSHAKE_REASONS, NO_CERTIFICATE, NO_HANDSHAKE, REFUSED_CERTIFICATE
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, attempt, until

Keys = Any  # of conftest.py

FLOOD = 3_000
LINE = "I1127 15:33:27.739972 7 ssl.cc:2563] Handshake failed with error SSL_ERROR_SSL: error:1000:SSL routines:lib:"
CHILD = """
import os, signal, sys
from ringcast_config_service.grpc.handshakes import Handshakes
handshakes, lines = Handshakes(), sys.stdin.buffer.read().split(b"|")
handshakes.on_failed = lambda reason, error: print(reason, error, flush=True)
with handshakes.watch_stderr():
    for line in lines:
        os.write(2, line)
    print("of Python", file=sys.stderr)
    {then}
print("after", file=sys.stderr)
"""


def run(*lines: str, then: str = "pass") -> subprocess.CompletedProcess[str]:
    """A process in whose standard error libraries write these pieces."""
    words = [sys.executable, "-c", CHILD.format(then=then)]
    return subprocess.run(words, input="|".join(lines), capture_output=True, text=True, timeout=60, check=False)


def test_what_is_not_of_handshakes_is_passed_on() -> None:
    found = run("one\n", "two ", "halves\n", f"{LINE}HTTP_REQUEST: what\n", "x" * 200_000, "\n", "no end")
    assert found.returncode == 0
    assert found.stdout == "no_handshake HTTP_REQUEST: what\n"
    lines = found.stderr.replace("of Python\n", "", 1).split("\n")
    assert lines[:2] == ["one", "two halves"]
    assert "".join(lines[2:]).replace("after", "") == "x" * 200_000 + "no end"


def test_a_process_that_is_killed_has_written_all_of_its_own_lines() -> None:
    found = run("one\n", then="os.kill(os.getpid(), signal.SIGKILL)")
    assert found.returncode == -9
    assert "of Python\n" in found.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid\n", "no_certificate PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid\n"),
        ("CERTIFICATE_VERIFY_FAILED: expired\n", "refused_certificate CERTIFICATE_VERIFY_FAILED: expired\n"),
        ("HTTP_REQUEST\n", "no_handshake HTTP_REQUEST: \n"),
        (f"NEW_REASON: {'y' * 1_000}\n", f"no_handshake NEW_REASON: {'y' * 188}\n"),
    ],
)
def test_reasons_are_few(line: str, told: str) -> None:
    found = run(LINE + line)
    assert (found.stdout, found.stderr) == (told, "of Python\nafter\n")


class Peer:
    """Clients of the port of a service, and what it counts and logs of them."""

    def __init__(self, address: str, metrics_url: str, keys: Keys) -> None:
        self._metrics_url = metrics_url
        self._keys = keys
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    async def connect(self, *certificate: str) -> None:
        """A connection with this certificate and key, or with none; returns once the service has closed it."""
        context = ssl.create_default_context(cafile=self._keys.ca)
        context.set_alpn_protocols(["h2"])
        if certificate:
            context.load_cert_chain(*certificate)
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context)
        await self._ends(reader, writer)

    async def speak(self, data: bytes) -> None:
        """A connection that sends this; returns once the service has closed it."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(data)
        await self._ends(reader, writer)

    async def _ends(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def counts(self) -> dict[str, float]:
        url, name = self._metrics_url, "config_service_calls_refused_total"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode())
        (family,) = (each for each in text_string_to_metric_families(text) if each.name == name.removesuffix("_total"))
        found = {each.labels["reason"]: each.value for each in family.samples if each.labels["call"] == "connection"}
        assert found.keys() == set(HANDSHAKE_REASONS)
        return found


def failures(service: ConfigServiceProcess) -> list[str]:
    return [line for line in service.process.log if "event=handshake.failed" in line]


@attempt(
    "a client whose certificate another authority has signed, or which speaks no TLS",
    "connect, again and again",
    "each handshake that fails is counted by its reason, and one line a minute says so",
)
async def test_failed_handshakes_are_counted_and_logged(tmp_path: Path, keys: Keys, nats_url: str) -> None:
    (tmp_path / "other").mkdir()
    stranger = type(keys)(tmp_path / "other").issue("writer.example.org")
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key, "--client-ca", keys.ca)
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, options=options) as service:
        peer = Peer(service.address, service.metrics_url, keys)
        assert set((await peer.counts()).values()) == {0}
        for _ in range(3):
            await peer.connect()
        await peer.connect(*stranger)
        await peer.speak(b"GET / HTTP/1.1\r\n\r\n")
        wanted = {NO_CERTIFICATE: 3, REFUSED_CERTIFICATE: 1, NO_HANDSHAKE: 1}

        async def counted() -> bool:
            return await peer.counts() == wanted

        await until(counted)
        await until(lambda: len(failures(service)) >= 3)
        assert sorted(line.partition("reason=")[2].split()[0] for line in failures(service)) == sorted(wanted)
        assert not [line for line in service.process.log if "Handshake failed with" in line]


@attempt(
    "a client that speaks no TLS",
    "make hundreds of connections at once, for long",
    "each is closed and counted; the service goes on serving",
)
async def test_a_flood_of_failing_handshakes_does_no_harm(tmp_path: Path, keys: Keys, nats_url: str) -> None:
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key, "--client-ca", keys.ca)
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, options=options) as service:
        peer = Peer(service.address, service.metrics_url, keys)

        async def connects() -> None:
            for _ in range(FLOOD // 30):
                await peer.speak(b"GET / HTTP/1.1\r\n\r\n")

        await asyncio.gather(*(connects() for _ in range(30)))

        async def counted() -> bool:
            return (await peer.counts())[NO_HANDSHAKE] == FLOOD

        await until(counted)
        assert len(failures(service)) <= 1 + (PATIENCE_S // 60)


CLOSED = "import os, sys; os.close(2); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


def start(words: list[str], stderr: str) -> subprocess.Popen[bytes]:
    """Without a standard error, or with one that nobody reads any more."""
    if stderr == "closed":
        return subprocess.Popen([sys.executable, "-c", CLOSED, *words])
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.close()
    return process


@pytest.mark.parametrize("stderr", ["closed", "without reader"])
async def test_it_serves_and_ends_well_without_standard_error(
    tmp_path: Path, keys: Keys, nats_url: str, stderr: str
) -> None:
    ready = tmp_path / "ready"
    words = ["-m", "ringcast_config_service", "--nats", nats_url, "--database", f"sqlite:{tmp_path / 'ringcast.db'}"]
    words += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--ready-file", str(ready)]
    words += ["--tls-cert", keys.cert, "--tls-key", keys.key]
    process = start(words, stderr)
    try:
        await until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None
        addresses = json.loads(ready.read_text())
        peer = Peer(addresses["grpc"], f"http://{addresses['metrics']}/metrics", keys)
        await peer.speak(b"GET / HTTP/1.1\r\n\r\n")

        async def counted() -> bool:
            return (await peer.counts())[NO_HANDSHAKE] == 1

        await until(counted)
        process.terminate()
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_service_that_native_code_ends_says_so(tmp_path: Path, keys: Keys, nats_url: str) -> None:
    options = ("--tls-cert", keys.cert, "--tls-key", keys.key)
    with ConfigServiceProcess(tmp_path, nats_url=nats_url, options=options) as service:
        service.process.signal(signal.SIGSEGV)
        assert await asyncio.to_thread(service.process.wait, PATIENCE_S) == -signal.SIGSEGV
        assert any("Fatal Python error: Segmentation fault" in line for line in service.process.log)
