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
from ringcast_service import ConfigError
from ringcast_wire import InvalidInputError, NatsLogin, limits, names, shown
from ringcast_wire.prometheus import OFF, parse_listen

MAX_URL = 2_048
ANY_PORT = "*"
ANY_ADDRESS = re.compile(r"(?P<address>https?://[^/]+):\*/?", re.ASCII)
POLICIES = tuple(policy.value for policy in PoisonPolicy)
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})", re.ASCII)
_SECONDS = ("start_timeout_s", "stop_timeout_s", "subscribe_timeout_s", "stale_after_s", "callback_timeout_s")
_DISPATCH_SECONDS = ("ack_timeout_s", "retry_first_s", "retry_most_s", "evict_after_s", "orphan_hold_s")
VERSION = version("ringcast-heartbeat-agent")
_MAX_DISPATCH_S = 86_400.0
_MAX_DELIVERIES = 1_000
_MAX_WORKERS = 4_096
_MODE = re.compile(r"0?[67][0-7][0-7]", re.ASCII)
_COUNTS = (
    "max_subscriptions",
    "max_keys",
    "queue_items",
    "queue_bytes",
    "max_response_bytes",
    "reads",
    "waiting_reads",
    "window_bytes",
    "max_behind",
)
_RANGES = {
    "window": MAX_DISPATCH_WINDOW,
    "consumer_capacity": MAX_DISPATCH_WINDOW,
    "max_tries": _MAX_DELIVERIES,
    "max_deliveries": _MAX_DELIVERIES,
    "max_consumers": MAX_CONSUMERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One agent. Times are in the unit that the name gives; counts are upper bounds."""

    nats: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    nats_login: NatsLogin = field(default_factory=NatsLogin)
    agent_id: str = ""
    """The workers of the agent are ``<agent_id>-<store>-<config key>``. Empty: made from host and process."""
    grpc_listen: str = "127.0.0.1:50001"
    http_listen: str = "127.0.0.1:3500"
    metrics_listen: str = OFF
    """Where Prometheus finds the metrics; the command turns it on by default."""
    api_token: str = field(default="", repr=False)
    """What callers must send as ``dapr-api-token``; empty: what is in ``token_file``."""
    token_file: str = OFF
    """Where the token is, and is made at the first start; ``off``: callers need none. The command turns it on."""
    trusted_users: tuple[str, ...] = ()
    """Users of this host, by name or number, whose processes need no token."""
    app_url: str = ""
    """Where callbacks of HTTP subscriptions go that do not name an address of their own."""
    app_token: str = field(default="", repr=False)
    """What callbacks carry as ``dapr-api-token``."""
    callback_addresses: tuple[str, ...] = ()
    """Where callbacks may go besides ``app_url``: ``http://127.0.0.1:8080``, or with ``*`` for any port."""
    allowed_hosts: tuple[str, ...] = ()
    """Names besides ``localhost`` by which the agent may be called over HTTP."""
    groups: tuple[str, ...] = ("*",)
    """Patterns of the names of groups that may be joined."""
    client_share: float = 0.5
    """How much of the subscriptions, keys, consumers and registrations one user of this host may have."""
    ready_file: Path | None = None
    log_level: str = "info"
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 10.0
    subscribe_timeout_s: float = 10.0
    """How long a consumer may take to begin, and a key to load until it counts as stale."""
    stale_after_s: float = 30.0
    """For how long changes may be missed before the log says so and new consumers are refused."""
    linger_s: float = 30.0
    """How long a key that nobody follows any more is kept: a client that comes back causes no rebalance."""
    relist_s: float = 10.0
    """How often new config keys are looked for, for those who follow all of a store."""
    callback_timeout_s: float = 10.0
    callback_patience_s: float = 60.0
    """After how long an application that can't be reached loses its subscription."""
    max_subscriptions: int = 1_000
    max_keys: int = 100
    """Config keys that are followed at once: each takes a worker."""
    queue_items: int = 10_000
    """Updates that may wait for one subscriber; further ones it reads once it has taken these."""
    queue_bytes: int = 16 * limits.MIB
    reads: int = 8
    """Reads under way at once; more of them wait."""
    waiting_reads: int = 1_024
    """Reads that may wait; one more is refused."""
    max_response_bytes: int = 4 * limits.MIB
    """Size of one answer; gRPC clients take no more unless they are told to."""
    max_consumers: int = 200
    """Consumers of all groups at once."""
    window: int = 10_000
    """Messages of one group that may be unsettled; what has no room waits, one change a row."""
    window_bytes: int = 64 * limits.MIB
    """Their size; one message is always let in."""
    max_behind: int = 1_000_000
    """Rows with changes that may wait for room in the window of one group, or for a consumer that is away."""
    consumer_capacity: int = 1_000
    """Deliveries that a consumer may have unanswered, if it does not say."""
    ack_timeout_s: float = 30.0
    max_tries: int = 5
    """Rejected and unanswered deliveries of a message, after which the poison policy decides."""
    max_deliveries: int = 20
    """Deliveries of a message, lost ones too, after which it does."""
    retry_first_s: float = 1.0
    retry_most_s: float = 30.0
    poison_policy: PoisonPolicy = PoisonPolicy.DROP
    """Of groups whose first consumer names none."""
    evict_after_s: float = 3.0
    """After how much silence a consumer is evicted."""
    orphan_hold_s: float = 30.0
    """How long a message that was delivered waits for a consumer, when its own is gone and no other wants it."""
    drain_timeout_s: float = 10.0
    """How long a stopping agent waits for answers to what is in flight."""
    lease_socket: str = ""
    """Where workers of this host register, so that the agent keeps their leases; empty: nowhere."""
    lease_mode: str = "0660"
    """Who may connect to it, in octal."""
    lease_group: str = ""
    """The group that it is given to; empty: the agent's."""
    max_workers: int = 256
    """Registrations at once."""
    cache_dir: str = ""
    """Where workers keep their rows, to start with NATS down; empty: nowhere."""
    jetstream_api: str = "$JS.API"
    """Where the agent's account has the JetStream API, as in the setting of workers."""

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
            raise ConfigError("cache_dir needs an agent_id: the cache is found again under an id that stays the same")
        try:
            self.nats_login.check_login()
            object.__setattr__(self, "agent_id", names.check_name("agent_id", self.agent_id or _default_id()))
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error
        for name in (*_SECONDS, "callback_patience_s", "relist_s", *_COUNTS):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in ("linger_s", "drain_timeout_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it can't be below 0")
        self.trusted_uids()
        self._check_dispatch()
        self._check_leases()
        if not 0 < self.client_share <= 1:
            raise ConfigError(f"client_share is {self.client_share}: it must be above 0, and 1 at most")
        self._check_patterns()

    def _check_dispatch(self) -> None:
        for name, most in _RANGES.items():
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 1 to {most}")
        for name in _DISPATCH_SECONDS:
            if not 0.001 <= getattr(self, name) <= _MAX_DISPATCH_S:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be 0.001 to {_MAX_DISPATCH_S:g}")
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
        if not 1 <= self.max_workers <= _MAX_WORKERS:
            raise ConfigError(f"max_workers is {self.max_workers}: it must be 1 to {_MAX_WORKERS}")
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
        match = _ADDRESS.fullmatch(listen)
        if match is None or int(match["port"]) > 65_535:
            raise ConfigError(f"{name} {shown(listen)} is not an address: host:port is, with a port of 0 to 65535")
        if not is_loopback(match["host"].strip("[]")) and not self.api_token and self.token_file == OFF:
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
