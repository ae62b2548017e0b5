"""A whole system of its own: NATS, a database and the config service, each a process, gone when it is left."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringcast_testkit import ConfigServiceProcess, NatsServer, PostgresServer

_MONITOR = re.compile(r"Starting http monitor on (127\.0\.0\.1:\d+)")
DATABASES = ("sqlite", "postgresql")


@dataclass(frozen=True, slots=True)
class System:
    """Where to reach it, and the processes that it consists of."""

    nats: NatsServer
    service: ConfigServiceProcess
    postgres: PostgresServer | None = None

    def monitored(self, what: str) -> dict[str, Any]:
        """What the broker's monitoring answers to a path."""
        log = list(self.nats.process.log)
        address = next(match[1] for line in log if (match := _MONITOR.search(line)))
        with urllib.request.urlopen(f"http://{address}/{what}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def pids(self) -> dict[str, list[int]]:
        """By what they are."""
        found = {"nats-server": [self.nats.process.pid], "config service": [self.service.process.pid]}
        if self.postgres is not None:
            pid = self.postgres.server.get_pid()
            assert pid is not None
            found["postgresql"] = [pid]
        return found


@contextmanager
def running(directory: Path, database: str = "sqlite") -> Iterator[System]:
    """A system with nothing in it, its data below ``directory``."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer()) if database == "postgresql" else None
        url = postgres.create_database() if postgres is not None else f"sqlite:{directory / 'ringcast.db'}"
        # The monitoring port is for counting messages; nobody asks it while something is timed.
        nats = stack.enter_context(NatsServer(directory / "nats", http="127.0.0.1:-1"))
        service = stack.enter_context(ConfigServiceProcess(directory, nats_url=nats.url, database=url))
        yield System(nats, service, postgres)
