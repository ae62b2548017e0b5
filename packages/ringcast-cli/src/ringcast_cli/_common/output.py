"""How results are printed: plain lines for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_encoder = msgspec.json.Encoder()


def print_json(document: Any) -> None:
    """One JSON document on one line of standard output; dataclasses become objects."""
    click.echo(_encoder.encode(document))


def visible(text: str) -> str:
    """``text`` with everything that could steer a terminal or break a line written as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown_metadata(metadata: Mapping[str, str]) -> str:
    """The entries of a row's metadata on one line, by name."""
    return " ".join(f"{visible(name)}={visible(entry)}" for name, entry in sorted(metadata.items()))


def counted(count: int, what: str) -> str:
    """A number of things, of which ``what`` names one."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def print_table(columns: list[str], rows: list[list[str]], *, right: frozenset[int] = frozenset()) -> None:
    """A small table; columns whose numbers are in ``right`` are right-aligned."""
    console().print(make_table(columns, rows, right=right))


def make_table(columns: list[str], rows: list[list[str]], *, right: frozenset[int] = frozenset()) -> Table:
    """The same, not printed."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(visible(cell) for cell in row))
    return table


def console() -> Console:
    """Standard output, which shows text as it is."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else 160)


def note(text: str) -> None:
    """A line for a person, on standard error so that it never mixes with results."""
    click.echo(text, err=True)
