"""Tables of settings in a README: made from a class of settings, or from the options of a command."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import pairwise
from typing import Any

import click
import msgspec

_COMMON = (
    "--version",
    "--config-file",
    "--nats-user",
    "--nats-password",
    "--nats-credentials",
    "--nats-nkey",
    "--nats-tls",
)
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")


def settings_table(settings: type[msgspec.Struct]) -> str:
    """The table of a README for a class of settings: each field with its default, and what its docstring says.

    Raises:
        ValueError: a field has no docstring.
    """
    fields = {field.name: field for field in msgspec.structs.fields(settings)}
    said = dict(entry for cls in settings.__mro__ for entry in _docstrings(cls))  # its own come first
    if missing := fields.keys() - said.keys():
        raise ValueError(f"{settings.__name__}: {', '.join(sorted(missing))} have no docstring")
    return _table("setting", ((name, fields[name].default, words) for name, words in said.items()))


def _docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """What stands below the fields that a class itself has, each in one line."""
    if cls.__module__ in ("builtins", "msgspec", "msgspec._core"):
        return
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    for one, after in pairwise(tree.body):
        match one, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                plain = _ROLE.sub(r"`\1`", " ".join(words.split())).replace("``", "`")
                yield name, plain


def _shown(default: Any) -> str:
    """A default as a user writes it; empty if there is none."""
    match default:
        case Enum(value=str(shown)):
            pass
        case tuple():
            shown = ",".join(default)
        case bool():
            shown = str(default).lower()
        case float():
            shown = f"{default:g}"
        case str() | int():
            shown = str(default)
        case _:  # None, and what click (an Enum) and msgspec have for "not given"
            shown = ""
    return f"`{shown}`" if shown else ""


def flags_table(command: click.Command) -> str:
    """The table of a README for the flags of a command: each with its default, and what ``--help`` says of it.

    Those that every command has are left to ``--help``: of logging in to NATS, ``--config-file`` and ``--version``.
    """
    options = [option for option in command.params if isinstance(option, click.Option)]
    own = (option for option in options if not option.opts[0].startswith(_COMMON))
    return _table("flag", ((option.opts[0], option.default, option.help or "") for option in own))


def _table(what: str, rows: Iterable[tuple[str, Any, str]]) -> str:
    lines = [f"| `{name}` | {_shown(default)} | {words} |" for name, default, words in rows]
    return "\n".join([f"| {what} | default | |", "|---|---|---|", *lines, ""]).replace("|  |", "| |")
