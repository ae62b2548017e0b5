"""When the relay stops waiting for an answer of the broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ringcast_config_service.nats import flights as flights_module
from ringcast_config_service.nats.flights import Flights
from ringcast_config_service.nats.publisher import Sent


def record(number: int) -> Any:
    return SimpleNamespace(id=number, payload=b"four")


def sent(flights: Flights, number: int) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    message: Any = None
    flights.add(record(number), message, Sent(number, future))
    return future


def publisher(reached: int, reached_at: float) -> Any:
    return SimpleNamespace(reached=reached, reached_at=reached_at)


async def test_ids_and_bytes_are_those_on_their_way() -> None:
    flights = Flights()
    sent(flights, 1)
    sent(flights, 2)
    assert (flights.ids(), flights.bytes, len(flights)) == ([1, 2], 8, 2)
    assert flights.remove(record(1)).number == 1
    assert (flights.ids(), flights.bytes, len(flights)) == ([2], 4, 1)


async def test_a_slow_connection_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "ACK_TIMEOUT_S", 0.01)
    now = asyncio.get_running_loop().time
    flights = Flights()
    answer = sent(flights, 2)
    await asyncio.sleep(0.02)
    flights.give_up_overdue(publisher(1, now()))  # answers still come in, of messages before it
    assert not answer.done()
    flights.give_up_overdue(publisher(1, now() - 0.02))
    assert answer.cancelled()


async def test_a_message_that_others_have_passed_has_its_time_from_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "ACK_TIMEOUT_S", 0.01)
    flights = Flights()
    answer = sent(flights, 1)
    await asyncio.sleep(0.02)
    flights.give_up_overdue(publisher(2, 0.0))
    assert not answer.done()
    await asyncio.sleep(0.02)
    flights.give_up_overdue(publisher(2, 0.0))
    assert answer.cancelled()
