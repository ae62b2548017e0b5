"""Tables of settings in a README: made from a class of settings, or compared with the options of a command."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgspec

_ROW = re.compile(r"^\| `(--[a-z-]+)` \| (?:`(.*?)`)? ?\|", re.MULTILINE)
_NO_SETTINGS = ("--version", "--config")
_LOGIN = "--nats-"
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


def check_flags(command: click.Command, readme: Path) -> None:
    """Holds the table of flags in a README to a command: every flag with its default.

    Those for logging in to NATS may be left to ``--help``.

    Raises:
        AssertionError: a flag is missing, is not there, or has another default.
    """
    documented = dict(_ROW.findall(readme.read_text()))
    options = {
        option.opts[0]: str(option.default).removesuffix(".0")
        for option in command.params
        if isinstance(option, click.Option) and option.opts[0] not in _NO_SETTINGS
    }
    missing = options.keys() - documented.keys()
    assert {flag for flag in missing if not flag.startswith(_LOGIN) or flag == "--nats-replicas"} == set()
    assert documented.keys() - options.keys() == set()
    others = {flag: (default, options[flag]) for flag, default in documented.items() if default}
    assert {flag: pair for flag, pair in others.items() if pair[0] != pair[1]} == {}
