"""The connection of one process with NATS: in order each way, late, stalled, cut, and sometimes lossy."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ringcast._bus.bus import RECONNECT_MOST_S
from ringcast_wire import Backoff

from tests.simulation.engine import Process, Scheduler


class TransientError(Exception):
    """What the shell's ``TRANSIENT`` stands for: a time-out, no responders, a missing stream, no connection."""


class ConflictError(Exception):
    """The key is not at the revision that a compare-and-set named."""


class MissingError(Exception):
    """The server does not have the consumer that was named."""


class Network:
    """What all links share: how long a message takes, and how many get lost."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.spike_s = 0.0
        """The longest that one message of a hundred takes."""
        self.loss = 0.0
        """The share of messages that get lost, of those that NATS may lose."""
        self.repeat = 0.0
        """The share of events that come twice."""

    def latency(self) -> float:
        """How long the next message takes."""
        drawn = self.random.random()
        if drawn < 0.99 or not self.spike_s:
            return 0.0005 + 0.003 * drawn
        return (drawn - 0.99) * 100.0 * self.spike_s

    def repeats(self) -> bool:
        """Whether the next message comes twice."""
        return self.repeat > 0.0 and self.random.random() < self.repeat

    def loses(self) -> bool:
        """Whether the next message gets lost."""
        return self.loss > 0.0 and self.random.random() < self.loss


class Link:
    """One process's connection.

    As over TCP, nothing overtakes; what is on its way when the connection breaks is gone, but what the process sent
    while it had none waits in the client and goes out when it is back. So a request that timed out may still be served.
    """

    def __init__(self, network: Network, process: Process, up: Callable[[], bool]) -> None:
        self.network = network
        self.process = process
        self.connected = False
        self.on_lost: list[Callable[[], None]] = []
        self.on_back: list[Callable[[], None]] = []
        self.closed: Callable[[Link], None] = lambda _: None
        """What the server does when the connection has broken."""
        self.blocked = False
        """No new connection can be made."""
        self.answers_lost = False
        """What the process asks of the server is done, and it is not told; what it only reads it is told."""
        self._scheduler = network.scheduler
        self._server_up = up
        self._epoch = 0
        self._stalled = False
        self._late: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []
        self._pending: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._sent_until = 0.0
        self._delivered_until = 0.0
        self._backoff = Backoff(network.random.random, first_s=0.2, most_s=RECONNECT_MOST_S)

    # ---- messages

    def send(self, fn: Callable[..., None], *args: Any, lossy: bool = False) -> None:
        """Has the server call ``fn``, after all that was sent before."""
        if not self.connected:
            self._pending.append((fn, args))
        elif not (lossy and self.network.loses()):
            self._sent_until = max(self._sent_until, self._scheduler.now + self.network.latency())
            self._scheduler.at(self._sent_until, self._arrive, self._epoch, fn, args)

    def deliver(self, fn: Callable[..., None], *args: Any, lossy: bool = False) -> None:
        """Has the process call ``fn``, after all that the server sent before."""
        if self.connected and not (lossy and self.network.loses()):
            self._delivered_until = max(self._delivered_until, self._scheduler.now + self.network.latency())
            self._scheduler.at(self._delivered_until, self._arrive, self._epoch, self.process.run, (fn, args))

    def pass_on(self, to: Link, fn: Callable[..., None], *args: Any) -> None:
        """Sends a plain message to another process by way of the server. Two of these may overtake each other."""
        if self.connected and not self.network.loses():
            self._scheduler.after(self.network.latency() + self.network.latency(), self._hop, self._epoch, to, fn, args)

    def _hop(self, epoch: int, to: Link, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._stalled:
            self._late.append((epoch, self._hop, (epoch, to, fn, args)))
        elif epoch == self._epoch and to.connected:
            to._arrive(to._epoch, to.process.run, (fn, args))

    def _arrive(self, epoch: int, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        if epoch == self._epoch:
            if self._stalled:
                self._late.append((epoch, fn, args))
            else:
                fn(*args)

    # ---- life

    def connect(self) -> bool:
        """One attempt; on success what waited goes out, then those who asked are told."""
        if not self.process.alive or self.connected or self.blocked or not self._server_up():
            return self.connected
        self._epoch += 1
        self.connected = True
        self._backoff.reset()
        self._sent_until = self._delivered_until = self._scheduler.now
        pending, self._pending = self._pending, []
        for fn, args in pending:
            self.send(fn, *args)
        for callback in self.on_back:
            self.process.soon(callback)
        return True

    def stall(self) -> None:
        """Packets stop getting through, but nobody has noticed yet."""
        self._stalled = True

    def unstall(self) -> None:
        """They get through again, each side's in order."""
        self._stalled = False
        late, self._late = self._late, []
        for epoch, fn, args in late:
            self._scheduler.at(self._scheduler.now, self._arrive, epoch, fn, args)

    def cut(self) -> None:
        """The connection breaks."""
        self._stalled = False
        self._late.clear()
        self._epoch += 1
        if self.connected:
            self.connected = False
            self.closed(self)
            if self.process.alive:
                for callback in self.on_lost:
                    self.process.soon(callback)
                self._again()

    def _again(self) -> None:
        self.process.after(self._backoff.next_s(), self._retry)

    def _retry(self) -> None:
        if not self.connected and not self.connect():
            self._again()
