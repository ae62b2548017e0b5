"""The settings of one instance, resolved once at start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ringcast_service import LOG_LEVELS, ConfigError, duration_ms, duration_s, required, setting
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

    nats: tuple[str, ...] = setting(("nats://127.0.0.1:4222",), "NATS servers, commas between.")
    database: str = required("sqlite:PATH, or postgresql://… for PostgreSQL and CockroachDB.")
    listen: str = setting("127.0.0.1:7420", "gRPC address; port 0 takes a free one.")
    metrics_listen: str = setting(
        OFF, "Where Prometheus finds the metrics, at /metrics; off: nowhere.", default_of_command="127.0.0.1:7421"
    )
    ready_file: Path | None = setting(None, "Written once everything serves: JSON with grpc, metrics and pid.")
    log_level: str = setting("info", f"How much is logged: {', '.join(LOG_LEVELS)}.", choices=LOG_LEVELS)
    start_timeout_s: float = setting(30.0, "Seconds to wait for NATS and the database.")
    stop_timeout_s: float = setting(10.0, "Seconds that each phase of stopping may take.")
    change_stream_s: float = duration_s(
        "60s", "How long a stream of changes or of batches lasts at most: by then a withdrawn token counts."
    )
    list_snapshot_s: float = duration_s(
        "30s",
        "How long a list is read from one snapshot, which keeps the database from tidying up; it goes on in another.",
    )
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    tombstone_retention_ms: int = duration_ms("24h", "How long deletes can be caught up with.")
    history_retention_ms: int = duration_ms("7d", "How long old revisions are kept.")
    deletion_retention_ms: int = duration_ms(
        "7d", "How long a deleted store or key can be restored; then it is purged."
    )
    idempotency_retention_ms: int = duration_ms(
        "24h", "How long a repeat of a write with an idempotency key is known as one."
    )
    compaction_interval_s: float = duration_s("10m", "How often these are looked at.")
    lock_timeout_ms: int = duration_ms(
        f"{DEFAULT_LOCK_TIMEOUT_MS // 1000}s",
        "How long a write waits in PostgreSQL for a lock that another transaction holds.",
    )
    write_connections: int = setting(
        DEFAULT_WRITE_CONNECTIONS, "Transactions of writes that run at once in PostgreSQL."
    )
    fetches: int = setting(32, "Fetches of workers that are answered at once.")
    waiting_fetches: int = setting(1_024, "Fetches that may wait for their turn; more are refused as UNAVAILABLE.")
    relay_poll_s: float = duration_s(
        "250ms", "How often events that no instance has published are looked for in the database."
    )
    relay_batch: int = setting(1_000, "Events that are read from the database at once then.")
    provision_interval_s: float = duration_s(
        "30s", "How often streams and buckets are compared with the stores, and mended."
    )
    security: Security = field(default_factory=Security)
    nats_replicas: int = setting(1, "Copies of each stream and bucket in a NATS cluster.")
    streams: StreamSizes = field(default_factory=StreamSizes)
    nats_login: NatsLogin = field(default_factory=NatsLogin)

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
