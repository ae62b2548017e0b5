"""The agent as a process: settings, a start that fails, and its stop."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from dapr.clients import DaprClient
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast_heartbeat_agent.__main__ import main
from ringcast_heartbeat_agent.config import Config, is_loopback
from ringcast_heartbeat_agent.telemetry import AGENT
from ringcast_service import ConfigError
from ringcast_testkit import AgentProcess, NatsServer


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"grpc_listen": "127.0.0.1"}, "grpc_listen '127.0.0.1' is not an address"),
        ({"http_listen": "127.0.0.1:70000"}, "http_listen '127.0.0.1:70000' is not an address"),
        ({"grpc_listen": "0.0.0.0:50001"}, "can be reached from other hosts: that needs an api_token"),
        ({"http_listen": "example.org:3500"}, "can be reached from other hosts"),
        ({"metrics_listen": "nowhere"}, "metrics_listen"),
        ({"nats": ()}, "nats is empty"),
        ({"agent_id": "no spaces"}, "agent_id 'no spaces' is not a valid name"),
        ({"stale_after_s": 0.0}, "stale_after_s is 0.0: it must be above 0"),
        ({"linger_s": -1.0}, "linger_s is -1.0: it must be 0 or more"),
        ({"max_keys": 0}, "max_keys is 0: it must be above 0"),
        ({"drain_timeout_s": -1.0}, "drain_timeout_s is -1.0: it must be 0 or more"),
        ({"window": 0}, "window is 0: it must be 1 to 1048576"),
        ({"max_tries": 5, "max_deliveries": 4}, "max_tries is 5: it can't be above max_deliveries, 4"),
        ({"ack_timeout_s": 0.0}, "ack_timeout_s is 0.0: it must be 0.001 to 86400"),
        ({"retry_first_s": 9.0, "retry_most_s": 8.0}, "retry_first_s is 9.0: it can't be above retry_most_s"),
        ({"poison_policy": "eat"}, "poison_policy is 'eat': drop, dead-letter, block are known"),
        ({"cache_dir": "/tmp"}, "cache_dir needs an id"),  # nothing is written
        ({"app_url": "ftp://10.0.0.1"}, "app_url 'ftp://10.0.0.1' is not an address such as http://127.0.0.1:8080"),
        (
            {"app_url": "http://127.0.0.1:*"},
            r"app_url 'http://127.0.0.1:\*' has no port: \* may stand in callback_addresses alone",
        ),
        ({"callback_addresses": ("http://:80",)}, "callback_addresses 'http://:80' is not an address"),
        ({"groups": ("",)}, "groups ''"),
        ({"client_share": 0.0}, "client_share is 0.0: it must be above 0, and 1 at most"),
        ({"client_share": 1.5}, "client_share is 1.5"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        Config(**settings)


def test_what_is_on_this_host() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "localhost.example.org", "::", "[::1]"))
    assert Config(grpc_listen="[::1]:0", http_listen="0.0.0.0:0", api_token="x").agent_id.startswith("agent-")


def test_a_token_is_not_shown() -> None:
    assert "hush" not in repr(Config(api_token="hush", app_token="hush"))


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: Path, shared_nats: NatsServer) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('id = "from-file"\nlog_level = "debug"\nlinger = 1\n')
    for words, env, wanted in (
        ((), {}, "from-file"),
        ((), {"RINGCAST_AGENT_ID": "from-env"}, "from-env"),
        (("--id", "from-flag"), {"RINGCAST_AGENT_ID": "from-env"}, "from-flag"),
    ):
        options = ("--config-file", str(file), *words)
        with AgentProcess(tmp_path / wanted, nats_url=shared_nats.url, options=options, env=env) as agent:
            (ready,) = (tmp_path / wanted).glob("agent-*.json")
            told = json.loads(ready.read_text())
            assert (told["agent_id"], told["pid"]) == (wanted, agent.process.pid)


def test_bad_use_and_a_start_that_fails(tmp_path: Path, unused_port: int) -> None:
    bad = CliRunner().invoke(main, ["--linger", "-1"])
    assert (bad.exit_code, "linger_s is -1.0" in bad.output) == (2, True)
    file = tmp_path / "agent.toml"
    file.write_text("nonsense = 1\n")
    assert "has unknown settings: nonsense" in CliRunner().invoke(main, ["--config-file", str(file)]).output
    words = ["--nats", f"nats://127.0.0.1:{unused_port}", "--start-timeout", "0.3", "--metrics-listen", "off"]
    failed = CliRunner().invoke(main, words)
    assert failed.exit_code == 1
    assert f"ringcast-heartbeat-agent: NATS at nats://127.0.0.1:{unused_port} can't be reached" in failed.output


def test_a_port_that_is_taken_is_named(tmp_path: Path, shared_nats: NatsServer, shared_agent: AgentProcess) -> None:
    taken = shared_agent.http_url.removeprefix("http://")
    words = ["--nats", shared_nats.url, "--grpc-listen", "127.0.0.1:0", "--metrics-listen", "off"]
    words += ["--token-file", "off"]
    failed = CliRunner().invoke(main, [*words, "--http-listen", taken])
    assert failed.exit_code == 1
    assert f"ringcast-heartbeat-agent: http_listen {taken} can't be used" in failed.output
    words[3] = shared_agent.grpc_address
    failed = CliRunner().invoke(main, [*words, "--http-listen", "127.0.0.1:0"])
    assert failed.exit_code == 1
    assert f"grpc_listen {shared_agent.grpc_address} can't be used" in failed.output


def test_stopping(tmp_path: Path, shared_nats: NatsServer) -> None:
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--token-file", "off")) as agent:
        assert list(tmp_path.glob("agent-*.json"))
        agent.process.signal(signal.SIGTERM)
        agent.process.signal(signal.SIGINT)
        assert agent.process.wait() == 0
        assert not list(tmp_path.glob("agent-*.json"))
        assert "stopped" in "".join(agent.process.log)
        assert os.fspath(tmp_path) not in "".join(agent.process.log)


def test_the_log_can_be_json(tmp_path: Path, shared_nats: NatsServer) -> None:
    options = ("--log-format", "json", "--log-level", "debug")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        assert agent.terminate() == 0
        lines = [json.loads(line) for line in agent.process.log]
    assert any(line["logger"].startswith("ringcast_heartbeat_agent") and "event" in line for line in lines)
    assert all({"time", "level", "logger"} <= line.keys() for line in lines)


def test_a_login_that_is_refused_for_a_while_does_not_end_it(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats", authorization={"token": "first"}) as server:
        url = f"nats://first@127.0.0.1:{server.port}"
        with AgentProcess(tmp_path, nats_url=url, options=("--id", "host")) as agent:
            server.change(authorization={"token": "second"})
            agent.process.wait_until(lambda: server.log_of("authentication error") > 5)  # it tries again and again
            server.change(authorization={"token": "first"})
            assert agent.status()
            assert agent.terminate() == 0


def test_every_metric_of_the_table_is_emitted(
    shared_agent: AgentProcess, http_get: Any, writer: Any, sidecar: Any, store_name: str
) -> None:
    sidecar(shared_agent)
    writer.create(store_name)
    with DaprClient() as client:
        subscription = client.subscribe_configuration(store_name, ["list"], lambda *_: None)
        assert client.subscribe_configuration(store_name, ["list"], lambda *_: None, {"ringcast.group": "g"})
        writer.put(store_name, "list", "a", "1")
        assert subscription
        shared_agent.process.wait_until(
            lambda: 'updates_sent_total{api="grpc"}' in http_get(shared_agent.metrics_url).body
        )
        client.unsubscribe_configuration(store_name, subscription)
        text = http_get(shared_agent.metrics_url).body
        assert f'ringcast_agent_group_consumers{{group="g",key="list",store="{store_name}"}} 1.0' in text
    for metric in AGENT:
        assert f"\n{metric.name}{{" in text or f"\n{metric.name} " in text or f"\n{metric.name}_bucket" in text, metric
    assert "config_oldest_unapplied_age_seconds" in text, "what its workers measure is there, too"


def test_stopping_while_nats_is_away(
    tmp_path: Path, nats_server: NatsServer, config_service: Any, writer_to: Any, store_name: str
) -> None:
    """One subscription runs, and one waits for its start for ever: neither holds the stop up."""
    writer_to(config_service).create(store_name)
    options = ("--stop-timeout", "2", "--subscribe-timeout", "60", "--token-file", "off")
    with AgentProcess(tmp_path, nats_url=nats_server.url, options=options) as agent:
        with grpc.insecure_channel(agent.grpc_address) as channel:
            stub = dapr_pb2_grpc.DaprStub(channel)
            running = stub.SubscribeConfiguration(
                configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["one"])
            )
            assert next(running).id
            nats_server.kill()
            waiting = stub.SubscribeConfiguration(
                configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["two"])
            )
            agent.process.signal(signal.SIGTERM)
            for stream in (running, waiting):
                with pytest.raises(grpc.RpcError):
                    next(stream)
        since = time.monotonic()
        assert agent.process.wait(timeout_s=30) == 0
        assert time.monotonic() - since < 15
