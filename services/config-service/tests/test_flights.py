"""When the relay stops waiting for an answer of the broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ringcast_config_service.nats import flights as flights_module
from ringcast_config_service.nats.flights import Flights
from ringcast_config_service.nats.publisher import Sent

ANSWERS_S = flights_module.ACK_TIMEOUT_S
TICK_S = 1.0


class Clock:
    """A clock that goes on where the test says so."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def __call__(self) -> float:
        return self.time_s


class Bench:
    """Flights whose lane looks after them once a second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.flights = Flights(self.clock)

    def sent(self, number: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        message: Any = None
        self.flights.add(record(number), message, Sent(number, future))
        return future

    def run(self, time_s: float, *, reached: int) -> None:
        """The process runs for so long, and the connection has carried the messages up to ``reached``."""
        for _ in range(int(time_s / TICK_S)):
            self.clock.time_s += TICK_S
            self.look(reached)

    def stand_still(self, time_s: float) -> None:
        self.clock.time_s += time_s

    def look(self, reached: int) -> None:
        self.flights.give_up_overdue(cast(Any, SimpleNamespace(reached=reached)), 2 * TICK_S)


def record(number: int) -> Any:
    return SimpleNamespace(id=number, payload=b"four")


async def test_ids_and_bytes_are_those_on_their_way() -> None:
    bench = Bench()
    bench.sent(1)
    bench.sent(2)
    flights = bench.flights
    assert (flights.ids(), flights.bytes, len(flights)) == ([1, 2], 8, 2)
    assert flights.remove(record(1)).number == 1
    assert (flights.ids(), flights.bytes, len(flights)) == ([2], 4, 1)


async def test_a_broker_that_does_not_answer_is_given_up() -> None:
    bench = Bench()
    bench.run(100, reached=0)  # nothing was on its way
    answer = bench.sent(1)
    bench.run(ANSWERS_S - TICK_S, reached=0)
    assert not answer.done()
    bench.run(TICK_S, reached=0)
    assert answer.cancelled()


async def test_a_slow_connection_is_waited_for() -> None:
    bench = Bench()
    answer = bench.sent(20)
    for number in range(19):  # answers still come in, of messages before it
        bench.run(ANSWERS_S - TICK_S, reached=number)
    assert not answer.done()
    bench.run(ANSWERS_S, reached=18)
    assert answer.cancelled()


async def test_a_message_that_others_have_passed_has_its_time_from_then() -> None:
    bench = Bench()
    answer = bench.sent(1)
    bench.run(ANSWERS_S - TICK_S, reached=0)
    bench.run(ANSWERS_S, reached=2)
    assert not answer.done()
    bench.run(TICK_S, reached=3)
    assert answer.cancelled()


async def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    """What the broker answered meanwhile is not read yet."""
    bench = Bench()
    answer = bench.sent(1)
    bench.stand_still(3600.0)
    bench.look(0)
    assert not answer.done()
    bench.run(ANSWERS_S - 2 * TICK_S, reached=0)
    assert answer.cancelled()
