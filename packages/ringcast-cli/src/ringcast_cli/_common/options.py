"""Options that many commands share. They may stand before or after the name of the command; the last one counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from ringcast_cli._common.config import CliConfig, resolve

F = TypeVar("F", bound=Callable[..., Any])


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        context.find_root().ensure_object(dict)[parameter.name] = value


_LOGIN: Final = {
    "service_tls_ca_file": "CA certificates that sign that of the config service",
    "service_tls_cert_file": "Certificate to show to the config service",
    "service_tls_key_file": "Its key",
    "service_token_file": "Token for the config service, over TLS",
}
_AGENT: Final = {
    "agent_url": (
        ("--agent-url",),
        {"metavar": "URL", "help": "HTTP address of the agent [env: RINGCAST_AGENT_URL]."},
    ),
    "agent_token_file": (
        ("--agent-token-file",),
        {
            "metavar": "FILE",
            "help": "File with its token [env: RINGCAST_AGENT_TOKEN_FILE]; by default the file that the agent makes.",
        },
    ),
}
_ETCD: Final = {
    "etcd_user": (("--etcd-user",), {"metavar": "NAME", "help": "User at etcd [env: RINGCAST_ETCD_USER]."}),
    **{
        name: (
            (f"--{name.replace('_', '-')}",),
            {"metavar": "FILE", "help": f"{what} [env: RINGCAST_{name.upper()}]."},
        )
        for name, what in {
            "etcd_password_file": "File with its password",
            "etcd_tls_ca_file": "CA certificates that sign etcd's, with etcd+tls://",
            "etcd_tls_cert_file": "Certificate to show to etcd",
            "etcd_tls_key_file": "Its key",
        }.items()
    },
}
_SHARED: Final[dict[str, tuple[tuple[str, ...], dict[str, Any]]]] = {
    "servers": (
        ("--servers",),
        {"metavar": "URLS", "help": "NATS servers, with commas between [env: RINGCAST_SERVERS]."},
    ),
    "service": (
        ("--service",),
        {
            "metavar": "HOST:PORT",
            "help": "Address of the config service, or several with commas between; tls:// before each for TLS"
            " [env: RINGCAST_SERVICE].",
        },
    ),
    **{
        name: (
            (f"--{name.replace('_', '-')}",),
            {"metavar": "FILE", "help": f"{what} [env: RINGCAST_{name.upper()}]."},
        )
        for name, what in _LOGIN.items()
    },
    **_AGENT,
    **_ETCD,
    "cluster_store": (
        ("--cluster-store",),
        {
            "metavar": "ADDRESS",
            "help": "Metadata store of the cluster: nats://host:4222/config_cluster or etcd://host:2379/ringcast"
            " [env: RINGCAST_CLUSTER_STORE]. Without --service, a config service is found there.",
        },
    ),
    "reason": (
        ("--reason",),
        {
            "metavar": "TEXT",
            "help": "Why, in one line of up to 512 bytes, for history and audit log [env: RINGCAST_REASON].",
        },
    ),
    "key_ring": (
        ("--key-ring",),
        {
            "metavar": "FILE",
            "help": "Key ring that encrypts values and opens them [env: RINGCAST_KEY_RING].",
        },
    ),
    "timeout": (
        ("--timeout", "timeout_s"),
        {"metavar": "SECONDS", "help": "How long to wait for an answer [env: RINGCAST_TIMEOUT_S]."},
    ),
    "config_file": (
        ("--config-file",),
        {"metavar": "FILE", "help": "Settings file, TOML [env: RINGCAST_CLI_CONFIG_FILE]."},
    ),
    "json": (
        ("--json/--no-json",),
        {"default": None, "help": "Print JSON: one document, or one a line [env: RINGCAST_JSON]."},
    ),
}


class Duration(click.ParamType[int]):
    """``10s``, ``500ms``, ``1m``, ``30d``: milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _DURATION.fullmatch(value)
        if match is None:
            self.fail(f"{value[:40]!r} is no duration: a whole number and ms, s, m, h or d is needed", param, ctx)
        return int(match[1]) * _UNIT_MS[match[2]]


_DURATION: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def shown_duration(ms: int) -> str:
    """What :class:`Duration` reads, in the largest unit that divides it."""
    unit, size = max(((unit, size) for unit, size in _UNIT_MS.items() if ms % size == 0), key=lambda found: found[1])
    return f"{ms // size}{unit}"


def patience_option(most_s: float, default_s: float, what: str) -> Callable[[F], F]:
    """``--patience``: how long the command waits at most, for ``what``."""
    return click.option(
        "--patience",
        type=click.FloatRange(min=0.001, max=most_s),
        default=default_s,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


def every_option(what: str) -> Callable[[F], F]:
    """``--every``: how long from one look to the next; ``what`` is its help."""
    return click.option(
        "--every",
        type=click.FloatRange(min=0.2, max=3_600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


def wait_options(what: str) -> Callable[[F], F]:
    """``--wait``, which does ``what``, and ``--patience``."""

    def add(command: F) -> F:
        command = patience_option(86_400, 600.0, "With --wait: how long at most.")(command)
        return click.option("--wait", is_flag=True, help=what)(command)

    return add


def shared_options(*which: str) -> Callable[[F], F]:
    """Adds the named ones of ``servers``, ``service``, ``agent``, ``cluster_store``, ``etcd``, ``key_ring`` and
    ``timeout``.

    Always ``config_file`` and ``json``; with ``service`` also what it takes to find one and to log in there.
    """

    def add(command: F) -> F:
        names = [*which, "config_file", "json"]
        if "service" in names:
            after = names.index("service") + 1
            found_by = [] if "cluster_store" in names else ["cluster_store"]
            names[after:after] = [*_LOGIN, *found_by, "reason"]
        for group, of_group in (("agent", _AGENT), ("etcd", _ETCD)):
            if group in names:
                names[names.index(group) : names.index(group) + 1] = of_group
        for name in reversed(names):
            flags, settings = _SHARED[name]
            command = click.option(*flags, expose_value=False, callback=_remember, **settings)(command)
        return command

    return add


def settings_of(context: click.Context) -> CliConfig:
    """The resolved settings of this invocation.

    Raises:
        InvalidInputError: one of them breaks a rule.
    """
    return resolve(context.find_root().ensure_object(dict))
