"""What commands share that delete stores and keys: they ask before, and say until when it can be undone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click
from ringcast_client import DeletionInfo
from ringcast_wire import InvalidInputError, LimitExceededError

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.output import note, print_json, visible

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

DEFAULT_GRACE_S: Final = 15.0
"""More than workers take between two questions: ``heads_s`` and a quarter."""


def deletion_options(command: F) -> F:
    """Adds ``--yes``, ``--purge`` and ``--grace``."""
    grace = click.option(
        "--grace",
        "grace_s",
        type=click.FloatRange(0, 3_600),
        default=DEFAULT_GRACE_S,
        show_default=True,
        metavar="SECONDS",
        help="With --purge: how long running workers have to learn of the deletion first.",
    )
    purge = click.option("--purge", is_flag=True, help="Remove it for good, so that its name is free.")
    yes = click.option("--yes", is_flag=True, help="Don't ask.")
    return yes(purge(grace(command)))


async def delete_slowly(call: Callable[..., Awaitable[T]], *names: str, purge: bool, grace_s: float) -> T:
    """Deletes, and with ``purge`` purges once running workers have learned of it.

    A worker asks every few seconds. One that finds nothing any more, where it has rows, keeps them and says that it is
    stale, as after any loss of the record: only the answer that they are deleted has it end.
    """
    if purge and grace_s:
        with suppress(LimitExceededError):  # too many are deleted and can be restored: this one is purged at once
            found: Any = await call(*names)
            left_s = min(grace_s, grace_s - time.time() + found.deletion.deleted_at_ms / 1000)
            if left_s > 0:
                note(f"ringcast: deleted; purging in {left_s:.0f} s, when workers have learned of it (--grace)")
                await asyncio.sleep(left_s)
    return await call(*names, purge=purge)


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
