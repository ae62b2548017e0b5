"""The service is killed within and behind the transactions that publish and undo a release, at once and in waves; the
next one goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import grpc.aio
import nats
import pytest
from ringcast_config_service.repository import HistoryFilter, ListFilter, make_repository
from ringcast_testkit import ManagedProcess, NatsServer, until
from ringcast_wire import ReleaseOutcome, decode_event, names
from ringcast_wire.grpc import ConfigServiceStub, pb

SERVICE: Final = """
import os, signal, sys
from ringcast_config_service.releases import canaries, gates
from ringcast_config_service.releases import driver as work
from ringcast_config_service.__main__ import main
from ringcast_config_service.repository import Canary, release_steps
from ringcast_config_service.repository.sqlite import releases as sqlite

phase, where = sys.argv.pop(1).split(":")
release_steps.STEP_ROWS = 2
work.ReleaseWork.__init__.__kwdefaults__["takeover_ms"] = 0
committed = 0
at_gate = False

def dies():
    os.kill(os.getpid(), signal.SIGKILL)

def watched(transaction):
    answer, now = None, ""
    while True:
        try:
            asked = transaction.send(answer)
        except StopIteration as end:
            return end.value
        text = getattr(asked, "text", "WRITE")
        for name in ("publish", "wave", "undo"):
            if text == getattr(sqlite._SQL, name + "_page"):
                now = name
        answer = yield asked
        due = at_gate if phase == "gate" else now == phase and committed
        if due and text == getattr(sqlite._SQL, where, "WRITE" if where == "write" else None):
            dies()

run, step = sqlite._run, sqlite.SqliteReleases.step

async def counted(self, *words):
    global committed
    done = await step(self, *words)
    if done.events and done.release.work == phase:
        committed += 1
        if where == "committed":
            dies()
    return done

def at_its_gate(leave):
    async def left(self, *words):
        global at_gate
        if phase == "gate" and where == "reached":
            dies()
        at_gate = True
        done = await leave(self, *words)
        if phase == "gate" and where == "committed":
            dies()
        at_gate = False
        return done

    return left

async def judged(self, release):
    return gates.Judgement("it is bad" if os.environ.get("GATE_FAILS") else "")

async def owned(self, release, label):
    if os.environ["OWNED"] == "all":
        return Canary(label, provisional=True)
    return Canary(label, frozenset(map(int, os.environ["OWNED"].split(","))))

gates.Gates.judged = judged
canaries.Canaries.find = owned
sqlite.SqliteReleases.fail_gate = at_its_gate(sqlite.SqliteReleases.fail_gate)
sqlite._run = lambda db, transaction: run(db, watched(transaction))
sqlite.SqliteReleases.step = counted
sqlite.SqliteReleases.pass_gate = at_its_gate(sqlite.SqliteReleases.pass_gate)
main()
"""
"""The service with small steps. It kills itself in its second step of a phase, once it has done what ``where`` says, or
right behind the commit of the first one, before an event of it is published. At the gate of a wave: before the
transaction that passes it, in it, or right behind its commit. ``OWNED``: what workers with a label own as it starts;
``all``: the store is of mode FULL, and they lay over what the first wave has."""

ROWS: Final = 24


class Instance:
    """A process with an order to die."""

    def __init__(self, directory: Path, order: str, nats_url: str, database: str) -> None:
        self._ready = directory / f"ready-{order.replace(':', '-')}.json"
        listen = ("--listen", "127.0.0.1:0", "--metrics-listen", "off", "--ready-file", str(self._ready))
        words = ("--nats", nats_url, "--database", database, *listen)
        self.process = ManagedProcess("config-service", [sys.executable, "-c", SERVICE, order, *words])

    async def address(self) -> str:
        await until(self._ready.exists)
        return str(json.loads(self._ready.read_text())["grpc"])

    async def died(self) -> None:
        await until(lambda: self.process.returncode is not None)


async def change(instance: Instance, method: str, request: object = None) -> None:
    """Asks for the change; the instance may die before it answers."""
    async with grpc.aio.insecure_channel(await instance.address()) as channel:
        try:
            call = getattr(ConfigServiceStub(channel), method)
            await call(request or pb.ChangeReleaseRequest(store="s", number=1))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise


async def release(instance: Instance) -> pb.Release:
    async with grpc.aio.insecure_channel(await instance.address()) as channel:
        found: pb.Release = await ConfigServiceStub(channel).GetRelease(pb.GetReleaseRequest(store="s", number=1))
        return found


async def stage(instance: Instance) -> dict[str, str]:
    """A release that adds, changes and deletes rows; the rows before it."""
    before = {f"r{number}": "old" for number in range(ROWS) if number % 3}
    async with grpc.aio.insecure_channel(await instance.address()) as channel:
        stub = ConfigServiceStub(channel)
        await stub.CreateStore(pb.CreateStoreRequest(name="s", partition_count=4))
        done = await stub.Commit(
            pb.CommitRequest(
                store="s", writes=[pb.KeyedWrite(key="k", row=pb.RowWrite(row_id=row, value="old")) for row in before]
            )
        )
        versions = dict(zip(before, (row.version for row in done.rows), strict=True))
        rows = [
            pb.RowWrite(
                row_id=f"r{number}",
                value="" if number % 3 == 1 else "new",
                delete=number % 3 == 1,
                if_version=versions.get(f"r{number}"),
                if_absent=number % 3 == 0,
            )
            for number in range(ROWS)
        ]
        writes = [pb.KeyedWrite(key="k", row=row) for row in rows]
        await stub.StageRelease(pb.StageReleaseRequest(store="s", stage_id="one", rows=writes, complete=True))
    return before


async def reached(instance: Instance, state: int) -> bool:
    """Whether the release is in a state."""
    return (await release(instance)).state == state


async def is_published(nats_url: str, wanted: dict[int, int]) -> bool:
    """Whether the events on the stream, in whatever order, lead from revision 0 of each partition to its head."""
    nc = await nats.connect(nats_url)
    try:
        js, stream = nc.jetstream(), names.notify_stream("s")
        steps: dict[int, dict[int, int]] = {}
        for number in range(1, (await js.stream_info(stream)).state.last_seq + 1):
            message = await js.get_msg(stream, number)
            event = decode_event(message.data or b"")
            steps.setdefault(int(str(message.subject).rpartition(".")[2]), {})[event.prev] = event.rev
    finally:
        await nc.close()
    reached = dict.fromkeys(wanted, 0)
    for partition, found in steps.items():
        while reached[partition] in found:
            reached[partition] = found.pop(reached[partition])
    return reached == wanted


async def judge(database: str, nats_url: str, before: dict[str, str]) -> None:
    """After the undo: the rows are as they were, each was written once in each phase, and every event is published."""
    repo = make_repository(database)
    await repo.open()
    try:
        rows = [found.row async for page in repo.reader.list_rows("s", "k", ListFilter()) for found in page]
        assert {row.row_id: row.value for row in rows} == before
        written: dict[int, list[int]] = {}
        async for page in repo.reader.history("s", "k", HistoryFilter()):
            for revision in page:
                written.setdefault(revision.partition, []).append(revision.row.version)
        heads = (await repo.reader.heads("s", "k")).heads
        published = (await repo.releases.get("s", 1)).published
        assert sum(map(len, written.values())) == len(before) + 2 * published, "each row once in each phase"
        assert written == {partition: list(range(1, head + 1)) for partition, head in enumerate(heads)}
        wanted = dict(enumerate(heads))
    finally:
        await repo.close()
    await until(lambda: is_published(nats_url, wanted))


async def wave_of(database: str, first: set[int] | None = None) -> tuple[int, bool]:
    """The wave under way, and whether it is at its gate; none behind it has begun, and those before are published.

    ``first``: the partitions of the first wave.
    """
    repo = make_repository(database)
    await repo.open()
    try:
        release = await repo.releases.get("s", 1)
        rows = await repo.releases.rows("s", 1, 0, ROWS, 1 << 20, conflicts_only=False)
        waves = {row.partition: (await repo.releases.of_row("s", "k", row.row_id, 1))[0].wave for row in rows}
    finally:
        await repo.close()
    assert release.rollout is not None
    wave, at_gate = release.rollout.wave, release.rollout.at_gate
    if first is not None:
        assert {partition for partition, number in waves.items() if number == 1} == first
    for row in rows:
        assert (row.outcome is ReleaseOutcome.PUBLISHED) or waves[row.partition] >= wave + at_gate
        assert (row.outcome is ReleaseOutcome.WAITING) or waves[row.partition] <= wave
    assert sum(row.outcome is ReleaseOutcome.PUBLISHED for row in rows) == release.published
    return wave, at_gate


async def test_an_instance_that_is_killed_anywhere_leaves_the_rest_to_the_next(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    nats_url = nats_server.url
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    started: list[Instance] = []

    def start(order: str) -> Instance:
        started.append(Instance(tmp_path, order, nats_url, database))
        return started[-1]

    try:
        first = start("publish:write")
        before = await stage(first)
        await change(first, "PublishRelease", pb.PublishReleaseRequest(store="s", number=1))
        await first.died()
        await start("publish:committed").died()
        last = start("undo:write")

        await until(lambda: reached(last, pb.RELEASE_STATE_PUBLISHED))
        assert (await release(last)).published == ROWS
        await change(last, "UndoRelease")
        await last.died()
        await start("undo:committed").died()
        last = start("none:none")
        await until(lambda: reached(last, pb.RELEASE_STATE_UNDONE))
        done = await release(last)
        assert (done.published, done.undone, done.skipped) == (ROWS, ROWS, 0)

        await judge(database, nats_url, before)
    finally:
        for instance in started:
            instance.process.kill()


@pytest.mark.parametrize(
    ("waves", "canary", "canary_partitions"), [([25, 50, 100], "", None), ([0, 50, 100], "site=test", {3})]
)
async def test_an_instance_that_is_killed_anywhere_in_a_wave_leaves_the_rest_to_the_next(
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    waves: list[int],
    canary: str,
    canary_partitions: set[int] | None,
) -> None:
    monkeypatch.setenv("OWNED", "3")
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    started: list[Instance] = []

    def start(order: str) -> Instance:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(Instance(directory, order, nats_server.url, database))
        return started[-1]

    async def dies(order: str) -> tuple[int, bool]:
        await start(order).died()
        return await wave_of(database, canary_partitions)

    try:
        first = start("wave:write")
        before = await stage(first)
        request = pb.PublishReleaseRequest(store="s", number=1, waves=waves, canary=canary)
        await change(first, "PublishRelease", request)
        await first.died()
        monkeypatch.setenv("OWNED", "0,1,2")  # other workers have the label by now
        assert await wave_of(database, canary_partitions) == (1, False)
        assert await dies("wave:committed") == (1, False)
        assert await dies("wave:release_keys") >= (1, False)
        assert (await dies("gate:reached"))[1]
        wave, at_gate = await dies("gate:set_release")
        assert at_gate, "it had passed it, and was killed before the commit"
        assert await dies("gate:committed") == (wave + 1, False)
        assert await dies("wave:set_release_key") == (wave + 1, False)
        last = start("none:none")
        await change(last, "PublishRelease", request)
        await until(lambda: reached(last, pb.RELEASE_STATE_PUBLISHED))
        assert (await release(last)).published == ROWS
        assert (await release(last)).rollout.canary == canary
        await change(last, "UndoRelease")
        await until(lambda: reached(last, pb.RELEASE_STATE_UNDONE))
        await judge(database, nats_server.url, before)
    finally:
        for instance in started:
            instance.process.kill()


async def test_an_instance_that_is_killed_while_a_release_is_laid_over_leaves_the_rest_to_the_next(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published before the gate of this wave is passed, and everything behind it once."""
    monkeypatch.setenv("OWNED", "all")
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    started: list[Instance] = []

    def start(order: str) -> Instance:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(Instance(directory, order, nats_server.url, database))
        return started[-1]

    async def dies(order: str) -> tuple[int, bool]:
        await start(order).died()
        return await wave_of(database, set())

    try:
        first = start("gate:reached")
        before = await stage(first)
        request = pb.PublishReleaseRequest(store="s", number=1, waves=[0, 100], canary="site=test")
        await change(first, "PublishRelease", request)
        await first.died()
        assert await wave_of(database, set()) == (1, True)
        assert await dies("gate:set_release") == (1, True)
        assert await dies("gate:committed") == (2, False)
        assert await dies("wave:write") == (2, False)
        last = start("none:none")
        await until(lambda: reached(last, pb.RELEASE_STATE_PUBLISHED))
        assert (await release(last)).published == ROWS
        await change(last, "UndoRelease")
        await until(lambda: reached(last, pb.RELEASE_STATE_UNDONE))
        await judge(database, nats_server.url, before)
    finally:
        for instance in started:
            instance.process.kill()


async def test_a_release_whose_gate_fails_is_undone_whoever_is_killed(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATE_FAILS", "1")
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    started: list[Instance] = []

    def start(order: str) -> Instance:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        started.append(Instance(directory, order, nats_server.url, database))
        return started[-1]

    try:
        first = start("gate:reached")
        before = await stage(first)
        await change(first, "PublishRelease", pb.PublishReleaseRequest(store="s", number=1, waves=[50, 100]))
        await first.died()
        assert await wave_of(database) == (1, True)
        await start("gate:set_release").died()
        assert await wave_of(database) == (1, True), "it was killed before the commit"
        await start("gate:committed").died()
        await start("undo:set_release").died()
        await start("undo:committed").died()
        last = start("none:none")
        await until(lambda: reached(last, pb.RELEASE_STATE_UNDONE))
        done = await release(last)
        assert done.rollout.failure == "it is bad"
        assert 0 < done.published == done.undone < ROWS
        assert (done.changed_by, done.change_reason) == ("local", "the gate of wave 1 failed: it is bad")
        await judge(database, nats_server.url, before)
    finally:
        for instance in started:
            instance.process.kill()
