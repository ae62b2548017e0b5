"""The settings of an agent, resolved once at start."""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import socket
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from ringcast import PoisonPolicy
from ringcast_core import MAX_CONSUMERS, MAX_DISPATCH_WINDOW, KeyFilter
from ringcast_service import (
    LOG_LEVELS,
    ConfigError,
    above,
    at_least,
    between,
    check_ranges,
    log_format_setting,
    setting,
)
from ringcast_service.cluster import ClusterSettings
from ringcast_wire import InvalidInputError, NatsLogin, limits, names, shown
from ringcast_wire.addresses import check_address
from ringcast_wire.prometheus import OFF, parse_listen

MAX_URL = 2_048
ANY_PORT = "*"
ANY_ADDRESS = re.compile(r"(?P<address>https?://[^/]+):\*/?", re.ASCII)
PREFIX = "RINGCAST_AGENT"
POLICIES = tuple(policy.value for policy in PoisonPolicy)
VERSION = version("ringcast-heartbeat-agent")
_MAX_DISPATCH_S = 86_400.0
_MAX_DELIVERIES = 1_000
_MAX_WORKERS = 4_096
_MODE = re.compile(r"0?[67][0-7][0-7]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One agent. Times are in the unit that the name gives; counts are upper bounds.

    Its workers are ``<agent_id>-<store>-<config key>``.
    """

    nats: tuple[str, ...] = setting(("nats://127.0.0.1:4222",), "NATS servers, commas between.")
    agent_id: str = setting("", "Name of this agent; empty: made from host name and process id.", flag="id")
    grpc_listen: str = setting("127.0.0.1:50001", "Dapr's API over gRPC; port 0 takes a free one.")
    http_listen: str = setting("127.0.0.1:3500", "Dapr's API over HTTP.")
    metrics_listen: str = setting(
        OFF, "Address that serves metrics for Prometheus at /metrics; off: none.", default_of_command="127.0.0.1:7423"
    )
    api_token: str = setting(
        "",
        "Token that callers must send as dapr-api-token; empty: that of the token file. Set it in the environment.",
        variables=(f"{PREFIX}_API_TOKEN", "DAPR_API_TOKEN"),
        secret=True,
    )
    token_file: str = setting(
        OFF,
        "File of that token, made at the first start; empty: beside the lease socket, or in the agent's or "
        "user's directory; off: callers need no token.",
        default_of_command="",
        metavar="PATH",
    )
    trusted_users: tuple[str, ...] = setting(
        (), "Users of this host, by name or number with commas between, whose processes need no token."
    )
    app_url: str = setting("", "Address of the callbacks of HTTP subscriptions that name none.")
    app_token: str = setting(
        "",
        "Token that callbacks carry as dapr-api-token. Set it in the environment.",
        variables=(f"{PREFIX}_APP_TOKEN", "APP_API_TOKEN"),
        secret=True,
    )
    callback_addresses: tuple[str, ...] = setting(
        (), "Further addresses that callbacks may go to, commas between: http://127.0.0.1:8080, or with * for any port."
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), "Host names besides localhost that HTTP requests may be sent to, commas between."
    )
    groups: tuple[str, ...] = setting(("*",), "Groups that may be joined, as patterns with commas between.")
    client_share: float = setting(
        0.5,
        "Part of the subscriptions, keys, consumers and registrations that one user of the host may have.",
        allowed=above(0, 1),
    )
    ready_file: Path | None = setting(
        None, "Written once everything serves: JSON with grpc, http, metrics, agent_id and pid."
    )
    log_level: str = setting("info", f"How much is logged: {', '.join(LOG_LEVELS)}.", choices=LOG_LEVELS)
    log_format: str = log_format_setting()
    start_timeout_s: float = setting(30.0, "Seconds to wait for NATS.", allowed=above(0))
    stop_timeout_s: float = setting(10.0, "Seconds that each phase of stopping may take.", allowed=above(0))
    subscribe_timeout_s: float = setting(
        10.0,
        "Seconds that a consumer may take to begin. A key that takes longer to load counts as stale.",
        allowed=above(0),
    )
    stale_after_s: float = setting(
        30.0,
        "Seconds of staleness after which the agent logs it and refuses new consumers.",
        allowed=above(0),
    )
    linger_s: float = setting(
        30.0,
        "Seconds to follow a key for after its last subscription: a client that comes back causes no rebalance.",
        allowed=at_least(0),
    )
    relist_s: float = setting(10.0, "Seconds between two searches for new keys of a store.", allowed=above(0))
    callback_timeout_s: float = setting(10.0, "Seconds that one callback may take.", allowed=above(0))
    callback_patience_s: float = setting(
        60.0, "Seconds after which an application that can't be reached loses its subscription.", allowed=above(0)
    )
    max_subscriptions: int = setting(1_000, "Subscriptions at once.", allowed=above(0))
    max_keys: int = setting(
        100,
        "Config keys followed at once. Each takes a worker, or two where it has groups and other subscribers.",
        allowed=above(0),
    )
    queue_items: int = setting(
        10_000, "Updates that may wait for one subscription; it reads further updates later.", allowed=above(0)
    )
    queue_bytes: int = setting(
        16 * limits.MIB, "Size in bytes of the updates that may wait for one subscription.", allowed=above(0)
    )
    reads: int = setting(8, "Reads under way at once; further reads wait.", allowed=above(0))
    waiting_reads: int = setting(1_024, "Reads that may wait; further reads are refused.", allowed=above(0))
    max_response_bytes: int = setting(
        4 * limits.MIB,
        "Largest answer in bytes; gRPC clients refuse larger ones by default.",
        allowed=above(0),
    )
    max_consumers: int = setting(200, "Consumers of all groups at once.", allowed=between(1, MAX_CONSUMERS))
    window: int = setting(
        10_000,
        "Messages of one group that may be unsettled; further changes wait, one a row.",
        allowed=between(1, MAX_DISPATCH_WINDOW),
    )
    window_bytes: int = setting(
        64 * limits.MIB, "Size of those messages in bytes; one message always fits.", allowed=above(0)
    )
    max_behind: int = setting(
        1_000_000,
        "Changed rows of a group that may wait for a place in the window, or for a consumer that is away.",
        allowed=above(0),
    )
    consumer_capacity: int = setting(
        1_000,
        "Deliveries that a consumer may have unanswered, if it does not say.",
        allowed=between(1, MAX_DISPATCH_WINDOW),
    )
    ack_timeout_s: float = setting(
        30.0, "Seconds that a consumer may take to answer a delivery.", allowed=between(0.001, _MAX_DISPATCH_S)
    )
    max_tries: int = setting(
        5, "Failed or unanswered deliveries of a message after which it is poison.", allowed=between(1, _MAX_DELIVERIES)
    )
    max_deliveries: int = setting(
        20, "Deliveries of a message, lost ones too, after which it is poison.", allowed=between(1, _MAX_DELIVERIES)
    )
    retry_first_s: float = setting(
        1.0,
        "Seconds until the second try; each further pause is twice as long.",
        allowed=between(0.001, _MAX_DISPATCH_S),
    )
    retry_most_s: float = setting(
        30.0, "Longest pause between two tries, in seconds.", allowed=between(0.001, _MAX_DISPATCH_S)
    )
    poison_policy: PoisonPolicy = setting(
        PoisonPolicy.DROP,
        f"Poison policy of groups whose first consumer names none: {', '.join(POLICIES)}.",
    )
    evict_after_s: float = setting(
        3.0, "Seconds of silence until a consumer is evicted.", allowed=between(0.001, _MAX_DISPATCH_S)
    )
    orphan_hold_s: float = setting(
        30.0,
        "Seconds that a delivered message waits for a consumer when its own is gone and no other wants it.",
        allowed=between(0.001, _MAX_DISPATCH_S),
    )
    drain_timeout_s: float = setting(
        10.0, "Seconds to wait for answers to what is in flight when stopping.", allowed=at_least(0)
    )
    lease_socket: str = setting(
        "", "Where workers of this host register, so that the agent keeps their leases; empty: nowhere.", metavar="PATH"
    )
    lease_mode: str = setting("0660", "Mode of the lease socket, in octal: which users may connect.")
    lease_group: str = setting("", "Group of the lease socket; empty: the agent's.")
    max_workers: int = setting(256, "Workers that may register.", allowed=between(1, _MAX_WORKERS))
    cache_dir: str = setting(
        "",
        "Directory of cached rows, used while NATS is down, and of the progress of groups; needs an id; empty: none.",
        metavar="DIR",
    )
    key_ring: str = setting(
        "",
        "File of the key ring that opens encrypted values for subscribers and groups; empty: keys with such values "
        "are refused.",
        metavar="FILE",
    )
    jetstream_api: str = setting("$JS.API", "Subject prefix of the JetStream API in the agent's NATS account.")
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    nats_login: NatsLogin = field(default_factory=NatsLogin)

    def __post_init__(self) -> None:
        for name in ("grpc_listen", "http_listen"):
            self._check_listen(name, getattr(self, name))
        if self.metrics_listen != OFF:
            try:
                parse_listen(self.metrics_listen)
            except InvalidInputError as error:
                raise ConfigError(str(error)) from error
        if not self.nats:
            raise ConfigError("nats is empty: one server address or more is needed")
        if self.cache_dir and not self.agent_id:
            raise ConfigError("cache_dir needs an id: the cache is found again under an id that stays the same")
        try:
            self.nats_login.check_login()
            object.__setattr__(self, "agent_id", names.check_name("agent_id", self.agent_id or _default_id()))
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error
        check_ranges(self)
        self.trusted_uids()
        self._check_dispatch()
        self._check_leases()
        self._check_patterns()
        self.cluster.check()

    @property
    def is_named(self) -> bool:
        """Whether the id is one that the agent has again after a restart."""
        return self.agent_id != _default_id()

    def _check_dispatch(self) -> None:
        if self.max_tries > self.max_deliveries:
            raise ConfigError(f"max_tries is {self.max_tries}: it can't be above max_deliveries, {self.max_deliveries}")
        if self.retry_first_s > self.retry_most_s:
            raise ConfigError(f"retry_first_s is {self.retry_first_s}: it can't be above retry_most_s")
        try:
            object.__setattr__(self, "poison_policy", PoisonPolicy(self.poison_policy))
        except ValueError:
            raise ConfigError(
                f"poison_policy is {shown(self.poison_policy)}: {', '.join(POLICIES)} are known"
            ) from None

    def _check_leases(self) -> None:
        if not _MODE.fullmatch(self.lease_mode):
            raise ConfigError(f"lease_mode is {shown(self.lease_mode)}: it must be 0600 to 0777, in octal")
        if self.lease_socket:
            try:
                names.check_socket_path("lease_socket", self.lease_socket)
            except InvalidInputError as error:
                raise ConfigError(str(error)) from error

    def trusted_uids(self) -> frozenset[int]:
        """The numbers of the users whose processes need no token.

        Raises:
            ConfigError: there is no such user.
        """
        try:
            return frozenset(
                int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid for user in self.trusted_users
            )
        except KeyError as error:
            raise ConfigError(f"trusted_users: {error.args[0]}") from error

    def callback_url(self, url: str) -> str:
        """The address that callbacks go to, without a slash at its end.

        Raises:
            ValueError: it is no ``http`` address, or one that callbacks may not go to.
        """
        wanted = _origin(url)
        if wanted[2] == ANY_PORT:
            raise ValueError(f"{shown(url)} has no port: * may stand in callback_addresses alone")
        for allowed in filter(None, (self.app_url, *self.callback_addresses)):
            scheme, host, port = _origin(allowed)
            if (scheme, host) == wanted[:2] and port in (ANY_PORT, wanted[2]):
                return url.rstrip("/")
        raise ValueError(f"{shown(url)} is neither app_url nor one of callback_addresses")

    def may_join(self, group: str) -> bool:
        """Whether a group of this name is one that may be joined."""
        return any(KeyFilter(pattern).accepts(group) for pattern in self.groups)

    def _check_patterns(self) -> None:
        for name, addresses in (("app_url", (self.app_url,)), ("callback_addresses", self.callback_addresses)):
            for address in filter(None, addresses):
                try:
                    port = _origin(address)[2]
                except ValueError as error:
                    raise ConfigError(f"{name} {error}") from error
                if name == "app_url" and port == ANY_PORT:
                    raise ConfigError(f"{name} {shown(address)} has no port: * may stand in callback_addresses alone")
        for pattern in self.groups:
            try:
                KeyFilter(pattern)
            except ValueError as error:
                raise ConfigError(f"groups {shown(pattern)}: {error}") from error

    def _check_listen(self, name: str, listen: str) -> None:
        try:
            host, _ = check_address(listen, name, min_port=0)
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error
        if not is_loopback(host) and not self.api_token and self.token_file == OFF:
            raise ConfigError(f"{name} {listen} can be reached from other hosts: that needs an api_token")


def _origin(url: str) -> tuple[str, str, str]:
    """Scheme, host and port of an address.

    Raises:
        ValueError: it is no ``http`` address.
    """
    any_port = ANY_ADDRESS.fullmatch(url)
    try:
        parts = urlsplit(any_port["address"] if any_port else url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    extra = parts.username or parts.password or parts.query or parts.fragment
    if len(url) > MAX_URL or parts.scheme not in ("http", "https") or not host or extra or port == 0:
        raise ValueError(f"{shown(url)} is not an address such as http://127.0.0.1:8080")
    return parts.scheme, host, ANY_PORT if any_port else str(port or (443 if parts.scheme == "https" else 80))


def is_loopback(host: str) -> bool:
    """Whether an address or name means this host, and only it. Names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _default_id() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:24] or "host"
    return f"agent-{host}-{os.getpid()}"
