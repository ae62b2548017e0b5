"""The life of a process, and the options that it has."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from nats.aio.client import Client
from ringcast_meta.nats_client import LastingClient
from ringcast_service import (
    ConfigError,
    Duration,
    Lifetime,
    Size,
    bounded,
    config_file_option,
    end_tasks,
    nats_login,
    nats_login_options,
    parse_bytes,
    parse_duration_ms,
    ready_file,
    serving_metrics,
)
from ringcast_testkit import PATIENCE_S, NatsServer, ReservedPort, run_readme_examples, until
from ringcast_wire import LoginRefusals, NatsLogin
from ringcast_wire.prometheus import OFF, process_registry


def test_the_example_of_the_readme_runs() -> None:
    assert run_readme_examples(Path(__file__).parent.parent / "README.md") == 2


class Connected(Lifetime):
    """Is connected to NATS until it is stopped."""

    def __init__(
        self,
        *servers: str,
        timeout_s: float = PATIENCE_S,
        login: NatsLogin | None = None,
    ) -> None:
        super().__init__()
        self._servers, self._timeout_s, self._login = servers, timeout_s, login or NatsLogin()
        self.client: Client = LastingClient()

    async def _run(self) -> None:
        async with self._nats_connection(
            self.client, self._servers, self._login, name="test", inbox_prefix="_T", timeout_s=self._timeout_s
        ):
            self.ready.set()
            await self._stopping.wait()


async def test_a_stop_ends_it_in_order(nats_server: NatsServer) -> None:
    process = Connected(nats_server.url)
    running = asyncio.create_task(process.run())
    async with asyncio.timeout(PATIENCE_S):
        await process.ready.wait()
        assert process.client.is_connected
        process.stop()
        process.stop()
        await running
    assert process.client.is_closed


async def test_a_login_that_is_refused_while_another_server_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused until it is accepted, or no server is there any more that refuses it."""

    def users(password: str) -> dict[str, Any]:
        return {"users": [{"user": "u", "password": password}]}

    attempts: list[bool] = []
    note = LoginRefusals.note

    def noted(refusals: LoginRefusals, error: Exception, servers: int) -> str:
        found = note(refusals, error, servers)
        attempts.append(bool(refusals.words))
        return found

    monkeypatch.setattr(LoginRefusals, "note", noted)
    away = ReservedPort()
    with NatsServer(tmp_path, authorization=users("right")) as server:
        login = NatsLogin(user="u", password="right")
        process = Connected(server.url, f"nats://{away.address}", login=login)
        running = asyncio.create_task(process.run())
        async with asyncio.timeout(PATIENCE_S):
            await process.ready.wait()
        assert not process.login_refused
        await asyncio.to_thread(server.reload, authorization=users("another"))
        await until(lambda: process.login_refused)
        seen = len(attempts)
        await until(lambda: len(attempts) >= seen + 4)
        assert all(attempts[seen:]), "the server that is away takes nothing back"
        server.kill()
        await until(lambda: not process.login_refused)
        await asyncio.to_thread(server.start)
        await until(lambda: process.login_refused)
        await asyncio.to_thread(server.reload, authorization=users("right"))
        # The client calls itself connected a few turns of the loop before it says that it is back.
        await until(lambda: not process.login_refused)
        assert process.client.is_connected
        process.stop()
        await running
    assert caplog.text.count("event=bus.login_refused") == 2


async def test_a_stop_cuts_a_start_short() -> None:
    port = ReservedPort()
    process = Connected(f"nats://{port.address}")
    running = asyncio.create_task(process.run())
    await asyncio.sleep(0)
    process.stop()
    async with asyncio.timeout(PATIENCE_S):
        await running
    assert not process.ready.is_set()


async def test_nats_that_does_not_answer_is_named() -> None:
    port = ReservedPort()
    process = Connected(f"nats://u:secret@{port.address}", timeout_s=0.3)
    with pytest.raises(ConfigError, match="can't be reached") as caught:
        await process.run()
    assert "secret" not in str(caught.value)


async def test_a_connection_that_ends_for_good_ends_the_process(nats_server: NatsServer) -> None:
    process = Connected(nats_server.url)
    running = asyncio.create_task(process.run())
    async with asyncio.timeout(PATIENCE_S):
        await process.ready.wait()
        await process.client.close()
        with pytest.raises(ConfigError, match="closed the connection for good"):
            await running


async def test_what_hangs_or_fails_does_not_keep_the_next_phase(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ConnectionResetError

    with caplog.at_level(logging.WARNING):
        await bounded("calls", asyncio.Event().wait(), 0.01)
    assert "event=stop.timed_out phase=calls after_s=0.01" in caplog.text
    with pytest.raises(ConnectionResetError):  # a mistake of our own is not hidden
        await bounded("calls", fails(), 1.0)


async def test_tasks_end_that_swallow_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast_service._lifetime._CANCEL_AGAIN_S", 0.01)

    async def deaf() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    await end_tasks([task])
    assert task.cancelled()


def test_the_ready_file_is_there_while_the_block_runs(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    with ready_file(path, {"grpc": "127.0.0.1:1"}):
        assert json.loads(path.read_text()).keys() == {"grpc", "pid"}
    assert list(tmp_path.iterdir()) == []
    with ready_file(None, {}):
        assert list(tmp_path.iterdir()) == []


async def test_metrics_are_served_or_off() -> None:
    async with serving_metrics("127.0.0.1:0", process_registry()) as address:
        with pytest.raises(ConfigError, match=address.rpartition(":")[2]):
            async with serving_metrics(address, process_registry()):
                pass
    async with serving_metrics(OFF, process_registry()) as address:
        assert address == ""


@click.command(context_settings={"auto_envvar_prefix": "T"})
@config_file_option
@click.option("--wait", type=Duration(), default="90s")
@click.option("--room", type=Size(), default="1MiB")
@nats_login_options
def command(config_file: Path | None, **options: Any) -> None:
    click.echo(json.dumps([options["wait"], options["room"], nats_login(options).user]))


@pytest.mark.parametrize(
    ("flags", "environment", "file", "expected"),
    [
        ([], {}, "", [90_000, 1 << 20, ""]),
        ([], {}, 'wait = "1m"\nnats-user = "f"', [60_000, 1 << 20, "f"]),
        ([], {"T_WAIT": "2h", "T_NATS_USER": "e"}, 'wait = "1m"\nnats_user = "f"', [7_200_000, 1 << 20, "e"]),
        (["--wait", "5ms", "--room", "3KiB"], {"T_WAIT": "2h"}, 'wait = "1m"', [5, 3 << 10, ""]),
    ],
)
def test_flags_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, flags: list[str], environment: dict[str, str], file: str, expected: list[Any]
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(file)
    result = CliRunner(env=environment).invoke(command, ["--config-file", str(path), *flags])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == expected


@pytest.mark.parametrize(
    ("file", "words"), [("room", "can't be read"), ("frob = 1", "unknown settings: frob"), ('room = "1 GB"', "1 GB")]
)
def test_a_bad_file_is_refused_with_a_sentence(tmp_path: Path, file: str, words: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(file)
    result = CliRunner().invoke(command, ["--config-file", str(path)])
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize("text", ["", "1", "1.5s", "-1s", "s", "1w", "9999999999s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "1MB", "-1", "KiB", "1.5GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        parse_bytes(text)
