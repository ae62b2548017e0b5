"""``ringcast release rollback``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import click
from ringcast_client import ReleaseInfo
from ringcast_wire import ReleaseState

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, visible
from ringcast_cli._releases.release_output import say
from ringcast_cli._releases.release_words import state_words


@click.command()
@click.argument("store")
@click.option(
    "--to", type=click.IntRange(0), required=True, metavar="NUMBER", help="The release to go back to; 0: before all."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be undone.")
@shared_options("service", "timeout")
@click.pass_context
def rollback(context: click.Context, store: str, to: int, dry_run: bool) -> int:
    """Undo everything that was published after a release, the newest first, and wait until it is done.

    Each release is undone as `ringcast release undo` does it, once those after it are. Nothing is begun if one of them
    can't be undone any more. The same command again goes on where it was cut off. A row that was written since
    stays as it is and is counted as skipped; the exit code is then 1.
    """
    config = settings_of(context)

    async def run() -> list[ReleaseInfo]:
        async with service_client(config) as client:
            if dry_run:
                return await client.rollback_plan(store, to)
            return await client.rollback_releases(
                store, to, reason=config.reason, on_undone=lambda info: None if config.json else say(info, config)
            )

    found = asyncio.run(run())
    if config.json:
        print_json({"store": store, "to": to, "dry_run": dry_run, "releases": [asdict(each) for each in found]})
    elif dry_run:
        for info in found:
            rows = f"{info.published} of {info.rows} rows published"
            click.echo(f"would undo release {info.number}: {state_words(info.state, info.rollout)}, {rows}")
    if not found and not config.json:
        click.echo(f"nothing of {visible(store)} is published after release {to}" if to else "nothing is published")
    return codes.OK if dry_run else _outcome(found)


def _outcome(done: list[ReleaseInfo]) -> int:
    code = codes.OK
    for info in done:
        place = f"{info.store} {info.number}"
        if info.problem:
            note(f"ringcast: release {info.number} has halted, and is tried again by the service: {info.problem}")
        elif info.state is not ReleaseState.UNDONE:
            note(
                f"ringcast: {visible(info.changed_by) or 'another client'} has changed release {info.number} meanwhile"
            )
        elif info.skipped:
            note(
                f"ringcast: {info.skipped} rows of release {info.number} were written by another client, and stay as "
                f"they are: `ringcast release diff {place} --conflicts` names them"
            )
        else:
            continue
        code = codes.FAILED
    return code
