"""The agent under the permissions that make_accounts.py gives it: they are enough, and no more than a worker's."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import nats
import pytest
from ringcast.dispatch import Delivery
from ringcast_client import ConfigServiceClient, ReplayOutcome
from ringcast_testkit import PATIENCE_S, AgentProcess, History, WorkerProcess, attempt
from ringcast_testkit.dispatch import following, status_until
from ringcast_wire import Strategy, names

from tests.integration.callout_nats import CalloutNats
from tests.integration.infra_nats import WORKER_API, InfraNats, make_accounts

PASSWORD = "for-this-test"


def with_agent(directory: Path) -> InfraNats:
    """A server whose one further user is the agent host-1, of one key; not started yet."""
    made = make_accounts("--partitions", "4", "--agent", "host-1=gateway/blocklist")
    server = InfraNats(directory, env={"NATS_AGENT_HOST_1_PASSWORD": PASSWORD})
    (server.configuration / "accounts.conf").write_text(made.stdout)
    return server


def cluster_of(server: InfraNats) -> tuple[str, str]:
    """Has a process register in the cluster."""
    return "--cluster-store", f"{server.url}/config_cluster"


def read_all(agent: AgentProcess) -> dict[str, str]:
    """Every row of the store, as an application of Dapr asks for it."""
    url, headers = f"{agent.http_url}/v1.0/configuration/gateway", {"dapr-api-token": agent.token}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=15) as response:
        return {name: item["value"] for name, item in json.load(response).items()}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no worker and no agent is named"),
        (["--agent", "host-1"], "'host-1' is not of the form WORKER=STORE/KEY,KEY"),
        (["--agent", f"{'h' * 65}=gateway/blocklist"], "worker 'hhh"),
        (["--agent", "h=gateway/k", "h-gateway-k=gateway/k"], "'h-gateway-k' would name two of the workers"),
    ],
)
def test_an_agent_that_makes_no_sense_is_refused(words: list[str], sentence: str) -> None:
    result = make_accounts(*words)
    assert (result.returncode, result.stdout) == (2, "")
    assert sentence in result.stderr


async def test_the_permissions_of_an_agent_are_enough(tmp_path: Path) -> None:
    made = make_accounts("--partitions", "4", "--agent", "host-1=gateway/blocklist")
    server = InfraNats(tmp_path, env={"NATS_AGENT_HOST_1_PASSWORD": PASSWORD})
    (server.configuration / "accounts.conf").write_text(made.stdout)
    login = ("--nats-user", "host-1", "--nats-password", PASSWORD)
    common = ("--id", "host-1", "--jetstream-api", WORKER_API, "--max-tries", "1", *login)
    with server, server.service(tmp_path, *cluster_of(server)) as service:
        options = (*common, *cluster_of(server))
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("gateway", partition_count=4)
            for row_id in ("good", "bad"):
                await client.put("gateway", "blocklist", row_id, "1")
            with AgentProcess(tmp_path / "agent", nats_url=server.url, options=options) as agent:
                rejected = {"bad"}

                def answer(delivery: Delivery) -> None:
                    delivery.reject() if delivery.row_id in rejected else delivery.ack()

                place = {"key": "blocklist", "poison_policy": "dead-letter"}
                async with following(agent, "gateway", answer=answer, **place) as one:
                    await status_until(agent, "gateway", lambda group: group["counts"]["dead_lettered"] == 1)
                    rejected.clear()
                    numbers = [letter.number async for letter in client.dead_letters("gateway", group="g")]
                    replayed = [each.outcome async for each in client.replay_dead_letters("gateway", numbers)]
                    assert replayed == [ReplayOutcome.HANDLED]
                    await client.put("gateway", "blocklist", "good", "2")
                    await one.values({"good": "2"})
                    await status_until(
                        agent, "gateway", lambda group: group["durable"] and group["partitions_held"] == 4
                    )
                    assert await asyncio.to_thread(read_all, agent) == {"blocklist/good": "2", "blocklist/bad": "1"}
                await asyncio.to_thread(
                    agent.process.wait_until,
                    lambda: any(
                        "event=cluster.registered key=agents.host-1" in line for line in list(agent.process.log)
                    ),
                )
                assert agent.terminate() == 0
                assert not any("event=cluster.registration_failed" in line for line in agent.process.log)
    assert server.violations() == []


async def test_they_are_enough_to_keep_the_leases_of_workers(tmp_path: Path) -> None:
    """A worker under it needs no more than any worker; when it dies the agent deletes its records."""
    socket = tmp_path / "leases.sock"
    made = make_accounts("--partitions", "4", "--agent", "host-1=gateway/blocklist", "worker-0=gateway/blocklist")
    passwords = {"NATS_AGENT_HOST_1_PASSWORD": PASSWORD, "NATS_WORKER_WORKER_0_PASSWORD": PASSWORD}
    server = InfraNats(tmp_path, env=passwords)
    (server.configuration / "accounts.conf").write_text(made.stdout)
    login = ("--nats-user", "host-1", "--nats-password", PASSWORD)
    options = ("--id", "host-1", "--jetstream-api", WORKER_API, "--lease-socket", str(socket), *login)
    with server, server.service(tmp_path) as service:
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("gateway", partition_count=4)
        history = History()
        worker = WorkerProcess(
            "worker-0",
            servers=server.url,
            store="gateway",
            keys=("blocklist",),
            history=history,
            agent=str(socket),
            user="worker-0",
            password=PASSWORD,
            jetstream_api=WORKER_API,
        )
        with AgentProcess(tmp_path / "agent", nats_url=server.url, options=options) as agent:
            worker.start()
            try:
                await asyncio.to_thread(worker.wait_ready)
                (told,) = agent.status()["leases"]["workers"]
                assert told["worker_id"] == "worker-0"
            finally:
                worker.kill()
            deleted = 2  # the member and its slot
            await asyncio.to_thread(
                agent.process.wait_until, lambda: agent.status()["leases"]["deleted_records"] == deleted
            )
            lease = agent.status()["leases"]["lease"]
            agent.kill()
            agent.start()
            assert agent.status()["leases"]["lease"] == lease
    assert server.violations() == []


@attempt(
    "an agent",
    "write events, settings, what belongs to another host, store or key, or the record of another process in the "
    "cluster, or which are to drain; change a stream",
    "NATS refuses each of 25 subjects: permissions violation",
)
@pytest.mark.parametrize("way", ["static", "callout"])
async def test_an_agent_may_not_publish_events(way: str, tmp_path: Path) -> None:
    """Nor settings, nor what belongs to another host, store or key; nor anything that changes a stream.

    ``way``: what the server's files permit it, or the config service by its token.
    """
    with ExitStack() as stack:
        if way == "callout":
            asking = CalloutNats(tmp_path, workers={})
            password = asking.add("host-1", "gateway/blocklist", kind="agent")
            server: InfraNats = stack.enter_context(asking)
            stack.enter_context(asking.service(tmp_path))
        else:
            server, password = stack.enter_context(with_agent(tmp_path)), PASSWORD
        bus = await nats.connect(server.url, user="host-1", password=password, inbox_prefix="_INBOX_host-1")
        stream = names.notify_stream("gateway")
        refused = (
            "config.notify.gateway.blocklist.0",
            "$KV.config_leases.host-2",
            "$KV.config_leases.host-2.x",
            f"$KV.{names.meta_bucket('gateway')}.mode",
            f"$KV.{names.nodes_bucket('gateway')}.{names.node_key('other', 'w')}",
            f"$KV.{names.nodes_bucket('other')}.{names.node_key('blocklist', 'w')}",
            "$KV.config_groups_gateway.other.g.0",
            f"$KV.{names.groups_bucket('other')}.{names.seal_key('blocklist', 'g', 0)}",
            names.fetch_subject("gateway", "other", names.FETCH_HEADS),
            names.dead_subject("gateway", "other", 0),
            names.replay_subject("gateway", "blocklist"),
            f"$KV.{names.CLUSTER_BUCKET}.agents.host-2",
            f"$KV.{names.CLUSTER_BUCKET}.services.host-1",
            f"$KV.{names.CLUSTER_BUCKET}.wishes.agents.host-1",
            f"$KV.{names.CLUSTER_BUCKET}.wishes.agents.host-2",
            f"{WORKER_API}.STREAM.MSG.GET.KV_{names.LEASES_BUCKET}",
            f"{WORKER_API}.STREAM.MSG.GET.{stream}",
            f"{WORKER_API}.STREAM.PURGE.KV_{names.CLUSTER_BUCKET}",
            f"{WORKER_API}.CONSUMER.CREATE.KV_{names.CLUSTER_BUCKET}",
            f"{WORKER_API}.STREAM.LIST",
            f"{WORKER_API}.STREAM.PURGE.{stream}",
            f"{WORKER_API}.STREAM.DELETE.{stream}",
            f"{WORKER_API}.STREAM.MSG.DELETE.{names.dead_stream('gateway')}",
            f"{WORKER_API}.DIRECT.GET.{names.dead_stream('gateway')}",
            f"{WORKER_API}.CONSUMER.DELETE.{stream}.{names.consumer_name('ringcast', 'host-2')}",
        )
        for subject in refused:
            await bus.publish(subject, b"{}")
        await bus.flush()
        await bus.close()

        def all_logged() -> bool:
            log = "".join(server.violations())
            return all(f'"{subject}"' in log for subject in refused)

        await asyncio.to_thread(server.process.wait_until, all_logged)


async def test_an_agent_can_empty_no_bucket(tmp_path: Path) -> None:
    """By a record that it may write, with a header that would remove all others."""
    server = with_agent(tmp_path)
    with server, server.service(tmp_path, *cluster_of(server)) as service:
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("gateway", partition_count=4)
            await client.put("gateway", "blocklist", "a", "1")
        service.process.wait_until(lambda: any("event=cluster.registered" in line for line in service.process.log))
        bus = await nats.connect(server.url, user="host-1", password=PASSWORD, inbox_prefix="_INBOX_host-1")
        for subject in (
            f"$KV.{names.LEASES_BUCKET}.host-1.x",
            f"$KV.{names.nodes_bucket('gateway')}.{names.node_key('blocklist', 'w')}",
            f"$KV.{names.groups_bucket('gateway')}.{names.seal_key('blocklist', 'g', 0)}",
            f"$KV.{names.CLUSTER_BUCKET}.agents.host-1",
        ):
            for rollup in ("all", "sub"):
                reply = await bus.request(subject, b"{}", timeout=PATIENCE_S, headers={"Nats-Rollup": rollup})
                assert b"rollup not permitted" in reply.data, subject
        await bus.close()


OWNERS = names.owners_bucket("gateway")


async def test_they_are_enough_to_say_which_processes_have_ended_and_for_nothing_else(tmp_path: Path) -> None:
    socket = tmp_path / "leases.sock"
    made = make_accounts("--partitions", "4", "--agent", "host-1=gateway/blocklist", "worker-0=gateway/blocklist")
    passwords = {"NATS_AGENT_HOST_1_PASSWORD": PASSWORD, "NATS_WORKER_WORKER_0_PASSWORD": PASSWORD}
    server = InfraNats(tmp_path, env=passwords)
    (server.configuration / "accounts.conf").write_text(made.stdout)
    login = ("--nats-user", "host-1", "--nats-password", PASSWORD)
    options = ("--id", "host-1", "--jetstream-api", WORKER_API, "--lease-socket", str(socket), *login)
    with server, server.service(tmp_path) as service:
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("gateway", partition_count=4, strategy=Strategy.STICKY)
        worker = WorkerProcess(
            "worker-0",
            servers=server.url,
            store="gateway",
            keys=("blocklist",),
            history=History(),
            agent=str(socket),
            user="worker-0",
            password=PASSWORD,
            jetstream_api=WORKER_API,
        )
        with AgentProcess(tmp_path / "agent", nats_url=server.url, options=options) as agent:
            worker.start()
            try:
                await asyncio.to_thread(
                    agent.process.wait_until, lambda: agent.status()["leases"]["sessions_reported"] == 1
                )
            finally:
                worker.kill()
            await asyncio.to_thread(
                agent.process.wait_until,
                lambda: any("event=owners.gone store=gateway key=blocklist" in x for x in list(agent.process.log)),
            )
        assert server.violations() == []
        refused: asyncio.Queue[str] = asyncio.Queue()

        async def on_error(error: Exception) -> None:
            refused.put_nowait(str(error))

        bus = await nats.connect(server.url, user="host-1", password=PASSWORD, error_cb=on_error)
        try:
            for name in (
                names.session_key("worker-0"),
                names.state_key("blocklist", "worker-0"),
                names.gone_key("blocklist", "host-2"),
                names.gone_key("elsewhere", "host-1"),
                names.table_key("blocklist"),
            ):
                await bus.publish(f"$KV.{OWNERS}.{name}", b"x")
                async with asyncio.timeout(PATIENCE_S):
                    assert name in await refused.get()
        finally:
            await bus.close()
