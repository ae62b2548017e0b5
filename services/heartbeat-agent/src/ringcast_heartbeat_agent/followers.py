"""The config keys that the agent follows now: from the first that needs one until some time after the last."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from ringcast import LimitExceededError

from ringcast_heartbeat_agent.clients import check_share, current
from ringcast_heartbeat_agent.config import Config

_WATCH_S: Final = 0.25

Kind = TypeVar("Kind", bound="Follower")


class Follower(ABC):
    """A worker of one config key, and those that need it."""

    def __init__(self, store: str, key: str) -> None:
        self.store = store
        self.key = key
        self.client = current.get()
        """The client that followed it first."""
        self.leaving = False
        """Whether it is full: the next client that wants the key gets another follower."""
        self.idle_since: float | None = None

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether no client needs it."""

    @property
    @abstractmethod
    def staleness_s(self) -> float:
        """For how long changes may have been missed."""

    @abstractmethod
    async def run(self) -> None:
        """Follows the key until :meth:`stop`, or until it can't any more."""

    @abstractmethod
    async def stop(self) -> None:
        """Leaves the key."""

    @abstractmethod
    def end(self, why: str) -> None:
        """Ends with an error what still needs it: why updates have stopped. Calling it again changes nothing."""

    @abstractmethod
    def look(self, now: float) -> None:
        """Called four times a second, for what is to be done after a time."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """How its worker is."""


class Followers:
    """Begins and ends the followers of keys, of ``max_keys`` at most: one of each kind for each key."""

    def __init__(self, config: Config, tasks: asyncio.TaskGroup) -> None:
        self._config = config
        self._tasks = tasks
        self._followers: dict[tuple[type[Follower], str, str], Follower] = {}
        self._running: dict[Follower, asyncio.Task[None]] = {}
        self._stops: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Follower]:
        return iter(list(self._followers.values()))

    @property
    def keys(self) -> dict[tuple[str, str], str]:
        """The keys that are followed, and the client that followed each first. One of two kinds is one key."""
        return {(follower.store, follower.key): follower.client for follower in reversed(list(self))}

    @property
    def staleness_s(self) -> float:
        """The highest of all."""
        return max((follower.staleness_s for follower in self), default=0.0)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Those of one kind."""
        return [follower for follower in self if isinstance(follower, kind)]

    def get(self, kind: type[Kind], store: str, key: str) -> Kind | None:
        """The follower of a key, if there is one; it may be leaving."""
        follower = self._followers.get((kind, store, key))
        return follower if isinstance(follower, kind) else None

    def follow(self, kind: type[Kind], store: str, key: str, make: Callable[[], Kind]) -> Kind:
        """The follower of a key, which is made if there is none. It begins once the one before it is gone.

        Raises:
            LimitExceededError: so many other keys are followed already.
        """
        before = self.get(kind, store, key)
        if before is not None and not before.leaving:
            return before
        self._check_room(store, key)
        follower = self._followers[kind, store, key] = make()
        ending = self._running.get(before) if before is not None else None
        self._running[follower] = self._tasks.create_task(
            self._run(kind, follower, ending), name=f"{kind.__name__}-{store}-{key}"
        )
        return follower

    def leave(self, follower: Follower) -> None:
        """Has a key left. Calling it again changes nothing."""
        if follower.leaving:
            return
        follower.leaving = True
        task = self._tasks.create_task(
            follower.stop(), name=f"{type(follower).__name__}-{follower.store}-{follower.key}-stop"
        )
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def leave_all(self, kind: type[Kind]) -> None:
        """Has the keys of one kind of follower left, and waits until their partitions are given up."""
        followers = self.of(kind)
        running = [self._running[follower] for follower in followers if follower in self._running]
        for follower in followers:
            self.leave(follower)
        if tasks := {*running, *self._stops}:
            await asyncio.wait(tasks)

    async def run(self) -> None:
        """Looks after the followers until cancelled: ends those that no client needs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_S)
            for follower in self:
                follower.look(loop.time())
                self._look_at(follower, loop.time())

    async def stop(self) -> None:
        """Leaves every key; cancelled, it leaves them without giving their partitions up."""
        for follower in self:
            self.leave(follower)
        tasks = {*self._running.values(), *self._stops}
        try:
            if tasks:
                await asyncio.wait(tasks)
        finally:
            for task in tasks:  # callers that wait have waited long enough
                task.cancel()

    async def _run(self, kind: type[Follower], follower: Follower, ending: asyncio.Task[None] | None) -> None:
        try:
            if ending is not None:  # its worker has the name until it is gone
                await asyncio.wait({ending})
            if not follower.leaving:
                await follower.run()
        finally:
            follower.end("the agent no longer follows it")  # for the clients that are left, whatever it ended with
            self._running.pop(follower, None)
            place = kind, follower.store, follower.key
            if self._followers.get(place) is follower:
                del self._followers[place]

    def _check_room(self, store: str, key: str) -> None:
        if any((follower.store, follower.key) == (store, key) and not follower.leaving for follower in self):
            return
        others, most = self.keys, self._config.max_keys
        others.pop((store, key), None)
        if len(others) >= most:
            raise LimitExceededError(f"the agent follows {len(others)} config keys: at most {most} are allowed")
        check_share("config keys", others.values(), most, self._config.client_share)

    def _look_at(self, follower: Follower, now: float) -> None:
        if not follower.idle:
            follower.idle_since = None
        elif follower.idle_since is None:
            follower.idle_since = now
        elif now - follower.idle_since >= self._config.linger_s:
            self.leave(follower)
