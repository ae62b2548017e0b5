"""The auth callout: workers with a token, on servers whose files name none of them."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import yaml
from nats.aio.client import Client
from ringcast import UnavailableError, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import (
    PATIENCE_S,
    AgentProcess,
    ConfigServiceProcess,
    attempt,
    nats_server_binary,
    until,
    until_workers,
)
from ringcast_testkit.dispatch import following
from ringcast_wire import Role, names
from ringcast_wire.grpc import ServiceLogin
from ringcast_wire.tokens import make_token, token_line

from tests.integration.callout_nats import SCOPE, CalloutNats
from tests.integration.cli_process import Cli
from tests.integration.infra_nats import INFRA, NATS, WORKER_API, connected, use_tls

PARTITIONS = 4
FLEET = 300
AT_ONCE = 50
REVOKED_WITHIN_S = 10.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CalloutNats]:
    """Its worker is `worker-0`; all `fleet-*` share a token."""
    with CalloutNats(tmp_path, workers={"worker-0": SCOPE, "fleet-*": SCOPE}) as running:
        yield running


async def make_store(service: ConfigServiceProcess) -> None:
    async with ConfigServiceClient(service.address) as client:
        await client.create_store("gateway", partition_count=PARTITIONS)
        for number in range(40):
            await client.put("gateway", "blocklist", f"row{number}", str(number))


async def connect(server: CalloutNats, user: str, password: str, **options: Any) -> Client:
    settings = {"allow_reconnect": False, "inbox_prefix": names.inbox_prefix(user or "nobody"), **options}
    return await nats.connect(server.url, user=user, password=password, **settings)


async def connect_as_workers_do(server: CalloutNats, user: str, password: str) -> Client:
    """Tries again: what the callout has not answered in time, since so many log in at once, NATS refuses."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await connect(server, user, password, connect_timeout=30)
            except nats.errors.Error as error:
                if "Authorization Violation" not in str(error):
                    raise


@asynccontextmanager
async def watched(server: CalloutNats, user: str) -> AsyncIterator[tuple[Client, asyncio.Event]]:
    """A client that does not come back, and an event that is set when its connection has ended."""
    ended = asyncio.Event()

    async def on_closed() -> None:
        ended.set()

    client = await connect(server, user, server.login(user)["password"], closed_cb=on_closed)
    try:
        yield client, ended
    finally:
        await client.close()


def grants(service: ConfigServiceProcess) -> int:
    """How often workers were let in; only with ``--log-level debug``."""
    return sum("callout.granted" in line for line in list(service.process.log))


async def within(seconds: float, event: asyncio.Event) -> float:
    """How long it took."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        await event.wait()
    return time.monotonic() - began


async def test_workers_with_tokens_share_the_rows(server: CalloutNats, tmp_path: Path) -> None:
    with server.service(tmp_path) as service:
        await make_store(service)
        async with server.worker("fleet-a") as first, server.worker("fleet-b") as second:
            both: tuple[Worker, ...] = (first, second)
            await until_workers(both, "blocklist", lambda: sum(w.row_count("blocklist") for w in both) == 40)
            await until_workers(both, "blocklist", lambda: all(w.owned("blocklist") for w in both))
    assert server.violations() == []


@pytest.mark.parametrize(
    ("user", "secret", "sentence"),
    [
        ("worker-0", "foreign", "'worker-0' sent a token that is unknown"),
        ("worker-0", "", "'worker-0' sent no token"),
        ("worker-0", "x" * 600, "'worker-0' sent no token of 1 to 512 characters"),
        ("worker-1", "of worker-0", "the token of worker-0 is not for the id worker-1"),
        ("fleet-1", "of worker-0", "the token of worker-0 is not for the id fleet-1"),
        ("other", "of fleet-*", "the token of fleet-all is not for the id other"),
        ("fleet-*", "of fleet-*", "worker 'fleet-*' is not a valid name"),
        ("fleet-.>", "of fleet-*", "worker 'fleet-.>' is not a valid name"),
        ("", "of fleet-*", "worker '' is not a valid name"),
    ],
)
@attempt(
    "a process that reaches NATS",
    "log in as a worker with no token, a foreign token, or the token of another id; with wildcards in its id",
    "NATS lets it not in; a log line names id and reason, and no log has the token",
)
async def test_who_has_no_token_for_an_id_is_not_let_in(
    server: CalloutNats, tmp_path: Path, user: str, secret: str, sentence: str
) -> None:
    secret = server.tokens[secret.removeprefix("of ")] if secret.startswith("of ") else secret
    secret = make_token() if secret == "foreign" else secret
    with server.service(tmp_path) as service:
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await connect(server, user, secret)
        server.process.wait_until(lambda: any(sentence in each for each in server.refusals()))
        service.process.wait_until(lambda: any("callout.refused" in line for line in service.process.log))
        if secret:
            logs = "\n".join([*service.process.log, *server.log()])
            assert secret not in logs


@attempt(
    "a worker",
    "have its token logged, by sending it as its id",
    "the log of the service does not have it",
)
async def test_a_token_in_place_of_the_id_is_in_no_log_of_the_service(server: CalloutNats, tmp_path: Path) -> None:
    secret = server.tokens["fleet-*"]
    with server.service(tmp_path) as service:
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await connect(server, secret, secret)
        service.process.wait_until(lambda: any("callout.refused" in line for line in service.process.log))
        assert secret not in "\n".join(service.process.log)


@attempt(
    "a worker whose token was removed",
    "go on",
    "its connection is ended within seconds, and it is not let in again; others go on",
)
async def test_a_revoked_token_ends_its_workers_within_seconds(server: CalloutNats, tmp_path: Path) -> None:
    with server.service(tmp_path):
        async with watched(server, "fleet-1") as (_, ended), watched(server, "worker-0") as (other, other_ended):
            server.remove("fleet-all")
            await within(REVOKED_WITHIN_S, ended)
            with pytest.raises(nats.errors.Error, match="Authorization Violation"):
                await connect(server, "fleet-1", server.tokens["fleet-*"])
            assert other.is_connected
            assert not other_ended.is_set()


@attempt(
    "a worker whose principal has lost its role",
    "go on",
    "its connection is ended within seconds, and it is not let in again",
)
async def test_a_revoked_role_ends_its_workers_within_seconds(server: CalloutNats, tmp_path: Path) -> None:
    with server.service(tmp_path) as service:
        async with ConfigServiceClient(service.address) as client, watched(server, "fleet-1") as (_, ended):
            me = (await client.who_am_i()).principal
            await client.grant_role(me, "*", Role.ADMIN)
            await within(REVOKED_WITHIN_S, ended)  # it has no role
            await client.grant_role("fleet-all", "gateway", Role.READER)
            async with watched(server, "fleet-1") as (_, ended_again):
                await client.revoke_role("fleet-all", "gateway", Role.READER)
                await within(REVOKED_WITHIN_S, ended_again)
            with pytest.raises(nats.errors.Error, match="Authorization Violation"):
                await connect(server, "fleet-1", server.tokens["fleet-*"])
        # NATS ends the connection before it logs why.
        sentence = "has no role reader for store gateway"
        server.process.wait_until(lambda: any(sentence in each for each in server.refusals()))


async def test_the_shipped_files_and_arguments_let_a_new_worker_in_without_a_restart(tmp_path: Path) -> None:
    """Those of infra/kubernetes, with TLS and tokens; the keys of the callout come from the environment."""
    server = CalloutNats(tmp_path, workers={"worker-0": SCOPE})
    _, issuer, _, xkey = server.options
    server.env |= {"NATS_CALLOUT_ISSUER": issuer, "NATS_CALLOUT_XKEY": xkey}
    authority = use_tls(server, tmp_path)
    shutil.copy(NATS / "accounts-callout.conf", server.configuration / "accounts.conf")
    command = [str(nats_server_binary()), "-t", "-c", str(server.configuration / "kubernetes.conf")]
    asked = await asyncio.to_thread(
        subprocess.run, command, env=server.env, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    files = {
        "/etc/ringcast/tls/tls.crt": str(tmp_path / "tls.crt"),
        "/etc/ringcast/tls/tls.key": str(tmp_path / "tls.key"),
        "/etc/ringcast/nats-tls/ca.crt": authority,
        "/etc/ringcast/tokens/tokens": str(tmp_path / "tokens"),
        "/etc/ringcast/tokens/worker-tokens": str(server.token_file),
        "/etc/ringcast/callout/issuer.seed": str(server.keys / "issuer.seed"),
        "/etc/ringcast/callout/xkey.seed": str(server.keys / "xkey.seed"),
    }
    for name in ("NATS_CONFIG_SERVICE_PASSWORD", "NATS_CALLOUT_PASSWORD"):
        files[f"/etc/ringcast/passwords/{name}"] = str(tmp_path / name)
        (tmp_path / name).write_text(server.env[name])
    token = make_token()
    (tmp_path / "tokens").write_text(f"{token_line('deploy', token)}\n")
    (tmp_path / "mine").write_text(token)
    deployment = next(
        one
        for one in yaml.safe_load_all((INFRA / "kubernetes/config-service.yaml").read_text())
        if one["kind"] == "Deployment"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given: dict[str, str] = dict(word.split("=", 1) for word in container["args"])
    assert given["--cluster-store"] == f"{given['--nats']}/{names.CLUSTER_BUCKET}"
    of_test = {"--listen", "--metrics-listen", "--nats", "--nats-replicas", "--cluster-store", "--cluster-address"}
    words = [word for name, value in given.items() if name not in of_test for word in (name, files.get(value, value))]
    assert set(files) <= set(given.values())
    with server:
        database = f"sqlite:{tmp_path / 'rows.db'}"
        cluster = f"{server.url.replace('nats://', 'tls://')}/{names.CLUSTER_BUCKET}"
        options = (*words, "--cluster-store", cluster)
        with ConfigServiceProcess(tmp_path, nats_url=server.url, database=database, options=options) as service:
            login = ServiceLogin(tls_ca_file=authority, token_file=str(tmp_path / "mine"))
            async with ConfigServiceClient(service.address, login=login) as client:
                await client.create_store("gateway", partition_count=PARTITIONS)
                await client.put("gateway", "blocklist", "row", "1")
            ready = service.metrics_url.replace("/metrics", "/ready")
            with await asyncio.to_thread(urllib.request.urlopen, ready, timeout=PATIENCE_S) as answer:
                assert answer.status == 200
            async with server.worker("worker-0", tls_ca_file=authority) as first:
                await first.wait_ready(timeout_s=PATIENCE_S)
                server.add("worker-new", SCOPE)
                async with server.worker("worker-new", tls_ca_file=authority) as second:
                    both = (first, second)
                    await until_workers(both, "blocklist", lambda: all(each.owned("blocklist") for each in both))
                    await until(lambda: all(each.health().ready for each in both))
                    cli = Cli(
                        tmp_path,
                        cluster_store=cluster,
                        jetstream_api=WORKER_API,
                        tls_ca_file=authority,
                        servers=server.url,
                        service_tls_ca_file=authority,
                        service_token_file=str(tmp_path / "mine"),
                        timeout_s="60",
                        **server.login("tools"),
                    )
                    listed = (await asyncio.to_thread(cli.ok, "cluster", "list", "--json")).documents
    assert [each["kind"] for each in listed] == ["service", "worker", "worker", "fleet"]
    assert (listed[0]["state"], listed[0]["address"]) == ("active", f"tls://{service.address}")
    assert (listed[-1]["whole"], listed[-1]["missing"]) == (True, [])
    assert server.violations() == []


@attempt(
    "a worker whose token was removed while no config service ran",
    "go on",
    "its connection is ended once an instance runs",
)
async def test_a_revocation_while_no_instance_runs_is_made_up_for(server: CalloutNats, tmp_path: Path) -> None:
    service = server.service(tmp_path)
    with service:
        async with watched(server, "fleet-1") as (client, ended):
            service.kill()
            server.remove("fleet-all")
            await client.flush()  # what is connected goes on
            assert not ended.is_set()
            service.start()
            await within(REVOKED_WITHIN_S, ended)


async def test_permissions_that_end_are_asked_for_again(server: CalloutNats, tmp_path: Path) -> None:
    with server.service(tmp_path, "--callout-valid", "3s", "--log-level", "debug") as service:
        await make_store(service)
        async with server.worker("worker-0") as worker, ConfigServiceClient(service.address) as client:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            asked = grants(service)
            await asyncio.to_thread(service.process.wait_until, lambda: grants(service) > asked)
            put = await client.put("gateway", "blocklist", "row1", "after")
            await worker.wait_for("blocklist", put.partition, put.version, timeout_s=PATIENCE_S)


async def test_a_token_is_replaced_while_both_count_and_nobody_is_refused(
    server: CalloutNats, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = tmp_path / "password"
    mine.write_text(server.tokens["worker-0"])
    (old,) = [line for line in server.token_file.read_text().splitlines(keepends=True) if "worker=worker-0" in line]
    login: dict[str, Any] = {"password": None, "password_file": str(mine)}
    with server.service(tmp_path) as service, caplog.at_level(logging.INFO):
        await make_store(service)
        async with server.worker("worker-0", **login) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            mine.write_text(server.add("worker-0", SCOPE))
            server.token_file.write_text(server.token_file.read_text().replace(old, ""))
            await until(lambda: "event=nats.reconnected" in caplog.text)
            await until(lambda: worker.health().ready)
    assert "event=nats.login_refused" not in caplog.text


async def test_while_the_service_is_away_workers_go_on_and_new_ones_say_so(server: CalloutNats, tmp_path: Path) -> None:
    service = server.service(tmp_path)
    with service:
        await make_store(service)
        async with server.worker("worker-0") as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            service.kill()
            with pytest.raises(UnavailableError, match="NATS at ") as refused:
                async with server.worker("fleet-1", connect_timeout_s=6.0):
                    pytest.fail("it started")
            assert server.tokens["fleet-*"] not in str(refused.value)
            assert worker.row_count("blocklist") == 40
            service.start()
            async with server.worker("fleet-1") as late:
                both = (worker, late)
                await until_workers(both, "blocklist", lambda: all(w.owned("blocklist") for w in both))


async def test_of_two_instances_one_may_be_killed(server: CalloutNats, tmp_path: Path) -> None:
    first, second = (server.service(tmp_path / name) for name in ("a", "b"))
    with first, second:
        for number in range(20):
            await (await connect(server, f"fleet-{number}", server.tokens["fleet-*"])).close()
        first.kill()
        for number in range(10):
            await (await connect(server, f"fleet-{number}", server.tokens["fleet-*"])).close()


@attempt(
    "a person who listens between NATS and the config service",
    "read tokens",
    "the requests are encrypted; where only one side is set up for it nobody is let in",
)
async def test_without_encryption_it_works_too_and_one_side_alone_does_not(tmp_path: Path) -> None:
    with CalloutNats(tmp_path, workers={"worker-0": SCOPE}, encrypted=False) as server:
        with server.service(tmp_path):
            await (await connect(server, "worker-0", server.tokens["worker-0"])).close()
        with server.service(tmp_path, "--callout-xkey", str(server.keys / "xkey.seed")) as service:
            with pytest.raises((nats.errors.Error, TimeoutError)):
                await connect(server, "worker-0", server.tokens["worker-0"], connect_timeout=8)
            assert any("reason=malformed" in line for line in service.process.log)


async def test_static_workers_stay_beside_those_with_tokens(tmp_path: Path) -> None:
    server = CalloutNats(tmp_path, workers={"fleet-*": SCOPE}, static=("worker-9=gateway/blocklist",))
    with server, server.service(tmp_path) as service:
        await make_store(service)
        async with server.worker("worker-9") as first, server.worker("fleet-1") as second:
            both = (first, second)
            await until_workers(both, "blocklist", lambda: all(w.owned("blocklist") for w in both))
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await connect(server, "worker-9", server.tokens["fleet-*"])
    assert server.violations() == []


async def test_three_hundred_workers_join_and_leave_without_an_edit(server: CalloutNats, tmp_path: Path) -> None:
    """As connections with the permissions of workers: each writes its own lease, and may not write another's."""
    before = (server.configuration / "accounts.conf").read_bytes(), server.token_file.read_bytes()
    with server.service(tmp_path) as service:
        await make_store(service)
        gate = asyncio.Semaphore(AT_ONCE)

        async def join(number: int) -> Client:
            async with gate:
                name = f"fleet-{number}"
                client = await connect_as_workers_do(server, name, server.tokens["fleet-*"])
                async with asyncio.timeout(PATIENCE_S):
                    # A request is lost with its connection, and this client may be closed if NATS refuses it on its way
                    # back, where a worker goes on.
                    while True:
                        if client.is_closed:
                            client = await connect_as_workers_do(server, name, server.tokens["fleet-*"])
                        with suppress(nats.errors.TimeoutError, nats.errors.ConnectionClosedError):
                            reply = await client.request(f"$KV.{names.LEASES_BUCKET}.{name}", b"{}", timeout=10)
                            break
                assert b"error" not in reply.data
                return client

        async with AsyncExitStack() as stack:
            joined = await asyncio.gather(*(join(number) for number in range(FLEET)))
            for client in joined:
                stack.push_async_callback(client.close)
            async with connected(server, "fleet-0") as bus:
                await bus.nc.publish(f"$KV.{names.LEASES_BUCKET}.fleet-1", b"{}")
                (reason,) = await bus.refused()
                assert "permissions violation for publish" in reason
    assert before == ((server.configuration / "accounts.conf").read_bytes(), server.token_file.read_bytes())


async def test_an_agent_has_what_it_needs_by_a_token(tmp_path: Path) -> None:
    server = CalloutNats(tmp_path, workers={})
    secret = server.add("host-1", "gateway/blocklist", kind="agent")
    words = ("--id", "host-1", "--jetstream-api", WORKER_API, "--nats-user", "host-1", "--nats-password", secret)
    with server, server.service(tmp_path, "--cluster-store", f"{server.url}/config_cluster") as service:
        await make_store(service)
        options = (*words, "--cluster-store", f"{server.url}/config_cluster")
        with AgentProcess(tmp_path / "agent", nats_url=server.url, options=options) as agent:
            async with following(agent, "gateway", key="blocklist") as one:
                await one.values({f"row{number}": str(number) for number in range(40)})
            await asyncio.to_thread(
                agent.process.wait_until,
                lambda: any("event=cluster.registered key=agents.host-1" in line for line in list(agent.process.log)),
            )
        assert server.violations() == []
        async with connected(server, "host-1") as bus:
            for key in ("agents.host-2", "services.host-1", "wishes.agents.host-1"):
                await bus.nc.publish(f"$KV.{names.CLUSTER_BUCKET}.{key}", b"{}")
                (reason,) = await bus.refused()
                assert "permissions violation for publish" in reason
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await connect(server, "host-2", secret)
