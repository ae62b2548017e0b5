"""The config service for code that is not asynchronous: one address, or several of which calls go to one."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self, cast

import grpc
from ringcast_wire import InvalidInputError, UnavailableError
from ringcast_wire.addresses import service_addresses
from ringcast_wire.grpc import ConfigServiceStub, ServiceLogin, says_elsewhere

from ringcast_client._common.addresses import ATTEMPT_S, AVOID_S, next_after_s
from ringcast_client._common.channel import OWN_CONNECTION
from ringcast_client._common.input import is_said

_STREAM_S: Final = 10.0
"""How long a stream, which has no time-out, waits for an instance that answers before it is opened without."""
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_MINE: Final = (("grpc.min_reconnect_backoff_ms", round(ATTEMPT_S * 1_000)),)
"""An attempt to connect takes no longer, where there are several instances. gRPC's own bound is 20 s."""


class ServiceConnection:
    """Calls :attr:`stub` of a config service; with several addresses an instance that answers.

    An address that does not answer is not waited for: the next one is tried beside it (250 ms later at most), and the
    first that answers takes the calls. They stay there until one fails in a way that another instance may not:
    it is unreachable, silent, or says that it does not take calls. With one address, after a call that was refused in
    this last way, the next ones go over a new connection: behind it, as behind a load balancer, another instance may
    take them. A failed call is not made again here; :func:`~ringcast_client.blocking.retried` does so, as do the
    classes beside this one.

    Any thread may use it. It does not cross a fork.
    """

    def __init__(
        self, addresses: str | Sequence[str], login: ServiceLogin, options: Sequence[tuple[str, Any]] = ()
    ) -> None:
        """Connects at the first call. ``addresses``: up to 64, a list or with commas between; ``options``: of gRPC.

        Raises:
            InvalidInputError: an address is none, or the login does not hold or can't be read.
        """
        found = service_addresses(addresses)
        more = _MINE if len(found) > 1 else ()
        self._instances = [_Instance(address, login, (*options, *more)) for address in found]
        # Not the first of all: else one instance would have all clients.
        self._current = random.choice(self._instances)  # noqa: S311
        self._former: list[_Instance] = []
        """What others have taken the place of, until the calls there have ended."""
        self._closed = False
        self._lock = threading.Lock()

    @property
    def stub(self) -> ConfigServiceStub:
        """The methods of the service, which can be called, and nothing else."""
        return cast(ConfigServiceStub, ServiceMethods(self))

    @property
    def description(self) -> str:
        """All addresses, as sentences name them."""
        return ", ".join(instance.address for instance in self._instances)

    def close(self) -> None:
        """Ends all calls and connections. Calling it twice is harmless."""
        self._closed = True  # so that no thread opens another behind this
        for instance in (*self._instances, *self._former):
            instance.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def settled(self, timeout_s: float) -> tuple[_Instance, bool]:
        """An instance to call, counted as called until :meth:`_Instance.ended`, and whether it answers."""
        until_s = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise self.unreachable()
        try:
            self._close_former()
            if len(self._instances) == 1:
                self._leave_one_that_refuses()
            elif not self._current.answers:
                in_turn = self._in_turn()
                found = _first_that_answers(in_turn, until_s)
                for instance in in_turn:
                    if instance is not found:
                        instance.give_up()
                self._current = found or in_turn[0]
            self._current.called()
            return self._current, self._current.answers or len(self._instances) == 1
        finally:
            self._lock.release()

    def unreachable(self) -> UnavailableError:
        """What is raised where no address answers in time."""
        return UnavailableError(f"no config service can be reached: {self.description}")

    def left(self) -> None:
        """The instance that calls go to does not answer: for a while they go to another."""
        self._current.leave()

    def _leave_one_that_refuses(self) -> None:
        """Has the next calls at the only address go over a new connection, where a call was refused."""
        former = self._current
        if not former.refuses or self._closed:
            return
        try:
            fresh = former.anew()
        except InvalidInputError:  # a file of the login can't be read now
            return
        self._former.append(former)
        self._current, self._instances = fresh, [fresh]
        if self._closed:  # meanwhile, by another thread
            fresh.channel.close()

    def _close_former(self) -> None:
        for instance in [each for each in self._former if not each.is_called]:
            self._former.remove(instance)
            instance.channel.close()

    def _in_turn(self) -> list[_Instance]:
        """All of them, from the current one on; those that have refused a call last."""
        at, now_s = self._instances.index(self._current), time.monotonic()
        return sorted(self._instances[at:] + self._instances[:at], key=lambda each: each.avoid_until_s > now_s)


class _Instance:
    """One address, and its channel, which connects when it is needed."""

    def __init__(self, address: str, login: ServiceLogin, options: tuple[tuple[str, Any], ...]) -> None:
        self.address = address
        self.avoid_until_s = 0.0
        self.answers = False
        """It has answered, and no call has failed since in a way that leads to another."""
        self.refuses = False
        """It has refused a call and said that another instance may answer it."""
        self._login = login
        self._options = options
        self._calls = 0
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        self.channel = self._login.channel(self.address, self._options)
        self.stub = ConfigServiceStub(self.channel)  # type: ignore[no-untyped-call,unused-ignore]

    def anew(self) -> _Instance:
        """The same address, with a connection of its own; raises as :meth:`ServiceLogin.channel`."""
        options = tuple(option for option in self._options if option not in OWN_CONNECTION)
        return _Instance(self.address, self._login, (*options, *OWN_CONNECTION))

    @property
    def is_called(self) -> bool:
        """Whether calls go on over the channel."""
        return self._calls > 0

    def called(self) -> None:
        """A call is made over the channel."""
        with self._lock:
            self._calls += 1

    def ended(self, error: Any = None) -> None:
        """The call has ended; after some errors the next ones are made at another instance for a while."""
        # Runs on a thread of the channel too, which must not wait for whoever closes that, or asks it.
        with self._lock:
            self._calls -= 1
        if error is not None and _leaves(error):
            self.leave()
            self.refuses = self.refuses or says_elsewhere(error)

    def leave(self) -> None:
        """It gets no calls for a while, if another instance takes them."""
        self.answers, self.avoid_until_s = False, time.monotonic() + AVOID_S

    def probe(self, answers: queue.SimpleQueue[_Answer]) -> Any:
        """Begins a call whose end comes into ``answers``; what is returned can cancel it."""
        call: Any = self.channel.unary_unary(_HEALTH)
        future = call.future(b"")
        future.add_done_callback(lambda ended: answers.put((self, ended.code())))
        return future

    def give_up(self) -> None:
        """Ends an attempt to connect that has lost a race, unless calls wait for it."""
        with self._lock:
            if self.answers or self._calls:
                return
            former = self.channel
            try:
                self._open()
            except InvalidInputError:  # a file of the login can't be read now
                return
            former.close()


_Answer = tuple[_Instance, grpc.StatusCode]


def _first_that_answers(instances: Sequence[_Instance], deadline_s: float) -> _Instance | None:
    """The first of them that answers anything; ``None``: all have failed, or the last one has had 5 s.

    They are tried in their order: the next one as soon as one fails, or after :func:`next_after_s` while those before
    it go on.
    """
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    to_try, probes, next_s = deque(instances), dict[_Instance, Any](), 0.0
    try:
        while to_try or probes:
            if to_try and (now_s := time.monotonic()) >= next_s:
                instance = to_try.popleft()
                probes[instance] = instance.probe(answers)
                next_s = now_s + (next_after_s(len(instances)) if to_try else ATTEMPT_S)
            try:
                instance, code = answers.get(timeout=max(0.0, min(deadline_s, next_s) - time.monotonic()))
            except queue.Empty:
                if not to_try or time.monotonic() >= deadline_s:
                    return None
                continue
            if code is not grpc.StatusCode.UNAVAILABLE:
                instance.answers = True
                return instance
            del probes[instance]
            next_s = 0.0 if to_try else next_s
        return None
    finally:
        for probe in probes.values():
            probe.cancel()


class ServiceMethods:
    """The methods of the service by their names, each called at an instance that takes calls."""

    def __init__(self, connection: ServiceConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, timeout: float | None = None, **settings: Any) -> Any:
            return _called(self._connection, name, words, timeout, settings)

        return call

    def left(self) -> None:
        """A stream was silent: the next calls go to another instance."""
        self._connection.left()


def _leaves(error: Any) -> bool:
    """Whether another instance may answer what this one has failed with."""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return says_elsewhere(error) or not is_said(error)
    return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)


def _called(
    connection: ServiceConnection, name: str, words: tuple[Any, ...], timeout_s: float | None, settings: dict[str, Any]
) -> Any:
    began_s = time.monotonic()
    instance, answers = connection.settled(_STREAM_S if timeout_s is None else timeout_s)
    if timeout_s is not None:
        if not answers:
            instance.ended()
            raise connection.unreachable()
        timeout_s = max(0.001, timeout_s - (time.monotonic() - began_s))

    def stream_ended(call: Any) -> None:
        instance.ended(None if call.code() is grpc.StatusCode.OK else call)

    try:
        answer = getattr(instance.stub, name)(*words, timeout=timeout_s, **settings)
    except BaseException as error:
        instance.ended(error if isinstance(error, grpc.RpcError) else None)
        raise
    if isinstance(answer, grpc.Future):
        answer.add_done_callback(stream_ended)
    else:
        instance.ended()
    return answer
