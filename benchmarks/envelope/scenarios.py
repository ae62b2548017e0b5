"""All parts of the envelope, in the order in which they are measured."""

from __future__ import annotations

from benchmarks.envelope import (
    access,
    balance,
    bootstrap,
    changes,
    control,
    dispatch,
    events,
    hard_limits,
    leader,
    peers,
    rebalance,
    resources,
    undo,
)
from benchmarks.envelope.run import Scenario

SCENARIOS = (
    Scenario(
        "latency",
        "change to handler at 1, 100, 1,000 and 5,000 changes/s, SQLite and PostgreSQL",
        300,
        changes.change_to_handler,
    ),
    Scenario("sustained", "5,000 changes/s held into one partition, and into 256", 180, changes.sustained),
    Scenario(
        "events", "events/s that a worker process takes, and CPU an event, beside bare clients", 150, events.events
    ),
    Scenario("dispatch", "changes/s through an agent to 8 consumers, and CPU a change", 120, dispatch.dispatch),
    Scenario("bootstrap", "loading a partition of 1 MB and 8 MB, beside the bare transport", 90, bootstrap.bootstrap),
    Scenario("peers", "one change to all subscribers, beside a NATS KV, etcd and Redis", 200, peers.peers),
    Scenario("resources", "memory by rows, start-up, CPU and messages when idle", 150, resources.resources),
    Scenario("rebalance", "join, leave and crash at 10, 50 and 200 workers", 900, rebalance.rebalance),
    Scenario(
        "ownership",
        "the same with `jump` and `sticky`, and crashes under an agent: how long partitions are dark",
        900,
        rebalance.ownership,
    ),
    Scenario("leader", "what the leader of a key takes with `sticky`, and a peer with `jump`", 3600, leader.leader),
    Scenario("balance", "how even 20 workers get whose partitions are written unequally", 900, balance.balance),
    Scenario("control", "what tokens, roles, policies and the audit log cost a put", 320, control.control),
    Scenario(
        "access",
        "logins by callout, revocations, a fleet of 300, 10,000 roles, another leader, drains of a service",
        1_200,
        access.access,
    ),
    Scenario("undo", "until handlers have their old rows again, of a release and a bad wave", 240, undo.undo),
    Scenario("limits", "every hard limit of the envelope reached, and one more refused", 180, hard_limits.hard_limits),
)
