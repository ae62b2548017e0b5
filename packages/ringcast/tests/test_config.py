"""Settings of a worker: arguments over environment over file over defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from ringcast import InvalidInputError, LimitExceededError, Mode, Worker, WorkerConfig
from ringcast._common.config import WorkerSettings

GIVEN = {"store": "s", "keys": ["k"]}


def test_defaults() -> None:
    config = WorkerConfig.resolve(GIVEN, {})
    assert config.servers == ("nats://127.0.0.1:4222",)
    assert config.worker_id
    assert config.name == f"ringcast-worker-{config.worker_id}"


def test_every_setting_is_an_argument_of_a_worker() -> None:
    assert set(WorkerSettings.__annotations__) == set(WorkerConfig.__struct_fields__)
    given: WorkerSettings = {"store": "s", "keys": "k, l", "handler_tries": 5}
    assert (Worker(**given).config.keys, Worker(**given).config.handler_tries) == (("k", "l"), 5)


def test_a_worker_can_be_given_a_whole_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = WorkerConfig.resolve({**GIVEN, "worker_id": "one", "window_s": 0.25, "password": "p", "user": "u"}, {})
    monkeypatch.setenv("RINGCAST_WINDOW_S", "3")
    assert Worker(config).config == config
    other = Worker(config, worker_id="two", heads_s=1.0, window_s=None).config
    assert (other.worker_id, other.name, other.heads_s, other.window_s) == ("two", "ringcast-worker-two", 1.0, 0.25)
    assert (other.store, other.password) == ("s", "p")
    with pytest.raises(InvalidInputError, match="heads_s"):
        Worker(config, heads_s=0.0)


def test_an_argument_that_is_no_setting_is_named() -> None:
    with pytest.raises(InvalidInputError, match="stoer"):
        Worker(stoer="s", keys=["k"])  # type: ignore[call-arg]


def test_two_workers_of_a_process_get_ids_of_their_own() -> None:
    assert WorkerConfig.resolve(GIVEN, {}).worker_id != WorkerConfig.resolve(GIVEN, {}).worker_id


def test_arguments_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('[worker]\nstore = "file"\nkeys = ["f"]\nwindow_s = 0.5\nsettle_s = 0.5\nheads_s = 5.0\n')
    environ = {
        "RINGCAST_CONFIG_FILE": str(file),
        "RINGCAST_KEYS": "a, b",
        "RINGCAST_SERVERS": "nats://one:4222,nats://two:4222",
        "RINGCAST_WINDOW_S": "0.25",
        "RINGCAST_SETTLE_S": "0.25",
        "RINGCAST_MODE": "FULL",
        "RINGCAST_PARTITION_COUNT": "16",
    }
    config = WorkerConfig.resolve({"window_s": 0.125, "worker_id": None}, environ)
    assert (config.window_s, config.settle_s, config.heads_s) == (0.125, 0.25, 5.0)
    assert (config.store, config.keys) == ("file", ("a", "b"))
    assert config.servers == ("nats://one:4222", "nats://two:4222")
    assert (config.mode, config.partition_count) == (Mode.FULL, 16)


def test_the_cache_directory_can_come_from_the_environment_or_be_a_path(tmp_path: Path) -> None:
    environ = {"RINGCAST_CACHE_DIR": "/somewhere", "RINGCAST_WORKER_ID": "w"}
    assert WorkerConfig.resolve(GIVEN, environ).cache_dir == "/somewhere"
    assert WorkerConfig.resolve({**GIVEN, "cache_dir": tmp_path}, environ).cache_dir == str(tmp_path)
    assert WorkerConfig.resolve({**GIVEN, "cache_dir": ""}, environ).cache_dir == ""


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RINGCAST_WINDOW_S": "soon"}, "window_s"),
        ({"RINGCAST_PARTITION_COUNT": "4097"}, "4096"),
        ({"RINGCAST_HANDLER_TRIES": "0"}, "handler_tries 0 is out of range: 1 to 100"),
        ({"RINGCAST_AGENT": "leases.sock"}, "agent 'leases.sock' of 11 bytes is not the path of a socket"),
        ({"RINGCAST_AGENT": "/" + "x" * 107}, "it must be absolute, of at most 107 bytes"),
        ({"RINGCAST_CONFIG_FILE": "/does/not/exist.toml"}, "RINGCAST_CONFIG_FILE"),
        ({"RINGCAST_LABELS": "site"}, "labels 'site' is not a label: name=value is"),
        ({"RINGCAST_LABELS": "a=b,a=c"}, "labels has the name 'a' twice"),
    ],
)
def test_a_bad_setting_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        WorkerConfig.resolve(GIVEN, environ)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["worker = 3", "[worker]\nunknown = 1", "[worker"])
def test_a_bad_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(text)
    with pytest.raises(InvalidInputError):
        WorkerConfig.resolve(GIVEN, {"RINGCAST_CONFIG_FILE": str(file)})


def test_labels_come_from_argument_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('[worker]\nlabels = ["site=file"]\n')
    environ = {"RINGCAST_CONFIG_FILE": str(file)}
    assert WorkerConfig.resolve(GIVEN, {}).labels == ()
    assert WorkerConfig.resolve(GIVEN, environ).labels == ("site=file",)
    environ["RINGCAST_LABELS"] = "site=test, rack=r2"
    assert WorkerConfig.resolve(GIVEN, environ).labels == ("rack=r2", "site=test")
    assert WorkerConfig.resolve({**GIVEN, "labels": ["a=b"]}, environ).labels == ("a=b",)
    assert WorkerConfig.resolve({**GIVEN, "labels": ()}, environ).labels == ()


def test_the_agent_is_a_socket() -> None:
    environ = {"RINGCAST_AGENT": "/run/ringcast-agent/leases.sock"}
    assert WorkerConfig.resolve(GIVEN, environ).agent == "/run/ringcast-agent/leases.sock"
    assert WorkerConfig.resolve({**GIVEN, "agent": ""}, environ).agent == ""
    assert WorkerConfig.resolve({**GIVEN, "agent": Path("/s")}, environ).agent == "/s"


def test_a_hundred_keys_and_no_more() -> None:
    assert WorkerConfig.resolve({"store": "s", "keys": [f"k{n}" for n in range(100)]}, {}).keys[99] == "k99"
    with pytest.raises(LimitExceededError, match="101 entries: at most 100"):
        WorkerConfig.resolve({"store": "s", "keys": [f"k{n}" for n in range(101)]}, {})


def test_eight_labels_and_no_more() -> None:
    labels = [f"n{number}=v" for number in range(9)]
    assert len(WorkerConfig.resolve({**GIVEN, "labels": labels[:8]}, {}).labels) == 8
    with pytest.raises(LimitExceededError, match="labels has 9 entries: at most 8 are allowed"):
        WorkerConfig.resolve({**GIVEN, "labels": labels}, {})
