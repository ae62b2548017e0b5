"""The config service as its own process, the way a user runs it who has installed nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar, Final

import grpc

from ringcast_testkit._ports import ReservedPort
from ringcast_testkit._process import ManagedProcess, ManagedServer
from ringcast_testkit._warm import WarmProgram

_TRY_AGAIN: Final = {
    "name": [{"service": "ringcast.config.v1.ConfigService", "method": "CreateStore"}],
    "retryPolicy": {
        "maxAttempts": 5,
        "initialBackoff": "0.5s",
        "maxBackoff": "5s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    },
}


class ConfigServiceProcess(ManagedServer):
    """One instance. ``database`` is ``sqlite:PATH`` or a PostgreSQL URL, by default ``ringcast.db`` in ``directory``;
    ``options`` are further command-line words."""

    program: ClassVar = WarmProgram(
        "ringcast_config_service",
        (
            "ringcast_config_service.__main__",
            "ringcast_config_service.repository.sqlite.repository",
            "ringcast_config_service.repository.postgres.repository",
            "encodings.idna",
        ),
    )
    """What an instance runs."""

    def __init__(self, directory: Path, *, nats_url: str, database: str = "", options: tuple[str, ...] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        database = database or f"sqlite:{directory / 'ringcast.db'}"
        self._ready_file = directory / f"config-service-{os.getpid()}-{id(self):x}.json"
        self._grpc, self._metrics = ReservedPort(), ReservedPort()
        self._words = ["--nats", nats_url, "--database", database, "--ready-file", str(self._ready_file), *options]

    @property
    def address(self) -> str:
        """``127.0.0.1:<port>`` of the gRPC API; it stays the same over restarts."""
        return self._grpc.address

    def channel(self) -> grpc.Channel:
        """A channel to it. As users do, it tries again to make a store for which NATS was too busy."""
        config = json.dumps({"methodConfig": [_TRY_AGAIN]})
        return grpc.insecure_channel(self.address, options=[("grpc.service_config", config)])

    @property
    def metrics_url(self) -> str:
        """Where its metrics are."""
        return f"http://{self._metrics.address}/metrics"

    def start(self) -> None:
        """Starts the instance and returns once it serves."""
        self._ready_file.unlink(missing_ok=True)
        listen = ["--listen", self._grpc.address, "--metrics-listen", self._metrics.address]
        process = ManagedProcess("config-service", [*listen, *self._words], env=self.env, program=self.program)
        self._process = process
        process.wait_until(self._ready_file.exists)
