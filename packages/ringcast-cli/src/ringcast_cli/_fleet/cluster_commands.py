"""``ringcast cluster``: who is there, how busy, and who is to drain."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click
from ringcast.fleet import DEFAULT_PATIENCE_S
from ringcast_wire import InvalidInputError, UnavailableError, check_reason

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import patience_option, settings_of, shared_options, wait_options
from ringcast_cli._common.output import note, print_json, print_table
from ringcast_cli._fleet.fleet import (
    WORKER_COLUMNS,
    WORKER_NUMBERS,
    Fleet,
    FleetLook,
    fleet_document,
    fleet_headline,
    fleet_warnings,
    worker_document,
    worker_row,
)
from ringcast_cli._fleet.members import (
    MEMBER_COLUMNS,
    member_document,
    member_row,
    member_state,
    member_warnings,
    opened_cluster,
    read_cluster,
)
from ringcast_cli._fleet.top_command import store_option, top
from ringcast_cli._fleet.topology_command import held_down

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringcast_meta.cluster import Member, MemberKind


@click.group()
@shared_options("cluster_store", "etcd", "timeout")
def cluster() -> None:
    """Show the config services, agents and workers that are there, and how busy they are.

    Services and agents say so in the metadata store that --cluster-store of each names; the same address is given here.
    Workers are asked. The login to NATS is RINGCAST_USER and RINGCAST_PASSWORD, RINGCAST_CREDENTIALS_FILE, ...
    """


@cluster.command("list")
@store_option
@patience_option(60, DEFAULT_PATIENCE_S, "How long the answers of the workers are waited for.")
@shared_options("cluster_store", "etcd", "servers", "service", "timeout")
@click.pass_context
def list_members(context: click.Context, stores: tuple[str, ...], patience: float) -> None:
    """List the processes that are there: state, address, version, since when, and load; and the workers of all stores.

    `leads` marks the config service that leads maintenance. A process that was killed is listed for 10 s more. Where no
    report has come for 9 s, the state is `unknown`, with the last one behind it. The workers are asked, as by `ringcast
    lag`; where some could not be, a sentence says so. With --json one document a line: services and agents, then
    workers, then whether these are all (`"kind": "fleet"`).
    """
    config = settings_of(context)

    async def read() -> tuple[list[Member], list[str], FleetLook]:
        from ringcast_meta.cluster import absent_agents, members_of

        entries = await read_cluster(config)
        async with Fleet(config, stores, patience) as fleet:
            return members_of(entries), absent_agents(entries), await fleet.look()

    members, absent, look = asyncio.run(read())
    if config.json:
        for document in (*map(member_document, members), *map(worker_document, look.workers), fleet_document(look)):
            print_json(document)
        return
    print_table(MEMBER_COLUMNS, [member_row(member) for member in members])
    click.echo(f"\n{fleet_headline(look)}")
    if look.workers:
        print_table(WORKER_COLUMNS, [worker_row(worker) for worker in look.workers], right=WORKER_NUMBERS)
    reads = {f"{member.kind} {member.id}": member.record.wire for member in members if member.record is not None}
    for line in (*member_warnings(members), *held_down(reads), *fleet_warnings(look)):
        note(line)
    for agent_id in absent:
        note(f"agent {agent_id} is not there, and is to drain when it is: `ringcast cluster activate` ends that")


cluster.add_command(top)

_REASON: Final = click.option("--reason", default="", metavar="TEXT", help="Why, for those who look at the wish.")
_WAIT: Final = wait_options("Return when it has happened.")


@cluster.command()
@click.argument("id")
@_WAIT
@_REASON
@shared_options("cluster_store", "etcd", "timeout")
@click.pass_context
def drain(context: click.Context, id: str, wait: bool, patience: float, reason: str) -> None:  # noqa: A002
    """Have the process ID take nothing new and finish what it has, so that it may be stopped.

    A config service refuses calls, which clients of several addresses then make at another, ends its streams, and
    publishes what it has written. An agent gives its groups and their partitions to other hosts, and the workers of its
    host go over to leases of their own. The process hears of it within 3 s, is `draining`, then `drained`, and goes on
    running. `ringcast cluster activate` takes it back. A restart takes a config service back, and an agent whose id is
    made up; an agent with --id drains again. Workers are drained by `ringcast drain`.
    """
    asyncio.run(_want(settings_of(context), id, True, check_reason(reason), patience if wait else None))


@cluster.command()
@click.argument("id")
@_WAIT
@shared_options("cluster_store", "etcd", "timeout")
@click.pass_context
def activate(context: click.Context, id: str, wait: bool, patience: float) -> None:  # noqa: A002
    """Have the process ID, which is drained or draining, take calls, consumers and workers again.

    The id may be that of an agent that is not there now, so that it does not drain when it is.
    """
    asyncio.run(_want(settings_of(context), id, False, "", patience if wait else None))


async def _want(config: CliConfig, member_id: str, drain: bool, reason: str, patience_s: float | None) -> None:
    from ringcast_meta.cluster import (
        MemberKind,
        MemberState,
        absent_agents,
        forget_wishes,
        members_of,
        want_active,
        want_drain,
    )

    def now() -> Member | None:
        return next((each for each in members_of(cache.entries()) if (each.kind, each.id) == key), None)

    def happened() -> bool:
        member = now()
        return member is None or (member.record is not None and member.record.state is wanted)

    wanted = MemberState.DRAINED if drain else MemberState.ACTIVE
    async with opened_cluster(config) as (store, cache):
        entries = cache.entries()
        if not drain and member_id in absent_agents(entries):
            key = (MemberKind.AGENT, member_id)
        else:
            key = _process_named(members_of(entries), member_id)
        if drain:
            await forget_wishes(store, cache.entries())
            new = await want_drain(store, *key, reason)
        else:
            new = await want_active(store, *key)
        if patience_s is not None:
            try:
                await cache.wait_until(happened, patience_s)
            except UnavailableError:
                member = now()
                state = member_state(member) if member is not None else "gone"
                raise UnavailableError(f"{key[0]} {key[1]} is {state} after {patience_s:g} s, not {wanted}") from None
        member = now()
        state = member_state(member) if member is not None else "gone"
        if config.json:
            print_json({"kind": key[0], "id": key[1], "drain_wanted": drain, "new": new, "state": state})
        else:
            what = "is to drain" if drain else "is to be active"
            click.echo(f"{key[0]} {key[1]} {what}{'' if new else ' already'}; it is {state}")


def _process_named(members: Sequence[Member], member_id: str) -> tuple[MemberKind, str]:
    """The kind and the id of the process.

    Raises:
        InvalidInputError: there is no such process, or there are several.
    """
    from ringcast_meta.cluster import member_named

    try:
        found = member_named(members, member_id)
    except InvalidInputError as error:
        if any(member.id == member_id for member in members):
            raise
        raise InvalidInputError(f"{error}; workers are drained by `ringcast drain`", field="id") from None
    return found.kind, found.id


COMMANDS: Final = {"cluster": cluster}
