"""The settings of one instance, resolved once at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ringcast_service import (
    LOG_LEVELS,
    ConfigError,
    above,
    at_least,
    between,
    check_ranges,
    duration_ms,
    duration_s,
    log_format_setting,
    required,
    setting,
)
from ringcast_service.cluster import ClusterSettings
from ringcast_wire import InvalidInputError, NatsLogin
from ringcast_wire.addresses import check_address
from ringcast_wire.prometheus import OFF, parse_listen

from ringcast_config_service.callout.settings import CalloutSettings
from ringcast_config_service.external_check.settings import ExternalCheckSettings
from ringcast_config_service.grpc.connections import ConnectionSettings
from ringcast_config_service.nats.streams import StreamSizes
from ringcast_config_service.oidc.settings import OidcSettings
from ringcast_config_service.promql.settings import PromqlSettings
from ringcast_config_service.repository.base import DEFAULT_LOCK_TIMEOUT_MS, DEFAULT_WRITE_CONNECTIONS
from ringcast_config_service.repository.lead import MAX_LEASE_MS
from ringcast_config_service.security import Security

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One instance. Times are in the unit that the name gives; counts are upper bounds."""

    nats: tuple[str, ...] = setting(("nats://127.0.0.1:4222",), "NATS servers, commas between.")
    database: str = required("sqlite:PATH, or postgresql://… for PostgreSQL and CockroachDB.")
    listen: str = setting("127.0.0.1:7420", "gRPC address; port 0 takes a free one.")
    metrics_listen: str = setting(
        OFF, "Address that serves metrics for Prometheus at /metrics; off: none.", default_of_command="127.0.0.1:7421"
    )
    ready_file: Path | None = setting(None, "Written once everything serves: JSON with grpc, metrics and pid.")
    log_level: str = setting("info", f"How much is logged: {', '.join(LOG_LEVELS)}.", choices=LOG_LEVELS)
    log_format: str = log_format_setting()
    start_timeout_s: float = setting(30.0, "Seconds to wait for NATS and the database.", allowed=above(0))
    stop_timeout_s: float = setting(10.0, "Seconds that each phase of stopping may take.", allowed=above(0))
    drain_grace_s: float = duration_s(
        "30s",
        "How long lists that are being sent may take once this instance drains; then they are ended.",
        allowed=between(0, 3_600),
    )
    change_stream_s: float = duration_s(
        "60s",
        "Longest life of a stream of changes or batches, which its client then opens again.",
        allowed=above(0),
    )
    list_snapshot_s: float = duration_s(
        "30s",
        "How long a list is read from one snapshot, before the next one. The database keeps old versions meanwhile.",
        allowed=above(0),
    )
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    tombstone_retention_ms: int = duration_ms(
        "24h", "How long tombstones are kept, so that workers can catch up with deletes.", allowed=at_least(1_000)
    )
    history_retention_ms: int = duration_ms("7d", "How long old revisions are kept.", allowed=at_least(1_000))
    deletion_retention_ms: int = duration_ms(
        "7d",
        "How long a deleted store or key can be restored; then it is purged.",
        allowed=between(1_000, 3_650 * _DAY_MS),
    )
    staged_retention_ms: int = duration_ms(
        "7d",
        "How long a release may stay staged; then it is dropped.",
        allowed=between(60_000, 3_650 * _DAY_MS),
    )
    release_retention_ms: int = duration_ms(
        "7d",
        "How long a published release can be undone: what it replaced is kept for so long.",
        allowed=between(60_000, 3_650 * _DAY_MS),
    )
    audit_retention_ms: int = duration_ms(
        "365d", "How long entries of the audit log are kept.", allowed=between(60_000, 3_650 * _DAY_MS)
    )
    idempotency_retention_ms: int = duration_ms(
        "24h", "How long an idempotency key is remembered.", allowed=at_least(1_000)
    )
    compaction_interval_s: float = duration_s("10m", "How often data past its retention is removed.", allowed=above(0))
    maintenance_lease_ms: int = duration_ms(
        "15s",
        "How long an instance that does not answer leads maintenance, before another takes over.",
        allowed=between(1_000, MAX_LEASE_MS),
    )
    lock_timeout_ms: int = duration_ms(
        f"{DEFAULT_LOCK_TIMEOUT_MS // 1000}s",
        "How long a write waits in PostgreSQL for a lock that another transaction holds.",
        allowed=between(1, 3_600_000),
    )
    write_connections: int = setting(
        DEFAULT_WRITE_CONNECTIONS, "Transactions of writes that run at once in PostgreSQL.", allowed=between(1, 64)
    )
    fetches: int = setting(32, "Fetches of workers that are answered at once.", allowed=between(1, 1_024))
    waiting_fetches: int = setting(
        1_024, "Fetches that may wait for their turn; more are refused as UNAVAILABLE.", allowed=between(1, 65_536)
    )
    relay_poll_s: float = duration_s(
        "250ms", "How often the database is searched for events that no instance has published.", allowed=above(0)
    )
    relay_batch: int = setting(1_000, "Events that one such search reads at most.", allowed=between(1, 10_000))
    provision_interval_s: float = duration_s(
        "30s", "How often streams and buckets are compared with the stores, and repaired.", allowed=above(0)
    )
    security: Security = field(default_factory=Security)
    oidc: OidcSettings = field(default_factory=OidcSettings)
    promql: PromqlSettings = field(default_factory=PromqlSettings)
    external_check: ExternalCheckSettings = field(default_factory=ExternalCheckSettings)
    callout: CalloutSettings = field(default_factory=CalloutSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    nats_replicas: int = setting(1, "Copies of each stream and bucket in a NATS cluster.", allowed=between(1, 5))
    streams: StreamSizes = field(default_factory=StreamSizes)
    nats_login: NatsLogin = field(default_factory=NatsLogin)

    def __post_init__(self) -> None:
        try:
            check_address(self.listen, "listen", min_port=0)
            if self.metrics_listen != OFF:
                parse_listen(self.metrics_listen)
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error
        check_ranges(self)
        if not self.nats:
            raise ConfigError("nats is empty: one server address or more is needed")
        try:
            self.nats_login.check_login()
        except InvalidInputError as error:
            raise ConfigError(f"nats: {error}") from error
        self.security.check()
        self.oidc.check(uses_tls=self.security.uses_tls)
        self.promql.endpoint.check()
        self.external_check.endpoint.check()
        self.callout.check()
        self.cluster.check()
