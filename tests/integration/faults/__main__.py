"""Faults without end: `make chaos`.

The faults are shared out between a system with one NATS server on a small disk, one with a cluster of three, and one
whose only service has a file for its database and where all log in with a token; with `--systems dispatch` they are
done to one with an agent and the consumers of a group. With ``--strategy sticky`` each partition has one owner at every
moment, and the calls of all processes are judged for that. The schedule comes from the seed; what happens in between is
real, so a seed does not replay a run to the millisecond.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from ringcast_testkit import SmallDisk
from ringcast_wire import (
    DEFAULT_CALL_BOUND_MS,
    DEFAULT_LEASE_TTL_MS,
    InvalidInputError,
    Strategy,
    check_ownership_times,
)

from tests.integration.faults.arena import Shape
from tests.integration.faults.dispatch_run import dispatch_chaos
from tests.integration.faults.kinds import KINDS
from tests.integration.faults.run import Outcome, chaos, possible, schedule

SYSTEMS = ("server", "cluster", "sqlite", "dispatch")
SERVICE_OPTIONS = ("--tombstone-retention", "3s", "--compaction-interval", "2s", "--log-level", "warning")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the schedule (default: the time)")
    parser.add_argument("--faults", type=int, default=96, help="how many, on all systems together (default: 96)")
    parser.add_argument("--kinds", default="", help="only these kinds, separated by commas")
    parser.add_argument(
        "--systems",
        default="server,cluster,sqlite",
        help="server, cluster, sqlite or dispatch, or several (default: the first three)",
    )
    parser.add_argument("--overlap", type=float, default=0.2, help="how likely a fault gets another at the same time")
    parser.add_argument("--hold", type=float, default=1.0, help="what the times of faults that last are multiplied by")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--services", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument(
        "--strategy", choices=[*Strategy], type=Strategy, default=Strategy.JUMP, help="of the store (default: jump)"
    )
    parser.add_argument(
        "--lease-ttl-ms", type=int, help=f"of the strategy sticky: how long a lease lasts ({DEFAULT_LEASE_TTL_MS})"
    )
    parser.add_argument(
        "--call-bound-ms", type=int, help=f"of the strategy sticky: the bound on a call ({DEFAULT_CALL_BOUND_MS})"
    )
    parser.add_argument(
        "--roles",
        action="store_true",
        help="services with TLS, tokens and roles; the load is a writer",
    )
    parser.add_argument(
        "--callout", action="store_true", help="workers with tokens, and NATS asks the services what they may do"
    )
    parser.add_argument(
        "--policies",
        action="store_true",
        help="a store with limits, which the load meets; at the end it must take exactly as many rows as it may",
    )
    parser.add_argument("--out", type=Path, default=Path("build/chaos.json"))
    chosen = parser.parse_args()
    chosen.kinds = [name for name in chosen.kinds.split(",") if name] or sorted(KINDS)
    if unknown := set(chosen.kinds) - set(KINDS):
        parser.error(f"no such kinds: {', '.join(sorted(unknown))}; there are {', '.join(sorted(KINDS))}")
    chosen.systems = chosen.systems.split(",")
    if unknown := set(chosen.systems) - set(SYSTEMS):
        parser.error(f"no such systems: {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    if chosen.callout and "dispatch" in chosen.systems:
        parser.error("--callout does not go with --systems dispatch: an agent keeps the leases of the workers there")
    check_strategy(parser, chosen)
    return chosen


def check_strategy(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """Ends with a sentence where the options do not go together."""
    is_sticky = chosen.strategy is Strategy.STICKY
    if not is_sticky and (chosen.lease_ttl_ms is not None or chosen.call_bound_ms is not None):
        parser.error("--lease-ttl-ms and --call-bound-ms are times of --strategy sticky alone")
    if is_sticky and "dispatch" in chosen.systems:
        parser.error("--strategy sticky does not go with --systems dispatch: no group of an agent serves such a store")
    chosen.lease_ttl_ms = chosen.lease_ttl_ms or DEFAULT_LEASE_TTL_MS
    chosen.call_bound_ms = chosen.call_bound_ms or DEFAULT_CALL_BOUND_MS
    try:
        check_ownership_times(chosen.lease_ttl_ms, chosen.call_bound_ms)
    except InvalidInputError as error:
        parser.error(str(error))


def say(text: str) -> None:
    """One line to whoever watches."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def shape_of(system: str, chosen: argparse.Namespace) -> Shape:
    """The system of that name."""
    return Shape(
        workers=chosen.workers,
        services=1 if system == "sqlite" else chosen.services,
        partitions=chosen.partitions,
        keys=("routes",) if system == "dispatch" else ("routes", "rules"),
        dispatch=system == "dispatch",
        cluster=system == "cluster",
        sqlite=system == "sqlite",
        token=system == "sqlite" and not chosen.callout,
        slow_workers=("worker1",),
        small_disk=system in ("server", "dispatch") and SmallDisk.supported(),
        service_options=SERVICE_OPTIONS,
        hold=chosen.hold,
        roles=chosen.roles,
        policies=chosen.policies,
        # A release that meets a limit halts, and can't end while the store is full.
        releases=system != "dispatch" and not chosen.policies,
        callout=chosen.callout,
        strategy=chosen.strategy,
        lease_ttl_ms=chosen.lease_ttl_ms,
        call_bound_ms=chosen.call_bound_ms,
    )


def say_what_is_left_out(chosen: argparse.Namespace) -> None:
    """Which kinds of those chosen the strategy, or the load, has no use for."""
    is_sticky = chosen.strategy is Strategy.STICKY
    if out := [name for name in chosen.kinds if KINDS[name].strategy == ("peer" if is_sticky else "sticky")]:
        why = "what they break is not there, or may not be lost" if is_sticky else "they are made for --strategy sticky"
        say(f"left out, since {why}: {', '.join(out)}")
    if chosen.policies and (out := [name for name in chosen.kinds if KINDS[name].releases]):
        say(f"left out, since a release that meets a limit of the store can't end: {', '.join(out)}")


async def main() -> int:
    """Runs it all, writes the figures, and returns the exit status."""
    chosen = options()
    outcome = Outcome()
    say(f"seed {chosen.seed}")
    say_what_is_left_out(chosen)
    systems = chosen.systems
    failure = ""
    for number, system in enumerate(systems):
        shape = shape_of(system, chosen)
        count = chosen.faults // len(systems) + (number < chosen.faults % len(systems))
        kinds = possible(chosen.kinds, shape)
        turns = schedule(chosen.seed + number, count, kinds, overlap=chosen.overlap, done=outcome.faults)
        say(f"{system}: {count} faults in {len(turns)} turns")
        with tempfile.TemporaryDirectory(prefix="rc-chaos-") as directory:
            try:
                do = dispatch_chaos if shape.dispatch else chaos
                await do(Path(directory), shape, outcome, seed=chosen.seed + number, turns=turns, say=say)
            except* Exception as group:  # noqa: BLE001  # whatever it was, the figures are written
                failure = "; ".join(f"{type(error).__name__}: {error}" for error in group.exceptions)
                say(f"{system}: {failure}")
    figures = {"seed": chosen.seed, **outcome.figures(), "failure": failure}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    say(json.dumps(figures, indent=2))
    return 0 if outcome.kept and not failure else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
