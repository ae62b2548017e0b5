"""What commands share that delete stores and keys: they ask before, and say until when it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from ringcast.admin import DeletionInfo
from ringcast_wire import InvalidInputError

from ringcast_cli._config import CliConfig
from ringcast_cli._output import print_json, visible

F = TypeVar("F", bound=Callable[..., Any])


def deletion_options(command: F) -> F:
    """Adds ``--yes`` and ``--purge``."""
    purge = click.option("--purge", is_flag=True, help="Remove it for good, at once: its name is free then.")
    yes = click.option("--yes", is_flag=True, help="Don't ask.")
    return yes(purge(command))


def confirm(name: str, what: str, *, yes: bool, purge: bool) -> None:
    """Has the name typed, unless ``yes``.

    Raises:
        InvalidInputError: another was typed, or nothing.
    """
    if yes:
        return
    end = "for good" if purge else "until it is restored"
    try:
        typed = click.prompt(
            f"Deletes {visible(what)} {end}. Type {visible(name)} to go on", default="", err=True, show_default=False
        )
    except click.Abort:
        typed = ""
    if typed != name:
        raise InvalidInputError(f"not confirmed: nothing is deleted (type {name!r}, or give --yes)", field="yes")


def print_deletion(
    document: object, what: str, deletion: DeletionInfo | None, config: CliConfig, *, purge: bool
) -> None:
    """What a deletion did."""
    if config.json:
        print_json(document)
    elif purge:
        click.echo(f"{what} is purged: its name is free")
    else:
        click.echo(f"{what} is deleted; it can be restored until {restorable(deletion)}")


def restorable(deletion: DeletionInfo | None) -> str:
    """Until when, or a dash for what is not deleted."""
    if deletion is None:
        return "-"
    if not deletion.restorable_until_ms:
        return "being purged"
    return datetime.fromtimestamp(deletion.restorable_until_ms / 1000, UTC).isoformat(timespec="seconds")
