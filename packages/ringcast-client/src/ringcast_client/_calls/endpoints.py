"""Where the config service is: one address, or several of which the calls go to one that takes them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio
from ringcast_wire import InvalidInputError, UnavailableError
from ringcast_wire.addresses import MAX_SERVICE_ADDRESSES
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin

from ringcast_client._calls.race import first_connected
from ringcast_client._common.addresses import AVOID_S, Addresses, source_of
from ringcast_client._common.channel import CHANNEL_OPTIONS, OWN_CONNECTION, StubWithReason
from ringcast_client._common.input import check_address

_LOOK_S: Final = 1.0
"""How often the files of the login are looked at: not for each call."""
_AGAIN_S: Final = 0.1
"""When all are tried again after all have failed, or one that is behind the same address."""
_ENOUGH_S: Final = 1.0
"""With less time left a call is not sent to the only address again: the instance there may be the same, and an answer
that comes too late would leave open whether a write was stored."""


class Endpoint:
    """One instance; its channel connects when it is needed. ``fresh``: with a connection that no other channel has."""

    def __init__(self, address: str, login: ServiceLogin, reason: str, *, fresh: bool = False) -> None:
        self.address = address
        options = (*CHANNEL_OPTIONS, *OWN_CONNECTION) if fresh else CHANNEL_OPTIONS
        self.channel: grpc.aio.Channel = login.aio_channel(address, options)
        stub: Any = ConfigServiceStub(self.channel)  # type: ignore[no-untyped-call,unused-ignore]
        self.stub: Any = StubWithReason(stub, reason) if reason else stub
        self.avoid_until_s = 0.0

    @property
    def state(self) -> grpc.ChannelConnectivity:
        """Whether it is connected, as far as is known."""
        return self.channel.get_state()


class Endpoints:
    """Calls go to :attr:`current`, which stays the same as long as it takes them.

    With one address that is all. With several, :meth:`settle` is awaited before each call: it moves on from one that
    can't be reached, or that was left. A function gives the addresses as they are known now, 64 at most; it is called
    each time, so instances may come and go. It may raise ``UnavailableError``: then nothing new is known. Where there
    is a token, those of its addresses that have no TLS are left out.

    An address that does not answer is not waited for: the next one is tried beside it, and the first that is connected
    takes the calls (:func:`~ringcast_client._calls.race.first_connected`). All calls wait for the same race.
    """

    def __init__(self, addresses: Addresses, login: ServiceLogin, reason: str) -> None:
        self._source = source_of(addresses)
        self._named = not callable(addresses)
        """By the user, and not found where others can write."""
        self._login = login
        self._reason = reason
        self._endpoints: dict[str, Endpoint] = {}
        self._current: Endpoint | None = None
        self._closed = False
        self._race: asyncio.Task[Endpoint | None] | None = None
        self._retired: dict[asyncio.Task[None], Endpoint] = {}
        """Those that get no calls any more, by what waits for the last ones to end."""
        self._stamp = login.stamp()
        self._looked_at_s = time.monotonic()

    def open(self) -> None:
        """Makes the channels, which connect at the first call."""
        self._closed = False
        self._refresh()

    async def close(self, grace_s: float | None = None) -> None:
        """Ends all connections, and the calls that wait for one."""
        self._closed = True
        if self._race is not None:
            self._race.cancel()
            await asyncio.wait([self._race])
        endpoints, self._endpoints, self._current = [*self._endpoints.values(), *self._retired.values()], {}, None
        await asyncio.gather(*(each.channel.close(grace_s) for each in endpoints), *self._retired)

    @property
    def several(self) -> bool:
        """Whether there are others where a call may go."""
        return len(self._endpoints) > 1

    @property
    def pause_s(self) -> float:
        """From a call that was refused to the next try: behind a single address no other instance may be ready yet."""
        return 0.0 if self.several else _AGAIN_S

    @property
    def enough_s(self) -> float:
        """How much time that try needs at least."""
        return 0.0 if self.several else _ENOUGH_S

    @property
    def current(self) -> Endpoint:
        """Where calls go: over a new connection, 1 s after a certificate or key of the login was replaced.

        Raises:
            UnavailableError: no instance is known.
        """
        if (now_s := time.monotonic()) - self._looked_at_s >= _LOOK_S:
            self._looked_at_s = now_s
            if (stamp := self._login.stamp()) != self._stamp:
                self._renew(stamp)
        if self._current is None:
            raise UnavailableError("no config service is known: none takes calls")
        return self._current

    @property
    def description(self) -> str:
        """All addresses, as sentences name them."""
        return ", ".join(self._endpoints) or "(none is known)"

    def left(self, endpoint: Endpoint) -> None:
        """A call has failed there, which another may answer, or was not answered."""
        endpoint.avoid_until_s = asyncio.get_running_loop().time() + AVOID_S

    def refused(self, endpoint: Endpoint) -> None:
        """It has refused a call and says that another may answer it. Where there is one address, that one may be behind
        it too, as behind a load balancer or a Service of Kubernetes: a new connection leads there."""
        self.left(endpoint)
        if not self.several and self._endpoints.get(endpoint.address) is endpoint:
            self._replace(endpoint)

    async def settle(self, deadline_s: float) -> Endpoint:
        """One that is connected, as far as is known; with one address that one, connected or not.

        Raises:
            UnavailableError: none is by then, by the clock of the loop, or the client is closed.
        """
        loop = asyncio.get_running_loop()
        while True:
            if self._closed:
                raise UnavailableError("the client was closed while a call waited for a config service")
            self._refresh()
            if self._current is not None and not self.several:
                return self._current
            first = next(iter(self._in_turn(loop.time())), None)
            if first is not None and first.state is grpc.ChannelConnectivity.READY:
                self._current = first
                return first
            if (found := await self._raced(deadline_s)) is not None:
                return found
            if loop.time() + _AGAIN_S >= deadline_s:
                raise UnavailableError(f"no config service can be reached: {self.description}", elsewhere=True)
            await asyncio.sleep(_AGAIN_S)

    async def _raced(self, deadline_s: float) -> Endpoint | None:
        """The one that the race finds which is under way, or the one that begins now; ``None``: none by then."""
        if self._race is None:
            self._race = asyncio.create_task(self._run_race(), name="config service: race of addresses")
        race = self._race
        await asyncio.wait([race], timeout=max(0.0, deadline_s - asyncio.get_running_loop().time()))
        return race.result() if race.done() and not race.cancelled() else None

    async def _run_race(self) -> Endpoint | None:
        try:
            entrants = self._in_turn(asyncio.get_running_loop().time())
            found = await first_connected(entrants)
            for endpoint in entrants:
                if endpoint is not found and self._endpoints.get(endpoint.address) is endpoint:
                    self._give_up(endpoint)
            if found is None or self._endpoints.get(found.address) is not found:
                return None
            self._current = found
            return found
        finally:
            self._race = None

    def _give_up(self, endpoint: Endpoint) -> None:
        """Ends the attempt to connect to one that has lost a race."""
        if endpoint.state is grpc.ChannelConnectivity.CONNECTING:
            self._replace(endpoint)

    def _replace(self, endpoint: Endpoint) -> None:
        """Has the next calls at its address go over another connection."""
        try:
            fresh = Endpoint(endpoint.address, self._login, self._reason, fresh=True)
        except InvalidInputError:  # a file of the login can't be read now
            return
        fresh.avoid_until_s = endpoint.avoid_until_s
        self._endpoints[endpoint.address] = fresh
        if self._current is endpoint:
            self._current = fresh
        self._retire(endpoint)

    def _in_turn(self, now_s: float) -> list[Endpoint]:
        """All of them, from the current one on; those that have refused a call last."""
        found = list(self._endpoints.values())
        if self._current in found:
            at = found.index(self._current)
            found = found[at:] + found[:at]
        return sorted(found, key=lambda endpoint: endpoint.avoid_until_s > now_s)

    def _refresh(self) -> None:
        try:
            addresses = self._usable(list(self._source())[:MAX_SERVICE_ADDRESSES])
        except UnavailableError:  # as a cache raises it that is not filled yet: those that are known stay
            return
        if addresses.keys() == self._endpoints.keys():
            return
        for address in self._endpoints.keys() - addresses.keys():
            if addresses:  # where none is known, those that were may still be there
                self._retire(self._endpoints.pop(address))
        for address in addresses:
            if address not in self._endpoints:
                self._endpoints[address] = Endpoint(check_address(address), self._login, self._reason)
        if self._endpoints and (self._current is None or self._current.address not in self._endpoints):
            # Not the first of all: else one instance would have all clients.
            self._current = random.choice(list(self._endpoints.values()))  # noqa: S311

    def _usable(self, addresses: Sequence[str]) -> dict[str, None]:
        """Those to which the token may go, in their order.

        Raises:
            InvalidInputError: there are none, or the user has named one to which it may not.
        """
        if not self._login.token_file:
            return dict.fromkeys(addresses)
        usable = dict.fromkeys(filter(self._login.uses_tls, addresses))
        if len(usable) < len(set(addresses)) and (self._named or not usable):
            self._login.check_login(next(address for address in addresses if address not in usable))
        return usable

    def _renew(self, stamp: tuple[int, ...]) -> None:
        """Replaces all channels; where a file can't be read now, the present channels stay."""
        try:
            fresh = {address: Endpoint(address, self._login, self._reason) for address in self._endpoints}
        except InvalidInputError:
            return
        former, self._endpoints, self._stamp = self._endpoints, fresh, stamp
        if self._current is not None:
            self._current = fresh.get(self._current.address)
        for endpoint in former.values():
            self._retire(endpoint)

    def _retire(self, endpoint: Endpoint) -> None:
        closing = asyncio.create_task(endpoint.channel.close(_RETIRE_S), name=f"close {endpoint.address}")
        self._retired[closing] = endpoint
        closing.add_done_callback(lambda task: self._retired.pop(task, None))


_RETIRE_S: Final = 60.0
"""How long calls may go on at an instance that is not named any more, or over a connection that was replaced."""
