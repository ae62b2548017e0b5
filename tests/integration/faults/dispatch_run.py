"""A run against an agent and its consumers; its load, schedule and record are those of any run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.integration.faults.arena import STORE, Shape
from tests.integration.faults.deliveries import judge_deliveries, judge_done, judge_group
from tests.integration.faults.dispatch_arena import DispatchArena
from tests.integration.faults.histories import judge_order, judge_reports, judge_revisions, judge_state, judge_writes
from tests.integration.faults.kinds import Kind
from tests.integration.faults.load import Write
from tests.integration.faults.run import DUMP_TRIES, Dumps, Outcome, Run, Say, chaos, revisions_of

BUSY = 100
"""Deliveries that are acknowledged before each fault."""


class DispatchRun(Run):
    """Faults on a system with an agent: who owns a partition is told by the workers alone, the agent has the rest."""

    arena: DispatchArena

    def owned(self) -> bool:
        """That there is an owner shows in what was heard."""
        return True

    def heard(self, write: Write) -> bool:
        """By a worker that owns the row, or acknowledged by a consumer."""
        done = self.arena.answers.newest.get((write.key, write.row_id))
        return super().heard(write) or (done is not None and done.version >= write.version)

    async def before_fault(self) -> None:
        await self.arena.busy(BUSY)

    async def dumps(self) -> Dumps:
        """As of any run, and no partition moved until the agent and the workers agreed on whose each is.

        Otherwise the rows of the agent could be judged as those of a worker that is about to give them up.
        """
        for _ in range(DUMP_TRIES):
            moves = self.arena.mirror.moves
            dumps = await super().dumps()
            await self.arena.shared_out()
            if self.arena.mirror.moves == moves:
                return dumps
        raise AssertionError(f"partitions moved during each of {DUMP_TRIES} looks, with no fault and no load")

    async def judge(self) -> None:
        """Ends the load, waits for rest, and adds what is found to the outcome."""
        await self.load.stop()
        arena, outcome, findings = self.arena, self.outcome, self.outcome.findings
        (key,) = arena.shape.keys
        held = {name: dump.get(key, {}) for name, dump in (await self.dumps()).items()}
        owned = {name: arena.mirror.owned(name, key) for name in held}
        client, ledger = await arena.client_to_judge(), self.load.ledger
        for refusal in ledger.refused:
            findings.add("refused", refusal)
        judge_group(await arena.group(), findings)
        elsewhere = frozenset[int]().union(*owned.values())
        reports, revisions = arena.history.reports(), await revisions_of(client, key)
        truth = {row.row_id: (row.value, row.version, row.partition) async for row in client.list(STORE, key)}
        theirs = {row_id: row for row_id, row in truth.items() if row[2] in elsewhere}
        ours = {row_id: row for row_id, row in truth.items() if row[2] not in elsewhere}
        judge_state(theirs, held, owned, findings)
        judge_done(ours, key, arena.answers.newest, findings)
        judge_deliveries(reports, revisions, findings)
        judge_writes(ledger.writes, revisions, findings)
        judge_order(ledger.writes, revisions, findings)
        judge_revisions(revisions, findings)
        judge_reports(reports, revisions, findings)
        self._judge_processes()
        outcome.rows += len(ours)
        outcome.count(ledger)

    def _judge_processes(self) -> None:
        for server in (self.arena.agent, *self.arena.consumers.values()):
            assert server is not None
            if server.process.returncode is not None:
                self.outcome.ended_by_itself.append(server.process.describe("ended by itself"))


async def dispatch_chaos(
    directory: Path, shape: Shape, outcome: Outcome, *, seed: int, turns: Sequence[tuple[Kind, ...]], say: Say
) -> None:
    """As :func:`~tests.integration.faults.run.chaos`."""
    await chaos(directory, shape, outcome, seed=seed, turns=turns, say=say, arena_of=DispatchArena, run_of=DispatchRun)
