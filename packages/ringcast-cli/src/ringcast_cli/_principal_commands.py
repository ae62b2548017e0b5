"""``ringcast whoami``, ``ringcast token create``."""

from __future__ import annotations

import asyncio
from typing import Final

import click
from ringcast_client import WhoAmI
from ringcast_wire.tokens import make_token, token_line

from ringcast_cli._client import service_client
from ringcast_cli._options import settings_of, shared_options
from ringcast_cli._output import print_json, visible


@click.command()
@shared_options("service", "timeout")
@click.pass_context
def whoami(context: click.Context) -> None:
    """Print what the config service takes this client for: its principal."""
    config = settings_of(context)

    async def run() -> WhoAmI:
        async with service_client(config) as client:
            return await client.who_am_i()

    found = asyncio.run(run())
    if config.json:
        print_json(found)
    else:
        click.echo(visible(found.principal))


@click.group()
@shared_options()
def token() -> None:
    """Make tokens for clients of the config service."""


@token.command()
@click.argument("name")
@shared_options()
@click.pass_context
def create(context: click.Context, name: str) -> None:
    """Make a token for the principal NAME, and print it once.

    Give the token to the client (--service-token-file), and add the line to the service's file of tokens (--tokens),
    which it reads again by itself. The line has only a digest of the token. Nothing is sent anywhere.
    """
    config = settings_of(context)
    secret = make_token()
    line = token_line(name, secret)
    if config.json:
        print_json({"name": name, "token": secret, "line": line})
        return
    click.echo(f"token  {secret}")
    click.echo(f"line   {line}")


COMMANDS: Final = {"whoami": whoami, "token": token}
