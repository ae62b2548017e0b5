"""``ringcast doctor`` over real servers and workers with faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig
from ringcast import Change, PoisonPolicy
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, until
from ringcast_wire import Role, Stage, names

from tests.integration.cli_process import Cli, Servers
from tests.integration.worker_bench import Bench, worker_bench

ELSEWHERE = "127.0.0.1:1"
"""Nobody listens there."""


@pytest.fixture
async def bench(servers: Servers, cli: Cli, store_name: str) -> AsyncIterator[Bench]:
    async with worker_bench(servers, cli, store_name) as made:
        await made.create()
        yield made


Found = dict[tuple[str, str], list[dict[str, Any]]]


async def _doctor(cli: Cli, *words: object) -> tuple[int, Found]:
    """The exit code, and the findings by check and result. The workers of this process answer meanwhile."""
    done = await asyncio.to_thread(cli, "doctor", *words, "--json")
    found: Found = {}
    for each in json.loads(done.out)["findings"]:
        found.setdefault((each["check"], each["result"]), []).append(each)
    return done.code, found


def _failed(found: Found) -> set[str]:
    return {check for check, result in found if result == "failure"}


async def test_nothing_is_wrong_and_what_was_not_looked_at_is_said(bench: Bench) -> None:
    await bench.fill(3)
    await bench.worker("a")
    await bench.told_until(lambda lag: lag["converged"], "lag", bench.store, "list")
    code, found = await _doctor(bench.cli, bench.store)
    assert {place: each for place, each in found.items() if place[1] != "ok"}.keys() == {("members_report", "unknown")}
    assert code == 3
    for check in ("services_answer", "nats_answers", "streams_are_well", "workers_are_well", "histories_agree"):
        assert (check, "ok") in found
    text = await asyncio.to_thread(bench.cli, "doctor", bench.store)
    first, todo, last = text.out.splitlines()
    assert first.startswith("UNKNOWN  agents and other config services: could not be checked: cluster_store is not")
    assert todo == "         → name it with --cluster-store"
    assert last.startswith("checked: ")
    assert last.endswith("1 could not be checked")


async def test_a_config_service_that_is_away_beside_one_that_is_there(bench: Bench) -> None:
    await bench.fill(1)
    code, found = await _doctor(bench.cli, bench.store, "--service", f"{bench.servers.service.address},{ELSEWHERE}")
    (away,) = found["services_answer", "failure"]
    assert (code, away["about"]) == (1, f"config service {ELSEWHERE}")
    assert away["runbook"] == "docs/runbooks.md#ringcastservicedown"
    assert ("services_answer", "ok") in found
    (none,) = found["workers_are_well", "warning"]
    assert none["sentence"] == "there is none: changes reach nobody"


async def test_without_config_service_or_nats_nothing_is_called_well(bench: Bench) -> None:
    await bench.fill(1)
    code, found = await _doctor(bench.cli, "--service", ELSEWHERE)
    assert (code, _failed(found)) == (1, {"services_answer"})
    unknown = {check for check, result in found if result == "unknown"}
    assert {"streams_are_well", "nothing_is_nearly_full", "stores_can_be_read", "roles_are_granted"} <= unknown
    code, found = await _doctor(bench.cli, bench.store, "--servers", f"nats://{ELSEWHERE}")
    assert (code, _failed(found)) == (1, {"nats_answers"})
    (workers,) = found["workers_are_well", "unknown"]
    assert "connection refused" in workers["sentence"]


async def test_rows_that_a_handler_does_not_take(bench: Bench) -> None:
    async def handler(change: Change) -> None:
        raise ValueError("not this one")

    await bench.worker("a", handler, handler_tries=1, poison_policy=PoisonPolicy.BLOCK)
    await bench.client.put(bench.store, "list", "row", "value")
    place = ("workers_are_well", "failure")
    async with asyncio.timeout(PATIENCE_S):
        while place not in (found := (await _doctor(bench.cli, bench.store))[1]):
            pass
    assert "it holds 1 rows back; the last error was row: ValueError" in found[place][0]["sentence"]


async def test_a_store_in_the_middle_of_a_migration(bench: Bench) -> None:
    await bench.client.migrate_store(bench.store, Stage.SHADOW)
    code, found = await _doctor(bench.cli, bench.store)
    (step,) = found["migrations_are_finished", "warning"]
    assert (code, step["sentence"]) == (3, "it stands at stage shadow of its migration")


async def test_files_that_others_can_read_and_addresses_without_tls(bench: Bench, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough")
    token.chmod(0o644)
    words = ("--agent-token-file", token, "--service", "192.0.2.1:7420", "--timeout", "0.3")
    code, found = await _doctor(bench.cli, *words)
    (file,) = found["secrets_are_kept", "failure"]
    assert (code, file["todo"]) == (1, f"chmod 600 {token}")
    (clear,) = found["nothing_goes_in_the_clear", "warning"]
    assert clear["about"] == "config service 192.0.2.1:7420"
    token.chmod(0o600)
    assert ("secrets_are_kept", "ok") in (await _doctor(bench.cli, *words))[1]


async def test_consumers_near_their_limit_dead_letters_and_roles_for_everybody(
    servers: Servers, tmp_path: Path, store_name: str
) -> None:
    database = f"sqlite:{tmp_path / 'rows.db'}"
    options = ("--provision-interval", "1s")
    service = ConfigServiceProcess(tmp_path, nats_url=servers.nats.url, database=database, options=options)
    nc = await nats.connect(servers.nats.url)
    with service:
        cli = Cli(tmp_path, servers=servers.nats.url, service=service.address)
        async with ConfigServiceClient(service.address) as client:
            await client.create_store(store_name, partition_count=4)
            me = (await client.who_am_i()).principal
            await client.grant_role(me, "*", Role.ADMIN)
            await client.grant_role("*", "*", Role.WRITER)
            js = nc.jetstream()
            stream = names.notify_stream(store_name)
            for number in range(900):
                await js.add_consumer(stream, ConsumerConfig(durable_name=f"c{number}"))
            await js.publish(f"config.dead.{store_name}.list.0", b"{}")

            async def seen() -> bool:
                status = await client.service_status()
                streams = {each.name: each for each in status.streams}
                return streams[stream].consumers == 900 and streams[names.dead_stream(store_name)].messages == 1

            await until(seen)
            code, found = await _doctor(cli)
    await nc.close()
    assert (code, _failed(found)) == (1, {"roles_are_granted"})
    (near,) = found["nothing_is_nearly_full", "warning"]
    assert near["sentence"] == "it has 900 of 1000 consumers: the next workers get none"
    assert near["runbook"] == "docs/runbooks.md#ringcastconsumersnearlimit"
    (waiting,) = found["no_dead_letters_wait", "warning"]
    assert waiting["sentence"] == "1 wait"
    (wide,) = found["roles_are_granted", "failure"]
    assert wide["sentence"] == "everybody who is let in is writer of *"
