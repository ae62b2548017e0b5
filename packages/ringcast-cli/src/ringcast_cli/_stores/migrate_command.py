"""``ringcast store migrate``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
from ringcast_client import MigrationInfo, StoreInfo
from ringcast_wire import (
    DEFAULT_CALL_BOUND_MS,
    DEFAULT_LEASE_TTL_MS,
    ConditionFailedError,
    Stage,
    UnavailableError,
    stage_name,
)
from ringcast_wire.owner_records import Rule

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.options import Duration, settings_of, shared_options, wait_options
from ringcast_cli._common.output import note, print_json, print_table, visible

if TYPE_CHECKING:
    from ringcast.topology import Awaited, Topology

_LOOK_S: Final = 1.0
_BACK: Final = "back"
_ENDS: Final = (stage_name(Stage.OFF), stage_name(Stage.FINISH))
"""Stages of stores that do not migrate."""
_PHASES: Final = {**{stage_name(stage): stage for stage in sorted(Stage)}, _BACK: Stage.SHADOW}


@dataclass(frozen=True, slots=True)
class KeyShadow:
    """One key of a store that migrates. ``moves`` is ``None`` as long as there is no plan."""

    key: str
    leader: str | None
    workers: int
    missing: tuple[str, ...]
    """Workers that are registered, and take no part in the migration."""
    moves: int | None
    partitions: int
    rule: str | None
    """By which rule the partitions are served: ``peers``, ``owners``, or ``nobody`` in between."""
    unguarded: tuple[str, ...]
    """Workers that keep the store from ``switch``: they may have calls that no table has let start."""
    guarded: tuple[str, ...]
    """Workers that keep the store from ``off``, on the way back."""
    calling: tuple[str, ...]
    """Workers that may still have calls of the rule before, under the rule ``nobody``."""
    awaited: dict[str, Awaited]
    """Of each of these: its last sign of life, and until when it is waited for if it does not come back."""


@click.command()
@click.argument("name")
@click.option(
    "--to",
    type=click.Choice(["sticky"]),
    default="sticky",
    show_default=True,
    help="The strategy that the store is to have in the end.",
)
@click.option("--phase", type=click.Choice(list(_PHASES)), help="The stage to go to.")
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
@click.option(
    "--gone",
    multiple=True,
    metavar="WORKER",
    help="A worker that is gone for good, which is not to be waited for; repeatable. Your word is all that it goes by.",
)
@wait_options("Until the stage has come about in every worker: see below.")
@shared_options("servers", "service", "timeout")
@click.pass_context
def migrate(context: click.Context, /, name: str, **given: Any) -> None:
    """Give the running store NAME, which has the strategy jump or ring, exclusive ownership, or take it back.

    \b
    shadow    a leader plans who would own what, and nobody obeys it
    validate  partitions are owned as before, and each worker is guarded:
              it starts no call that it could not be kept from
    switch    the table names the owners: this is exclusive ownership
    finish    the store has the strategy sticky from now on, for good
    back      to the shadow, from validate or switch
    off       the store does not migrate any more

    --status shows which workers take no part or are not guarded, and how many partitions would move. --wait returns for
    shadow once every worker takes part, for validate once each is guarded, for switch once owners are served, and for
    back once no worker is guarded any more.

    A worker that was killed before it was guarded, and has no agent that has seen its end, is waited for until it is
    started again, for a day at most. Where it never will be, since its machine is destroyed, say so with --gone: no
    process of it runs, none is halted or cut off, and none will start with its cache. One that goes on all the same
    has calls beside those of the owners. A worker that gives a sign of life is refused. Give --gone with any phase;
    once is enough for all that follow.

    Before that, have the service, the workers and the tools of the store be of this version or a later one: older ones
    refuse the store until it is off again.
    """
    config = settings_of(context)
    phase = given["phase"]
    if (phase is None) is not given["status"]:
        raise click.UsageError("give either --phase or --status", context)
    stage = None if phase is None else _PHASES[phase]
    if given["wait"] and stage in (None, Stage.OFF, Stage.FINISH):
        raise click.UsageError("--wait goes with --phase shadow, validate, switch and back", context)
    gone = given["gone"]
    if gone and stage is None:
        raise click.UsageError("--gone goes with --phase", context)
    times = {which: given[which] for which in ("lease_ttl_ms", "call_bound_ms")}
    if phase != stage_name(Stage.SHADOW) and any(value is not None for value in times.values()):
        raise click.UsageError("--lease-ttl and --call-bound go with --phase shadow", context)

    async def run() -> None:
        async with service_client(config) as client:
            if stage is None:
                info = await client.get_store(name)
            else:
                if stage is Stage.SHADOW:
                    _check_way(await client.get_store(name), is_back=phase == _BACK)
                info = await client.migrate_store(name, stage, gone=gone, **times)
        step = info.migration
        if given["wait"]:
            keys = await _wait(config, info, str(phase), given["patience"])
        elif step is not None and step.stage not in _ENDS and stage is None:
            keys = await _look(config, info)
        else:
            keys = []
        print_status(info, step, keys, as_json=config.json)

    asyncio.run(run())


def _check_way(info: StoreInfo, *, is_back: bool) -> None:
    """The stage shadow is reached from both sides.

    Raises:
        ConditionFailedError: the store is on the other side.
    """
    stage = info.migration.stage if info.migration is not None else stage_name(Stage.OFF)
    if is_back and stage == stage_name(Stage.OFF):
        raise ConditionFailedError(f"store {info.name!r} does not migrate: there is nothing to go back from")
    if not is_back and stage not in (stage_name(Stage.OFF), stage_name(Stage.SHADOW), stage_name(Stage.FINISH)):
        raise ConditionFailedError(f"store {info.name!r} is at the stage {stage}: --phase back leads to the shadow")


async def _look(config: CliConfig, info: StoreInfo) -> list[KeyShadow]:
    from ringcast.topology import read_topologies  # the other commands of stores do without NATS

    found = await read_topologies(config.servers, info.name, timeout_s=config.timeout_s)
    return [_of_key(each) for each in found if each.members or (each.shadow and each.shadow.unguarded)]


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
        shadow.rule if shadow is not None else None,
        shadow.unguarded if shadow is not None else (),
        shadow.guarded if shadow is not None else (),
        shadow.calling if shadow is not None else (),
        dict(shadow.awaited) if shadow is not None else {},
    )


async def _wait(config: CliConfig, info: StoreInfo, phase: str, patience_s: float) -> list[KeyShadow]:
    """Returns once the stage has come about in every worker.

    Raises:
        UnavailableError: it takes longer than ``patience_s``.
    """
    keys: list[KeyShadow] = []
    try:
        async with asyncio.timeout(patience_s):
            while True:
                keys = await _look(config, info)
                if not any(_lack(key, phase) for key in keys):
                    return keys
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        lacks = "; ".join(f"{key.key}: {lack}" for key in keys if (lack := _lack(key, phase)))
        stage = stage_name(_PHASES[phase])
        raise UnavailableError(
            f"store {info.name!r} is at the stage {stage}, and after {patience_s:g} s still lacks "
            f"{lacks or 'an answer'}"
        ) from None


def _lack(key: KeyShadow, phase: str) -> str:
    """What a key still lacks for a stage, or nothing."""
    if key.moves is None:
        return "no plan"
    rule = Rule.OWNERS if phase == stage_name(Stage.SWITCH) else Rule.PEERS
    if key.rule != rule:
        return f"the rule {rule}" + (f", as {', '.join(key.calling)} may still have calls" if key.calling else "")
    if phase == stage_name(Stage.VALIDATE):
        return ", ".join(key.unguarded)
    return ", ".join(key.guarded if phase == _BACK else key.missing)


def print_status(info: StoreInfo, step: MigrationInfo | None, keys: list[KeyShadow], *, as_json: bool) -> None:
    """Prints how far each key is, and whom it waits for."""
    if as_json:
        print_json({"store": info.name, "strategy": info.strategy, "migration": step, "keys": keys})
        return
    if step is None or step.stage in _ENDS:
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
                key.rule or "",
                "" if key.moves is None else f"{key.moves} of {key.partitions}",
            ]
            for key in keys
        ]
        print_table(["key", "leader", "workers that take part", "rule", "partitions that would move"], rows)
    for key in keys:
        if key.missing:
            note(f"{key.key}: {', '.join(key.missing)} take no part")
        if step.stage == stage_name(Stage.VALIDATE) and key.unguarded:
            note(f"{key.key}: {', '.join(key.unguarded)} are not guarded")
        if key.calling:
            note(f"{key.key}: {', '.join(key.calling)} may still have calls, which all others wait for")
        waits = {stage_name(Stage.VALIDATE): key.unguarded, stage_name(Stage.SHADOW): key.guarded}.get(step.stage, ())
        for name in sorted({*key.calling, *waits}):
            if not (one := key.awaited[name]).alive:
                most = "" if one.until_s is None else f": it is waited for until {_moment(one.until_s)} at most"
                note(f"{key.key}: {name} gave its last sign of life at {_moment(one.seen_s)}{most}")


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
