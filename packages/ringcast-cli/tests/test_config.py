"""Settings: which source wins, and what each refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from ringcast_cli._common.config import resolve
from ringcast_wire import InvalidInputError


def _env(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), **variables}


def test_defaults(tmp_path: Path) -> None:
    config = resolve({}, _env(tmp_path))
    assert config.servers == ("nats://127.0.0.1:4222",)
    assert config.service == "127.0.0.1:7420"
    assert config.data_dir == tmp_path / ".local/share/ringcast"
    assert (config.nats_port, config.grpc_port, config.timeout_s, config.json) == (4222, 7420, 10.0, False)


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / ".config/ringcast/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('service = "file:1"\ntimeout_s = 3\nworker_id = "from-file"\n')
    env = _env(tmp_path, RINGCAST_SERVICE="env:2", RINGCAST_TIMEOUT_S="4")
    config = resolve({"service": "flag:3"}, env)
    assert (config.service, config.timeout_s, config.worker_id) == ("flag:3", 4.0, "from-file")
    assert resolve({}, env).service == "env:2"
    assert resolve({}, _env(tmp_path)).service == "file:1"


def test_a_service_is_found_in_the_cluster_unless_one_is_given(tmp_path: Path) -> None:
    cluster = {"RINGCAST_CLUSTER_STORE": "nats://h:4222/config_cluster"}
    assert resolve({}, _env(tmp_path, **cluster)).service == ""
    assert resolve({"service": "h:1"}, _env(tmp_path, **cluster)).service == "h:1"
    assert resolve({}, _env(tmp_path, **cluster, RINGCAST_SERVICE="127.0.0.1:7420")).service == "127.0.0.1:7420"
    file = tmp_path / "c.toml"
    file.write_text('service = "file:1"\n')
    assert resolve({"config_file": str(file)}, _env(tmp_path, **cluster)).service == "file:1"
    with pytest.raises(InvalidInputError, match="service '' is not an address"):
        resolve({"service": ""}, _env(tmp_path, **cluster))


def test_the_file_may_be_named_by_flag_or_environment(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("nats_port = 1\n")
    second.write_text("nats_port = 2\n")
    env = _env(tmp_path, RINGCAST_CLI_CONFIG_FILE=str(first))
    assert resolve({}, env).nats_port == 1
    assert resolve({"config_file": str(second)}, env).nats_port == 2


def test_servers_may_be_a_list_or_have_commas(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('servers = ["nats://a:1", "tls://b:2"]\n')
    assert resolve({"config_file": str(file)}, _env(tmp_path)).servers == ("nats://a:1", "tls://b:2")
    assert resolve({"servers": "nats://a:1, nats://c:3"}, _env(tmp_path)).servers == ("nats://a:1", "nats://c:3")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RINGCAST_SERVICE", "nowhere", "service 'nowhere' is not an address"),
        ("RINGCAST_SERVICE", "host:70000", "service 'host:70000' is not an address"),
        ("RINGCAST_SERVICE", "a:1,http://b:1", "service 'http://b:1' is not an address"),
        ("RINGCAST_SERVICE", "fe80::1:7420", "service 'fe80::1:7420' is not an address"),
        ("RINGCAST_SERVICE", "u:hunter2@b:1", "service 'b:1' is not an address"),
        ("RINGCAST_AGENT_URL", "127.0.0.1:3500", "agent_url '127.0.0.1:3500' is not an address like http://"),
        ("RINGCAST_SERVERS", "localhost:4222", "servers 'localhost:4222' is not a NATS address"),
        ("RINGCAST_SERVERS", " , ", "servers has 0 addresses: 1 to 64 are allowed"),
        ("RINGCAST_TIMEOUT_S", "soon", "timeout_s 'soon' is out of range"),
        ("RINGCAST_REASON", "two\nlines", "not printable"),
        ("RINGCAST_TIMEOUT_S", "0", "timeout_s '0' is out of range"),
        ("RINGCAST_TIMEOUT_S", "nan", "timeout_s 'nan' is out of range"),
        ("RINGCAST_NATS_PORT", "65536", "nats_port '65536' is out of range: 0 to 65535"),
        ("RINGCAST_GRPC_PORT", "-1", "grpc_port '-1' is out of range"),
        ("RINGCAST_JSON", "perhaps", "json 'perhaps' is neither true nor false"),
        ("RINGCAST_WORKER_ID", "no spaces", "worker_id 'no spaces' is not a valid name"),
    ],
)
def test_a_bad_variable_is_named_with_its_value(tmp_path: Path, name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        resolve({}, _env(tmp_path, **{name: value}))
    assert said in str(caught.value)
    assert f"environment variable {name}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timeout_s = true\n", "timeout_s True is out of range"),
        ("servers = 5\n", "servers 5 is not a list of addresses"),
        ("data_dir = 7\n", "data_dir 7 is not a path"),
        ("tiemout_s = 3\n", "unknown setting 'tiemout_s': known are servers, service"),
        ("service = \n", "is not valid TOML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        resolve({"config_file": str(file)}, _env(tmp_path))
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_named_file_that_is_missing_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not exist"):
        resolve({"config_file": str(tmp_path / "none.toml")}, _env(tmp_path))
    with pytest.raises(InvalidInputError, match="can't be read: Is a directory"):
        resolve({"config_file": str(tmp_path)}, _env(tmp_path))
    huge = tmp_path / "huge.toml"
    huge.write_text("#" * 70_000)
    with pytest.raises(InvalidInputError, match="is larger than 65536 bytes"):
        resolve({"config_file": str(huge)}, _env(tmp_path))
