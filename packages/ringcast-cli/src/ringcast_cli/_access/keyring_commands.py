"""``ringcast keyring create|add|activate|remove|show|reseal``."""

from __future__ import annotations

import asyncio
from typing import Final

import click
from ringcast_client import ResealResult
from ringcast_wire.key_ring import KeyRingDocument, make_key, read_key_ring, write_key_ring

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, visible

_FILE: Final = click.argument("file")
_KEY_ID: Final = click.argument("key_id")


@click.group()
@shared_options()
def keyring() -> None:
    """Make key rings, which encrypt values, and take new keys into use.

    A key ring is a file with keys, the lists that they encrypt, and which key is active. Keep a copy of it: without its
    keys nobody can read the values. No command prints a key.
    """


@keyring.command()
@_FILE
@click.option(
    "--encrypt",
    multiple=True,
    required=True,
    metavar="STORE/KEY",
    help="Encrypt these lists; * stands for any characters. May be repeated.",
)
@click.option(
    "--accept-clear",
    multiple=True,
    metavar="STORE/KEY",
    help="Read clear text in these of them, until they are encrypted. May be repeated.",
)
@click.option("--key-id", default="k1", show_default=True, metavar="NAME", help="The id of its first key.")
@shared_options()
@click.pass_context
def create(
    context: click.Context, file: str, encrypt: tuple[str, ...], accept_clear: tuple[str, ...], key_id: str
) -> None:
    """Write a new key ring to FILE, which only its owner may read. A file that is there stays."""
    document = KeyRingDocument(
        active=key_id, keys={key_id: make_key()}, encrypt=list(encrypt), accept_clear=list(accept_clear)
    )
    write_key_ring(file, document, replace=False)
    _print(document, settings_of(context))


@keyring.command()
@_FILE
@_KEY_ID
@shared_options()
@click.pass_context
def add(context: click.Context, file: str, key_id: str) -> None:
    """Add a new key to FILE. It opens values and does not seal any before it is activated."""
    _change(context, file, read_key_ring(file)[0].with_key(key_id))


@keyring.command()
@_FILE
@_KEY_ID
@shared_options()
@click.pass_context
def activate(context: click.Context, file: str, key_id: str) -> None:
    """Seal values with the key KEY_ID of FILE from now on. Every reader must have the key before."""
    _change(context, file, read_key_ring(file)[0].with_active(key_id))


@keyring.command()
@_FILE
@_KEY_ID
@shared_options()
@click.pass_context
def remove(context: click.Context, file: str, key_id: str) -> None:
    """Remove a key from FILE that is not active. What is still sealed with it can't be read any more."""
    _change(context, file, read_key_ring(file)[0].without_key(key_id))


@keyring.command()
@_FILE
@shared_options()
@click.pass_context
def show(context: click.Context, file: str) -> None:
    """Print what FILE says: the ids and fingerprints of its keys, and the lists. Equal keys have equal fingerprints."""
    _print(read_key_ring(file)[0], settings_of(context))


@keyring.command()
@click.argument("store")
@click.argument("key")
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def reseal(context: click.Context, store: str, key: str) -> int:
    """Seal each row of KEY in STORE again that is not sealed with the active key of --key-ring.

    Rows that another client changes meanwhile stay as they are and are named; the exit code is then 1. After an
    interruption, run it again: it finishes what is left.
    """
    config = settings_of(context)

    async def run() -> ResealResult:
        async with service_client(config) as client:
            return await client.reseal(store, key)

    result = asyncio.run(run())
    if config.json:
        print_json(result)
    else:
        click.echo(f"{store}/{key}: {result.resealed} of {result.rows} rows are sealed again")
    if result.conflicts:
        named = ", ".join(map(visible, result.first_conflicts))
        more = " …" if result.conflicts > len(result.first_conflicts) else ""
        note(f"ringcast: {result.conflicts} rows were changed by another client meanwhile: {named}{more}; run it again")
    return codes.FAILED if result.conflicts else codes.OK


def _change(context: click.Context, file: str, document: KeyRingDocument) -> None:
    write_key_ring(file, document, replace=True)
    _print(document, settings_of(context))


def _print(document: KeyRingDocument, config: CliConfig) -> None:
    fingerprints = document.fingerprints()
    if config.json:
        print_json(
            {
                "active": document.active,
                "keys": fingerprints,
                "encrypt": document.encrypt,
                "accept_clear": document.accept_clear,
            }
        )
        return
    for key_id, fingerprint in fingerprints.items():
        click.echo(f"key  {key_id}  {fingerprint}{'  active' if key_id == document.active else ''}")
    for what, patterns in (("encrypt", document.encrypt), ("accept_clear", document.accept_clear)):
        for pattern in patterns:
            click.echo(f"{what}  {pattern}")


COMMANDS: Final = {"keyring": keyring}
