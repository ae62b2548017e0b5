"""``ringcast key list|delete|restore``."""

from __future__ import annotations

import asyncio
from typing import Final

import click
from ringcast_client import KeyInfo, StoreInfo

from ringcast_cli._common.client import service_client
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import print_json, print_table, visible
from ringcast_cli._stores.deletion import confirm, delete_slowly, deletion_options, print_deletion, restorable


@click.group()
@shared_options("service", "timeout")
def key() -> None:
    """List, delete and restore the keys of a store. A key is created by its first row."""


@key.command("list")
@click.argument("store")
@click.option("--deleted", is_flag=True, help="Deleted ones that can be restored, too.")
@shared_options("service", "timeout")
@click.pass_context
def list_keys(context: click.Context, store: str, deleted: bool) -> None:
    """List the keys of STORE; with --json one document a line."""
    config = settings_of(context)

    async def run() -> StoreInfo:
        async with service_client(config) as client:
            return await client.get_store(store, include_deleted=deleted)

    found = asyncio.run(run()).keys
    if config.json:
        for each in found:
            print_json(each)
        return
    rows = [
        [each.name, str(each.rows), str(each.bytes)] + ([restorable(each.deletion)] if deleted else [])
        for each in found
    ]
    print_table(["key", "rows", "bytes"] + (["restorable until"] if deleted else []), rows, right=frozenset({1, 2}))


@key.command()
@click.argument("store")
@click.argument("name", metavar="KEY")
@deletion_options
@shared_options("service", "timeout")
@click.pass_context
def delete(context: click.Context, store: str, name: str, yes: bool, purge: bool, grace_s: float) -> None:
    """Delete KEY of STORE with all its rows. Its workers leave it, and their handlers get no deletes.

    It can be restored until the service's retention is over, 7 days by default; with --purge it can't. To delete the
    rows and keep the key, `ringcast sync --allow-empty` it with an empty file.
    """
    config = settings_of(context)
    confirm(name, f"the key {store}/{name}", yes=yes, purge=purge)

    async def run() -> KeyInfo:
        async with service_client(config) as client:
            return await delete_slowly(client.delete_key, store, name, purge=purge, grace_s=grace_s)

    info = asyncio.run(run())
    print_deletion(info, f"key {visible(store)}/{visible(name)}", info.deletion, config, purge=purge)


@key.command()
@click.argument("store")
@click.argument("name", metavar="KEY")
@shared_options("service", "timeout")
@click.pass_context
def restore(context: click.Context, store: str, name: str) -> None:
    """Undo the deletion of KEY of STORE. Its workers have to be started again."""
    config = settings_of(context)

    async def run() -> KeyInfo:
        async with service_client(config) as client:
            return await client.restore_key(store, name)

    info = asyncio.run(run())
    if config.json:
        print_json(info)
    else:
        click.echo(f"key {visible(store)}/{visible(name)} is there again, with {info.rows} rows")


COMMANDS: Final = {"key": key}
