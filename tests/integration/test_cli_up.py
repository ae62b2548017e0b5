"""``ringcast up``: it starts, keeps its data, refuses a second, and never leaves a child behind."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from ringcast_testkit import ManagedProcess

from tests.integration.cli_process import Cli

FREE_PORTS = ("--nats-port", 0, "--grpc-port", 0)


class Up:
    """A running ``ringcast up``."""

    def __init__(self, process: ManagedProcess, ready: Path) -> None:
        self.process = process
        process.wait_until(ready.exists)
        self.document: dict[str, Any] = json.loads(ready.read_text())
        self.children = {child.name(): child for child in psutil.Process(process.pid).children()}
        self.ready = ready

    @property
    def settings(self) -> dict[str, str]:
        return {"servers": self.document["nats"], "service": self.document["service"]}

    def output(self) -> str:
        return "".join(self.process.log)


@contextmanager
def _up(cli: Cli, data: Path, *words: object) -> Iterator[Up]:
    ready = data.parent / f"{data.name}-ready.json"
    ready.unlink(missing_ok=True)
    process = cli.start("up", "--data-dir", data, *FREE_PORTS, "--ready-file", ready, *words)
    try:
        yield Up(process, ready)
    finally:
        process.kill()


def _until_gone(children: dict[str, psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(children.values()), timeout=10)
    assert not alive


def test_it_serves_and_the_data_is_there_the_next_time(lone_cli: Cli, tmp_path: Path) -> None:
    with _up(lone_cli, tmp_path / "data", "--json") as up:
        up.process.wait_until(lambda: bool(up.output()))
        assert json.loads(up.output()) == up.document
        assert up.document["pid"] == up.process.pid
        assert up.document["data_dir"] == str(tmp_path / "data")
        inside = Cli(tmp_path, **up.settings)
        inside.ok("store", "create", "s", "--partitions", 4)
        inside.ok("put", "s", "list", "a", "kept")
        assert up.process.terminate() == 0
        assert not up.ready.exists()
        _until_gone(up.children)
    with _up(lone_cli, tmp_path / "data") as up:
        inside = Cli(tmp_path, **up.settings)
        assert inside.ok("get", "s", "list", "a").out == "kept\n"
        # Over NATS too: the worker finds the store's settings and the row.
        assert inside.ok("watch", "s", "list", "--limit", 1, "--json").document["value"] == "kept"
        up.process.wait_until(lambda: f"export RINGCAST_SERVERS={up.document['nats']}" in up.output())
        assert f"RINGCAST_CLUSTER_STORE={up.document['cluster_store']}" in up.output()
        assert "Ringcast is up" in up.output()
        up.process.signal(signal.SIGINT)
        assert up.process.wait() == 0


def test_its_service_is_in_the_cluster(cli: Cli, tmp_path: Path) -> None:
    with _up(cli, tmp_path / "data") as up:
        inside = Cli(tmp_path, cluster_store=up.document["cluster_store"], servers=up.document["nats"])
        found: list[dict[str, Any]] = []
        while not found:  # it registers once it serves
            found = [
                each
                for each in inside.ok("cluster", "list", "--json").documents
                if each["kind"] == "service" and not each["stale"]
            ]
        assert [each["address"] for each in found] == [up.document["service"]]
        inside.ok("store", "create", "s", "--partitions", 4)
        assert up.process.terminate() == 0


def test_it_listens_on_this_machine_only(lone_cli: Cli, tmp_path: Path) -> None:
    with _up(lone_cli, tmp_path / "data") as up:
        sockets = [
            connection.laddr
            for child in up.children.values()
            for connection in child.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert len(sockets) >= 2
        assert {address.ip.removeprefix("::ffff:") for address in sockets} == {"127.0.0.1"}


def test_a_second_one_on_the_same_data_is_refused(lone_cli: Cli, tmp_path: Path) -> None:
    with _up(lone_cli, tmp_path / "data") as up:
        assert lone_cli.refused("up", "--data-dir", tmp_path / "data", *FREE_PORTS) == (
            f"data directory {tmp_path}/data is in use by process {up.process.pid}: "
            "stop that `ringcast up`, or give another --data-dir"
        )
        with _up(lone_cli, tmp_path / "other"):
            pass
        assert all(child.is_running() for child in up.children.values())


@pytest.mark.parametrize(
    ("which", "said"), [("nats-server", "nats-server ended by itself"), ("python", "config service ended by itself")]
)
def test_a_child_that_dies_brings_everything_down(lone_cli: Cli, tmp_path: Path, which: str, said: str) -> None:
    with _up(lone_cli, tmp_path / "data") as up:
        (child,) = [child for name, child in up.children.items() if name.startswith(which)]
        child.kill()
        assert up.process.wait() == 1
        assert f"ringcast: {said} (signal SIGKILL)" in up.output()
        assert "everything was stopped" in up.output()
        assert "Traceback" not in up.output()
        _until_gone(up.children)


def test_no_child_outlives_a_kill_of_the_parent(lone_cli: Cli, tmp_path: Path) -> None:
    with _up(lone_cli, tmp_path / "data") as up:
        Cli(tmp_path, **up.settings).ok("store", "create", "s")
        os.kill(up.process.pid, signal.SIGKILL)
        up.process.wait()
        _until_gone(up.children)
        assert up.ready.exists(), "nobody was left to remove it"
    with _up(lone_cli, tmp_path / "data") as up:
        assert "s" in Cli(tmp_path, **up.settings).ok("store", "list").out


def test_a_signal_while_it_starts(lone_cli: Cli, tmp_path: Path) -> None:
    process = lone_cli.start("up", "--data-dir", tmp_path / "data", *FREE_PORTS)
    try:
        process.wait_until((tmp_path / "data/run/nats.json").exists)
        children = {str(child.pid): child for child in psutil.Process(process.pid).children()}
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        _until_gone(children)
    finally:
        process.kill()


def test_a_stop_that_takes_too_long_is_cut_short_by_a_second_signal(lone_cli: Cli, tmp_path: Path) -> None:
    with _up(lone_cli, tmp_path / "data") as up:
        (service,) = [child for name, child in up.children.items() if name.startswith("python")]
        service.suspend()
        _wait(lambda: service.status() == psutil.STATUS_STOPPED)  # or it may take the next signal first
        up.process.signal(signal.SIGTERM)
        # The service can't react. The signal is taken once NATS is the only thing that still runs freely.
        _wait(lambda: signal.SIGTERM in _pending(service.pid))
        up.process.signal(signal.SIGTERM)
        assert up.process.wait(5) == 0
        _until_gone(up.children)


def _pending(pid: int) -> set[int]:
    """The signals that were sent to a process and not taken yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return {number for number in range(1, 65) for mask in masks if mask >> (number - 1) & 1}


def _wait(ready: Callable[[], bool]) -> None:
    while not ready():
        pass


@pytest.mark.parametrize(("option", "field"), [("--nats-port", "nats_port"), ("--grpc-port", "grpc_port")])
def test_a_port_that_is_taken(lone_cli: Cli, tmp_path: Path, option: str, field: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["--nats-port", 0, "--grpc-port", 0, option, port]
        assert lone_cli.refused("up", "--data-dir", tmp_path / "data", *words) == (
            f"{field} {port} on 127.0.0.1 can't be used: Address already in use; "
            f"give another with {option} (0: any free)"
        )


def test_a_data_directory_that_can_t_be_used(lone_cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert (
        lone_cli.refused("up", "--data-dir", file, *FREE_PORTS) == f"data directory {file} can't be used: File exists"
    )
    words = ("up", "--data-dir", tmp_path / "data", *FREE_PORTS, "--ready-file", tmp_path / "none" / "ready")
    result = lone_cli(*words)
    assert result.code == 1
    assert f"ready file {tmp_path}/none/ready can't be written: No such file or directory" in result.err


def test_a_damaged_database_is_reported_with_the_service_s_own_words(lone_cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "ringcast.db").write_bytes(b"this is no database, and long enough to be told from an empty file" * 100)
    result = lone_cli("up", "--data-dir", data, *FREE_PORTS)
    assert result.code == 1
    assert "config service did not start (exit code 1): " in result.err
    assert "Traceback" not in result.err


def test_bad_options(lone_cli: Cli, tmp_path: Path) -> None:
    assert "nats_port '70000' is out of range: 0 to 65535" in lone_cli.refused("up", "--nats-port", 70000)
    assert "data_dir '' is not a path" in lone_cli.refused("up", "--data-dir", "")
    assert lone_cli("up", "--start-timeout", "0").code == 2
