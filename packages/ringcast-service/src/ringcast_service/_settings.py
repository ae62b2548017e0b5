"""Settings that are stated once, as fields of a dataclass: flags, variables, defaults and texts come from there."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
from ringcast_wire import NatsLogin

from ringcast_service._errors import ConfigError
from ringcast_service._options import (
    Duration,
    Size,
    listed,
    nats_login,
    parse_bytes,
    parse_duration_ms,
    shown_bytes,
    shown_duration,
)
from ringcast_service._ranges import Range

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S")

_FLAG: Final = "flag"
_UNITS: Final = ("_s", "_ms")


class _Flag(NamedTuple):
    """How a field is given on the command line. ``default``: as it is written there."""

    help: str
    name: str
    default: Any
    kind: click.ParamType[Any] | None
    metavar: str | None
    variables: tuple[str, ...]
    divisor: int
    """What a value is divided by to be the field's."""
    allowed: Range | None

    @property
    def range(self) -> str:
        """What the field may be, in words."""
        assert self.allowed is not None
        return self.allowed.shown(self._written)

    def _written(self, value: float) -> str:
        """A value of the field, as one writes it on the command line."""
        match self.kind:
            case Duration() if value:
                return shown_duration(round(value * self.divisor))
            case Size() if value:
                return shown_bytes(round(value))
        return f"{value:.10g}"


def setting(
    default: Any,
    text: str,
    *,
    flag: str = "",
    default_of_command: Any = None,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    variables: tuple[str, ...] = (),
    secret: bool = False,
    allowed: Range | None = None,
) -> Any:
    """A field of a settings class. The flag is made of its name, without the unit at its end.

    ``default_of_command``: what the command begins with, where programs that make the settings themselves begin with
    something else. ``variables``: further variables that it is read from. ``secret``: it is not shown.
    ``allowed``: what :func:`check_ranges` lets pass, in the unit of the field.
    """
    kind = click.Choice(choices) if choices else None
    shown = default if default_of_command is None else default_of_command
    return _field(default, _Flag(text, flag, shown, kind, metavar, variables, 1, allowed), secret=secret)


def required(text: str) -> Any:
    """A field that has no default."""
    return dataclasses.field(metadata={_FLAG: _Flag(text, "", dataclasses.MISSING, None, None, (), 1, None)})


def duration_s(default: str, text: str, *, flag: str = "", allowed: Range | None = None) -> Any:
    """A field in seconds, which is given as ``90s`` or ``24h``."""
    flagged = _Flag(text, flag, default, Duration(), None, (), 1_000, allowed)
    return _field(parse_duration_ms(default) / 1000, flagged)


def duration_ms(default: str, text: str, *, flag: str = "", allowed: Range | None = None) -> Any:
    """A field in milliseconds, which is given as ``90s`` or ``24h``."""
    return _field(parse_duration_ms(default), _Flag(text, flag, default, Duration(), None, (), 1, allowed))


def size(default: str, text: str, *, flag: str = "", allowed: Range | None = None) -> Any:
    """A field in bytes, which is given as ``256MiB``."""
    return _field(parse_bytes(default), _Flag(text, flag, default, Size(), None, (), 1, allowed))


def check_ranges(settings: Any) -> None:
    """Refuses fields outside of their ranges, of a settings object and of the groups of settings that are its fields.

    Raises:
        ConfigError: it names the field, its value and what is allowed.
    """
    for field in dataclasses.fields(settings):
        value, flag = getattr(settings, field.name), field.metadata.get(_FLAG)
        if flag is None and dataclasses.is_dataclass(value):
            check_ranges(value)
        elif flag is not None and flag.allowed is not None and not flag.allowed.contains(value):
            name = flag.name.replace("-", "_") or field.name
            raise ConfigError(f"{name} is {value}: it must be {flag.range}")


def settings_options(settings: type[Any]) -> Callable[[F], F]:
    """Adds an option for each field of a settings class, and of those that are its fields, in their order."""

    def decorate(command: F) -> F:
        for option in reversed([_option(*found) for found in _flags(settings)]):
            command = option(command)
        return command

    return decorate


def settings_from(settings: type[S], options: Mapping[str, Any], **given: Any) -> S:
    """The settings that options are; ``given``: fields that are made otherwise.

    Raises:
        ConfigError: one of the fields is refused by the class.
    """
    hints = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]  # it is a dataclass
        kind, flag = hints[field.name], field.metadata.get(_FLAG)
        if field.name in given:
            continue
        if kind is NatsLogin:
            given[field.name] = nats_login(options)
        elif flag is not None:
            given[field.name] = _value(kind, flag, options[_parameter(field.name, flag)])
        elif dataclasses.is_dataclass(kind):
            given[field.name] = settings_from(kind, options)  # type: ignore[arg-type]  # a type, as all annotations are
    return settings(**given)


def _field(default: Any, flag: _Flag, *, secret: bool = False) -> Any:
    return dataclasses.field(default=default, repr=not secret, metadata={_FLAG: flag})


def _flags(settings: type[Any]) -> Iterator[tuple[str, Any, _Flag]]:
    hints = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):
        kind, flag = hints[field.name], field.metadata.get(_FLAG)
        if flag is not None:
            yield field.name, kind, flag
        elif dataclasses.is_dataclass(kind):
            yield from _flags(kind)  # type: ignore[arg-type]  # a type, as all annotations are


def _parameter(name: str, flag: _Flag) -> str:
    if flag.name:
        return flag.name.replace("-", "_")
    return next((name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)), name)


def _option(name: str, kind: Any, flag: _Flag) -> Callable[[F], F]:
    text = flag.help
    if flag.allowed is not None and not flag.allowed.is_plain:
        text = f"{text.removesuffix('.')} ({flag.range})."
    words: dict[str, Any] = {"help": text, "metavar": flag.metavar}
    if flag.default is dataclasses.MISSING:
        words.update(required=True, show_default=False)
    elif flag.default is not None:
        words.update(default=_shown(flag.default))
    if flag.variables:
        words.update(envvar=flag.variables)
    return click.option("--" + _parameter(name, flag).replace("_", "-"), type=_type(kind, flag), **words)


def _type(kind: Any, flag: _Flag) -> Any:
    if flag.kind is not None:
        return flag.kind
    if kind == Path | None:
        return click.Path(dir_okay=False, path_type=Path)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return click.Choice([each.value for each in kind])
    return kind if kind in (int, float) else str


def _shown(default: Any) -> Any:
    if isinstance(default, StrEnum):
        return default.value
    return ",".join(default) if isinstance(default, tuple) else default


def _value(kind: Any, flag: _Flag, given: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(given)
    if typing.get_origin(kind) is tuple:
        return listed(given)
    return given / flag.divisor if flag.divisor != 1 else given
