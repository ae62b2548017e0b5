"""``ringcast release pin|unpin``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import click
from ringcast_client import ConfigServiceClient, ReleaseInfo

from ringcast_cli._common.client import service_client
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import print_json, visible


@click.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def pin(context: click.Context, store: str, number: int) -> None:
    """Keep the rows of a release, and of all after it, so that STORE can be brought back to it.

    Without a pin they are removed when the release is old (`release_retention` of the config service, 7 days). A store
    has one pin: pin a later release, and those before it become old as ever.
    """
    said = "is pinned: its rows, and those of all after it, are kept"
    _change(context, store, number, ConfigServiceClient.pin_release, said)


@click.command()
@click.argument("store")
@click.argument("number", type=click.IntRange(1))
@shared_options("service", "timeout")
@click.pass_context
def unpin(context: click.Context, store: str, number: int) -> None:
    """Take the pin of a release back. What is old by then is removed."""
    _change(context, store, number, ConfigServiceClient.unpin_release, "is not pinned")


def _change(
    context: click.Context, store: str, number: int, change: Callable[..., Awaitable[ReleaseInfo]], said: str
) -> None:
    config = settings_of(context)

    async def run() -> ReleaseInfo:
        async with service_client(config) as client:
            return await change(client, store, number)

    info = asyncio.run(run())
    if config.json:
        print_json(info)
    else:
        click.echo(f"release {number} of {visible(store)} {said}")
