"""``ringcast groups list``, ``show`` and ``reset`` against a real agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from ringcast_cli._app import run
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, NatsServer
from ringcast_testkit.dispatch import following
from ringcast_wire import GroupSeal, encode_record, names


async def test_groups_are_shown_and_reset(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    async def ask(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run, ["groups", *words, "--servers", nats_server.url])
        told = capsys.readouterr()
        return code, told.out, told.err

    async def shown_until(settled: bool, *, held: bool) -> Any:
        """The group, once all of it is settled or not, and held or not."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                code, out, _ = await ask("show", "gateway", "list", "g", "--json")
                if code == 0:
                    partitions = json.loads(out)["partitions"]
                    done = all(each["behind"] == 0 for each in partitions)
                    if (done, any(each["alive"] for each in partitions)) == (settled, held):
                        return partitions

    async with ConfigServiceClient(config_service.address) as client:
        assert await ask("list", "gateway") == (1, "", "ringcast: store 'gateway' does not exist\n")
        await client.create_store("gateway", partition_count=2)
        assert await ask("list", "gateway") == (0, "gateway has no groups\n", "")
        for words in (("show",), ("reset",)):
            code, _, said = await ask(*words, "gateway", "list", "g")
            assert (code, said) == (1, "ringcast: no host has delivered group g of gateway/list\n")
        for row_id in ("a", "b", "c"):
            await client.put("gateway", "list", row_id, "1")
        options = ("--id", "here", "--linger", "0.2")
        with AgentProcess(tmp_path / "agent", nats_url=nats_server.url, options=options) as agent:
            async with following(agent, "gateway") as one:
                await one.values({"a": "1", "b": "1", "c": "1"})
                partitions = await shown_until(True, held=True)
                assert sum(each["revision"] for each in partitions) == 3
                assert {each["pid"] for each in partitions} == {agent.process.pid}
                code, out, _ = await ask("list", "gateway")
                assert code == 0
                assert "gateway/list" in out
                code, _, said = await ask("reset", "gateway", "list", "g")
                assert code == 1
                assert said.startswith(
                    f"ringcast: group g of gateway/list is delivered by process {agent.process.pid} on host "
                )
            await shown_until(True, held=False)
            code, out, said = await ask("reset", "gateway", "list", "g")
            assert (code, out, said) == (0, "group g of gateway/list begins again in 2 partitions\n", "")
            code, out, _ = await ask("show", "gateway", "list", "g")
            assert out.count("from the beginning") == 2
            async with following(agent, "gateway", changes_only=True) as one:
                await one.values({"a": "1", "b": "1", "c": "1"})


async def test_positions_that_this_build_can_not_read_are_said_to_be_there(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    async def ask(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run, ["groups", *words, "--servers", nats_server.url])
        told = capsys.readouterr()
        return code, told.out, told.err

    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("gateway", partition_count=4)
    nc = await nats.connect(nats_server.url)
    try:
        bucket = await nc.jetstream().key_value(names.groups_bucket("gateway"))
        seal = encode_record(GroupSeal(history="h", revision=3, sealed_at_ms=1))
        for partition, data in enumerate((seal, b"of a newer agent", b"of a newer agent")):
            await bucket.put(names.seal_key("list", "g", partition), data)
    finally:
        await nc.close()
    unread = (
        "ringcast: group g of gateway/list has positions that this build can't read, in 2 partitions "
        "(partition 1, for one): use a newer ringcast\n"
    )
    code, out, said = await ask("list", "gateway")
    assert (code, out.splitlines()[-1].split()[:5]) == (0, ["g", "gateway/list", "3", "0", "0"])
    assert "0 or more" in out
    assert said == unread
    code, out, said = await ask("show", "gateway", "list", "g")
    assert (code, len(out.splitlines()), said) == (0, 3, unread)
    code, out, _ = await ask("show", "gateway", "list", "g", "--json")
    assert json.loads(out)["unreadable"] == [1, 2]
    assert await ask("reset", "gateway", "list", "g") == (
        1,
        "",
        "ringcast: the position of group g of gateway/list in partition 1 can't be read by this build: whether a "
        "process delivers it is not known; use a newer ringcast, or force\n",
    )
    code, out, _ = await ask("reset", "gateway", "list", "g", "--force")
    assert (code, out) == (0, "group g of gateway/list begins again in 3 partitions\n")
    code, out, said = await ask("list", "gateway")
    assert (code, said) == (0, "")
