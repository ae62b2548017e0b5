"""What control costs a put: that the service knows who calls, which roles they have, what the store allows, and that it
writes down who wrote.

Each service is a process with TLS and SQLite, and all are called in turn. Counted is the CPU time of the service, which
hardly depends on other work, but on the rhythm of the calls: by up to a fifth. So all clients send a token, which takes
them longer than a call without one, also where the service asks for none, and they put one row at a time: of several at
once the service makes one transaction. All services but one write the audit log: that one has no control at all. What
an entry costs the database alone, ``benchmarks/micro/test_audit_cost.py`` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar, Final

import trustme
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ConfigServiceProcess, NatsServer, WarmProgram
from ringcast_wire import Role, StorePolicy
from ringcast_wire.grpc import ServiceLogin

from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import CpuMeter
from benchmarks.envelope.results import Figure, median_of
from benchmarks.envelope.run import Run

CONTROL: Final = "control"
_UNAUDITED: Final = Path(__file__).parents[1] / "unaudited.py"
_STORE, _KEY = "gateway", "tenants"
_NONE, _OPEN, _ROLES, _POLICIES = "none", "open", "roles", "roles and policies"
_KINDS: Final = (_NONE, _OPEN, _ROLES, _POLICIES)
_WITH_TOKENS: Final = (_ROLES, _POLICIES)
_TOKEN: Final = "a-token-of-more-than-sixteen-characters"
_POLICY: Final = StorePolicy(max_rows=10_000_000, max_bytes=1 << 40, max_keys=50, max_rows_per_second=1_000_000)
_GRANTS: Final = 50
"""Roles of others, which are there too."""


class _Unaudited(ConfigServiceProcess):
    """One that writes no entries of rows into the audit log."""

    program: ClassVar = WarmProgram(str(_UNAUDITED), ("ringcast_config_service.__main__", "encodings.idna"))


def control(run: Run) -> None:
    """Puts of single rows into four services: open without audit log, open, with tokens and roles, and with policies
    besides."""
    params = {"rounds": run.size(24, 2), "puts": run.size(1_000, 50), "partitions": 64, "grants": _GRANTS}
    with run.case(CONTROL, "puts, one at a time", params) as case, run.directory() as directory:
        case.figures = run_coroutine(_measure(directory, params))


async def _measure(directory: Path, params: Mapping[str, int]) -> dict[str, Figure]:
    tls, login = credentials(directory)
    rounds, count = params["rounds"], params["puts"]
    cpu_us: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    async with AsyncExitStack() as stack:
        nats = stack.enter_context(NatsServer(directory / "nats"))
        pids, clients = {}, {}
        for number, kind in enumerate(_KINDS):
            process = _Unaudited if kind == _NONE else ConfigServiceProcess
            options = (*tls, "--tokens", login.token_file) if kind in _WITH_TOKENS else tls
            service = process(directory / f"service{number}", nats_url=nats.url, options=options)
            stack.enter_context(service)
            pids[kind] = [service.process.pid]
            clients[kind] = client = await stack.enter_async_context(ConfigServiceClient(service.address, login=login))
            await client.create_store(_STORE, partition_count=params["partitions"])
            if kind in _WITH_TOKENS:
                await _grant(client)
            if kind == _POLICIES:
                await client.set_store_policy(_STORE, _POLICY)
            await put(client, count)
        for turn in range(rounds):
            for kind in _KINDS if turn % 2 else reversed(_KINDS):
                meter = CpuMeter({kind: pids[kind]})
                await put(clients[kind], count)
                cpu_us[kind].append(meter.seconds()[kind] / count * 1e6)
    figures = {f"cpu a put, {kind}": median_of(cpu_us[kind], "µs") for kind in _KINDS}
    for kind in _WITH_TOKENS:
        figures[f"cpu, {kind} over open"] = median_of(_ratios(cpu_us[kind], cpu_us[_OPEN]), "times")
    figures["cpu, roles, audit and policies over none"] = median_of(_ratios(cpu_us[_POLICIES], cpu_us[_NONE]), "times")
    return figures


def _ratios(cpu_us: list[float], others_us: list[float]) -> list[float]:
    return [mine / other for mine, other in zip(cpu_us, others_us, strict=True)]


def credentials(directory: Path) -> tuple[tuple[str, ...], ServiceLogin]:
    """The flags of a service with TLS, and what a client logs in with."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    cert = str(directory / "cert.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(cert)
    tokens = directory / "tokens"
    tokens.write_text(f"{_TOKEN}\n")
    login = ServiceLogin(tls_ca_file=str(directory / "ca.pem"), token_file=str(tokens))
    return ("--tls-cert", cert, "--tls-key", cert), login


async def _grant(client: ConfigServiceClient) -> None:
    """Makes the caller a writer of the store, and others something else."""
    me = (await client.who_am_i()).principal
    await client.grant_role(me, "*", Role.ADMIN)
    await client.grant_role(me, _STORE, Role.WRITER)
    for number in range(_GRANTS):
        await client.grant_role(f"token:other-{number}", _STORE, Role.READER)


async def put(client: ConfigServiceClient, count: int) -> None:
    """Puts so many rows, one at a time, into the store ``gateway``."""
    for number in range(count):
        await client.put(_STORE, _KEY, f"row-{number}", "v" * 20)
