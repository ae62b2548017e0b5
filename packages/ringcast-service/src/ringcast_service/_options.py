"""Options of a command that every process has, and the kinds of values that they take."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from ringcast_wire import NatsLogin

from ringcast_service._errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

LOG_LEVELS: Final = ("debug", "info", "warning", "error")

_DURATION: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE: Final = re.compile(r"(\d{1,15})(|KiB|MiB|GiB)", re.ASCII)
_UNIT_BYTES: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_LOGIN_OPTIONS: Final = {
    "user": "nats_user",
    "password": "nats_password",
    "password_file": "nats_password_file",
    "credentials_file": "nats_credentials",
    "nkey_seed_file": "nats_nkey_seed",
    "tls_ca_file": "nats_tls_ca",
    "tls_cert_file": "nats_tls_cert",
    "tls_key_file": "nats_tls_key",
}


class Duration(click.ParamType[int]):
    """``90s``, ``24h``: milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_duration_ms(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class Size(click.ParamType[int]):
    """``256MiB``: bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_bytes(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def parse_bytes(text: str) -> int:
    """Bytes of ``256MiB``, ``1GiB``, ``512KiB`` or ``1048576``.

    Raises:
        ConfigError: it is none of these.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"size {text!r} can't be read: a whole number and KiB, MiB, GiB or nothing is needed")
    return int(match[1]) * _UNIT_BYTES[match[2]]


def parse_duration_ms(text: str) -> int:
    """Milliseconds of ``24h``, ``7d``, ``90s``, ``500ms`` or ``15m``.

    Raises:
        ConfigError: it is none of these.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"duration {text!r} can't be read: a whole number and ms, s, m, h or d is needed, such as 24h"
        )
    return int(match[1]) * _UNIT_MS[match[2]]


def shown_bytes(count: int) -> str:
    """What :func:`parse_bytes` reads, in the largest unit that divides it."""
    return _in_units(count, _UNIT_BYTES)


def shown_duration(ms: int) -> str:
    """What :func:`parse_duration_ms` reads, in the largest unit that divides it."""
    return _in_units(ms, _UNIT_MS)


def _in_units(value: int, units: Mapping[str, int]) -> str:
    unit, size = max(((unit, size) for unit, size in units.items() if value % size == 0), key=lambda found: found[1])
    return f"{value // size}{unit}"


def listed(text: str) -> tuple[str, ...]:
    """The parts of a text between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def config_file_option(command: F) -> F:
    """The option ``--config-file``."""
    return click.option(
        "--config-file",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_from_file,
        is_eager=True,
        help="TOML file with the same settings; flags and environment go before it.",
    )(command)


def _from_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Makes the settings of a TOML file the defaults of the options that follow."""
    if path is None:
        return None
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{path} can't be read: {error}") from error
    known = {parameter.name for parameter in context.command.params} - {"config_file"}
    settings = {name.replace("-", "_"): value for name, value in found.items()}
    if unknown := sorted(set(settings) - known):
        raise click.BadParameter(f"{path} has unknown settings: {', '.join(unknown)}")
    context.default_map = {**(context.default_map or {}), **settings}
    return path


def nats_login_options(command: F) -> F:
    """The options of the login to NATS."""
    for option in reversed(
        (
            click.option("--nats-user", default="", help="User on NATS."),
            click.option(
                "--nats-password", default="", help="Best given by the environment, where no process list shows it."
            ),
            click.option(
                "--nats-password-file",
                default="",
                metavar="FILE",
                help="File whose first line is the password; it is read again for each connection.",
            ),
            click.option(
                "--nats-credentials", default="", metavar="FILE", help="Credentials file (JWT), instead of a user."
            ),
            click.option(
                "--nats-nkey-seed", default="", metavar="FILE", help="File with an nkey's seed, instead of a user."
            ),
            click.option(
                "--nats-tls-ca",
                default="",
                metavar="FILE",
                help="Who may sign NATS's certificate; tls:// in --nats: the system's.",
            ),
            click.option("--nats-tls-cert", default="", metavar="FILE", help="Certificate to show to NATS."),
            click.option("--nats-tls-key", default="", metavar="FILE", help="Its key."),
        )
    ):
        command = option(command)
    return command


def nats_login(options: Mapping[str, Any]) -> NatsLogin:
    """The login of these options, which is not checked."""
    return NatsLogin(**{field: options[option] for field, option in _LOGIN_OPTIONS.items()})
