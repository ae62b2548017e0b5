"""``ringcast drain``, ``undrain``, ``pin``, ``unpin``, ``pins``, ``balance``: wishes for exclusive ownership."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

import click
from ringcast.wishes import (
    BALANCES,
    Drain,
    drain_worker,
    follow_drain,
    pin_partition,
    read_wishes,
    set_balance,
    undrain_worker,
    unpin_partition,
)
from ringcast_wire import InvalidInputError, Mode, Strategy, UnavailableError

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import settings_of, shared_options, wait_options
from ringcast_cli._common.output import note, print_json, print_table
from ringcast_cli._fleet.topology_command import ranges

T = TypeVar("T")

_STORE: Final = click.option(
    "--store", metavar="STORE", help="Only in this store; else in all with the strategy sticky."
)
_KEY: Final = click.option("--key", metavar="KEY", help="Only of this key of --store; else of all keys.")


@click.command()
@click.argument("worker")
@_STORE
@_KEY
@wait_options("Print how far it is until the worker owns nothing.")
@shared_options("servers", "service", "timeout")
@click.pass_context
def drain(context: click.Context, worker: str, store: str | None, key: str | None, wait: bool, patience: float) -> None:
    """Have WORKER give its partitions to others while it goes on serving.

    For stores with the strategy sticky. Each partition moves by a planned hand-over, and the worker gets none until
    `ringcast undrain`, also when it is started again. Where no other worker takes partitions it keeps what it has.
    Without --store the config service is asked for the stores. With --json one document a line.
    """
    config = settings_of(context)
    _check_place(context, store, key)

    async def run() -> None:
        drained = await _everywhere(
            config, store, lambda each: _drain(config, each, worker, key, lenient=store is None)
        )
        if not drained:
            raise InvalidInputError(
                f"no worker {worker!r} takes part in any store with the strategy sticky", field="worker"
            )
        for each in drained:
            if not wait:
                _print_drain(config, each)
            if not each.others and each.partitions:
                note(
                    f"no other worker of {each.store}/{each.key} takes partitions: {worker} serves them until one does"
                )
        if wait:
            await _wait(config, worker, drained, patience)

    asyncio.run(run())


@click.command()
@click.argument("worker")
@_STORE
@_KEY
@shared_options("servers", "service", "timeout")
@click.pass_context
def undrain(context: click.Context, worker: str, store: str | None, key: str | None) -> None:
    """Let a drained WORKER have partitions again."""
    config = settings_of(context)
    _check_place(context, store, key)

    async def undrained(each: str) -> list[tuple[str, str]]:
        try:
            keys = await undrain_worker(config.servers, each, worker, key, timeout_s=config.timeout_s)
        except InvalidInputError as error:
            if store is None and error.field == "worker":
                return []
            raise
        return [(each, name) for name in keys]

    found = asyncio.run(_everywhere(config, store, undrained))
    if not found:
        raise InvalidInputError(f"worker {worker!r} is not drained in any store", field="worker")
    for of_store, name in found:
        if config.json:
            print_json({"store": of_store, "key": name, "worker": worker})
        else:
            click.echo(f"{worker} may have partitions of {of_store}/{name} again")


@click.command()
@click.argument("store")
@click.argument("key")
@click.argument("partition", type=int)
@click.argument("worker")
@shared_options("servers", "timeout")
@click.pass_context
def pin(context: click.Context, store: str, key: str, partition: int, worker: str) -> None:
    """Have WORKER own a PARTITION of KEY as long as it takes part and is not drained.

    For stores with the strategy sticky. Another pin of the same partition takes the place of this one.
    """
    config = settings_of(context)
    counts = asyncio.run(pin_partition(config.servers, store, key, partition, worker, timeout_s=config.timeout_s))
    if config.json:
        print_json({"store": store, "key": key, "partition": partition, "worker": worker, "counts": counts})
        return
    click.echo(f"partition {partition} of {store}/{key} is pinned to {worker}")
    if not counts:
        note(f"{worker} is drained: the pin counts once it is not (ringcast undrain)")


@click.command()
@click.argument("store")
@click.argument("key")
@click.argument("partition", type=int)
@shared_options("servers", "timeout")
@click.pass_context
def unpin(context: click.Context, store: str, key: str, partition: int) -> None:
    """Take the pin of a PARTITION of KEY back; it stays where it is until the balance moves it."""
    config = settings_of(context)
    worker = asyncio.run(unpin_partition(config.servers, store, key, partition, timeout_s=config.timeout_s))
    if config.json:
        print_json({"store": store, "key": key, "partition": partition, "worker": worker})
    else:
        click.echo(f"partition {partition} of {store}/{key} is not pinned to {worker} any more")


@click.command()
@click.argument("store")
@click.argument("key", required=False)
@shared_options("servers", "timeout")
@click.pass_context
def pins(context: click.Context, store: str, key: str | None) -> None:
    """List the pins and drains of STORE, or of one KEY, and the keys with the balance `load`.

    With --json one document a key.
    """
    config = settings_of(context)
    found = asyncio.run(read_wishes(config.servers, store, key, timeout_s=config.timeout_s))
    if config.json:
        for each in found:
            print_json(each)
        return
    rows = []
    for each in found:
        if each.unreadable_because:
            note(f"{each.store}/{each.key} can't be read: {each.unreadable_because}")
        if each.balance != BALANCES[0]:
            note(f"{each.store}/{each.key} has the balance {each.balance}")
        pinned: dict[str, list[int]] = {}
        for partition, worker in sorted(each.pins.items()):
            pinned.setdefault(worker, []).append(partition)
        for worker in sorted({*pinned, *each.drains}):
            is_drained = "yes" if worker in each.drains else "no"
            rows.append([f"{each.store}/{each.key}", worker, is_drained, ranges(tuple(pinned.get(worker, ())))])
    if rows:
        print_table(["store/key", "worker", "drained", "pinned partitions"], rows)
    elif not found:
        click.echo(f"nothing is pinned or drained in {store if key is None else f'{store}/{key}'}")


@click.command()
@click.argument("store")
@click.argument("what", type=click.Choice(BALANCES))
@click.option("--key", metavar="KEY", help="Only of this key; else of all keys that have workers.")
@shared_options("servers", "timeout")
@click.pass_context
def balance(context: click.Context, store: str, what: str, key: str | None) -> None:
    """Have the workers of STORE have equal loads (`load`), or equal numbers of partitions (`count`, the default).

    For stores with the strategy sticky. By `load` a partition moves where that evens out the changes a second that
    workers report, a few at a time and with a rest after it. With --json one document a key.
    """
    config = settings_of(context)
    for name in asyncio.run(set_balance(config.servers, store, what, key, timeout_s=config.timeout_s)):
        if config.json:
            print_json({"store": store, "key": name, "balance": what})
        else:
            click.echo(f"{store}/{name} has the balance {what}")


def _check_place(context: click.Context, store: str | None, key: str | None) -> None:
    if key is not None and store is None:
        raise click.UsageError("--key takes --store", context)


async def _everywhere(config: CliConfig, store: str | None, do: Callable[[str], Awaitable[list[T]]]) -> list[T]:
    """What is done in a store, or in each with the strategy sticky."""
    if store is not None:
        return await do(store)
    async with service_client(config) as client:
        stores = await client.list_stores()
    found: list[T] = []
    for each in stores:
        if each.strategy is Strategy.STICKY and each.mode is Mode.PARTITIONED:
            found += await do(each.name)
    return found


async def _drain(config: CliConfig, store: str, worker: str, key: str | None, *, lenient: bool) -> list[Drain]:
    """Drains a worker in one store. ``lenient``: it need not take part there."""
    try:
        return await drain_worker(config.servers, store, worker, key, timeout_s=config.timeout_s)
    except InvalidInputError as error:
        if lenient and error.field == "worker":
            return []
        raise


async def _wait(config: CliConfig, worker: str, drained: list[Drain], patience_s: float) -> None:
    """Prints how far each key is, until the worker owns nothing.

    Raises:
        UnavailableError: it takes longer than ``patience_s``.
    """
    keys: dict[str, list[str]] = {}
    for each in drained:
        keys.setdefault(each.store, []).append(each.key)
    left: dict[tuple[str, str], int] = {}

    async def one(store: str) -> None:
        steps = follow_drain(config.servers, store, worker, keys[store], timeout_s=config.timeout_s)
        async with aclosing(steps) as found:
            async for step in found:
                for each in step:
                    if left.get((each.store, each.key)) != each.partitions:
                        left[each.store, each.key] = each.partitions
                        _print_drain(config, each)

    try:
        async with asyncio.timeout(patience_s), asyncio.TaskGroup() as tasks:
            for store in keys:
                tasks.create_task(one(store))
    except TimeoutError:
        owns = ", ".join(f"{count} of {store}/{key}" for (store, key), count in left.items() if count)
        raise UnavailableError(f"{worker} is drained, and after {patience_s:g} s still owns {owns}") from None


def _print_drain(config: CliConfig, each: Drain) -> None:
    if config.json:
        print_json(each)
    else:
        click.echo(f"{each.worker_id} is drained in {each.store}/{each.key}, and owns {each.partitions} partitions")


COMMANDS: Final = {"drain": drain, "undrain": undrain, "pin": pin, "unpin": unpin, "pins": pins, "balance": balance}
