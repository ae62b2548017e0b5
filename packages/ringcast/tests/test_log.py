"""What a worker tells its operator, through the logger that the caller gives."""

from __future__ import annotations

import ast
import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import ringcast
from ringcast import MismatchError, Mode, Worker
from ringcast._common.log import worker_log
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

FIELDS = ("store", "key", "worker_id", "partition")
SOURCES = Path(ringcast.__file__).parent


class Lines(logging.Handler):
    """Keeps records, and wakes whoever waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._more = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self._more.set()

    def named(self, event: str) -> list[logging.LogRecord]:
        return [record for record in self.records if fact(record, "event") == event]

    async def wait(self, event: str, count: int = 1) -> list[logging.LogRecord]:
        """The first records of this event, once there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.named(event)) < count:
                self._more.clear()
                await self._more.wait()
        return self.named(event)[:count]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def logger(lines: Lines) -> logging.Logger:
    """A logger of the caller's own, with everything on: no record may fail to be made."""
    made = logging.Logger("application.ringcast", logging.DEBUG)
    made.addHandler(lines)
    return made


def fact(record: logging.LogRecord, field: str) -> object:
    return getattr(record, field)


async def test_partitions_and_rebalances_are_told_with_all_fields(
    store: Store, lines: Lines, logger: logging.Logger
) -> None:
    await store.create()
    async with store.worker(logger=logger) as one:
        await one.wait_ready(timeout_s=PATIENCE_S)
        acquired = lines.named("partition.acquired")
        assert [fact(record, "partition") for record in acquired] == list(range(8))
        (rebalance,) = lines.named("assignment.changed")
        assert [fact(rebalance, field) for field in ("trigger", "gained", "lost", "owned")] == ["join", 8, 0, 8]
        async with store.worker("two"):
            await one.wait_until("list", lambda: len(one.owned("list")) < 8, timeout_s=PATIENCE_S)
            released = lines.named("partition.released")
            assert {fact(record, "partition") for record in released} == set(range(8)) - one.owned("list")
    for record in (*acquired, *released, rebalance):
        assert record.levelno == logging.INFO
        assert [fact(record, field) for field in FIELDS[:3]] == [store.name, "list", one.config.worker_id]
    assert len(lines.records) > 10
    for record in lines.records:
        assert all(hasattr(record, field) for field in FIELDS), record.getMessage()
        assert not record.args  # the name of an event is constant: what differs is in the fields


async def test_a_store_that_does_not_fit_is_an_error(store: Store, lines: Lines, logger: logging.Logger) -> None:
    await store.create()
    with pytest.raises(MismatchError):
        await store.worker(logger=logger, mode=Mode.FULL).start()
    with pytest.raises(MismatchError):
        await store.worker(logger=logger, partition_count=9).start()
    errors = [record for record in lines.records if record.levelno >= logging.WARNING]
    facts = [(fact(record, "event"), record.levelno, fact(record, "field")) for record in errors]
    assert facts == [
        ("store.mismatch", logging.ERROR, "mode"),
        ("store.mismatch", logging.ERROR, "partition_count"),
    ]
    assert "8" in str(fact(errors[1], "error"))


async def test_heartbeats_that_fail_are_told_louder_and_louder(
    nats_server: NatsServer, config_service: ConfigServiceProcess, lines: Lines, logger: logging.Logger
) -> None:
    """A warning with the number of retries, once critical when a whole lease has passed, and restored."""
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("s", partition_count=2)
    async with Worker(servers=nats_server.url, store="s", keys=["k"], worker_id="w", logger=logger) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await asyncio.to_thread(nats_server.kill)
        (lost,) = await lines.wait("lease.expired")
        failed = lines.named("lease.refresh_failed")
        retries = [fact(record, "retries") for record in failed]
        assert retries == list(range(1, len(failed) + 1))
        assert failed[-1].levelno == logging.WARNING
        assert (lost.levelno, fact(lost, "worker_id")) == (logging.CRITICAL, "w")
        await asyncio.to_thread(nats_server.start)
        (restored,) = await lines.wait("lease.refresh_recovered")
        assert restored.levelno == logging.INFO
        assert len(lines.named("lease.expired")) == 1


async def test_a_bootstrap_that_fails_says_which_attempt_it_was(
    nats_server: NatsServer, config_service: ConfigServiceProcess, lines: Lines, logger: logging.Logger
) -> None:
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("s", partition_count=1)
    await asyncio.to_thread(config_service.kill)
    async with Worker(servers=nats_server.url, store="s", keys=["k"], worker_id="w", logger=logger) as worker:
        first, second = await lines.wait("bootstrap.failed", 2)
        assert (first.levelno, fact(first, "attempt"), fact(second, "attempt")) == (logging.WARNING, 1, 2)
        assert [fact(first, field) for field in FIELDS] == ["s", "k", "w", 0]
        assert "no config service answers" in str(fact(first, "error"))
        await asyncio.to_thread(config_service.start)
        await worker.wait_ready(timeout_s=PATIENCE_S)


def test_nothing_is_put_together_for_a_line_that_is_not_emitted() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

        __repr__ = __str__

    lines = Lines.__new__(Lines)
    logging.Handler.__init__(lines)
    lines.records = []
    lines._more = asyncio.Event()
    logger = logging.Logger("x", logging.WARNING)
    logger.addHandler(lines)
    log = worker_log(logger, store="s").bind(key="k")
    log.debug("quiet", value=Costly())
    log.info("quiet", value=Costly())
    assert lines.records == []
    log.warning("loud", value=Costly())
    (record,) = lines.records
    assert isinstance(fact(record, "value"), Costly)
    assert [fact(record, field) for field in FIELDS] == ["s", "k", None, None]
    assert record.filename == Path(__file__).name  # where it was said, not where it was passed on


def test_no_field_has_a_name_that_the_logging_module_refuses() -> None:
    """It raises KeyError for them, but only once the level is on."""
    reserved = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    calls = 0
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value
                if getattr(target, "attr", getattr(target, "id", "")) in ("_log", "log"):
                    calls += 1
                    own = {"exc_info"} if node.func.attr == "error" else set()  # a parameter there, and no field
                    names = {keyword.arg for keyword in node.keywords} - own
                    assert not names & reserved, f"{path.name}:{node.lineno}"
    assert calls > 20
