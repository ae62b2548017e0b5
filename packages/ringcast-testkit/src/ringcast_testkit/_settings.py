"""Tables of settings in a README: made from a class of settings, or from the options of a command."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import Any

import click
import msgspec

_COMMON = ("--version", "--config", "--nats-user", "--nats-password", "--nats-credentials", "--nats-nkey", "--nats-tls")
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
    rows = [f"| `{name}` | {_default(fields[name])} | {words} |" for name, words in said.items()]
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows, ""]).replace("|  |", "| |")


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


def _default(field: msgspec.structs.FieldInfo) -> str:
    default: Any = field.default
    if isinstance(default, Enum):
        default = default.value
    elif isinstance(default, tuple):
        default = ",".join(default)
    elif isinstance(default, bool):
        default = str(default).lower()
    elif isinstance(default, float):
        default = f"{default:g}"
    return "" if default in (msgspec.NODEFAULT, None, "") else f"`{default}`"


def flags_table(command: click.Command) -> str:
    """The table of a README for the flags of a command: each with its default, and what ``--help`` says of it.

    Those that every command has are left to ``--help``: of logging in to NATS, ``--config`` and ``--version``.
    """
    options = [option for option in command.params if isinstance(option, click.Option)]
    rows = [_flag_row(option) for option in options if not option.opts[0].startswith(_COMMON)]
    return "\n".join(["| flag | default | |", "|---|---|---|", *rows, ""])


def _flag_row(option: click.Option) -> str:
    default = "" if option.required or option.default in (None, "") else str(option.default)
    if isinstance(option.default, float):
        default = f"{option.default:g}"
    shown = f" `{default}` " if default and _is_given(option) else " "
    return f"| `{option.opts[0]}` |{shown}| {option.help} |"


def _is_given(option: click.Option) -> bool:
    return isinstance(option.default, str | int | float)
