"""The settings of one instance, resolved once at start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ringcast_service import ConfigError
from ringcast_wire import InvalidInputError, NatsLogin
from ringcast_wire.prometheus import OFF, parse_listen

from ringcast_config_service.grpc.connections import ConnectionSettings
from ringcast_config_service.nats.streams import StreamSizes
from ringcast_config_service.repository.base import DEFAULT_LOCK_TIMEOUT_MS, DEFAULT_WRITE_CONNECTIONS
from ringcast_config_service.security import Security

_ADDRESS = re.compile(r"(?P<host>[^:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", re.ASCII)

_TIMES_S = (
    "start_timeout_s",
    "stop_timeout_s",
    "change_stream_s",
    "list_snapshot_s",
    "compaction_interval_s",
    "relay_poll_s",
    "provision_interval_s",
)
_RETENTIONS_MS = (
    "tombstone_retention_ms",
    "history_retention_ms",
    "deletion_retention_ms",
    "idempotency_retention_ms",
)
_COUNTS = {
    "write_connections": (1, 64),
    "nats_replicas": (1, 5),
    "fetches": (1, 1_024),
    "waiting_fetches": (1, 65_536),
    "relay_batch": (1, 10_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One instance. Times are in the unit that the name gives; counts are upper bounds."""

    nats: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    database: str
    listen: str = "127.0.0.1:7420"
    metrics_listen: str = OFF
    """Where Prometheus finds the metrics; the command turns it on by default."""
    ready_file: Path | None = None
    log_level: str = "info"
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 10.0
    change_stream_s: float = 60.0
    """How long a stream of changes or of batches lasts: by then a withdrawn token counts."""
    list_snapshot_s: float = 30.0
    """How long a list is read from one snapshot, which keeps the database from tidying up; it goes on in another."""
    tombstone_retention_ms: int = 24 * 3_600_000
    history_retention_ms: int = 7 * 86_400_000
    deletion_retention_ms: int = 7 * 86_400_000
    """How long a deleted store or key can be restored."""
    idempotency_retention_ms: int = 24 * 3_600_000
    """How long a repeat of a write with an idempotency key is known as one."""
    compaction_interval_s: float = 600.0
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS
    """How long a write waits for a lock that another instance, or an operator, holds in PostgreSQL."""
    write_connections: int = DEFAULT_WRITE_CONNECTIONS
    """Transactions of writes that PostgreSQL has from this instance at once."""
    nats_replicas: int = 1
    streams: StreamSizes = field(default_factory=StreamSizes)
    nats_login: NatsLogin = field(default_factory=NatsLogin)
    security: Security = field(default_factory=Security)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    fetches: int = 32
    """Fetches of workers that are answered at once."""
    waiting_fetches: int = 1_024
    """Fetches that wait for their turn; one more is refused."""
    relay_poll_s: float = 0.25
    """How often the relay looks for events of other instances that nobody has published."""
    relay_batch: int = 1_000
    """Events that the relay reads from the database at once."""
    provision_interval_s: float = 30.0
    """How often streams and buckets are compared with the stores, and mended."""

    def __post_init__(self) -> None:
        match = _ADDRESS.fullmatch(self.listen)
        if match is None or int(match["port"]) > 65_535:
            raise ConfigError(f"listen {self.listen!r} is not an address: host:port is, with a port of 0 to 65535")
        if self.metrics_listen != OFF:
            try:
                parse_listen(self.metrics_listen)
            except InvalidInputError as error:
                raise ConfigError(str(error)) from error
        if self.deletion_retention_ms > 3_650 * 86_400_000:
            raise ConfigError(f"deletion_retention_ms is {self.deletion_retention_ms}: at most 3650 d are possible")
        for name in _RETENTIONS_MS:
            if getattr(self, name) < 1_000:
                raise ConfigError(f"{name} is {getattr(self, name)}: at least 1000 ms are needed")
        if not 1 <= self.lock_timeout_ms <= 3_600_000:
            raise ConfigError(f"lock_timeout_ms is {self.lock_timeout_ms}: 1 ms to 1 h are possible")
        for name, (least, most) in _COUNTS.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}: {least} to {most} are possible")
        if problem := self.streams.problem():
            raise ConfigError(problem)
        if not self.nats:
            raise ConfigError("nats is empty: one server address or more is needed")
        try:
            self.nats_login.check_login()
        except InvalidInputError as error:
            raise ConfigError(f"nats: {error}") from error
        self.security.check()
        self.connections.check()
        for name in _TIMES_S:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")
