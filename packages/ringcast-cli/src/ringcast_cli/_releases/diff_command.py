"""``ringcast diff``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Final

import click
from ringcast_client import ChangeKind, RowDifference

from ringcast_cli._common.client import service_client
from ringcast_cli._common.moments import state
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import print_json, visible
from ringcast_cli._releases.release_output import shown_change

_SIGNS: Final = {ChangeKind.ADDED: "+", ChangeKind.CHANGED: "~", ChangeKind.DELETED: "-"}


@click.command()
@click.argument("store")
@click.argument("key")
@click.option("--from", "before", required=True, metavar="STATE", help="The state to compare.")
@click.option("--to", "after", default="now", show_default=True, metavar="STATE", help="The state to compare it with.")
@click.option("--partition", type=int, metavar="N", help="Only rows of this partition.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Most rows to print.")
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def diff(
    context: click.Context, store: str, key: str, before: str, after: str, partition: int | None, limit: int | None
) -> None:
    """Print what leads from one state of KEY in STORE to another: rows added (+), changed (~) and deleted (-).

    A STATE is the number of a release, as the key was when it was published; a time, as the key was 30m, 2h or 7d ago
    or at an ISO 8601 time (UTC unless it says); or `now`. A row that changed and changed back is not in it. Nothing is
    printed where both are the same. The answer is exact, or refused where the history of the key does not reach back so
    far any more.
    """
    states = state(before, "from"), state(after, "to")
    config = settings_of(context)

    async def run() -> None:
        async with (
            service_client(config) as client,
            aclosing(client.diff(store, key, *states, partition=partition, limit=limit)) as found,
        ):
            async for one in found:
                if config.json:
                    print_json({"row_id": one.row_id, "partition": one.partition, "kind": one.kind, **_rows(one)})
                else:
                    click.echo(_line(one))

    asyncio.run(run())


def _rows(found: RowDifference) -> dict[str, Any]:
    return {
        name: None if row is None else asdict(row) for name, row in (("before", found.before), ("after", found.after))
    }


def _line(found: RowDifference) -> str:
    before, after = (None if row is None else (row.value, row.metadata) for row in (found.before, found.after))
    return f"{_SIGNS[found.kind]} {visible(found.row_id)}: {shown_change(before, after)}"


COMMANDS: Final[dict[str, Any]] = {"diff": diff}
