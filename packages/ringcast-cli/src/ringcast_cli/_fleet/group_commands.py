"""``ringcast groups list|show|reset``."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import click
from ringcast.groups import GroupPosition, HeldPartition, read_groups, reset_group
from ringcast_wire import InvalidInputError

from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import print_json, print_table


@click.group()
@shared_options("servers", "timeout")
def groups() -> None:
    """Show the positions of groups of consumers, and reset them."""


@groups.command("list")
@click.argument("store")
@click.argument("key", required=False)
@shared_options("servers", "timeout")
@click.pass_context
def list_groups(context: click.Context, store: str, key: str | None) -> None:
    """Show the groups of STORE, or of one KEY, and the hosts that deliver them.

    With --json one document a group, with its partitions.
    """
    config = settings_of(context)
    found = asyncio.run(read_groups(config.servers, store, key, timeout_s=config.timeout_s))
    if config.json:
        for each in found:
            print_json(each)
    elif found:
        columns = ["group", "store/key", "partitions", "held", "behind", "unsettled", "hosts"]
        print_table(columns, [_row(each) for each in found], right=frozenset({2, 3, 4, 5}))
        for each in found:
            _say_unreadable(each)
    else:
        click.echo(f"{store if key is None else f'{store}/{key}'} has no groups")


@groups.command()
@click.argument("store")
@click.argument("key")
@click.argument("group")
@shared_options("servers", "timeout")
@click.pass_context
def show(context: click.Context, store: str, key: str, group: str) -> None:
    """Show how far GROUP has come in each partition, and which process delivers it."""
    config = settings_of(context)
    found = asyncio.run(read_groups(config.servers, store, key, group, timeout_s=config.timeout_s))
    if not found:
        raise InvalidInputError(f"no host has delivered group {group} of {store}/{key}", field="group")
    if config.json:
        print_json(found[0])
        return
    columns = ["partition", "revision", "behind", "unsettled", "holder", "lives", "host", "pid", "sealed", "history"]
    rows = [_partition(each) for each in found[0].partitions]
    print_table(columns, rows, right=frozenset({0, 1, 2, 3, 7}))
    _say_unreadable(found[0])


@groups.command()
@click.argument("store")
@click.argument("key")
@click.argument("group")
@click.option("--force", is_flag=True, help="Also while an agent that lives delivers the group.")
@shared_options("servers", "timeout")
@click.pass_context
def reset(context: click.Context, store: str, key: str, group: str, force: bool) -> None:
    """Have GROUP begin again with every row.

    Deletions of the time before are not delivered again. An agent that delivers the group (--force) begins again too.
    """
    config = settings_of(context)
    count = asyncio.run(reset_group(config.servers, store, key, group, force=force, timeout_s=config.timeout_s))
    if config.json:
        print_json({"store": store, "key": key, "group": group, "partitions": count})
    else:
        click.echo(f"group {group} of {store}/{key} begins again in {count} partitions")


def _say_unreadable(group: GroupPosition) -> None:
    if group.unreadable:
        click.echo(
            f"ringcast: group {group.group} of {group.store}/{group.key} has positions that this build can't read, in "
            f"{len(group.unreadable)} partitions (partition {group.unreadable[0]}, for one): use a newer ringcast",
            err=True,
        )


def _row(group: GroupPosition) -> list[str]:
    held = [each for each in group.partitions if each.alive]
    known = [each.behind for each in group.partitions if each.behind is not None]
    all_known = len(known) == len(group.partitions) and not group.unreadable
    behind = str(sum(known)) if all_known else f"{sum(known)} or more"
    hosts = sorted({each.host for each in held if each.host is not None})
    return [
        group.group,
        f"{group.store}/{group.key}",
        str(len(group.partitions) + len(group.unreadable)),
        str(len(held)),
        behind,
        str(sum(len(each.pending) for each in group.partitions)),
        ", ".join(hosts) or "-",
    ]


def _partition(each: HeldPartition) -> list[str]:
    sealed = datetime.fromtimestamp(each.sealed_at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        str(each.partition),
        str(each.revision),
        "?" if each.behind is None else str(each.behind),
        str(len(each.pending)),
        each.lease or "-",
        ("yes" if each.alive else "no") if each.lease is not None else "-",
        each.host or "-",
        str(each.pid or "-"),
        sealed,
        each.history or "from the beginning",
    ]


COMMANDS: Final = {"groups": groups}
