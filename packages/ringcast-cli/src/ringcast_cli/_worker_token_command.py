"""``ringcast token worker`` and ``ringcast token agent``: tokens for NATS."""

from __future__ import annotations

import click
from ringcast_wire.tokens import make_token
from ringcast_wire.worker_tokens import worker_token_line

from ringcast_cli._options import settings_of, shared_options
from ringcast_cli._output import print_json


@click.command()
@click.argument("name")
@click.argument("worker_id", metavar="ID")
@click.argument("places", nargs=-1, required=True, metavar="STORE/KEY[,KEY...]...")
@shared_options()
@click.pass_context
def worker(context: click.Context, name: str, worker_id: str, places: tuple[str, ...]) -> None:
    """Make a token with which the worker ID, or all with a prefix (`fleet-*`, quoted), may log in to NATS.

    Give it to the worker as its password on NATS, with ID as the user, and add the line to the file that the config
    service answers the auth callout from (--callout-tokens). Removing the line ends the worker within seconds.
    """
    _print(context, name, f"worker={worker_id}", places)


@click.command()
@click.argument("name")
@click.argument("agent_id", metavar="ID")
@click.argument("places", nargs=-1, required=True, metavar="STORE/KEY[,KEY...]...")
@shared_options()
@click.pass_context
def agent(context: click.Context, name: str, agent_id: str, places: tuple[str, ...]) -> None:
    """Make such a token for the heartbeat agent ID and its workers."""
    _print(context, name, f"agent={agent_id}", places)


def _print(context: click.Context, name: str, who: str, places: tuple[str, ...]) -> None:
    config = settings_of(context)
    secret = make_token()
    line = worker_token_line(name, secret, " ".join((who, *places)))
    if config.json:
        print_json({"name": name, "token": secret, "line": line})
        return
    click.echo(f"token  {secret}")
    click.echo(f"line   {line}")
