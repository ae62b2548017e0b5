"""A leader of maintenance is halted in the middle of each duty, and the next one killed there: nothing is half done."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

import asyncpg
import grpc.aio
import nats
import psutil
import pytest
from nats.js.errors import NotFoundError
from ringcast_config_service.core import Core
from ringcast_testkit import ManagedProcess, NatsServer, PostgresServer, until
from ringcast_wire import names
from ringcast_wire.grpc import ConfigServiceStub, pb

SERVICE: Final = """
import os, signal, sys
from pathlib import Path
from asyncpg.connection import Connection
from asyncpg.transaction import Transaction
from nats.js import JetStreamContext
from ringcast_config_service import core, wire_pins
from ringcast_config_service.__main__ import main
from ringcast_config_service.repository import audit
from ringcast_config_service.repository.postgres import compaction, deletions
from ringcast_config_service.repository.sql.statements import Postgres

orders = Path(sys.argv.pop(1))
wire_pins.LOOK_S = 0.2
core._FORGET_MARKS = audit.MAX_FORGOTTEN = deletions.PURGE_ROWS = 2
compaction.PIECE_ROWS = compaction.PIECE_REVISIONS = 2
steps = {text: name for name, text in vars(Postgres).items() if isinstance(text, str)}
due = None

def ended(step, connection):
    global due
    if step == "COMMIT" and due is not None and due[1] is connection:
        carry_out(due[0])
        due = None
    first = min(orders.iterdir(), default=None)
    if first is not None and first.name.split("-")[2] == step:
        if "SIGSTOP" in first.name and isinstance(connection, Connection):
            due = first, connection  # an open transaction would keep the lead for 10 s
        else:
            carry_out(first)

def carry_out(order):
    order.rename(orders.parent / "done" / f"{order.name}-{os.getpid()}")
    os.kill(os.getpid(), signal.Signals[order.name.split("-")[1]])

def halting(real, step_of, connection_of=lambda self: self):
    async def call(self, *args, **words):
        result = await real(self, *args, **words)
        if not (isinstance(result, str) and result.endswith(" 0")):  # it has changed something
            ended(step_of(*args), connection_of(self))
        return result
    return call

for name in ("execute", "fetch", "fetchrow", "fetchval"):
    setattr(Connection, name, halting(getattr(Connection, name), lambda text, *_: steps.get(text, "")))
Transaction.commit = halting(Transaction.commit, lambda: "COMMIT", lambda transaction: transaction._connection)
JetStreamContext.delete_stream = halting(JetStreamContext.delete_stream, lambda *_: "delete_stream")
main()
"""
"""The service, with small pieces, that obeys the first of the files ``<number>-<signal>-<step>`` of a folder: once it
has done the step it sends itself the signal. SIGSTOP waits for the commit."""

LEASE: Final = "2s"


class Instance:
    """A process with an address for calls."""

    def __init__(self, directory: Path, number: int, nats_url: str, database: str) -> None:
        self._ready = directory / f"ready-{number}.json"
        listen = ("--listen", "127.0.0.1:0", "--metrics-listen", "off", "--ready-file", str(self._ready))
        settings = ("--compaction-interval", "200ms", "--maintenance-lease", LEASE, "--audit-retention", "1d")
        words = ("--nats", nats_url, "--database", database, *listen, *settings)
        self.process = ManagedProcess(
            "config-service", [sys.executable, "-c", SERVICE, str(directory / "orders"), *words]
        )

    async def address(self) -> str:
        await until(lambda: self._ready.exists() or self.process.returncode is not None)
        return str(json.loads(self._ready.read_text())["grpc"])

    def said(self, event: str) -> list[str]:
        return [line for line in list(self.process.log) if f"event={event} " in line]


@dataclass
class Fleet:
    """Two instances on one database; one that was killed is replaced."""

    directory: Path
    nats_url: str
    database: str
    instances: list[Instance]
    started: int = 0

    def fill(self) -> None:
        self.instances = [each for each in self.instances if each.process.returncode is None]
        while len(self.instances) < 2:
            self.started += 1
            self.instances.append(Instance(self.directory, self.started, self.nats_url, self.database))

    def end_orders(self) -> None:
        """Nothing that a test has ordered reaches the next; an instance that it has left halted ends."""
        for folder in ("orders", "done"):
            for path in (self.directory / folder).iterdir():
                path.unlink()
        for each in self.instances:
            if each.process.returncode is None and psutil.Process(each.process.pid).status() == psutil.STATUS_STOPPED:
                each.process.kill()

    def order(self, *steps: tuple[signal.Signals, str]) -> None:
        """Instances get these signals, one after the other, once the leader of that time has done these steps."""
        for number, (what, step) in enumerate(steps):
            (self.directory / "orders" / f"{number}-{what.name}-{step}").touch()

    async def halted(self, number: int) -> Instance:
        """The one that has obeyed the order of that number."""
        await until(lambda: list((self.directory / "done").glob(f"{number}-*")))
        (done,) = (self.directory / "done").glob(f"{number}-*")
        return next(each for each in self.instances if each.process.pid == int(done.name.rsplit("-", 1)[1]))

    async def ask(self, statement: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self.database)
        try:
            return [tuple(record) for record in await connection.fetch(statement)]
        finally:
            await connection.close()

    async def execute(self, statements: str) -> None:
        """In one transaction."""
        connection = await asyncpg.connect(self.database)
        try:
            await connection.execute(statements)
        finally:
            await connection.close()

    async def value(self, statement: str) -> object:
        return (await self.ask(statement))[0][0]


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, shared_nats: NatsServer, shared_postgres: PostgresServer
) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("fleet")
    for folder in ("orders", "done"):
        (directory / folder).mkdir()
    found = Fleet(directory, shared_nats.url, shared_postgres.create_database(), [])
    found.fill()
    yield found
    for each in found.instances:
        each.process.kill()


@pytest.fixture
async def stub(fleet: Fleet) -> AsyncIterator[ConfigServiceStub]:
    """Calls of an instance that is up at the beginning."""
    fleet.fill()
    addresses = [await each.address() for each in fleet.instances]
    async with grpc.aio.insecure_channel(addresses[0]) as channel:
        yield ConfigServiceStub(channel)
    fleet.end_orders()


async def make_rows(stub: ConfigServiceStub, store: str, count: int = 5) -> None:
    await stub.CreateStore(pb.CreateStoreRequest(name=store, partition_count=4))
    for number in range(count):
        await stub.Put(pb.PutRequest(store=store, key="k", row_id=f"r{number}", value="1"))


@dataclass(frozen=True)
class Duty:
    """What is to be done (``statements`` in one transaction, with the name of a store), where its leaders are halted
    and killed, and what a query finds once it is done. ``again``: what has a leader look that does not all the time.
    ``later``: more to be done, from when the first leader is halted."""

    statements: str
    halted: str
    killed: str
    query: str
    result: object
    again: str = ""
    later: str = ""
    deletes: bool = False


OLD: Final = "CAST(extract(epoch FROM now()) * 1000 AS BIGINT) - 7 * 86400000 - 30000"
OF_STORE: Final = "key_id IN (SELECT key_id FROM config_keys WHERE store = '{store}')"
PINNED: Final = "UPDATE stores SET wire_pin = 3 WHERE name = '{store}'"
"""As by a newer build, which reads more than this one."""
DUTIES: Final = {
    "idempotency_keys": Duty(
        "INSERT INTO idempotency_keys (store, idempotency_key, digest, outcomes, written_at_ms)"
        " SELECT '{store}', 'i' || n, '', '', 1 FROM generate_series(1, 7) AS s (n)",
        "FORGET_MARKS",
        "FORGET_MARKS",
        "SELECT count(*) FROM idempotency_keys WHERE store = '{store}'",
        0,
    ),
    "compaction": Duty(
        f"UPDATE rows SET written_at_ms = {OLD} WHERE {OF_STORE}",
        "DELETE_TOMBSTONES",
        "DELETE_HISTORY",
        f"SELECT (SELECT count(*) FROM rows WHERE {OF_STORE}) + (SELECT count(*) FROM history WHERE {OF_STORE})",
        0,
        # A leader that has just looked for tombstones would remove these before it is halted.
        later=f"UPDATE history SET written_at_ms = {OLD} WHERE {OF_STORE}",
        deletes=True,
    ),
    "counts": Duty(
        f"UPDATE partitions SET live_rows = live_rows + 7 WHERE {OF_STORE}",
        "RECOUNT",
        "RECOUNT",
        f"SELECT sum(live_rows) FROM partitions WHERE {OF_STORE}",
        5,
        again="UPDATE maintenance SET done_ms = 0 WHERE duty = 'counts'",
    ),
    "audit_retention": Duty(
        "UPDATE audit_log SET at_ms = 1",
        "FORGET_AUDIT",
        "FORGET_AUDIT",
        "SELECT count(*) FROM audit_log WHERE at_ms = 1",
        0,
    ),
    "wire_pins": Duty(
        PINNED,
        "SET_WIRE_PIN",
        "SET_WIRE_PIN",
        "SELECT wire_pin FROM stores WHERE name = '{store}'",
        1,
        later=PINNED,
    ),
    "purge": Duty(
        "UPDATE stores SET deleted_at_ms = 1, expires_at_ms = 1 WHERE name = '{store}'",
        "PURGE_ROWS",
        "delete_stream",
        "SELECT count(*) FROM stores WHERE name = '{store}'",
        0,
    ),
}
"""By the name that the service gives them."""


def test_every_duty_is_tried() -> None:
    duties = Core._duties(MagicMock())
    assert set(DUTIES) == {name for each in duties for name in each}


@pytest.mark.parametrize("name", DUTIES)
async def test_a_duty_whose_leaders_are_halted_and_killed_in_the_middle(
    fleet: Fleet, stub: ConfigServiceStub, store_name: str, name: str
) -> None:
    duty = DUTIES[name]
    await make_rows(stub, store_name)
    if duty.deletes:
        for number in range(5):
            await stub.Delete(pb.DeleteRequest(store=store_name, key="k", row_id=f"r{number}"))
    written = f"SELECT count(*) FROM audit_log WHERE store = '{store_name}'"
    await until(lambda: _is(fleet, written, 11 if duty.deletes else 6))
    floor = await fleet.value("SELECT floor_seq FROM audit_chain")
    newest = await fleet.value("SELECT max(seq) FROM audit_log")
    fleet.order((signal.SIGSTOP, duty.halted), (signal.SIGKILL, duty.killed))
    await fleet.execute(duty.statements.format(store=store_name))
    if duty.again:
        await until(lambda: _asked_again(fleet, duty))
    first = await fleet.halted(0)
    halted_token = re.findall(r"token=(\d+)", first.said("maintenance.lead_taken")[-1])[0]
    for statements in filter(None, (duty.again, duty.later)):
        await fleet.execute(statements.format(store=store_name))
    second = await fleet.halted(1)
    assert second is not first
    assert second.process.wait() == -signal.SIGKILL
    assert not await _is(fleet, duty.query.format(store=store_name), duty.result), "it is in the middle"
    # The first one wakes up, finds that it is not the leader, and becomes it again: the killed one's lease runs out.
    first.process.signal(signal.SIGCONT)
    if duty.again:
        await until(lambda: first.said("maintenance.lead_lost"))
        await fleet.execute(duty.again)
    await until(lambda: _is(fleet, duty.query.format(store=store_name), duty.result))
    lost = [line for line in first.said("maintenance.lead_lost") if re.search(rf"token={halted_token}\b", line)]
    assert len(lost) == 1, lost
    assert re.search(rf"refused=({'|'.join([*DUTIES, 'keep_lead'])})\b", lost[0])  # whichever of them was first
    if name == "purge":
        await _purged_once(fleet, store_name)
    if name == "audit_retention":
        await _forgotten_once(fleet, floor, newest)


async def _is(fleet: Fleet, query: str, result: object) -> bool:
    return await fleet.value(query) == result


async def _asked_again(fleet: Fleet, duty: Duty) -> bool:
    await fleet.execute(duty.again)
    return bool(list((fleet.directory / "done").glob("0-*")))


async def _purged_once(fleet: Fleet, store: str) -> None:
    done = f"SELECT count(*) FROM audit_pending WHERE store = '{store}' AND action = 'PurgeStore'"
    chained = done.replace("audit_pending", "audit_log")
    assert await fleet.value(f"SELECT ({done}) + ({chained})") == 1
    assert await _streams(fleet, store) == {}


async def _forgotten_once(fleet: Fleet, floor: Any, newest: Any) -> None:
    """Since the log began behind ``floor`` and ended with ``newest``."""
    details = (
        f"SELECT details FROM audit_log WHERE action = 'ForgetAudit' AND seq > {newest}"
        " UNION ALL SELECT details FROM audit_pending WHERE action = 'ForgetAudit'"
    )
    removed = sum(json.loads(str(found[0]))["entries"] for found in await fleet.ask(details))
    assert await fleet.value("SELECT floor_seq FROM audit_chain") == floor + removed


async def _streams(fleet: Fleet, store: str) -> dict[str, datetime | None]:
    """The streams of a store that are there, and when they were made."""
    nc = await nats.connect(fleet.nats_url)
    found = {}
    for stream in (f"KV_{names.meta_bucket(store)}", f"KV_{names.nodes_bucket(store)}", names.notify_stream(store)):
        try:
            found[stream] = (await nc.jetstream().stream_info(stream)).created
        except NotFoundError:
            continue
    await nc.close()
    return found


async def test_a_leader_that_wakes_up_leaves_the_streams_of_a_store_made_again_under_the_name(
    fleet: Fleet, stub: ConfigServiceStub, store_name: str
) -> None:
    """It had removed one of the old store's when it was halted."""
    await make_rows(stub, store_name)
    old = await _streams(fleet, store_name)
    fleet.order((signal.SIGSTOP, "delete_stream"))
    await fleet.execute(DUTIES["purge"].statements.format(store=store_name))
    halted = await fleet.halted(0)
    await until(lambda: _is(fleet, f"SELECT count(*) FROM stores WHERE name = '{store_name}'", 0))
    (other,) = (each for each in fleet.instances if each is not halted)
    async with grpc.aio.insecure_channel(await other.address()) as channel:
        await make_rows(ConfigServiceStub(channel), store_name)
    new = await _streams(fleet, store_name)
    assert len(new) == len(old) == 3
    assert not set(new.values()) & set(old.values())
    halted.process.signal(signal.SIGCONT)
    await until(lambda: halted.said("maintenance.lead_lost"))
    await until(lambda: asyncio.sleep(0, _took(fleet.instances)))
    assert await _streams(fleet, store_name) == new


def _took(instances: Sequence[Instance]) -> bool:
    """Whether one leads: the last thing that any has said of it."""
    last = [[line for line in each.process.log if "event=maintenance.lead_" in line][-1:] for each in instances]
    return any("event=maintenance.lead_taken" in line for lines in last for line in lines)
