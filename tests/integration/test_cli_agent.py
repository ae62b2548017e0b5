"""``ringcast agent status`` and ``resolve`` against a real agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ringcast.dispatch import Delivery
from ringcast_cli._app import run
from ringcast_client import ConfigServiceClient
from ringcast_testkit import AgentProcess, ConfigServiceProcess, NatsServer
from ringcast_testkit.dispatch import following, status_until


async def fill(service: ConfigServiceProcess, *row_ids: str) -> None:
    async with ConfigServiceClient(service.address) as client:
        await client.create_store("gateway", partition_count=4)
        for row_id in row_ids:
            await client.put("gateway", "list", row_id, "1")


def reject_bad(delivery: Delivery) -> None:
    """Answers."""
    delivery.reject("no") if delivery.row_id == "bad" else delivery.ack()


async def test_it_shows_workers_groups_consumers_and_blocked_rows(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RINGCAST_AGENT_TOKEN_FILE", "off")
    await fill(config_service, "good", "bad")
    options = ("--id", "here", "--api-token", "hush", "--max-tries", "1")
    with AgentProcess(tmp_path / "agent", nats_url=nats_server.url, options=options) as agent:
        words = ["agent", "status", "--agent-url", agent.http_url]

        async def ask(*more: str) -> tuple[int, str, str]:
            code = await asyncio.to_thread(run, [*words, *more])
            told = capsys.readouterr()
            return code, told.out, told.err

        code, _, said = await ask()
        assert (code, said) == (1, f"ringcast: the agent at {agent.http_url} answers 401: invalid api token\n")
        token = tmp_path / "token"
        token.write_text("hush\n")
        words += ["--agent-token-file", str(token)]
        code, out, _ = await ask()
        assert code == 0
        assert out.startswith("here: connected, up for ")
        assert "it follows no config key" in out

        settings: dict[str, Any] = {"poison_policy": "block", "token": "hush", "filters": ["*d"], "capacity": 5}
        async with following(agent, "gateway", "worker-1", answer=reject_bad, **settings):
            group = await status_until(agent, "gateway", lambda group: group["blocked"], token="hush")
            code, out, _ = await ask()
            lines = [" ".join(line.split()) for line in out.splitlines()]
            assert "here-gateway-list gateway/list yes 4 2 0 s 0" in lines
            assert f"g gateway/list reliable row block {group['cursor']} 2 0 1 1" in lines
            assert "worker-1 g gateway/list connected 0 5 0 *d" in lines
            offset = group["blocked"][0]["offset"]
            assert f"bad g gateway/list {offset} rejected by worker-1: no" in lines
            code, out, _ = await ask("--json")
            assert code == 0
            assert json.loads(out)["groups"] == [group]
    code, _, said = await ask()
    assert (code, "does not answer" in said) == (1, True)


async def test_blocked_rows_are_tried_again_or_given_up(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = ("bad", "worse", "worst", "good")
    await fill(config_service, *rows)
    refused = {"bad", "worse", "worst"}

    def answer(delivery: Delivery) -> None:
        delivery.reject("no") if delivery.row_id in refused else delivery.ack()

    with AgentProcess(tmp_path / "agent", nats_url=nats_server.url, options=("--max-tries", "1")) as agent:

        async def resolve(*more: str) -> tuple[int, str, str]:
            token = ["--agent-token-file", str(tmp_path / "agent" / "agent.token")]
            code = await asyncio.to_thread(run, ["agent", "resolve", *more, "--agent-url", agent.http_url, *token])
            told = capsys.readouterr()
            return code, told.out, told.err

        place = ("gateway", "list", "g")
        code, _, said = await resolve(*place, "bad")
        nowhere = "there is no group 'g' of 'gateway'/'list' on this host"
        assert (code, said) == (1, f"ringcast: the agent at {agent.http_url} answers 404: {nowhere}\n")
        async with following(agent, "gateway", poison_policy="block", answer=answer):
            await status_until(agent, "gateway", lambda group: len(group["blocked"]) == len(refused))
            assert await resolve(*place, "worst", "--discard") == (0, "worst is given up\n", "")
            refused.discard("bad")
            code, out, said = await resolve(*place, "bad", "good")
            assert (code, out, said) == (1, "bad is tried again\n", "ringcast: row 'good' of group g is not blocked\n")
            group = await status_until(agent, "gateway", lambda group: len(group["blocked"]) == 1)
            refused.clear()
            code, out, _ = await resolve(*place, "--all", "--json")
            assert (code, json.loads(out)) == (0, {"resolved": ["worse"], "not_blocked": []})
            group = await status_until(agent, "gateway", lambda group: group["cursor"] == len(rows))
            assert (group["counts"]["acked"], group["counts"]["dropped"]) == (3, 1)
            assert await resolve(*place, "--all") == (0, "no row is blocked\n", "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("gateway", "list", "g"), 2, "give either a ROW_ID or --all"),
        (("gateway", "list", "g", "a", "--all"), 2, "give either a ROW_ID or --all"),
        (("gateway", "no list", "g", "--all"), 1, "key 'no list' is not a valid name"),
        (("gateway", "list", "g", "a" * 513), 1, "513 bytes"),
        (("gateway", "list"), 2, "Missing argument 'GROUP'"),
    ],
)
def test_decisions_that_make_no_sense(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["agent", "resolve", *words]) == code
    assert said in capsys.readouterr().err
