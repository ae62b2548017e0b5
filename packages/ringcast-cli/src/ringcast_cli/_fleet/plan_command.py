"""``ringcast plan``."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import click
from ringcast.plans import Plan, plan_without
from ringcast.topology import Topology, read_topologies, read_topology
from ringcast_wire import InvalidInputError

from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json, print_table, visible


@click.command()
@click.argument("store")
@click.argument("key", required=False)
@click.option(
    "--remove",
    "remove",
    required=True,
    multiple=True,
    metavar="WORKER",
    help="A worker that is to be gone; give it several times for several.",
)
@shared_options("servers", "timeout")
@click.pass_context
def plan(context: click.Context, store: str, key: str | None, remove: tuple[str, ...]) -> None:
    """Show what moves once workers are gone, of KEY or of every key that has one of them. Changes nothing.

    By the rule that the workers themselves go by, with the workers, pins, drains and capacities of now. With --json one
    document a key, with the owner of each partition now and then.
    """
    config = settings_of(context)
    if key is None:
        found = asyncio.run(read_topologies(config.servers, store, timeout_s=config.timeout_s))
        known = set[str]().union(*map(_workers, found))
        if strangers := sorted(set(remove) - known):
            raise InvalidInputError(f"no key of {store} has a worker {visible(strangers[0])}", field="remove")
        found = [each for each in found if _workers(each) & set(remove)]
    else:
        found = [asyncio.run(read_topology(config.servers, store, key, timeout_s=config.timeout_s))]
    for each in found:
        made = plan_without(each, _workers(each) & set(remove) if key is None else remove)
        if config.json:
            print_json(_document(made))
        else:
            _print(made, each)


def _workers(topology: Topology) -> set[str]:
    return {member.worker_id for member in topology.members}


def _document(plan: Plan) -> dict[str, Any]:
    return {
        "store": plan.store,
        "key": plan.key,
        "removed": plan.removed,
        "moves": plan.moves,
        "owners": plan.now,
        "then": plan.then,
    }


def _print(plan: Plan, topology: Topology) -> None:
    now, then = Counter(plan.now), Counter(plan.then)
    gained = Counter(new for old, new in zip(plan.now, plan.then, strict=True) if old != new)
    workers = sorted({name for name in (*now, *then) if name is not None})
    removed = ", ".join(map(visible, plan.removed))
    click.echo(f"{plan.store}/{plan.key} without {removed}: {plan.moves} of {len(plan.then)} partitions move")
    rows = [[name, str(now[name]), str(then[name]), f"+{gained[name]}"] for name in workers]
    print_table(["worker", "partitions", "then", "gets"], rows, right=frozenset({1, 2, 3}))
    if topology.exclusive is not None and topology.exclusive.balance != "count":
        note("the store balances by load: more may move once the loads are known")


COMMANDS: Final = {"plan": plan}
