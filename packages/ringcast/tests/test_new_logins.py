"""A login is replaced in its files: worker and config service log in with the new one, and nobody restarts them."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys
import pytest
import trustme
from ringcast import UnavailableError, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until


@dataclass(frozen=True)
class Login:
    """What logs in, at the server and at its clients; each number is another one."""

    at_server: Callable[[int], dict[str, Any]]
    write: Callable[[int], None]
    """Puts it into the files of the clients."""
    of_worker: dict[str, Any]
    of_service: tuple[str, ...]
    is_tls: bool = False
    """Whether the server looks at it as a connection begins, and never again."""


def by_password(directory: Path) -> Login:
    file = directory / "password"
    return Login(
        lambda number: {"authorization": {"users": [{"user": "u", "password": f"secret-{number}"}]}},
        lambda number: replace(file, f"secret-{number}\n".encode()),
        {"user": "u", "password_file": str(file)},
        ("--nats-user", "u", "--nats-password-file", str(file)),
    )


def by_nkey(directory: Path) -> Login:
    file = directory / "seed"
    seeds = {number: bytes(nkeys.encode_seed(bytes([number] * 32), nkeys.PREFIX_BYTE_USER)) for number in (1, 2)}

    def at_server(number: int) -> dict[str, Any]:
        public = nkeys.from_seed(bytearray(seeds[number])).public_key.decode()
        return {"authorization": {"users": [{"nkey": public}]}}

    options = ("--nats-nkey-seed", str(file))
    return Login(at_server, lambda number: replace(file, seeds[number]), {"nkey_seed_file": str(file)}, options)


def by_certificate(directory: Path) -> Login:
    """The authority that signs the clients is another each time; that of the server stays."""
    authorities = {number: trustme.CA() for number in (1, 2)}
    own = authorities[1].issue_cert("127.0.0.1")
    own.cert_chain_pems[0].write_to_path(str(directory / "server-cert"))
    own.private_key_pem.write_to_path(str(directory / "server-key"))
    files = {name: directory / f"client-{name}" for name in ("ca", "cert", "key")}

    def at_server(number: int) -> dict[str, Any]:
        authorities[number].cert_pem.write_to_path(str(directory / f"server-ca-{number}"))
        paths = {"cert": "server-cert", "key": "server-key", "ca": f"server-ca-{number}"}
        tls = {f"{name}_file": str(directory / path) for name, path in paths.items()}
        return {"tls": {**tls, "verify": True, "handshake_first": True, "timeout": 5}}

    def write(number: int) -> None:
        client = authorities[number].issue_cert("worker.example.org")
        replace(files["ca"], authorities[1].cert_pem.bytes())
        replace(files["key"], client.private_key_pem.bytes())
        replace(files["cert"], client.cert_chain_pems[0].bytes())

    of_worker = {f"tls_{name}_file": str(path) for name, path in files.items()}
    options = tuple(word for name, path in files.items() for word in (f"--nats-tls-{name}", str(path)))
    return Login(at_server, write, of_worker, options, is_tls=True)


def replace(file: Path, held: bytes) -> None:
    """In one step, as whoever rotates a login has to."""
    new = file.with_suffix(".new")
    new.write_bytes(held)
    new.rename(file)


def refused(worker: Worker) -> float:
    """What its metrics say of its login."""
    with urllib.request.urlopen(f"http://{worker.metrics_address}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    (value,) = re.findall(r"^config_login_refused\{.*\} (\S+)$", text, re.MULTILINE)
    return float(value)


@pytest.mark.parametrize("kind", [by_password, by_nkey, by_certificate])
async def test_what_is_replaced_in_the_file_of_a_login_is_used_for_the_next_connection(
    tmp_path: Path, kind: Callable[[Path], Login], caplog: pytest.LogCaptureFixture
) -> None:
    login, database = kind(tmp_path), f"sqlite:{tmp_path / 'ringcast.db'}"
    login.write(1)
    with (
        NatsServer(tmp_path / "nats", **login.at_server(1)) as server,
        ConfigServiceProcess(tmp_path, nats_url=server.url, database=database, options=login.of_service) as service,
    ):
        settings = {"store": "s", "keys": ["list"], "servers": server.url, "worker_id": "w", **login.of_worker}
        worker = Worker(metrics_listen="127.0.0.1:0", **settings)

        async def hears(value: str) -> None:
            written = await client.put("s", "list", "a", value)
            await worker.wait_for("list", written.partition, written.version, timeout_s=PATIENCE_S)

        async with ConfigServiceClient(service.address) as client:
            await client.create_store("s", partition_count=4)
            async with worker:
                await hears("1")
                await asyncio.to_thread(server.reload, **login.at_server(2))
                if login.is_tls:
                    await asyncio.to_thread(server.restart)
                await until(lambda: worker.health().login_refused)
                assert worker.health().login_refused.startswith(f"login refused by NATS at {server.url}: ")
                assert not worker.health().ready
                assert await asyncio.to_thread(refused, worker) == 1
                await until(lambda: "event=bus.login_refused" in "".join(service.process.log))
                login.write(2)
                await until(lambda: worker.health().ready)
                assert worker.health().login_refused == ""
                assert await asyncio.to_thread(refused, worker) == 0
                await hears("2")
    told = [record.getMessage() for record in caplog.records if "event=nats.login_refused" in record.getMessage()]
    assert len(told) == 1, "once, however many attempts there were"
    assert "secret" not in "".join((*told, *service.process.log))


async def test_a_start_with_a_login_that_is_refused_says_so(tmp_path: Path) -> None:
    users = {"users": [{"user": "u", "password": "right"}]}
    with NatsServer(tmp_path / "nats", authorization=users) as server:
        worker = Worker(
            store="s", keys=["k"], servers=server.url, worker_id="w", connect_timeout_s=2, user="u", password="wrong"
        )
        with pytest.raises(UnavailableError, match=rf"^login refused by NATS at {server.url}: Authorization Violation"):
            await worker.start()
