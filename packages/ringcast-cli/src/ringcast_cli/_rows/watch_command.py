"""``ringcast watch``."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import click
import msgspec
from ringcast import Change, Worker

from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, visible


@click.command()
@click.argument("store")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--worker-id", metavar="NAME", help="Id of this worker [env: RINGCAST_WORKER_ID; default: a new one].")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after this many changes.")
@click.option("--skip-initial", is_flag=True, help="Leave out the rows that exist at the beginning.")
@shared_options("servers", "key_ring", "timeout")
@click.pass_context
def watch(
    context: click.Context,
    store: str,
    keys: tuple[str, ...],
    worker_id: str | None,
    limit: int | None,
    skip_initial: bool,
) -> None:
    """Take part in KEY... as a worker, and print each row that it gets.

    In a PARTITIONED store it takes over its share of the partitions from the other workers for as long as it runs.
    It prints the existing rows, then every change as it happens: time, key, partition, version, put or delete,
    id, value. Ctrl-C ends it.
    """
    context.find_root().ensure_object(dict).update(worker_id=worker_id)
    config = settings_of(context)
    asyncio.run(_watch(config, store, keys, limit, skip_initial))


async def _watch(config: CliConfig, store: str, keys: tuple[str, ...], limit: int | None, skip_initial: bool) -> None:
    worker_id = config.worker_id or f"watch-{secrets.token_hex(4)}"
    with _stop_signals() as stop:
        async with Worker(
            servers=config.servers,
            store=store,
            keys=keys,
            worker_id=worker_id,
            connect_timeout_s=config.timeout_s,
            key_ring=config.key_ring,
            cache_dir="",  # what is on disk is for the applications
        ) as worker:
            printing = asyncio.create_task(_print_changes(worker, config, limit, skip_initial))
            ready = asyncio.create_task(_say_ready(worker, worker_id, config))
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({printing, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if printing.done():
                    await printing
            finally:
                for task in (printing, ready, stopping):
                    task.cancel()
                await asyncio.gather(printing, ready, stopping, return_exceptions=True)


async def _print_changes(worker: Worker, config: CliConfig, limit: int | None, skip_initial: bool) -> None:
    printed = 0
    ready = asyncio.create_task(worker.wait_ready())
    try:
        async for change in worker.changes():
            if skip_initial and not ready.done():
                continue
            if config.json:
                print_json({**msgspec.structs.asdict(change), "metadata": change.metadata or {}})
            else:
                click.echo(_line(change))
            printed += 1
            if printed == limit:
                return
    finally:
        ready.cancel()


async def _say_ready(worker: Worker, worker_id: str, config: CliConfig) -> None:
    await worker.wait_ready()
    if config.json:
        return
    note(f"{worker_id} is ready")
    for key in worker.config.keys:
        if not any(worker.applied(key).values()):
            note(f"nothing was ever written to the partitions of {worker.config.store}/{key} that it owns: waiting")


def _line(change: Change) -> str:
    at = (
        datetime.now(UTC)
        if change.committed_at_ms is None
        else datetime.fromtimestamp(change.committed_at_ms / 1000, UTC)
    )
    what = "delete" if change.deleted else "put"
    fields = (
        at.isoformat(timespec="milliseconds"),
        change.key,
        str(change.partition),
        str(change.version),
        what,
        visible(change.row_id),
        visible(change.value or ""),
    )
    return "\t".join(fields).rstrip("\t")


@contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set, so that the worker leaves in order."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


COMMANDS: Final = {"watch": watch}
