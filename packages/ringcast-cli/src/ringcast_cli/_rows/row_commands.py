"""``ringcast put|get|delete|list|history``."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import click
from ringcast_client import DeleteResult, PutResult, RevisionRecord, RowRecord
from ringcast_wire import InvalidInputError, limits

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.moments import as_of_time as moment_of
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, shown_metadata, visible

_LIMIT: Final = click.IntRange(min=1)
_IF_VERSION: Final = click.option("--if-version", type=int, metavar="N", help="Only if the row is at this version.")
_IDEMPOTENCY_KEY: Final = click.option(
    "--idempotency-key", metavar="TEXT", help="A repetition with the same key changes nothing."
)


@click.command()
@click.argument("store")
@click.argument("key")
@click.argument("row_id")
@click.argument("value", required=False)
@click.option("--file", "source", type=click.File("rb"), metavar="FILE", help="Take the value from a file; -: stdin.")
@click.option("-m", "--metadata", multiple=True, metavar="NAME=VALUE", help="A metadata entry; repeat it for more.")
@_IF_VERSION
@click.option("--if-absent", is_flag=True, help="Only if the row does not exist.")
@_IDEMPOTENCY_KEY
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def put(
    context: click.Context,
    store: str,
    key: str,
    row_id: str,
    value: str | None,
    source: BinaryIO | None,
    metadata: tuple[str, ...],
    if_version: int | None,
    if_absent: bool,
    idempotency_key: str | None,
) -> None:
    """Write the row ROW_ID of KEY in STORE. The first row creates the key."""
    if (value is None) == (source is None):
        raise click.UsageError("give either a VALUE or --file", context)
    text = value if source is None else _read_value(source)
    assert text is not None
    config = settings_of(context)

    async def run() -> PutResult:
        async with service_client(config) as client:
            return await client.put(
                store,
                key,
                row_id,
                text,
                _metadata(metadata),
                if_version=if_version,
                if_absent=if_absent,
                idempotency_key=idempotency_key,
            )

    result = asyncio.run(run())
    if config.json:
        print_json({"row_id": row_id, **asdict(result)})
    else:
        click.echo(f"{visible(row_id)} is at version {result.version} of partition {result.partition}")


@click.command()
@click.argument("store")
@click.argument("key")
@click.argument("row_ids", nargs=-1, required=True, metavar="ROW_ID...")
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def get(context: click.Context, store: str, key: str, row_ids: tuple[str, ...]) -> int:
    """Print the value of one row, or id and value of several.

    The exit code is 1 when one of them does not exist.
    """
    config = settings_of(context)

    async def run() -> list[RowRecord]:
        async with service_client(config) as client:
            return await client.get(store, key, row_ids)

    rows = asyncio.run(run())
    for row in rows:
        if config.json:
            print_json(row)
        elif len(row_ids) > 1:
            click.echo(f"{visible(row.row_id)}\t{visible(row.value)}")
        else:
            click.echo(visible(row.value) if sys.stdout.isatty() else row.value)
    missing = sorted(set(row_ids) - {row.row_id for row in rows})
    for row_id in missing:
        note(f"ringcast: row {row_id!r} is not in {store}/{key}")
    return codes.FAILED if missing else codes.OK


@click.command()
@click.argument("store")
@click.argument("key")
@click.argument("row_id")
@_IF_VERSION
@_IDEMPOTENCY_KEY
@shared_options("service", "timeout")
@click.pass_context
def delete(
    context: click.Context,
    store: str,
    key: str,
    row_id: str,
    if_version: int | None,
    idempotency_key: str | None,
) -> int:
    """Delete a row. The exit code is 1 when it does not exist."""
    config = settings_of(context)

    async def run() -> DeleteResult:
        async with service_client(config) as client:
            return await client.delete(store, key, row_id, if_version=if_version, idempotency_key=idempotency_key)

    result = asyncio.run(run())
    if config.json:
        print_json({"row_id": row_id, **asdict(result)})
    elif result.existed:
        click.echo(f"{visible(row_id)} is deleted at version {result.version} of partition {result.partition}")
    if not result.existed:
        note(f"ringcast: row {row_id!r} is not in {store}/{key}: nothing was deleted")
    return codes.OK if result.existed else codes.FAILED


@click.command("list")
@click.argument("store")
@click.argument("key")
@click.option("--partition", type=int, metavar="N", help="Only rows of this partition.")
@click.option("--deleted", is_flag=True, help="Tombstones too.")
@click.option("--limit", type=_LIMIT, metavar="N", help="Most rows to print.")
@click.option("--long", "details", is_flag=True, help="Partition, version and metadata too.")
@click.option(
    "--as-of-release", type=click.IntRange(1), metavar="NUMBER", help="As they were when this release was published."
)
@click.option(
    "--as-of-time", metavar="TIME", help="As they were 30m, 2h or 7d ago, or at an ISO 8601 time (UTC unless it says)."
)
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def list_rows(
    context: click.Context,
    store: str,
    key: str,
    partition: int | None,
    deleted: bool,
    limit: int | None,
    details: bool,
    as_of_release: int | None,
    as_of_time: str | None,
) -> None:
    """Print the rows of KEY in STORE: id, tab, value.

    They are in the order of their partitions and ids. Earlier rows are exact, or refused where the history of the key
    does not reach back so far any more.
    """
    if as_of_release is not None and as_of_time is not None:
        raise click.UsageError("give either --as-of-release or --as-of-time", context)
    as_of = as_of_release if as_of_time is None else moment_of(as_of_time)
    if deleted and as_of is not None:
        raise click.UsageError("--deleted lists tombstones as they are: it does not go with an earlier state", context)
    config = settings_of(context)

    async def run() -> None:
        async with service_client(config) as client:
            if as_of is None:
                rows = client.list(store, key, partition=partition, include_deleted=deleted, limit=limit)
            else:
                rows = client.list_as_of(store, key, as_of, partition=partition, limit=limit)
            async with aclosing(rows):
                async for row in rows:
                    if config.json:
                        print_json(row)
                    else:
                        click.echo(_line(row, details))

    asyncio.run(run())


@click.command()
@click.argument("store")
@click.argument("key")
@click.argument("row_id", required=False)
@click.option("--partition", type=int, metavar="N", help="Only writes to this partition.")
@click.option("--since", type=click.IntRange(min=0), default=0, metavar="REVISION", help="Only later revisions.")
@click.option("--limit", type=_LIMIT, metavar="N", help="Most writes to print.")
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def history(
    context: click.Context,
    store: str,
    key: str,
    row_id: str | None,
    partition: int | None,
    since: int,
    limit: int | None,
) -> None:
    """Print the writes to KEY, or to one row of it: time, partition, version, id, value, author, reason."""
    config = settings_of(context)

    async def run() -> None:
        async with service_client(config) as client:
            revisions = client.history(store, key, row_id, partition=partition, since=since, limit=limit)
            async with aclosing(revisions):
                async for revision in revisions:
                    if config.json:
                        facts = {name: value for name, value in asdict(revision).items() if name != "row"}
                        print_json({**asdict(revision.row), **facts})
                    else:
                        click.echo(_revision_line(revision))

    asyncio.run(run())


def _line(row: RowRecord, details: bool) -> str:
    value = "(deleted)" if row.deleted else visible(row.value)
    if not details:
        return f"{visible(row.row_id)}\t{value}"
    metadata = shown_metadata(row.metadata)
    return f"{row.partition}\t{row.version}\t{visible(row.row_id)}\t{value}\t{metadata}".rstrip("\t")


def _revision_line(revision: RevisionRecord) -> str:
    at = datetime.fromtimestamp(revision.written_at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    row = revision.row
    value = "(deleted)" if row.deleted else visible(row.value)
    by = f"{visible(revision.author)}\t{visible(revision.reason)}".rstrip("\t")
    return f"{at}\t{row.partition}\t{row.version}\t{visible(row.row_id)}\t{value}\t{by}".rstrip("\t")


def _metadata(entries: tuple[str, ...]) -> dict[str, str]:
    metadata = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{entry!r} is not of the form NAME=VALUE", param_hint="--metadata")
        metadata[name] = value
    return metadata


def _read_value(source: BinaryIO) -> str:
    data = source.read(limits.MAX_ROW_BYTES + 1)
    if len(data) > limits.MAX_ROW_BYTES:
        raise InvalidInputError(f"value is too large: the limit is {limits.MAX_ROW_BYTES} bytes", field="value")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"value is not text: byte 0x{data[error.start]:02x} at offset {error.start} is not valid UTF-8",
            field="value",
        ) from None


COMMANDS: Final[dict[str, Any]] = {
    "put": put,
    "get": get,
    "delete": delete,
    "list": list_rows,
    "history": history,
}
