"""Changes a second through one agent to eight consumers that acknowledge each, and what CPU time a change costs.

The events, of one change each, are written to the store's stream while the agent is stopped, as for the scenario
``events``. From then on everything is as in any system: the agent takes the events from the broker, each row goes to
its owner among the consumers, processes of their own, and is settled by the answer. The config service, which knows
nothing of these events, is stopped meanwhile, so that it does not say what the revisions are.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ringcast_testkit import AgentProcess

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.events import publish, relayed
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child, CpuMeter
from benchmarks.envelope.results import median_of
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running

DISPATCH = "dispatch"
_CONSUMERS = 8
_PARTITIONS = 256
_START_S = 60.0
_DRAIN_S = 120.0
_LEASE_SAFE_S = 8.0
_POLL_S = 0.02
_SETTINGS = (
    *("--evict-after", "120"),  # the agent is stopped meanwhile, and hears of nobody
    *("--log-level", "warning"),
)


def dispatch(run: Run) -> None:
    """Eight consumers that share everything, and as many of which each wants its own rows only."""
    count = run.size(40_000, 1_000)
    consumers = run.size(_CONSUMERS, 2)
    with run.directory() as directory, running(directory) as system:
        for name, filtered in (("no filters", False), ("filters", True)):
            params = {"changes": count, "consumers": consumers, "partitions": _PARTITIONS}
            with run.case(DISPATCH, f"{consumers} consumers, {name}", params) as case:
                rounds = [
                    _round(system, directory, f"dispatch{int(filtered)}r{number}", count, consumers, filtered=filtered)
                    for number in range(run.size(3, 1))
                ]
                case.figures = {
                    "changes_per_s": median_of(
                        [count / each["took_s"] for each in rounds], "changes/s", smaller_is_better=False
                    ),
                    **{
                        f"cpu_us_per_change, {who}": median_of([each[who] / count * 1e6 for each in rounds], "µs")
                        for who in ("agent", "consumers", "nats-server")
                    },
                }


def _round(
    system: System, directory: Path, store: str, count: int, consumers: int, *, filtered: bool
) -> dict[str, float]:
    """Wall seconds for all changes, and CPU seconds of each kind of process."""
    run_coroutine(create_store(system.service.address, store, _PARTITIONS))
    published = relayed(store, count, _PARTITIONS, 1)
    with ExitStack() as stack:
        agent = stack.enter_context(AgentProcess(directory / store, nats_url=system.nats.url, options=_SETTINGS))
        children = []
        for number in range(consumers):
            filters = _filters(number, consumers) if filtered else []
            settings = {"address": agent.grpc_address, "store": store, "name": f"c{number}", "filters": filters}
            settings["token"] = agent.token
            children.append(stack.enter_context(Child(f"consumer {number}", "benchmarks.envelope.consumer", settings)))
        for child in children:
            child.wait_for("ready", _START_S)
        _held(agent, store)
        system.service.pause()
        stack.callback(system.service.resume)
        agent.pause()
        stopped_at = time.monotonic()
        run_coroutine(publish(system.nats.url, store, published))
        if time.monotonic() - stopped_at > _LEASE_SAFE_S:
            raise TimeoutError(f"publishing {count} events took longer than the agent's lease lasts")
        meter = CpuMeter(
            {
                "agent": [agent.process.pid],
                "consumers": [child.process.pid for child in children],
                "nats-server": [system.nats.process.pid],
            }
        )
        start_ns = time.monotonic_ns()
        agent.process.signal(signal.SIGCONT)
        last_ns = _drain(children, count)
        _settled(agent, store, count)
        return {"took_s": (last_ns - start_ns) / 1e9, **meter.seconds()}


def _held(agent: AgentProcess, store: str) -> None:
    """Waits until the group holds every partition: earlier changes are read from the service, which will stop."""
    deadline = time.monotonic() + _START_S
    while True:
        (group,) = (each for each in agent.status()["groups"] if each["store"] == store)
        if group["partitions_held"] == _PARTITIONS:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{group['partitions_held']} of {_PARTITIONS} partitions were held after {_START_S:g} s")
        time.sleep(_POLL_S)


def _filters(number: int, consumers: int) -> list[str]:
    """Patterns for the row ids that end in some digits, so that each row has one consumer that wants it."""
    return [f"*{digit}" for digit in range(10) if digit % consumers == number]


def _drain(children: Sequence[Child], count: int) -> int:
    """Waits until every change was heard; returns when the last one was."""
    deadline = time.monotonic() + _DRAIN_S
    while True:
        told: list[dict[str, Any]] = [child.said("heard") or {"count": 0, "last_ns": 0} for child in children]
        heard = sum(each["count"] for each in told)
        if heard >= count:
            return max(int(each["last_ns"]) for each in told)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{heard} of {count} changes were heard after {_DRAIN_S:g} s")
        time.sleep(_POLL_S)


def _settled(agent: AgentProcess, store: str, count: int) -> None:
    """Waits until the agent has every answer."""
    deadline = time.monotonic() + _DRAIN_S
    while True:
        (group,) = (each for each in agent.status()["groups"] if each["store"] == store)
        if group["cursor"] == group["counts"]["acked"] == count:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{group['counts']['acked']} of {count} changes were answered after {_DRAIN_S:g} s")
        time.sleep(_POLL_S)
