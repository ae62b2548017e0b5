"""``ringcast topology``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import click
from ringcast.topology import Exclusive, Member, Topology, read_topologies, read_topology
from ringcast_wire import Mode

from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, print_table, visible

_NAMED: Final = 5
"""Processes that a sentence names."""


@click.command()
@click.argument("store")
@click.argument("key", required=False)
@click.option("--partitions", is_flag=True, help="With the strategy sticky: a line a partition, with its token.")
@shared_options("servers", "timeout")
@click.pass_context
def topology(context: click.Context, store: str, key: str | None, partitions: bool) -> None:
    """Show which worker owns which partitions of KEY, or of every key that has workers.

    With the strategy sticky also the leader, the partitions that move, pins, drains, the load of each worker, and the
    partitions that are hot. With --json one document a key, with the owner of each partition.
    """
    config = settings_of(context)
    if key is None:
        found = asyncio.run(read_topologies(config.servers, store, timeout_s=config.timeout_s))
    else:
        found = [asyncio.run(read_topology(config.servers, store, key, timeout_s=config.timeout_s))]
    for each in found:
        if config.json:
            print_json(_document(each))
        else:
            _print(each, partitions)
    if not found and not config.json:
        click.echo(f"{store} has no workers")


def _document(topology: Topology) -> dict[str, Any]:
    return {
        "store": topology.store,
        "key": topology.key,
        "mode": topology.settings.mode,
        "strategy": topology.settings.strategy,
        "partition_count": topology.settings.partition_count,
        "members": topology.members,
        "owners": topology.owners,
        **({"exclusive": topology.exclusive} if topology.exclusive is not None else {}),
        **({"unreadable": topology.unreadable} if topology.unreadable else {}),
    }


def _print(topology: Topology, partitions: bool) -> None:
    settings = topology.settings
    owned = sum(owner is not None for owner in topology.owners)
    click.echo(
        f"{topology.store}/{topology.key}: {settings.mode}, strategy {settings.strategy}, "
        f"{owned} of {settings.partition_count} partitions owned"
    )
    if settings.mode is Mode.FULL:
        click.echo("every worker holds every partition")
    if not topology.members:
        click.echo("no workers")
    else:
        rows = [_row(member, settings.partition_count) for member in topology.members]
        columns = ["worker", "slot", "alive", "partitions", "share", "host", "pid", "which"]
        print_table(columns, rows, right=frozenset({1, 3, 4, 6}))
        for line in held_down({f"worker {each.worker_id}": each.wire for each in topology.members if each.alive}):
            note(line)
    for name, because in topology.unreadable.items():
        note(f"registration {visible(name)} can't be read, and is left out: {visible(because)}")
    if topology.exclusive is not None:
        _print_exclusive(topology.exclusive, partitions)


def held_down(reads: Mapping[str, int]) -> list[str]:
    """Which processes keep events at an older wire version than others read; ``reads``: the newest one of each."""
    lowest, highest = min(reads.values(), default=0), max(reads.values(), default=0)
    if lowest == highest:
        return []
    some = [visible(name) for name in sorted(name for name, version in reads.items() if version == lowest)]
    named = ", ".join(some[:_NAMED]) + (f" and {len(some) - _NAMED} more" if some[_NAMED:] else "")
    return [f"events are of wire version {lowest} at most, though others read {highest}: {named} read no newer one"]


def _print_exclusive(exclusive: Exclusive, partitions: bool) -> None:
    moving = sum(each.next_owner is not None for each in exclusive.partitions)
    leader = visible(exclusive.leader) if exclusive.leader is not None else "nobody"
    click.echo(f"table {exclusive.epoch}, {leader} leads, {moving} partitions move")
    if exclusive.loads:
        busiest = sorted(exclusive.loads.items(), key=lambda one: (-one[1], one[0]))
        click.echo(
            f"balance by {exclusive.balance}; changes/s: {', '.join(f'{name} {rate:.1f}' for name, rate in busiest)}"
        )
    elif exclusive.balance != "count":
        click.echo(f"balance by {exclusive.balance}; no loads are reported")
    for number, rate in exclusive.hot.items():
        owner = exclusive.partitions[number].owner or "nobody"
        click.echo(f"hot: partition {number} of {owner} has {rate:.1f} changes/s, more than a worker should have")
    if exclusive.drains:
        click.echo(f"drained: {', '.join(exclusive.drains)}")
    if exclusive.pins:
        click.echo(f"pinned: {', '.join(f'{number} to {name}' for number, name in sorted(exclusive.pins.items()))}")
    for name, because in exclusive.unreadable.items():
        note(f"record {name} can't be read: {because}")
    rows = [
        [
            str(number),
            each.owner or "-",
            str(each.token),
            each.phase,
            each.next_owner or "-",
            str(each.next_token) if each.next_owner is not None else "-",
        ]
        for number, each in enumerate(exclusive.partitions)
        if partitions or each.phase != "held"
    ]
    if rows:
        columns = ["partition", "owner", "token", "phase", "next owner", "next token"]
        print_table(columns, rows, right=frozenset({0, 2, 5}))


def _row(member: Member, partition_count: int) -> list[str]:
    share = f"{100 * len(member.partitions) / partition_count:.1f} %"
    return [
        member.worker_id,
        str(member.slot) if member.slot is not None else "-",
        "yes" if member.alive else "no",
        str(len(member.partitions)),
        share,
        member.host or "-",
        str(member.pid or "-"),
        ranges(member.partitions),
    ]


def ranges(numbers: tuple[int, ...]) -> str:
    """Ascending numbers in short: ``0-3,7,9-10``."""
    parts: list[str] = []
    start = previous = None
    for number in (*numbers, None):
        if previous is not None and number == previous + 1:
            previous = number
            continue
        if start is not None:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ",".join(parts)


COMMANDS: Final = {"topology": topology}
