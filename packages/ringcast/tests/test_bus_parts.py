"""The parts of the bus over NATS, without a server: acknowledgements, and the state of the connection."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client
from ringcast._bus.connection_state import ConnectionState
from ringcast._bus.nats_acks import NatsAcks
from ringcast._bus.nats_client import SubjectRefusedError
from ringcast._common.log import worker_log
from ringcast_testkit import PATIENCE_S
from ringcast_wire import UnavailableError

LOG = worker_log(logging.getLogger("ringcast"))


class FakeClient(Client):
    """A client whose socket is a list of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._status = Client.CONNECTED
        self.sent: list[bytes] = []
        self.failure: Exception | None = None
        self._flush_queue = asyncio.Queue()

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append(cmd)

    async def _flush_pending(self, force_flush: bool = False) -> None:
        pass


def acks(client: FakeClient, *, many: int = 0) -> NatsAcks:
    made = NatsAcks(lambda: client, LOG)
    made.many = many
    return made


async def test_acknowledgements_that_wait_are_sent_in_one_piece_and_once() -> None:
    client = FakeClient()
    made = acks(client)
    made.add(["one", "two"])
    made.add(["three"])
    await made.flush()
    await made.flush()
    assert client.sent == [b"PUB one 0\r\n\r\nPUB two 0\r\n\r\nPUB three 0\r\n\r\n"]
    assert client.stats["out_msgs"] == 3


@pytest.mark.parametrize("many", [1, 64])
async def test_they_are_sent_while_it_runs_and_a_few_wait_for_others(many: int) -> None:
    client = FakeClient()
    made = acks(client, many=many)
    running = asyncio.create_task(made.run())
    made.add(["one"])
    await asyncio.sleep(0)
    made.add(["two"])
    async with asyncio.timeout(PATIENCE_S):
        while b"".join(client.sent).count(b"PUB") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    running.cancel()
    assert len(client.sent) == (2 if many == 1 else 1)


async def test_without_a_connection_they_are_dropped() -> None:
    client = FakeClient()
    made = acks(client)
    made.add(["before"])
    client._status = Client.RECONNECTING
    made.add(["meanwhile"])
    await made.flush()
    await made.report_progress(["meanwhile"])
    client._status = Client.CONNECTED
    made.add(["after"])
    await made.flush()
    assert client.sent == [b"PUB after 0\r\n\r\n"]


@pytest.mark.parametrize("failure", [OSError("broken pipe"), nats.errors.ConnectionClosedError()])
async def test_what_can_not_be_sent_is_dropped_without_an_error(failure: Exception) -> None:
    client = FakeClient()
    made = acks(client)
    client.failure = failure
    made.add(["one"])
    await made.flush()
    await made.report_progress(["one"])
    client.failure = None
    await made.flush()
    assert client.sent == []


async def test_progress_is_reported_at_once() -> None:
    client = FakeClient()
    await acks(client).report_progress(["one", "two"])
    assert client.sent == [b"PUB one 4\r\n+WPI\r\nPUB two 4\r\n+WPI\r\n"]


class State:
    """A state, and the callbacks that a client would call."""

    def __init__(self) -> None:
        self.state = ConnectionState(LOG)
        self.client: dict[str, Any] = self.state.callbacks()
        self.calls: list[str] = []
        self.state.on_lost(lambda: self.calls.append("lost"))
        self.state.on_back(lambda: self.calls.append("back"))


async def test_a_connection_is_lost_from_the_start_until_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made, loop = State(), asyncio.get_running_loop()
    at = loop.time()
    monkeypatch.setattr(loop, "time", lambda: at + 5)
    assert made.state.lost_for_s >= 4
    await made.client["disconnected_cb"]()
    assert made.calls == [], "a first attempt has failed"
    made.state.establish()
    assert made.state.lost_for_s == 0


async def test_a_loss_is_reported_once_and_so_is_the_return() -> None:
    made = State()
    made.state.establish()
    await made.client["disconnected_cb"]()
    await made.client["disconnected_cb"]()
    await made.client["reconnected_cb"]()
    assert made.calls == ["lost", "back"]
    assert made.state.lost_for_s == 0


async def test_what_is_used_nowhere_else_is_not_called_back() -> None:
    """As the sessions of a store that migrates to and fro on one connection."""
    made = State()
    made.state.establish()
    kept, gone = asyncio.Event(), asyncio.Event()
    is_gone = weakref.ref(gone)
    made.state.on_back(gone.set)
    made.state.on_back(kept.set)
    del gone
    gc.collect()
    assert is_gone() is None
    await made.client["disconnected_cb"]()
    await made.client["reconnected_cb"]()
    assert kept.is_set()


async def test_a_refused_login_is_kept_as_the_reason_when_the_connection_breaks() -> None:
    made = State()
    await made.client["error_cb"](nats.errors.Error("nats: Authorization Violation"))
    await made.client["error_cb"](OSError("reset"))
    assert made.state.last_error == "nats: Authorization Violation"
    made.state.attempt()
    await made.client["error_cb"](OSError("reset"))
    assert made.state.last_error == "reset"


async def test_a_refused_subject_is_no_error_of_the_connection() -> None:
    made = State()
    await made.client["error_cb"](SubjectRefusedError('Permissions Violation for Publish to "a.b"'))
    assert made.state.last_error == ""
    assert made.state.refusals.subjects() == ("a.b",)
    await made.client["reconnected_cb"]()
    assert made.state.refusals.subjects() == ()


async def test_a_connection_that_the_server_closes_for_good_ends_with_the_reason() -> None:
    made = State()
    await made.client["closed_cb"]()
    assert not made.state.closed.done(), "a first attempt has failed, and may be repeated"
    made.state.establish()
    await made.client["error_cb"](nats.errors.Error("nats: User Authentication Expired"))
    await made.client["closed_cb"]()
    with pytest.raises(UnavailableError, match="closed the connection for good: nats: User Authentication Expired"):
        await made.state.closed


async def test_after_the_end_nothing_is_called_back_and_changes_count_as_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, loop = State(), asyncio.get_running_loop()
    made.state.establish()
    made.state.end()
    await made.client["disconnected_cb"]()
    await made.client["reconnected_cb"]()
    assert made.calls == []
    made.state.end()
    at = loop.time()
    monkeypatch.setattr(loop, "time", lambda: at + 5)
    assert made.state.lost_for_s >= 4
    await made.state.closed


async def test_servers_take_turns_and_pauses_grow() -> None:
    class Server:
        def __init__(self, reconnects: int) -> None:
            self.reconnects = reconnects

    tried, fresh = Server(3), Server(0)
    choose = State().client["reconnect_to_server_handler"]
    pauses = [choose([tried, fresh], {})[1] for _ in range(20)]
    assert choose([tried, fresh], {})[0] is fresh
    assert 0 < pauses[0] <= 0.2
    assert max(pauses) <= 5.0
    assert max(pauses) > pauses[0]
