"""``ringcast release approve|revoke``."""

from __future__ import annotations

import asyncio

import click
from ringcast_client import ReleaseInfo

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import counted, print_json, visible
from ringcast_cli._releases.release_words import approval_words


@click.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@click.option("--digest", default="", metavar="DIGEST", help="Only if it has this digest: `ringcast release show`.")
@shared_options("service", "timeout")
@click.pass_context
def approve(context: click.Context, store: str, number: int, digest: str) -> None:
    """Approve what is staged as a release, for a store whose policy wants approvals.

    It takes the role approver of the store. The principal that staged the release can't approve it, and each principal
    counts once. The same again changes nothing.
    """
    config = settings_of(context)

    async def run() -> ReleaseInfo:
        async with service_client(config) as client:
            return await client.approve_release(store, number, digest=digest)

    _say(asyncio.run(run()), config)


@click.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def revoke(context: click.Context, store: str, number: int) -> None:
    """Take your approval of a staged release back."""
    config = settings_of(context)

    async def run() -> ReleaseInfo:
        async with service_client(config) as client:
            return await client.revoke_approval(store, number)

    _say(asyncio.run(run()), config)


def _say(info: ReleaseInfo, config: CliConfig) -> None:
    if config.json:
        print_json(info)
        return
    count = len(info.approvals)
    words = approval_words(count, info.approvals_needed) or "none more is needed"
    has = counted(count, "approval")
    click.echo(f"release {info.number} of {visible(info.store)} has {has}: {words}")
