"""What happened in a run, as one could have seen it from outside: the only thing that the checker gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typing_extensions import override


class History:
    """Facts in the order of their times. Each is a tuple of plain values: time in seconds, kind, what the kind says.

    ``worker`` names one life of one process, so a worker that is started again has another name.

    ========== ==========================================================================================
    commit     key, partition, ((row, version, value or ``None`` for a delete), …) by version, history
    published  key, partition, prev, rev: the stream has stored an event, maybe not for the first time
    own        worker, key, partition: it holds itself for the owner from now on
    disown     worker, key, partition: no longer
    assigned   worker, key, partitions: its application was told so (``revoked`` likewise)
    handle     worker, key, partition, row, version, value: its handler is called with this change
    handled    worker, key, partition, row, version, value: and has taken it, or failed every time
    ack        worker, key, partition, rev, history: it acknowledges the event that ends at ``rev`` of a history
    deferred   worker, key, partition, rev, history: the same, but the rows are still to be fetched
    lease_back worker: its lease had ended, and it holds it again
    failed     worker, what: an error that nothing has an answer to came up in it
    end        worker: the process is gone
    circles    what: a task that went on and on while no time passed; it ends the run
    restored   {(key, partition): head}: the database is as it was, and what came since has never been
    began      {key: history}: the keys have these histories from now on
    wiped      NATS has lost its disk
    history    worker, key, before, after: it goes on with the rows of another history
    refused    worker, key, what: too many rows were missing in another history
    put_back   worker, key, partition, before, after: its revision went back with the database's
    calm       ``True``: all faults are over, ``False``: the next begins
    dies       worker: it is about to be killed, under an agent that lives, while all else is in order
    still      ``True``: nothing but an agent goes wrong from now on, ``False``: no longer
    dispatched worker, key, partition, row, version, value: its group of consumers was told of this change
    given      worker, key, row, version, consumer, offset, attempt: a consumer of the group gets this delivery
    answered   worker, key, row, consumer, offset, attempt: the consumer says that it is done with, or that it failed
    settled    worker, key, row, version: a consumer has it, or it was dropped, or is a dead letter
    skipped    worker, key, row, version: there was no consumer when it was due
    consumer_over worker, consumer: it is dead, has left or is evicted
    restless   why: long after the last fault something was not in order
    held       worker, key, partition, applied, {row: (version, value)}: what it has, in the end or after a restore
    unacked    consumer, count: deliveries that nobody has acknowledged in the end
    ========== ==========================================================================================
    """

    def __init__(self) -> None:
        self.facts: list[tuple[Any, ...]] = []

    def add(self, time: float, kind: str, *words: Any) -> None:
        """Notes a fact."""
        self.facts.append((time, kind, *words))

    def lines(self) -> Iterable[str]:
        """The facts as text."""
        return (f"{fact[0]:.6f} {fact[1]} " + " ".join(str(word) for word in fact[2:]) for fact in self.facts)

    @override
    def __repr__(self) -> str:
        return f"<History of {len(self.facts)} facts>"
