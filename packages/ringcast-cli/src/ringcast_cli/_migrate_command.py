"""``ringcast store migrate``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import click
from ringcast.topology import Topology, read_topologies
from ringcast_client import MigrationInfo, StoreInfo
from ringcast_wire import DEFAULT_CALL_BOUND_MS, DEFAULT_LEASE_TTL_MS, SERVED, Stage, UnavailableError, stage_name

from ringcast_cli._client import service_client
from ringcast_cli._config import CliConfig
from ringcast_cli._options import Duration, settings_of, shared_options, wait_options
from ringcast_cli._output import note, print_json, print_table, visible

_LOOK_S: Final = 1.0
_PHASES: Final = {stage_name(stage): stage for stage in sorted(SERVED)}


@dataclass(frozen=True, slots=True)
class KeyShadow:
    """One key of a store at the stage ``shadow``. ``moves`` is ``None`` as long as there is no plan."""

    key: str
    leader: str | None
    workers: int
    missing: tuple[str, ...]
    """Workers that are registered, and take no part in the shadow."""
    moves: int | None
    partitions: int


@click.command()
@click.argument("name")
@click.option(
    "--to",
    type=click.Choice(["sticky"]),
    default="sticky",
    show_default=True,
    help="The strategy that the store is to have in the end.",
)
@click.option("--phase", type=click.Choice(list(_PHASES)), help="The stage to go to; off: back to where it was.")
@click.option("--status", is_flag=True, help="Show how far each key is, and change nothing.")
@click.option(
    "--lease-ttl",
    "lease_ttl_ms",
    type=Duration(),
    metavar="DURATION",
    help=f"With --phase shadow: as of `store create` [default: {DEFAULT_LEASE_TTL_MS // 1000}s].",
)
@click.option(
    "--call-bound",
    "call_bound_ms",
    type=Duration(),
    metavar="DURATION",
    help=f"With --phase shadow: as of `store create` [default: {DEFAULT_CALL_BOUND_MS // 1000}s].",
)
@wait_options("With --phase shadow: until every worker takes part and each key has a plan.")
@shared_options("servers", "service", "timeout")
@click.pass_context
def migrate(context: click.Context, /, name: str, **given: Any) -> None:
    """Try exclusive ownership in the running store NAME, which has the strategy jump or ring.

    At the stage shadow its workers have sessions and a leader, which plans who would own what. Nobody obeys the plan:
    partitions are owned as before. --status shows which workers take no part, and how many partitions would move.

    Before that, have the service, the workers and the tools of the store be of this version or a later one: older ones
    refuse the store until it is off again. Later stages are not there yet.
    """
    config = settings_of(context)
    phase = given["phase"]
    if (phase is None) is not given["status"]:
        raise click.UsageError("give either --phase or --status", context)
    stage = None if phase is None else _PHASES[phase]
    if given["wait"] and stage is not Stage.SHADOW:
        raise click.UsageError("--wait goes with --phase shadow", context)
    times = {which: given[which] for which in ("lease_ttl_ms", "call_bound_ms")}
    if stage is not Stage.SHADOW and any(value is not None for value in times.values()):
        raise click.UsageError("--lease-ttl and --call-bound go with --phase shadow", context)

    async def run() -> None:
        async with service_client(config) as client:
            if stage is None:
                info = await client.get_store(name)
            else:
                info = await client.migrate_store(name, stage, **times)
        step = info.migration
        if given["wait"]:
            keys = await _wait(config, info, given["patience"])
        elif step is not None and step.stage == stage_name(Stage.SHADOW) and stage is None:
            keys = await _look(config, info)
        else:
            keys = []
        _print(config, info, step, keys)

    asyncio.run(run())


async def _look(config: CliConfig, info: StoreInfo) -> list[KeyShadow]:
    found = await read_topologies(config.servers, info.name, timeout_s=config.timeout_s)
    return [_of_key(each) for each in found if each.members]


def _of_key(topology: Topology) -> KeyShadow:
    shadow = topology.shadow
    workers = {member.worker_id for member in topology.members if member.alive}
    return KeyShadow(
        topology.key,
        shadow.leader if shadow is not None else None,
        len(workers),
        tuple(sorted(workers - set(shadow.workers if shadow is not None else ()))),
        topology.moves,
        topology.settings.partition_count,
    )


async def _wait(config: CliConfig, info: StoreInfo, patience_s: float) -> list[KeyShadow]:
    """Returns once every worker that is registered takes part, and each key has a plan.

    Raises:
        UnavailableError: it takes longer than ``patience_s``.
    """
    keys: list[KeyShadow] = []
    try:
        async with asyncio.timeout(patience_s):
            while True:
                keys = await _look(config, info)
                if all(not key.missing and key.moves is not None for key in keys):
                    return keys
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        lacks = "; ".join(f"{key.key}: {', '.join(key.missing) or 'no plan'}" for key in keys if _lacks(key))
        raise UnavailableError(
            f"store {info.name!r} is at the stage shadow, and after {patience_s:g} s still lacks {lacks or 'an answer'}"
        ) from None


def _lacks(key: KeyShadow) -> bool:
    return bool(key.missing) or key.moves is None


def _print(config: CliConfig, info: StoreInfo, step: MigrationInfo | None, keys: list[KeyShadow]) -> None:
    if config.json:
        print_json({"store": info.name, "strategy": info.strategy, "migration": step, "keys": keys})
        return
    if step is None or step.stage == stage_name(Stage.OFF):
        click.echo(f"{visible(info.name)} has the strategy {info.strategy}, and does not migrate")
        return
    click.echo(
        f"{visible(info.name)} has the strategy {info.strategy}, and is at the stage {step.stage}: "
        f"lease TTL {step.lease_ttl_ms / 1000:g} s, call bound {step.call_bound_ms / 1000:g} s"
    )
    if keys:
        rows = [
            [
                key.key,
                key.leader or "",
                f"{key.workers - len(key.missing)} of {key.workers}",
                "" if key.moves is None else f"{key.moves} of {key.partitions}",
            ]
            for key in keys
        ]
        print_table(["key", "leader", "workers that take part", "partitions that would move"], rows)
    for key in keys:
        if key.missing:
            note(f"{key.key}: {', '.join(key.missing)} take no part")
