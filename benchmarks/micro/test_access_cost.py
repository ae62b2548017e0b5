"""What it costs a put that the service knows who calls and looks up the role: two instances, alternately.

Both speak TLS. One lets everybody in, the other asks for a token and has granted roles. Counted is the CPU time of the
service's process, which hardly depends on other work, but on the rhythm of the calls: by up to a fifth. So both clients
send the token, which takes a client longer than a call without one, and put one row at a time: of several at once the
service makes one transaction.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import psutil
import trustme
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import Role
from ringcast_wire.grpc import ServiceLogin

TOKEN: Final = "a-token-of-more-than-sixteen-characters"
GRANTS: Final = 50
"""Roles of others, which are there too."""
AT_ONCE: Final = 1


def cpu_s(service: ConfigServiceProcess) -> float:
    times = psutil.Process(service.process.pid).cpu_times()
    return float(times.user + times.system)


async def puts(client: ConfigServiceClient, count: int) -> None:
    for number in range(count):
        await client.put("s", "k", f"row-{number}", "v" * 20)


async def grant(client: ConfigServiceClient) -> None:
    """Makes the caller a writer of the store, and others something else."""
    me = (await client.who_am_i()).principal
    await client.grant_role(me, "*", Role.ADMIN)
    await client.grant_role(me, "s", Role.WRITER)
    for number in range(GRANTS):
        await client.grant_role(f"token:other-{number}", "s", Role.READER)


def test_a_put(benchmark: BenchmarkFixture, shared_nats: NatsServer, tmp_path: Path) -> None:
    rounds, count = (24, 1_000) if benchmark.enabled else (1, 10)
    authority = trustme.CA()
    cert = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca")
    cert.private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert")
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    tls = ("--tls-cert", str(tmp_path / "cert"), "--tls-key", str(tmp_path / "cert"))
    login = ServiceLogin(tls_ca_file=str(tmp_path / "ca"), token_file=str(tmp_path / "tokens"))
    kinds = {"open": tls, "roles": (*tls, "--tokens", str(tmp_path / "tokens"))}
    us: dict[str, list[float]] = {kind: [] for kind in kinds}

    async def run() -> None:
        async with AsyncExitStack() as stack:
            running: dict[str, Any] = {}
            for kind, options in kinds.items():
                database = f"sqlite:{tmp_path / f'{kind}.db'}"
                service = stack.enter_context(
                    ConfigServiceProcess(tmp_path / kind, nats_url=shared_nats.url, database=database, options=options)
                )
                client = await stack.enter_async_context(ConfigServiceClient(service.address, login=login))
                await client.create_store("s", partition_count=64)
                if kind == "roles":
                    await grant(client)
                await puts(client, count)
                running[kind] = (service, client)
            for turn in range(rounds):
                for kind in (*kinds,) if turn % 2 else (*reversed(kinds),):
                    service, client = running[kind]
                    before = cpu_s(service)
                    await puts(client, count)
                    us[kind].append((cpu_s(service) - before) / count * 1e6)

    benchmark.group = "access"
    benchmark.pedantic(lambda: asyncio.run(run()), rounds=1)
    assert [len(each) for each in us.values()] == [rounds, rounds]
    if benchmark.stats is None:  # a few puts take less than what the kernel counts CPU time by
        return
    ratios = [with_roles / without for with_roles, without in zip(us["roles"], us["open"], strict=True)]
    benchmark.extra_info.update(
        without_cpu_us=round(statistics.median(us["open"])),
        with_cpu_us=round(statistics.median(us["roles"])),
        ratio=round(statistics.median(ratios), 3),
        ratio_quartiles=[round(each, 3) for each in statistics.quantiles(ratios, n=4)],
    )
