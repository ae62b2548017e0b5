"""``ringcast commit``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import BinaryIO, Final

import click
import msgspec
from ringcast_client import CommittedRow, KeyedWrite
from ringcast_wire import InvalidInputError, limits

from ringcast_cli._common.client import service_client
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import print_json, visible

_MAX_FILE_BYTES: Final = 16 * limits.MIB
"""Above every commit that the service takes, however its text is escaped."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the file."""

    key: str
    row_id: str
    value: str | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    deleted: bool = False
    if_version: int | None = None
    if_absent: bool = False


@click.command()
@click.argument("store")
@click.argument("file", type=click.File("rb"))
@click.option("--idempotency-key", metavar="TEXT", help="A repetition with the same key changes nothing.")
@shared_options("service", "key_ring", "timeout")
@click.pass_context
def commit(context: click.Context, store: str, file: BinaryIO, idempotency_key: str | None) -> None:
    """Write the rows of FILE (-: standard input) to their keys in STORE in one transaction.

    FILE has one JSON object a line: key, row_id and value, optionally metadata, if_version or if_absent; or deleted
    instead of value. Up to 1,000 rows and 3 MiB; if one is refused, none is written.
    """
    config = settings_of(context)
    writes = _read(file)

    async def run() -> list[CommittedRow]:
        async with service_client(config) as client:
            return await client.commit(store, writes, idempotency_key=idempotency_key)

    for write, row in zip(writes, asyncio.run(run()), strict=True):
        if config.json:
            print_json(asdict(row))
        elif row.version:
            state = "deleted" if write.delete else "written"
            click.echo(f"{row.key}\t{visible(row.row_id)}\t{state} at version {row.version}")
        else:
            click.echo(f"{row.key}\t{visible(row.row_id)}\tnot there")


def _read(file: BinaryIO) -> list[KeyedWrite]:
    data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidInputError(f"the file is too large: the limit is {_MAX_FILE_BYTES} bytes", field="file")
    writes = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            writes.append(_write(number, line))
            if len(writes) > limits.MAX_BATCH_ROWS:
                raise InvalidInputError(f"the file has more than {limits.MAX_BATCH_ROWS} rows", field="file")
    return writes


def _write(number: int, line: bytes) -> KeyedWrite:
    try:
        found = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"line {number}: {error}", field="file") from None
    if found.deleted == (found.value is not None):
        raise InvalidInputError(f"line {number}: either value or deleted is needed", field="file")
    return KeyedWrite(
        found.key,
        found.row_id,
        found.value or "",
        found.metadata,
        found.deleted,
        found.if_version,
        found.if_absent,
    )


COMMANDS: Final = {"commit": commit}
