"""One process's connection as its client has it: requests, inboxes and subscriptions over a :class:`Link`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from ringcast_wire import names

from tests.simulation.broker import Broker
from tests.simulation.engine import Process
from tests.simulation.jetstream import NO_RESPONDERS
from tests.simulation.network import ConflictError, Link, MissingError, TransientError

REQUEST_TIMEOUT_S: Final = 5.0
_ANSWERS: Final = "config.reported."
_REPORTS: Final = ("config.report.", _ANSWERS)


class SimMessage(NamedTuple):
    """A message as it comes."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None = None


class SimConnection:
    """What a client library does: everything that comes is taken in by a turn of the process's event loop."""

    failure: type[Exception] = TransientError
    """What a request that got no answer raises."""

    def __init__(self, process: Process, link: Link, broker: Broker, purpose: str = "") -> None:
        """``purpose`` tells this connection of a process from the one without."""
        self.process = process
        self.link = link
        self.broker = broker
        self.loop = asyncio.get_running_loop()
        self.callbacks: dict[str, Callable[[Any], None]] = {}
        """What takes messages in, by the subject or by the head of subjects that end with ``.*``."""
        self._owner = process.name.replace(".", "-") + purpose
        self._inboxes = 0
        broker.connections[self._owner] = self

    # ---- requests

    async def ask(self, op: Callable[..., Any], *args: Any, changes: bool = True, takes_s: float = 0.0) -> Any:
        """Has the server do something, which takes it a time, and waits for its answer.

        Raises:
            Exception: ``failure``: none came in time; what was asked may have been done, or may be done later.
        """
        answer = self.loop.create_future()
        serve = partial(self._serve, answer, op, args, changes)
        later = partial(self.process.scheduler.after, takes_s, serve) if takes_s else serve
        self.link.send(later, lossy=True)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                found = await answer
        except TimeoutError:
            raise self.failure("time-out") from None
        if isinstance(found, TransientError):
            raise self.failure(str(found))
        return found

    def _serve(self, answer: asyncio.Future[Any], op: Callable[..., Any], args: tuple[Any, ...], changes: bool) -> None:
        found: Any
        try:
            found = op(*args)
        except (TransientError, ConflictError, MissingError) as error:
            found = error
        if not (changes and self.link.answers_lost):
            self.link.deliver(self.in_loop, partial(_settle, answer, found), lossy=True)

    # ---- messages

    def new_inbox(self) -> str:
        """A subject for answers that no other has."""
        self._inboxes += 1
        return f"_INBOX.{self._owner}.{self._inboxes}"

    def send(self, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> None:
        """Sends a message to whom it may concern: it may overtake others on its way."""
        message = SimMessage(subject, reply, data, headers)
        if subject.startswith("_INBOX."):
            self._pass_on(self.broker.connections.get(subject.split(".", 2)[1]), message)
        elif subject.endswith(f".{names.FETCH_CANCEL}"):
            for each in self.broker.responders:
                self._pass_on(each, message)
        elif subject.startswith(_REPORTS):
            if subject.startswith(_ANSWERS):
                self.broker.reported(subject, data)
            for each in self.broker.connections.values():
                if each.takes(subject):
                    self._pass_on(each, message)
        elif (responder := self._responder()) is not None:
            self._pass_on(responder, message)
        else:
            self.link.deliver(self.hear, [SimMessage(reply, "", b"", NO_RESPONDERS)])

    def takes(self, subject: str) -> bool:
        """Whether it is subscribed to where workers are asked how far they are, or answer that."""
        return self.link.connected and _pattern(subject) in self.callbacks

    def _responder(self) -> SimConnection | None:
        """The queue group of services: any that is connected takes a fetch."""
        there = [each for each in self.broker.responders if each.link.connected]
        return self.link.network.random.choice(there) if there else None

    def _pass_on(self, to: SimConnection | None, message: SimMessage) -> None:
        if to is not None:
            self.link.pass_on(to.link, to.hear, [message])

    def hear(self, messages: Iterable[SimMessage], inbox: str = "") -> None:
        """Messages have come for this process; ``inbox``: where they were sent if not to their subjects."""
        self.in_loop(partial(self._dispatch, messages, inbox))

    def in_loop(self, fn: Callable[[], None]) -> None:
        """Takes in what comes from outside as asyncio would."""
        self.loop.call_soon(fn)

    def _dispatch(self, messages: Iterable[SimMessage], inbox: str) -> None:
        for message in messages:
            subject = inbox or message.subject
            if subject.startswith("config.fetch."):
                subject = names.FETCH_CANCELS if subject.endswith(f".{names.FETCH_CANCEL}") else names.FETCH_SUBJECTS
            found = self.callbacks.get(_pattern(subject)) or self.callbacks.get(subject.rpartition(".")[0] + ".*")
            if found is not None:
                found(message)

    # ---- several entries at once

    def read(self, bucket: str, subjects: list[str], reply: str) -> None:
        """One server's answer to a request for several keys or patterns, as JetStream's direct reads give it."""
        prefix = f"$KV.{bucket}."  # a host's lease has a dot in its name
        asked = [subject.removeprefix(prefix) for subject in subjects]
        try:
            keys = [key for each in asked for key in self._keys(bucket, each)]
            found = self.broker.read(bucket, keys)
            up_to = self.broker.buckets[bucket].sequence
        except TransientError:
            self.link.deliver(self.hear, [SimMessage(reply, "", b"", NO_RESPONDERS)], lossy=True)
            return
        if self.broker.overlooked.intersection(keys) - found.keys():
            up_to = 0  # a server that does not have these lags behind
        messages, last = [], "0"
        for key, (entry, stored_s) in sorted(found.items(), key=lambda one: one[1][0].revision):
            headers = {
                "Nats-Sequence": str(entry.revision),
                "Nats-Last-Sequence": last,
                "Nats-Subject": prefix + key,
                "Nats-Time-Stamp": datetime.fromtimestamp(stored_s, UTC).isoformat(),
            }
            messages.append(SimMessage(reply, "", entry.value or b"", headers))
            last = str(entry.revision)
        end = {"Status": "204", "Nats-Last-Sequence": last, "Nats-UpTo-Sequence": str(up_to)}
        none = {"Status": "404", "Description": "No Results"}
        messages.append(SimMessage(reply, "", b"", end if found else none))
        self.link.deliver(self.hear, messages, lossy=True)

    def _keys(self, bucket: str, asked: str) -> Iterable[str]:
        """The keys that one of what was asked for stands for."""
        if "*" not in asked and ">" not in asked:
            return [asked]
        entries = self.broker.buckets[bucket].entries if bucket in self.broker.buckets else ()
        return [key for key in entries if matches(asked, key)]


def at_once(callback: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """A callback that is a coroutine, as clients want it, and that waits for nothing."""

    def call(message: Any) -> None:
        try:
            callback(message).send(None)
        except StopIteration:
            return
        raise AssertionError(f"{callback.__qualname__} waits for something")

    return call


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern of NATS: ``*`` stands for one token, ``>`` for all that follow."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1] if len(tokens) >= len(wanted) else []
        if not tokens and wanted:
            return False
    return len(wanted) == len(tokens) and all(one in ("*", other) for one, other in zip(wanted, tokens, strict=True))


def _pattern(subject: str) -> str:
    """As who asks workers subscribes to what they answer: to the answers of all of them."""
    if not subject.startswith(_ANSWERS):
        return subject
    head, _, round_id = subject.rpartition(".")
    return f"{head.rpartition('.')[0]}.*.{round_id}"


def _settle(answer: asyncio.Future[Any], found: Any) -> None:
    if not answer.done():
        answer.set_result(found)
