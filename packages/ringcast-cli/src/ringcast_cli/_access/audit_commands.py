"""``ringcast audit list|verify|export``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from ringcast_client import AuditVerdict
from ringcast_wire import InvalidInputError, shown_path
from ringcast_wire.audit import START, AuditEntry, ChainCheck, Link, parse_link

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.client import service_client
from ringcast_cli._common.moments import since_ms
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, visible

_STORE: Final = click.argument("store", required=False)
_MAX_LINE: Final = 64 * 1024


def _filters(command: Any) -> Any:
    """Adds the options that choose entries."""
    for option, metavar, what in (
        ("--since", "TIME", "of the last 30m, 2h or 7d, or since an ISO 8601 time"),
        ("--action", "NAME", "with this action: the name of a call such as CreateStore, or WriteRows"),
        ("--principal", "NAME", "of this principal"),
    ):
        command = click.option(option, default="", metavar=metavar, help=f"Only those {what}.")(command)
    return command


def _chosen(principal: str, action: str, since: str) -> dict[str, Any]:
    return {"principal": principal, "action": action, "since_ms": since_ms(since) if since else 0}


@click.group()
@shared_options("service", "timeout")
def audit() -> None:
    """List, export and verify the audit log: what was done and refused, by which principal, when and why.

    An admin of a store sees the entries of the store, an admin of `*` all of them. Each entry has a hash that covers
    the one before it.
    """


@audit.command("list")
@_STORE
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many.")
@click.option("--oldest", is_flag=True, help="The oldest first, not the newest.")
@_filters
@shared_options("service", "timeout")
@click.pass_context
def list_entries(context: click.Context, /, store: str | None, limit: int, oldest: bool, **words: str) -> None:
    """Print the newest entries, of STORE or of all: time, principal, action, place, outcome, details and reason."""
    config, wanted = settings_of(context), _chosen(**words)

    async def run() -> None:
        async with service_client(config) as client:
            async for entry in client.audit(store=store, newest_first=not oldest, limit=limit, **wanted):
                if config.json:
                    print_json(entry._asdict())
                else:
                    click.echo(_line(entry))

    asyncio.run(run())


@audit.command()
@_STORE
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="A file; by default standard output.")
@_filters
@shared_options("service", "timeout")
@click.pass_context
def export(context: click.Context, /, store: str | None, output: Path | None, **words: str) -> None:
    """Write all entries as JSON lines, the oldest first. `ringcast audit verify --file` checks such a file."""
    config, wanted = settings_of(context), _chosen(**words)

    async def entries() -> AsyncIterator[bytes]:
        async with service_client(config) as client:
            async for entry in client.audit(store=store, **wanted):
                yield msgspec.json.encode(entry._asdict()) + b"\n"

    async def run() -> int:
        count = 0
        with click.open_file(str(output) if output else "-", "wb") as file:
            async for line in entries():
                file.write(line)
                count += 1
        return count

    count = asyncio.run(run())
    note(f"ringcast: {count} entries written")


@audit.command()
@click.option("--anchor", metavar="SEQ:HASH", help="An entry noted earlier: it has to be there, with this hash.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="An export of all entries to look at.")
@shared_options("service", "timeout")
@click.pass_context
def verify(context: click.Context, anchor: str | None, file: Path | None) -> int:
    """Check the chain of the audit log. The exit code is 1 when an entry was changed, removed or moved.

    Keep the printed anchor away from the database, and give it the next time. Without one, nothing shows a log whose
    chain was computed again as a whole, or whose end was cut off together with the head that the database has noted.
    """
    config = settings_of(context)
    link = parse_link("anchor", anchor) if anchor else None

    async def run() -> AuditVerdict:
        async with service_client(config) as client:
            return await client.verify_audit(link)

    found = _verify_file(file, link) if file is not None else asyncio.run(run())
    if config.json:
        print_json(found)
    elif found.problem:
        note(f"ringcast: the audit log is not whole: {found.problem} ({found.checked} entries before fit)")
    else:
        click.echo(f"entries  {found.checked}")
        click.echo(f"anchor   {found.at}")
    return codes.FAILED if found.problem else codes.OK


def _verify_file(path: Path, anchor: Link | None) -> AuditVerdict:
    """The same of an export, which may begin after entries that are past the retention: its first one is taken as it
    is."""
    check = ChainCheck(anchor)
    for entry in _read(path):
        if check.at is None:
            check.begin(START if entry.seq == 1 else Link(entry.seq, entry.hash))
            if entry.seq > 1:  # nothing in the file says what its hash was made from
                continue
        check.check(entry)
        if check.problem:
            break
    check.check_end()
    return AuditVerdict(check.checked, str(check.at or START), check.problem)


def _read(path: Path) -> Iterator[AuditEntry]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), 1):
                try:
                    found = msgspec.json.decode(line, type=dict[str, Any])
                    yield msgspec.convert([found[field] for field in AuditEntry._fields], AuditEntry)
                except (msgspec.DecodeError, KeyError):
                    raise InvalidInputError(
                        f"file {shown_path(path)}: line {number} is no entry of an audit log", field="file"
                    ) from None
    except OSError as error:
        raise InvalidInputError(f"file {shown_path(path)} can't be read: {error.strerror}", field="file") from None


def _line(entry: AuditEntry) -> str:
    at = datetime.fromtimestamp(entry.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    place = f"{entry.store}/{entry.key}" if entry.key else entry.store or "-"
    words = (str(entry.seq), at, entry.principal, entry.action, place, entry.outcome, _details(entry), entry.reason)
    return "\t".join(map(visible, words)).rstrip("\t")


def _details(entry: AuditEntry) -> str:
    found = json.loads(entry.details)
    return " ".join(f"{name}={json.dumps(value, separators=(',', ':'))}" for name, value in found.items())


COMMANDS: Final = {"audit": audit}
