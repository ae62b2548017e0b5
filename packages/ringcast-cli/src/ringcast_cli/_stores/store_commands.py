"""``ringcast store create|show|list|update|migrate|delete|restore|new-history|policy``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

import click
from ringcast_client import StoreInfo
from ringcast_wire import DEFAULT_CALL_BOUND_MS, DEFAULT_LEASE_TTL_MS, Mode, Strategy, limits

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import Duration, settings_of, shared_options
from ringcast_cli._common.output import print_json, print_table, visible
from ringcast_cli._stores.deletion import confirm, delete_slowly, deletion_options, print_deletion, restorable
from ringcast_cli._stores.migrate_command import migrate
from ringcast_cli._stores.policy_commands import policy


@click.group()
@shared_options("service", "timeout")
def store() -> None:
    """Create, show, change, delete and restore stores."""


@store.command()
@click.argument("name")
@click.option(
    "--partitions",
    type=int,
    default=256,
    show_default=True,
    metavar="N",
    help=f"Number of partitions of its rows, 1 to {limits.MAX_PARTITIONS}.",
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode], case_sensitive=False),
    default=Mode.PARTITIONED.value,
    show_default=True,
    help="Whether workers share the partitions, or each has all rows.",
)
@click.option(
    "--strategy",
    type=click.Choice([strategy.value for strategy in Strategy], case_sensitive=False),
    default=Strategy.JUMP.value,
    show_default=True,
    help="How partitions are assigned to workers: jump or ring for lists that are only read; sticky for handlers with "
    "side effects, where each partition has one owner at every moment.",
)
@click.option(
    "--lease-ttl",
    "lease_ttl_ms",
    type=Duration(),
    metavar="DURATION",
    help="With --strategy sticky: how long a worker's lease lasts after its refresh, 100ms to 1h [default: "
    f"{DEFAULT_LEASE_TTL_MS // 1000}s]. After a little longer the partitions of a dead worker get another owner.",
)
@click.option(
    "--call-bound",
    "call_bound_ms",
    type=Duration(),
    metavar="DURATION",
    help="With --strategy sticky: the bound on one handler call, 2.5 % to 50 % of the lease [default: "
    f"{DEFAULT_CALL_BOUND_MS // 1000}s].",
)
@click.option(
    "--inline-max-bytes",
    type=int,
    metavar="BYTES",
    help=f"Largest value that a change event carries, in bytes: 0 to {limits.MAX_INLINE_BYTES} "
    f"[default: {limits.DEFAULT_INLINE_BYTES}].",
)
@shared_options("service", "timeout")
@click.pass_context
def create(context: click.Context, /, name: str, **given: Any) -> None:
    """Create the store NAME.

    Only --inline-max-bytes can be changed later. A repetition with the same settings does nothing.
    """
    config = settings_of(context)

    async def run() -> StoreInfo:
        async with service_client(config) as client:
            return await client.create_store(
                name,
                partition_count=given["partitions"],
                mode=Mode(given["mode"]),
                strategy=Strategy(given["strategy"]),
                inline_max_bytes=given["inline_max_bytes"],
                lease_ttl_ms=given["lease_ttl_ms"],
                call_bound_ms=given["call_bound_ms"],
            )

    _print_store(asyncio.run(run()), config)


@store.command()
@click.argument("name")
@shared_options("service", "timeout")
@click.pass_context
def show(context: click.Context, name: str) -> None:
    """Show the settings and keys of the store NAME."""
    config = settings_of(context)

    async def run() -> StoreInfo:
        async with service_client(config) as client:
            return await client.get_store(name)

    _print_store(asyncio.run(run()), config)


@store.command()
@click.argument("name")
@click.option(
    "--inline-max-bytes",
    type=int,
    metavar="BYTES",
    required=True,
    help=f"Largest value that a change event carries, in bytes: 0 to {limits.MAX_INLINE_BYTES}.",
)
@shared_options("service", "timeout")
@click.pass_context
def update(context: click.Context, name: str, inline_max_bytes: int) -> None:
    """Change a setting of the store NAME. The others are locked at its creation."""
    config = settings_of(context)

    async def run() -> StoreInfo:
        async with service_client(config) as client:
            return await client.update_store(name, inline_max_bytes=inline_max_bytes)

    _print_store(asyncio.run(run()), config)


@store.command()
@click.argument("name")
@deletion_options
@shared_options("service", "timeout")
@click.pass_context
def delete(context: click.Context, name: str, yes: bool, purge: bool, grace_s: float) -> None:
    """Delete the store NAME with all its keys. Its workers end, and their handlers get no deletes.

    It can be restored until the service's retention is over, 7 days by default; with --purge it can't.
    """
    config = settings_of(context)
    confirm(name, f"the store {name}", yes=yes, purge=purge)

    async def run() -> StoreInfo:
        async with service_client(config) as client:
            return await delete_slowly(client.delete_store, name, purge=purge, grace_s=grace_s)

    info = asyncio.run(run())
    print_deletion(info, f"store {visible(name)}", info.deletion, config, purge=purge)


@store.command()
@click.argument("name")
@shared_options("service", "timeout")
@click.pass_context
def restore(context: click.Context, name: str) -> None:
    """Undo the deletion of the store NAME. Its workers have to be started again."""
    config = settings_of(context)

    async def run() -> StoreInfo:
        async with service_client(config) as client:
            return await client.restore_store(name)

    _print_store(asyncio.run(run()), config)


@store.command("list")
@click.option("--deleted", is_flag=True, help="Deleted ones that can be restored, too.")
@shared_options("service", "timeout")
@click.pass_context
def list_stores(context: click.Context, deleted: bool) -> None:
    """List every store; with --json one document a line."""
    config = settings_of(context)

    async def run() -> list[StoreInfo]:
        async with service_client(config) as client:
            return await client.list_stores(include_deleted=deleted)

    stores = asyncio.run(run())
    if config.json:
        for each in stores:
            print_json(each)
        return
    rows = [
        [each.name, str(each.partition_count), each.mode, each.strategy, str(len(each.keys)), _sum_rows(each)]
        + ([restorable(each.deletion)] if deleted else [])
        for each in stores
    ]
    columns = ["store", "partitions", "mode", "strategy", "keys", "rows"] + (["restorable until"] if deleted else [])
    print_table(columns, rows, right=frozenset({1, 4, 5}))


@store.command("new-history")
@click.argument("name")
@shared_options("service", "timeout")
@click.pass_context
def new_history(context: click.Context, name: str) -> None:
    """Begin a new history of the store NAME.

    For a database that was restored to an earlier state where the service can't notice it: the database and NATS were
    both restored, say. Workers fetch every partition whole, and hand over what differs from what they have.
    """
    config = settings_of(context)

    async def run() -> StoreInfo:
        async with service_client(config) as client:
            return await client.new_history(name)

    _print_store(asyncio.run(run()), config)


def _sum_rows(info: StoreInfo) -> str:
    return str(sum(key.rows for key in info.keys))


def _print_store(info: StoreInfo, config: CliConfig) -> None:
    if config.json:
        print_json(info)
        return
    created = datetime.fromtimestamp(info.created_at_ms / 1000, UTC)
    times = (("lease TTL", info.lease_ttl_ms), ("call bound", info.call_bound_ms))
    for label, value in (
        ("store", info.name),
        ("partitions", info.partition_count),
        ("mode", info.mode),
        ("strategy", info.strategy),
        *((label, f"{time_ms / 1000:g} s") for label, time_ms in times if time_ms is not None),
        *((("migration", info.migration.stage),) if info.migration is not None else ()),
        ("hash", info.hash),
        ("wire pin", info.wire_pin),
        ("inline", f"values up to {info.inline_max_bytes} bytes"),
        ("created", created.isoformat(timespec="seconds")),
        ("history", info.history_id),
    ):
        click.echo(f"{label:<12}{value}")
    if info.keys:
        click.echo()
        rows = [[key.name, str(key.rows), str(key.bytes)] for key in info.keys]
        print_table(["key", "rows", "bytes"], rows, right=frozenset({1, 2}))


store.add_command(migrate)
store.add_command(policy)

COMMANDS: Final = {"store": store}
