"""``ringcast meta get|watch``: look at a metadata store, whatever keeps it. Nothing here writes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import click
from ringcast_wire import UnavailableError, without_passwords

from ringcast_cli._common import exit_codes as codes
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.metadata import opened_store, stopped_by_signals
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, visible

if TYPE_CHECKING:
    from ringcast_meta import Entry, WatchEvent


@click.group()
@shared_options("etcd", "timeout")
def meta() -> None:
    """Look at a metadata store: small shared state of a cluster, in NATS KV or etcd.

    ADDRESS is nats://host:4222/bucket, tls://host:4222/bucket, etcd://host:2379/namespace or
    etcd+tls://host:2379/namespace; several hosts have commas between. The login to NATS is a worker's: RINGCAST_USER
    and RINGCAST_PASSWORD, RINGCAST_CREDENTIALS_FILE, ...
    """


@meta.command()
@click.argument("address")
@click.argument("key")
@shared_options("etcd", "timeout")
@click.pass_context
def get(context: click.Context, address: str, key: str) -> int:
    """Print what stands under KEY, from the leader of ADDRESS.

    With --json value (or base64, if it is no text), revision, and whether it goes when a lease ends.
    """
    config = settings_of(context)
    entry = asyncio.run(_get(config, address, key))
    if entry is None:
        raise click.ClickException(f"nothing stands under key {key!r} in {without_passwords([address])}")
    if config.json:
        print_json(_document(entry))
    else:
        click.echo(_text(entry.value))
    return codes.OK


@meta.command()
@click.argument("address")
@click.argument("prefix", default="")
@click.option("--once", is_flag=True, help="Stop after the entries that stand there at the beginning.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after this many lines.")
@shared_options("etcd", "timeout")
@click.pass_context
def watch(context: click.Context, address: str, prefix: str, once: bool, limit: int | None) -> None:
    """Print what stands below PREFIX in ADDRESS, then every change.

    PREFIX is whole words of a key with a dot behind each, such as services. (with the dot); without it, everything is
    watched. A line has the revision, put or delete, the key and the value. Changes that came while the connection was
    broken are told once it is back: the last one of each key. Ctrl-C ends it.
    """
    asyncio.run(_watch(settings_of(context), address, prefix, once, limit))


async def _get(config: CliConfig, address: str, key: str) -> Entry | None:
    async with opened_store(config, address) as store:
        return await store.get(key)


async def _watch(config: CliConfig, address: str, prefix: str, once: bool, limit: int | None) -> None:
    async with opened_store(config, address) as store:
        watch = store.watch(prefix)
        # A watch goes on trying where no server answers, or where the bucket is not there. A read says so.
        await store.get(f"{prefix}~")
        async with watch as events:
            with stopped_by_signals():
                await _print_events(events, config, address, once=once, limit=limit)


async def _print_events(
    events: AsyncIterator[WatchEvent], config: CliConfig, address: str, *, once: bool, limit: int | None
) -> None:
    from ringcast_meta import Change, Snapshot

    known: dict[str, int] = {}
    """The revision of each entry that was printed."""
    printed = 0
    event: WatchEvent = await _first(events, config.timeout_s, address)
    complete = False
    while True:
        lines: list[tuple[str, Entry | None, int]] = []
        if isinstance(event, Snapshot):
            there = {entry.key: entry for entry in event.entries}
            lines = [(key, None, event.revision) for key in sorted(known.keys() - there.keys())]
            lines += [(key, entry, entry.revision) for key, entry in there.items() if known.get(key) != entry.revision]
        elif isinstance(event, Change):
            lines = [(event.key, event.entry, event.revision)]
        for key, entry, revision in lines:
            if entry is None:
                known.pop(key, None)
            else:
                known[key] = revision
            _print_line(key, entry, revision, config)
            printed += 1
            if printed == limit:
                return
        if isinstance(event, Snapshot) and not complete:
            complete = True
            if once:
                return
            if not config.json:
                note(f"complete at revision {event.revision}: {len(known)} entries")
        event = await anext(events)


async def _first(events: AsyncIterator[WatchEvent], timeout_s: float, address: str) -> WatchEvent:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await anext(events)
    except TimeoutError:
        if not limit.expired():
            raise
        raise UnavailableError(
            f"{without_passwords([address])} has not told what stands there within {timeout_s:g} s"
        ) from None


def _print_line(key: str, entry: Entry | None, revision: int, config: CliConfig) -> None:
    if config.json:
        print_json({"key": key, "deleted": True, "revision": revision} if entry is None else _document(entry))
    elif entry is None:
        click.echo(f"{revision}\tdelete\t{visible(key)}")
    else:
        click.echo(f"{revision}\tput\t{visible(key)}\t{visible(_text(entry.value))}")


def _document(entry: Entry) -> dict[str, Any]:
    document: dict[str, Any] = {"key": entry.key, "revision": entry.revision, "leased": entry.leased}
    try:
        return {**document, "value": entry.value.decode()}
    except UnicodeDecodeError:
        return {**document, "base64": base64.b64encode(entry.value).decode()}


def _text(value: bytes) -> str:
    return visible(value.decode(errors="backslashreplace"))


COMMANDS: Final = {"meta": meta}
