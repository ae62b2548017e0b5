"""``ringcast cluster``: who is there, how busy, and who is to drain."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from ringcast_wire import InvalidInputError, UnavailableError, check_reason

from ringcast_cli._config import CliConfig
from ringcast_cli._metadata import opened_store, stopped_by_signals
from ringcast_cli._options import every_option, settings_of, shared_options, wait_options
from ringcast_cli._output import console, make_table, note, print_json, print_table

if TYPE_CHECKING:
    from ringcast_meta import LocalCache, MetadataStore
    from ringcast_meta.cluster import AgentLoad, Member, ServiceLoad

_COLUMNS: Final = ["kind", "id", "state", "address", "version", "up", "reported", "load"]


@click.group()
@shared_options("cluster_store", "etcd", "timeout")
def cluster() -> None:
    """Show the config services and agents that are there, and how busy they are.

    They say so in the metadata store that --cluster-store of each names; the same address is given here. The login to
    NATS is RINGCAST_USER and RINGCAST_PASSWORD, RINGCAST_CREDENTIALS_FILE, ...
    """


@cluster.command("list")
@shared_options("cluster_store", "etcd", "timeout")
@click.pass_context
def list_members(context: click.Context) -> None:
    """List the processes that are there: state, address, version, since when, and load.

    `leads` marks the config service that leads maintenance. A process that was killed is listed for 10 s more. Where no
    report has come for 9 s, the state is `unknown`, with the last one behind it. With --json one document a line.
    """
    config = settings_of(context)

    async def read() -> tuple[list[Member], list[str]]:
        from ringcast_meta.cluster import absent_agents, members_of

        async with opened_cluster(config) as (_, cache):
            return members_of(cache.entries()), absent_agents(cache.entries())

    members, absent = asyncio.run(read())
    if config.json:
        for member in members:
            print_json(_document(member))
        return
    print_table(_COLUMNS, [_row(member) for member in members])
    for line in _warnings(members):
        note(line)
    for agent_id in absent:
        note(f"agent {agent_id} is not there, and is to drain when it is: `ringcast cluster activate` ends that")


@cluster.command()
@every_option("From one picture to the next.")
@shared_options("cluster_store", "etcd", "timeout")
@click.pass_context
def top(context: click.Context, every: float) -> None:
    """Show the same all the time, until Ctrl-C.

    The first line says how old the picture may be: it grows while the metadata store does not answer. With --json one
    document each time.
    """
    asyncio.run(_top(settings_of(context), every))


async def _top(config: CliConfig, every_s: float) -> None:
    from rich.live import Live
    from ringcast_meta.cluster import members_of

    async with opened_cluster(config) as (_, cache):
        live = Live(console=console(), screen=True, auto_refresh=False) if sys.stdout.isatty() else None
        with nullcontext() if config.json or live is None else live, stopped_by_signals():
            while True:
                members = members_of(cache.entries())
                if config.json:
                    documents = [_document(member) for member in members]
                    print_json({"members": documents, "stale_s": round(cache.stale_s, 1), "fresh": cache.fresh})
                    sys.stdout.flush()
                elif live is None:
                    click.echo(_headline(cache, members))
                    print_table(_COLUMNS, [_row(member) for member in members])
                else:
                    live.update(_picture(cache, members), refresh=True)
                await asyncio.sleep(every_s)


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
    made up; an agent with --id drains again.
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
        member_named,
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
            named = member_named(members_of(entries), member_id)
            key = (named.kind, named.id)
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
                raise UnavailableError(
                    f"{key[0]} {key[1]} is {_state(member) if member else 'gone'} after {patience_s:g} s, not {wanted}"
                ) from None
        member = now()
        state = _state(member) if member is not None else "gone"
        if config.json:
            print_json({"kind": key[0], "id": key[1], "drain_wanted": drain, "new": new, "state": state})
        else:
            what = "is to drain" if drain else "is to be active"
            click.echo(f"{key[0]} {key[1]} {what}{'' if new else ' already'}; it is {state}")


@asynccontextmanager
async def opened_cluster(config: CliConfig) -> AsyncIterator[tuple[MetadataStore, LocalCache]]:
    """The store, and all that stands in it."""
    from ringcast_meta import LocalCache

    if not config.cluster_store:
        raise InvalidInputError(
            "cluster_store is not given: --cluster-store or RINGCAST_CLUSTER_STORE names the metadata store that config"
            " services and agents register in",
            field="cluster_store",
        )
    async with opened_store(config, config.cluster_store) as store:
        await store.get("services.~")  # a watch goes on trying where no server answers; a read says so
        async with LocalCache(store) as cache:
            await cache.wait_complete(config.timeout_s)
            yield store, cache


def _headline(cache: LocalCache, members: list[Member]) -> str:
    unknown = sum(member.stale for member in members)
    if not cache.fresh:
        return f"STALE: the metadata store has not answered for {cache.stale_s:.0f} s; this is what it said before"
    if unknown:
        return f"{len(members)} processes, {unknown} of them in an unknown state"
    return f"{len(members)} processes"


def _picture(cache: LocalCache, members: list[Member]) -> Any:
    from rich.console import Group
    from rich.text import Text

    style = "bold red" if not cache.fresh or any(member.stale for member in members) else "bold"
    return Group(Text(_headline(cache, members), style=style), make_table(_COLUMNS, [_row(each) for each in members]))


def _warnings(members: list[Member]) -> list[str]:
    found = [
        f"{member.kind} {member.id} has not reported for {_time(member.report_age_s)}: how it is now is not known"
        for member in members
        if member.record is not None and member.stale
    ]
    return found + [f"{member.kind} {member.id}: {member.problem}" for member in members if member.problem]


def _document(member: Member) -> dict[str, Any]:
    said = {} if member.record is None else msgspec.to_builtins(member.record)
    return {
        **said,
        "kind": str(member.kind),
        "id": member.id,
        "state": _state(member),
        "last_state": said.get("state"),
        "report_age_s": round(member.report_age_s, 1),
        "stale": member.stale,
        "drain_wanted": member.drain_wanted,
        "problem": member.problem or None,
    }


def _state(member: Member) -> str:
    return "unknown" if member.stale or member.record is None else str(member.record.state)


def _row(member: Member) -> list[str]:
    record = member.record
    if record is None:
        return [str(member.kind), member.id, "unknown", "", "", "", "", member.problem]
    state = f"unknown (was {record.state})" if member.stale else str(record.state)
    if record.leads and not member.stale:
        state += ", leads"
    up_s = max(0.0, time.time() - record.started_at_ms / 1000)
    return [
        *(str(member.kind), member.id, state, record.address, record.version),
        *(_time(up_s), f"{_time(member.report_age_s)} ago", _load(record.load)),
    ]


def _load(load: ServiceLoad | AgentLoad) -> str:
    from ringcast_meta.cluster import ServiceLoad

    if isinstance(load, ServiceLoad):
        outbox = f"outbox {load.outbox_events} ({_time(load.outbox_age_s)})"
        waits = f"{load.waiting_fetches} fetches wait"
        return f"{load.writes_per_s:g} writes/s, {outbox}, {waits}, {load.open_calls} calls, cpu {load.cpu:.0%}"
    groups = f"{load.groups} groups, {load.consumers} consumers, lag {load.lag}"
    return f"{groups}, {load.subscriptions} subscriptions, {load.workers} workers, cpu {load.cpu:.0%}"


def _time(seconds: float) -> str:
    """In two units at most."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3_600}h{whole % 3_600 // 60:02}m" if whole < 86_400 else f"{whole // 86_400}d"


COMMANDS: Final = {"cluster": cluster}
