"""``ringcast lag``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import click
from ringcast.fleet import DEFAULT_PATIENCE_S, FleetReader, KeyLag, WorkerLag
from ringcast_wire import Mode

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.metadata import stopped_by_signals
from ringcast_cli._common.options import every_option, patience_option, settings_of, shared_options
from ringcast_cli._common.output import note, print_json, print_table, visible
from ringcast_cli._fleet.topology_command import ranges

_COLUMNS: Final = ["worker", "partitions", "behind", "oldest", "stale", "handler", "blocked", "dead", "state"]
_SHOWN: Final = 12
"""Runs of partitions that a line lists."""


@click.command()
@click.argument("store")
@click.argument("key", required=False)
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C.")
@every_option("With --watch: from one look to the next.")
@patience_option(60, DEFAULT_PATIENCE_S, "How long the answers of the workers are waited for.")
@shared_options("servers", "service", "timeout")
@click.pass_context
def lag(context: click.Context, store: str, key: str | None, watch: bool, every: float, patience: float) -> None:
    """Show how far each worker is with KEY, or with every key of STORE, and who does not answer.

    Each worker is asked. `behind` counts the revisions that it has not applied yet, `oldest` the age of the oldest
    event that waits there. A worker that does not answer is listed as well. Without KEY the config service says which
    keys there are. With --json one document a key.
    """
    asyncio.run(_lag(settings_of(context), store, key, every if watch else None, patience))


async def _lag(config: CliConfig, store: str, key: str | None, every_s: float | None, patience_s: float) -> None:
    async with FleetReader.open(config.servers, timeout_s=config.timeout_s) as reader:
        with stopped_by_signals() if every_s is not None else nullcontext():
            while True:
                keys = [key] if key is not None else await _keys(config, store)
                for each in await reader.lags(store, keys, patience_s=patience_s):
                    if config.json:
                        print_json(_document(each))
                    else:
                        _print(each)
                if not keys and not config.json:
                    click.echo(f"{store} has no keys")
                sys.stdout.flush()
                if every_s is None:
                    return
                await asyncio.sleep(every_s)


async def _keys(config: CliConfig, store: str) -> list[str]:
    async with service_client(config) as client:
        return [each.name for each in (await client.get_store(store)).keys]


def _document(lag: KeyLag) -> dict[str, Any]:
    return {
        "store": lag.store,
        "key": lag.key,
        "mode": lag.settings.mode,
        "strategy": lag.settings.strategy,
        "partition_count": lag.settings.partition_count,
        "converged": lag.converged,
        "behind": lag.behind,
        "unowned": lag.unowned,
        "silent": lag.silent,
        "unreadable": lag.unreadable,
        "left_out": lag.left_out,
        "took_s": round(lag.took_s, 4),
        "workers": lag.workers,
    }


def _print(lag: KeyLag) -> None:
    settings = lag.settings
    strategy = "" if settings.mode is Mode.FULL else f", strategy {settings.strategy}"
    click.echo(f"{lag.store}/{lag.key}: {settings.mode}{strategy}, {_headline(lag)}")
    if lag.workers:
        print_table(_COLUMNS, [_row(worker) for worker in lag.workers], right=frozenset(range(1, 8)))
    for line in _notes(lag):
        note(line)


def _headline(lag: KeyLag) -> str:
    if lag.converged:
        return "all applied"
    behind = "it is not known what there is to apply" if lag.behind is None else f"{lag.behind} revisions behind"
    count = lag.settings.partition_count
    return f"{behind}, {len(lag.unowned)} of {count} partitions have no owner that answers"


def _row(worker: WorkerLag) -> list[str]:
    if not worker.answered:
        return [worker.worker_id, "-", "-", "-", "-", "-", "-", "-", worker.problem]
    return [
        worker.worker_id,
        f"{worker.partitions}" + (f" ({worker.loading} loading)" if worker.loading else ""),
        "?" if worker.behind is None else str(worker.behind),
        *(seconds(each) for each in (worker.oldest_s, worker.stale_s, worker.handler_s)),
        str(worker.blocked),
        str(worker.dead_lettered),
        _state(worker),
    ]


def _state(worker: WorkerLag) -> str:
    if worker.problem:
        return worker.problem
    kind = f"{worker.kind}" if worker.kind != "application" else ""
    phase = f"{worker.phase}" if worker.phase not in (None, "active") else ""
    laid = f"release {worker.provisional_release} laid over" if worker.provisional_release else ""
    return ", ".join(part for part in (kind, phase, laid) if part) or "ok"


def _notes(lag: KeyLag) -> list[str]:
    found = []
    if lag.unowned and len(lag.unowned) < lag.settings.partition_count:
        found.append(f"no worker that answered owns partitions {_some(lag.unowned)}")
    if lag.silent:
        found.append(f"no answer within the patience: {', '.join(lag.silent)}")
    found += [f"the answer of {worker_id} can't be read: {why}" for worker_id, why in lag.unreadable.items()]
    if lag.left_out:
        found.append(f"{lag.left_out} answers came twice or were too many, and were left out")
    for worker in lag.workers:
        if worker.last_error:
            ago = seconds(worker.last_error_s)
            found.append(f"{worker.worker_id}: last error of the handler, {ago} ago: {visible(worker.last_error)}")
        if worker.dropped or worker.unopened:
            found.append(f"{worker.worker_id}: {worker.dropped} changes dropped, {worker.unopened} values unopened")
    return found


def _some(numbers: Sequence[int]) -> str:
    runs = ranges(tuple(numbers)).split(",")
    return ",".join(runs[:_SHOWN]) + (f" and {len(runs) - _SHOWN} more runs" if len(runs) > _SHOWN else "")


def seconds(duration_s: float) -> str:
    """As the tables of commands show a duration; ``-`` for none."""
    return "-" if not duration_s else f"{duration_s:.1f}s" if duration_s < 60 else f"{duration_s / 60:.1f}m"


COMMANDS: Final = {"lag": lag}
