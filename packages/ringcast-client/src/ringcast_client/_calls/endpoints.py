"""Where the config service is: one address, or several of which the calls go to one that takes them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio
from ringcast_wire import InvalidInputError, UnavailableError
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin

from ringcast_client._common.channel import CHANNEL_OPTIONS, StubWithReason
from ringcast_client._common.input import check_address

MAX_ADDRESSES: Final = 64
_AVOID_S: Final = 3.0
"""For how long an instance gets no calls that has refused one."""
_CONNECT_S: Final = 1.0
"""How long another one waits for a connection that is being made."""
_AGAIN_S: Final = 0.1
"""After all have failed."""
_LOOK_S: Final = 1.0
"""How often the files of the login are looked at: not for each call."""

Addresses = str | Sequence[str] | Callable[[], Sequence[str]]


class Endpoint:
    """One instance; its channel connects when it is needed."""

    def __init__(self, address: str, login: ServiceLogin, reason: str) -> None:
        self.address = address
        self.channel: grpc.aio.Channel = login.aio_channel(address, CHANNEL_OPTIONS)
        stub: Any = ConfigServiceStub(self.channel)  # type: ignore[no-untyped-call,unused-ignore]
        self.stub: Any = StubWithReason(stub, reason) if reason else stub
        self.avoid_until_s = 0.0


class Endpoints:
    """Calls go to :attr:`current`, which stays the same as long as it takes them.

    With one address that is all. With several, :meth:`settle` is awaited before each call: it moves on from one that
    can't be reached, or that was left. ``source`` gives the addresses as they are known now, 64 at most; it is asked
    each time, so instances may come and go. It may raise ``UnavailableError``: then nothing new is known.
    """

    def __init__(self, source: Callable[[], Sequence[str]], login: ServiceLogin, reason: str) -> None:
        self._source = source
        self._login = login
        self._reason = reason
        self._endpoints: dict[str, Endpoint] = {}
        self._current: Endpoint | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._stamp = login.stamp()
        self._looked_at_s = time.monotonic()

    def open(self) -> None:
        """Makes the channels, which connect at the first call."""
        self._refresh()

    async def close(self, grace_s: float | None = None) -> None:
        """Ends all connections."""
        endpoints, self._endpoints, self._current = list(self._endpoints.values()), {}, None
        await asyncio.gather(*(each.channel.close(grace_s) for each in endpoints), *self._closing)

    @property
    def several(self) -> bool:
        """Whether there are others where a call may go."""
        return len(self._endpoints) > 1

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
        endpoint.avoid_until_s = asyncio.get_running_loop().time() + _AVOID_S

    async def settle(self, deadline_s: float) -> Endpoint:
        """One that is connected, as far as is known; with one address that one, connected or not.

        Raises:
            UnavailableError: none is by then, by the clock of the loop.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._refresh()
            if self._current is not None and not self.several:
                return self._current
            for endpoint in self._in_turn(loop.time()):
                if await _connected(endpoint.channel, min(deadline_s, loop.time() + _CONNECT_S)):
                    self._current = endpoint
                    return endpoint
            if loop.time() + _AGAIN_S >= deadline_s:
                raise UnavailableError(f"no config service can be reached: {self.description}", elsewhere=True)
            await asyncio.sleep(_AGAIN_S)

    def _in_turn(self, now_s: float) -> list[Endpoint]:
        """All of them, from the current one on; those that have refused a call last."""
        found = list(self._endpoints.values())
        if self._current in found:
            at = found.index(self._current)
            found = found[at:] + found[:at]
        return sorted(found, key=lambda endpoint: endpoint.avoid_until_s > now_s)

    def _refresh(self) -> None:
        try:
            addresses = dict.fromkeys(list(self._source())[:MAX_ADDRESSES])
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
        closing = asyncio.ensure_future(endpoint.channel.close(_RETIRE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


_RETIRE_S: Final = 60.0
"""How long calls may go on at an instance that is not named any more, or with a login that was replaced."""


async def _connected(channel: grpc.aio.Channel, deadline_s: float) -> bool:
    state = channel.get_state(try_to_connect=True)
    try:
        async with asyncio.timeout_at(deadline_s):
            while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return state is grpc.ChannelConnectivity.READY


def source_of(addresses: Addresses) -> Callable[[], Sequence[str]]:
    """What gives the addresses: those in a text, with commas between, in a list, or whatever a function returns.

    Raises:
        InvalidInputError: one is none, or there are none, or more than 64.
    """
    if callable(addresses):
        return addresses
    if isinstance(addresses, str):
        parts = [part.strip() for part in addresses.split(",")]
        found = [check_address(part) for part in parts]
    else:
        found = [check_address(address) for address in addresses]
    if not 1 <= len(found) <= MAX_ADDRESSES:
        raise InvalidInputError(
            f"service has {len(found)} addresses: 1 to {MAX_ADDRESSES} are allowed", field="service"
        )
    return lambda: found
