"""Settings that are stated once, as fields of a class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from ringcast_service import (
    ConfigError,
    above,
    at_least,
    between,
    check_ranges,
    config_file_option,
    duration_ms,
    duration_s,
    nats_login_options,
    required,
    setting,
    settings_from,
    settings_options,
    size,
)
from ringcast_wire import NatsLogin


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    age_s: float = duration_s("30m", "How old it gets.", flag="inner-age", allowed=between(0.5, 172_800))
    room: int = size("2KiB", "How much it holds.", allowed=at_least(1024))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    place: str = required("Where it is.")
    listen: str = setting("off", "Where it listens.", default_of_command="127.0.0.1:7")
    names: tuple[str, ...] = setting(("a", "b"), "Who may.")
    ready_file: Path | None = setting(None, "What is written.")
    count: int = setting(3, "How many.", allowed=between(1, 1_048_576))
    wait_s: float = setting(1.5, "How long.", allowed=above(0))
    share: float = setting(0.5, "Which part.", allowed=above(0, 1))
    keep_ms: int = duration_ms("24h", "How long it is kept.", allowed=at_least(90_000))
    colour: Colour = setting(Colour.RED, "Which.")
    level: str = setting("info", "How much.", choices=("info", "debug"))
    secret: str = setting("", "What is not shown.", variables=("X_SECRET", "OTHER_SECRET"), secret=True)
    inner: Inner = field(default_factory=Inner)
    login: NatsLogin = field(default_factory=NatsLogin)


def parsed(*words: str, env: Mapping[str, str] | None = None) -> Outer:
    """What a command makes of its words."""
    found: list[Outer] = []

    @click.command(context_settings={"auto_envvar_prefix": "X", "show_default": True})
    @config_file_option
    @settings_options(Outer)
    @nats_login_options
    def main(config_file: Path | None, **options: Any) -> None:
        assert config_file is None or config_file.exists()
        found.append(settings_from(Outer, options))

    result = CliRunner().invoke(main, words, env=env)
    if not found:
        raise ValueError(result.output)
    return found[0]


def test_a_command_begins_with_what_the_class_does() -> None:
    assert parsed("--place", "here") == Outer(place="here", listen="127.0.0.1:7")


def test_flags_variables_and_the_file_say_the_same(tmp_path: Path) -> None:
    wanted = Outer(
        place="there",
        listen="x:1",
        names=("c", "d"),
        ready_file=Path("r"),
        count=4,
        wait_s=2.5,
        keep_ms=1_000,
        colour=Colour.BLUE,
        level="debug",
        inner=Inner(age_s=60.0, room=1_048_576),
        login=NatsLogin(user="u", password="p"),
    )
    said = {
        "place": "there",
        "listen": "x:1",
        "names": "c, d",
        "ready-file": "r",
        "count": "4",
        "wait": "2.5",
        "keep": "1s",
        "colour": "blue",
        "level": "debug",
        "inner-age": "1m",
        "room": "1MiB",
        "nats-user": "u",
        "nats-password": "p",
    }
    assert parsed(*(word for name, value in said.items() for word in (f"--{name}", value))) == wanted
    assert parsed(env={"X_" + name.replace("-", "_").upper(): value for name, value in said.items()}) == wanted
    file = tmp_path / "settings.toml"
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in said.items()))
    assert parsed("--config-file", str(file)) == wanted


def test_a_secret_is_read_from_each_of_its_variables_and_not_shown() -> None:
    for name in ("X_SECRET", "OTHER_SECRET"):
        found = parsed("--place", "here", env={name: "hush"})
        assert found.secret == "hush"
        assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Missing option '--place'"),
        (("--place", "x", "--colour", "green"), "'green' is not one of 'red', 'blue'"),
        (("--place", "x", "--keep", "long"), "duration 'long' can't be read"),
        (("--place", "x", "--room", "large"), "size 'large' can't be read"),
        (("--place", "x", "--count", "few"), "'few' is not a valid integer"),
    ],
)
def test_what_can_not_be_read_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        parsed(*words)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (Outer(place="x", count=0), "count is 0: it must be 1 to 1048576"),
        (Outer(place="x", count=1_048_577), "count is 1048577: it must be 1 to 1048576"),
        (Outer(place="x", wait_s=0.0), r"wait_s is 0\.0: it must be above 0"),
        (Outer(place="x", wait_s=math.nan), "wait_s is nan: it must be above 0"),
        (Outer(place="x", share=1.01), r"share is 1\.01: it must be above 0, and 1 at most"),
        (Outer(place="x", keep_ms=89_999), "keep_ms is 89999: it must be 90s or more"),
        (Inner(age_s=0.499), r"inner_age is 0\.499: it must be 500ms to 2d"),
        (Inner(room=1023), "room is 1023: it must be 1KiB or more"),
    ],
)
def test_a_value_out_of_its_range_is_refused(settings: Outer | Inner, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        check_ranges(settings)


def test_the_ranges_of_a_group_of_settings_are_checked_with_those_of_the_whole() -> None:
    with pytest.raises(ConfigError, match=r"^inner_age is 0\.1: it must be 500ms to 2d$"):
        check_ranges(Outer(place="x", inner=Inner(age_s=0.1)))


def test_the_ends_of_a_range_are_allowed() -> None:
    for count, share, keep_ms in ((1, 1.0, 90_000), (1_048_576, 1e-9, 10**12)):
        check_ranges(Outer(place="x", count=count, share=share, keep_ms=keep_ms))
    for age_s in (0.5, 172_800):
        check_ranges(Inner(age_s=age_s, room=1024))


def test_the_help_gives_the_range_that_is_no_matter_of_course() -> None:
    said = {option.name: option.help for option in options_of(Outer)}
    assert said["count"] == "How many (1 to 1048576)."
    assert said["keep"] == "How long it is kept (90s or more)."
    assert said["inner_age"] == "How old it gets (500ms to 2d)."
    assert said["wait"] == "How long."


def options_of(settings: type) -> list[click.Option]:
    @settings_options(settings)
    def command(**_: Any) -> None:
        pass

    made = click.command()(command)
    return [option for option in made.params if isinstance(option, click.Option)]
