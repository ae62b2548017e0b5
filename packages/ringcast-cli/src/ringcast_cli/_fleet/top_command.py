"""``ringcast top``, which is ``ringcast cluster top`` too."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import click
from ringcast.fleet import DEFAULT_PATIENCE_S

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.metadata import stopped_by_signals
from ringcast_cli._common.options import every_option, patience_option, settings_of, shared_options
from ringcast_cli._common.output import console, make_table, print_json, print_table
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
    member_warnings,
    members_headline,
    opened_cluster,
)

if TYPE_CHECKING:
    from ringcast_meta import LocalCache
    from ringcast_meta.cluster import Member

_LATE_S: Final = 3.0
"""How much longer than its due time a look may take, before the picture says that it is old."""
_LEAST_ROWS: Final = 5
_AGAIN_S: Final = 0.5

store_option = click.option(
    "--store", "stores", multiple=True, metavar="STORE", help="Only the workers of this store; may be repeated."
)


@click.command()
@store_option
@click.option("--once", is_flag=True, help="Print one picture, with rates over the time of --every, and end.")
@every_option("From one picture to the next.")
@patience_option(60, DEFAULT_PATIENCE_S, "How long the answers of the workers are waited for.")
@shared_options("cluster_store", "etcd", "servers", "service", "timeout")
@click.pass_context
def top(context: click.Context, stores: tuple[str, ...], once: bool, every: float, patience: float) -> None:
    """Show workers, config services and agents, with their rates and lags, until Ctrl-C.

    Each worker is asked, as by `ringcast lag`: partitions owned, changes applied a second, revisions behind, for how
    long it may have missed changes, rows blocked. The worst stand first. Services and agents are shown where
    --cluster-store names the metadata store that they register in. The first lines say how old the picture may be, and
    whether all workers were heard. With --json one document each time.
    """
    asyncio.run(_top(settings_of(context), stores, once, every, patience))


async def _top(config: CliConfig, stores: tuple[str, ...], once: bool, every_s: float, patience_s: float) -> None:
    async with AsyncExitStack() as stack:
        cache = None
        if config.cluster_store:
            _, cache = await stack.enter_async_context(opened_cluster(config))
        fleet = await stack.enter_async_context(Fleet(config, stores, patience_s))
        if once:
            await fleet.look()
            await asyncio.sleep(every_s)
            _print(config, cache, await fleet.look())
            return
        live = None
        if sys.stdout.isatty() and not config.json:
            from rich.live import Live

            live = Live(console=console(), screen=True, auto_refresh=False)
        with nullcontext() if live is None else live, stopped_by_signals():
            async with _looking(fleet, every_s) as looking:
                await fleet.looked(every_s)
                while not looking.done():
                    look = fleet.latest(every_s + patience_s + _LATE_S)
                    if live is None:
                        _print(config, cache, look)
                    else:
                        live.update(_picture(cache, look), refresh=True)
                    await asyncio.wait({looking}, timeout=every_s)
                looking.result()


@asynccontextmanager
async def _looking(fleet: Fleet, every_s: float) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(fleet.run(every_s))
    try:
        yield task
    finally:
        while not task.done():
            task.cancel()  # a connection to NATS that is being made may take one for its own, and go on
            await asyncio.wait({task}, timeout=_AGAIN_S)


def _members(cache: LocalCache | None) -> list[Member]:
    if cache is None:
        return []
    from ringcast_meta.cluster import members_of

    return members_of(cache.entries())


def _print(config: CliConfig, cache: LocalCache | None, look: FleetLook) -> None:
    members = _members(cache)
    if config.json:
        of_cluster = {} if cache is None else {"stale_s": round(cache.stale_s, 1), "fresh": cache.fresh}
        documents = [member_document(member) for member in members]
        workers = [worker_document(worker) for worker in look.workers]
        print_json({"members": documents, **of_cluster, "workers": workers, "fleet": fleet_document(look)})
    else:
        if cache is not None:
            click.echo(members_headline(cache, members))
            print_table(MEMBER_COLUMNS, [member_row(member) for member in members])
        click.echo(fleet_headline(look))
        if look.workers:
            print_table(WORKER_COLUMNS, [worker_row(worker) for worker in look.workers], right=WORKER_NUMBERS)
        for line in (*member_warnings(members), *fleet_warnings(look)):
            click.echo(line)
    sys.stdout.flush()


def _picture(cache: LocalCache | None, look: FleetLook) -> Any:
    """As much as the terminal has room for; what is wrong stands above the tables."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    members = _members(cache)
    if cache is not None:
        style = "bold red" if not cache.fresh or any(member.stale for member in members) else "bold"
        parts.append(Text(members_headline(cache, members), style=style))
    parts.append(Text(fleet_headline(look), style="bold red" if look.missing else "bold"))
    parts += [Text(line) for line in (*member_warnings(members), *fleet_warnings(look))]
    if members:
        parts.append(make_table(MEMBER_COLUMNS, [member_row(member) for member in members]))
    room = max(_LEAST_ROWS, console().size.height - len(parts) - len(members) - 6)
    if look.workers:
        parts.append(
            make_table(WORKER_COLUMNS, [worker_row(worker) for worker in look.workers[:room]], right=WORKER_NUMBERS)
        )
    if len(look.workers) > room:
        parts.append(Text(f"... and {len(look.workers) - room} more workers"))
    return Group(*parts)


COMMANDS: Final = {"top": top}
