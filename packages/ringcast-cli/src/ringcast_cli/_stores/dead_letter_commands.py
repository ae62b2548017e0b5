"""``ringcast dead-letters list|replay|discard``."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

import click
from ringcast_client import DeadLetterRecord, ReplayOutcome, ReplayResult
from ringcast_wire import MAX_REPLAY_WAIT_MS, InvalidInputError

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import patience_option, settings_of, shared_options
from ringcast_cli._common.output import print_json, print_table, visible
from ringcast_cli._stores.dead_letter_filter import Chosen, filter_options

_DONE: Final = {
    ReplayOutcome.HANDLED: "handled",
    ReplayOutcome.FAILED_AGAIN: "failed again",
    ReplayOutcome.KEPT: "kept",
    ReplayOutcome.NOT_THERE: "not there",
}
_NUMBER: Final = click.IntRange(min=1)


@click.group("dead-letters")
@shared_options("service", "timeout")
def dead_letters() -> None:
    """List changes that workers and groups have given up, replay them, or discard them.

    A worker or group with the poison policy dead-letter gives a change up when its handler, or its consumers, failed as
    often as they may. NATS keeps it for 30 days, by store.
    """


@dead_letters.command("list")
@click.argument("store")
@filter_options
@click.option("--oldest", is_flag=True, help="The oldest first, instead of the newest.")
@click.option("--limit", type=_NUMBER, default=100, show_default=True, metavar="N", help="Most dead letters.")
@click.option("--values", is_flag=True, help="With --json: values and metadata too; --key-ring opens encrypted ones.")
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def list_letters(
    context: click.Context,
    store: str,
    oldest: bool,
    limit: int,
    values: bool,
    chosen: Chosen,
) -> None:
    """List the dead letters of STORE, the newest first.

    With --json one document a line. The revision is that of the partition at the change. Tries are the calls of the
    handler, or the deliveries; replays how often it was handed over again since, and failed.
    """
    config = settings_of(context)
    with_values = values and config.json

    async def run() -> list[DeadLetterRecord]:
        async with (
            service_client(config) as client,
            aclosing(chosen.read(client, store, oldest_first=oldest, with_values=with_values, limit=limit)) as found,
        ):
            if not config.json:
                return [letter async for letter in found]
            async for letter in found:
                print_json(letter)
            return []

    listed = asyncio.run(run())
    if not config.json:
        _print_letters(listed, config)
        if not listed:
            click.echo("no dead letters")


@dead_letters.command()
@click.argument("store")
@click.argument("numbers", nargs=-1, type=_NUMBER, metavar="[NUMBER]...")
@filter_options
@click.option("--all", "everything", is_flag=True, help="All dead letters of the store.")
@click.option("--max", "most", type=_NUMBER, default=100, show_default=True, metavar="N", help="Most dead letters.")
@click.option("--dry-run", is_flag=True, help="Only print which they would be.")
@patience_option(MAX_REPLAY_WAIT_MS / 1000, 10.0, "How long the owner may take for each dead letter.")
@shared_options("service", "timeout")
@click.pass_context
def replay(
    context: click.Context,
    store: str,
    numbers: tuple[int, ...],
    everything: bool,
    most: int,
    dry_run: bool,
    patience: float,
    chosen: Chosen,
) -> int:
    """Hand the rows of dead letters of STORE over again.

    Those with a NUMBER, or those that the options choose, the oldest first. Each row is handed over as it is now, by
    its present owner: the worker, or for a group the agent that has it. A dead letter is removed once its row was
    handled; if it fails again, another one with a higher count takes its place. The others stay, with a reason.
    The exit code is 1 if one failed again or stayed.
    """
    config = settings_of(context)
    check_choice(context, numbers, chosen, everything)
    counts: Counter[str] = Counter()

    async def run() -> bool:
        """Returns whether there are more than were replayed."""
        async with service_client(config) as client:
            found, more = list(dict.fromkeys(numbers)), False
            if not numbers:
                async with aclosing(chosen.read(client, store, oldest_first=True, limit=most + 1)) as letters:
                    listed = [letter async for letter in letters]
                listed, more = listed[:most], len(listed) > most
                found = [letter.number for letter in listed]
                if dry_run:
                    _print_letters(listed, config)
            elif dry_run:
                raise click.UsageError("--dry-run is for options that choose, not for a NUMBER", context)
            if dry_run:
                counts["would be replayed"] = len(found)
                return more
            async with aclosing(client.replay_dead_letters(store, found, patience_s=patience)) as results:
                async for result in results:
                    counts[_DONE[result.outcome]] += 1
                    if config.json:
                        print_json(result)
                    elif result.outcome is not ReplayOutcome.NOT_THERE:
                        _print_result(result)
            return more

    more = asyncio.run(run())
    if not config.json:
        outcome = ", ".join(f"{count} {done}" for done, count in counts.items()) or "no dead letters"
        click.echo(outcome + (f"; there are more than {most} (--max)" if more else ""))
    in_vain = counts[_DONE[ReplayOutcome.FAILED_AGAIN]] + counts[_DONE[ReplayOutcome.KEPT]]
    return codes.FAILED if in_vain else codes.OK


@dead_letters.command()
@click.argument("store")
@click.argument("numbers", nargs=-1, type=_NUMBER, metavar="[NUMBER]...")
@filter_options
@click.option("--all", "everything", is_flag=True, help="All dead letters of the store.")
@click.option(
    "--yes", is_flag=True, help="Don't ask for confirmation; needed without a NUMBER where there is no terminal."
)
@shared_options("service", "timeout")
@click.pass_context
def discard(
    context: click.Context,
    store: str,
    numbers: tuple[int, ...],
    everything: bool,
    yes: bool,
    chosen: Chosen,
) -> None:
    """Remove dead letters of STORE for good.

    Those with a NUMBER, or those that the options choose. Their rows stay as they are, and no worker receives anything.
    Dead letters that come while it runs stay.
    """
    config = settings_of(context)
    check_choice(context, numbers, chosen, everything)

    async def run() -> int:
        async with service_client(config) as client:
            found = list(numbers)
            if not numbers:
                async with aclosing(chosen.read(client, store)) as letters:
                    found = [letter.number async for letter in letters]
                if found:
                    _confirm(store, len(found), yes=yes)
            return await client.discard_dead_letters(store, found)

    discarded = asyncio.run(run())
    gone = len(set(numbers)) - discarded if numbers else 0
    if config.json:
        print_json({"store": store, "discarded": discarded, "not_there": gone})
        return
    click.echo(f"{discarded} dead letters are discarded" + (f", {gone} were not there" if gone else ""))


def _print_letters(letters: list[DeadLetterRecord], config: CliConfig) -> None:
    if config.json:
        for letter in letters:
            print_json(letter)
    elif letters:
        columns = ["number", "time", "key", "row", "partition", "revision", "owner", "tries", "replays", "error"]
        print_table(columns, list(map(_cells, letters)), right=frozenset({0, 4, 5, 7, 8}))


def _print_result(result: ReplayResult) -> None:
    row = f"{visible(result.key)}\t{visible(result.row_id)}"
    match result.outcome:
        case ReplayOutcome.HANDLED:
            outcome = f"handled at version {result.version} by {visible(result.worker_id)}"
        case ReplayOutcome.FAILED_AGAIN:
            outcome = f"failed again at version {result.version}: {visible(result.why)}"
        case _:
            outcome = f"kept: {visible(result.why)}"
    click.echo(f"{result.number}\t{row}\t{outcome}")


def check_choice(context: click.Context, numbers: tuple[int, ...], chosen: Chosen, everything: bool) -> None:
    """Refuses a command that says in two ways which dead letters it is about, or in none.

    Raises:
        click.UsageError: it does.
    """
    ways = bool(numbers) + (not chosen.is_all) + everything
    if ways != 1:
        raise click.UsageError("give either a NUMBER, or options that choose, or --all", context)


def _confirm(store: str, count: int, *, yes: bool) -> None:
    if yes:
        return
    try:
        typed = click.prompt(
            f"Discards {count} dead letters of {store} for good. Type {count} to go on",
            default="",
            err=True,
            show_default=False,
        )
    except click.Abort:
        typed = ""
    if typed != str(count):
        raise InvalidInputError(f"not confirmed: nothing is discarded (type {count}, or give --yes)", field="yes")


def _cells(letter: DeadLetterRecord) -> list[str]:
    time = datetime.fromtimestamp(letter.came_at_ms / 1000, UTC).isoformat(timespec="seconds")
    if letter.unreadable:
        return [str(letter.number), time, letter.key, "?", str(letter.partition), "", "", "", "", letter.unreadable]
    owner = f"{letter.worker_id}, group {letter.group}" if letter.group else letter.worker_id
    row = f"{letter.row_id} (deleted)" if letter.deleted else letter.row_id
    return [
        str(letter.number),
        time,
        letter.key,
        row,
        str(letter.partition),
        str(letter.version),
        owner,
        str(letter.tries),
        str(letter.replays),
        letter.error,
    ]


COMMANDS: Final = {"dead-letters": dead_letters}
