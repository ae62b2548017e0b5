"""``ringcast token worker`` and ``ringcast token agent``: tokens for NATS."""

from __future__ import annotations

import click
from ringcast_wire.tokens import make_token
from ringcast_wire.worker_tokens import worker_token_line

from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import print_json


def _token_command(kind: str, text: str) -> click.Command:
    """The command for tokens whose line says ``kind=ID``; ``text`` is its help."""

    @click.command(kind, help=text)
    @click.argument("name")
    @click.argument("process_id", metavar="ID")
    @click.argument("places", nargs=-1, required=True, metavar="STORE/KEY[,KEY...]...")
    @shared_options()
    @click.pass_context
    def command(context: click.Context, name: str, process_id: str, places: tuple[str, ...]) -> None:
        config = settings_of(context)
        secret = make_token()
        line = worker_token_line(name, secret, " ".join((f"{kind}={process_id}", *places)))
        if config.json:
            print_json({"name": name, "token": secret, "line": line})
            return
        click.echo(f"token  {secret}")
        click.echo(f"line   {line}")

    return command


worker = _token_command(
    "worker",
    """Make a token with which the worker ID, or all with a prefix (`fleet-*`, quoted), may log in to NATS.

    Give it to the worker as its password on NATS, with ID as the user. Add the line to the file that the config service
    answers the auth callout from (--callout-tokens). Removing the line ends the worker within seconds.
    """,
)
agent = _token_command(
    "agent",
    """Make a token with which the heartbeat agent ID and its workers may log in to NATS.

    It is used as that of `ringcast token worker`, with ID as the user.
    """,
)
