"""Reads a bucket of NATS KV as it is now, by requests alone, also in a cluster of which a server lags behind.

Each server that stores a bucket answers direct reads, with what it has. The one that takes writes in says which keys
there are, and how many messages: an answer counts only if its server has as many. A consumer would do as well, but
takes the right to make one, which may send what it likes to where it likes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol

import msgspec

from ringcast_wire._common import names
from ringcast_wire._common.errors import UnavailableError
from ringcast_wire.buckets import BucketAnswer, StoredRecord, question, stream_of, subject_of

API: Final = "$JS.API"
"""Where a server has the API of JetStream, unless an account imports it under another prefix."""
_AT_ONCE: Final = 512
"""Keys of one question: a server answers with 1,024 at most."""
_PAUSE_S: Final = 0.05
_NOT_FOUND: Final = 404


class BucketMessage(Protocol):
    """A message that came."""

    @property
    def data(self) -> bytes: ...

    @property
    def headers(self) -> dict[str, str] | None: ...


class BucketSubscription(Protocol):
    """What comes to one subject."""

    async def unsubscribe(self) -> None: ...


class BucketBus(Protocol):
    """A connection to the bus; the client of NATS is one."""

    def new_inbox(self) -> str: ...

    async def request(self, subject: str, payload: bytes, timeout: float) -> BucketMessage: ...

    async def publish(self, subject: str, payload: bytes, reply: str) -> None: ...

    async def subscribe(
        self, subject: str, *, cb: Callable[[BucketMessage], Awaitable[None]]
    ) -> BucketSubscription: ...


class _Error(msgspec.Struct):
    code: int
    description: str = ""


class _State(msgspec.Struct):
    last_seq: int = 0
    subjects: dict[str, int] = {}


class _Cluster(msgspec.Struct):
    leader: str = ""


class _Info(msgspec.Struct):
    """As much of an answer to ``STREAM.INFO`` as says what to read. ``total``: subjects that match, of all pages."""

    error: _Error | None = None
    total: int = 0
    state: _State = msgspec.field(default_factory=_State)
    cluster: _Cluster | None = None


class _Listing(NamedTuple):
    """What the server that takes writes in says: the keys that match, and the newest message of the bucket."""

    keys: Sequence[str]
    last: int


async def read_newest(
    bus: BucketBus,
    bucket: str,
    pattern: str = ">",
    *,
    among: Collection[str] | None = None,
    api: str = API,
    answer_s: float = 5.0,
    patience_s: float = 2.0,
) -> dict[str, StoredRecord] | None:
    """The record of each key of a bucket that matches, as of this call or later; ``None``: there is no such bucket.

    ``among``: of these keys alone. Markers are among the records. Up to 512 records are of one moment. Each answer is
    waited for ``answer_s``, and a server that has all that was written before this call for ``patience_s``. Errors of
    the bus are raised as they are.

    Raises:
        UnavailableError: only servers that lag behind have answered, or one refuses, or an answer is incomplete.
    """
    reader = _Reader(bus, bucket, api, answer_s, patience_s)
    while (listing := await reader.listing(pattern)) is not None:
        found = await reader.read(listing, pattern, among)
        if found is not None:
            return found
        await reader.pause("is read from a server that lags behind")
    return None


async def read_keys(
    bus: BucketBus, bucket: str, *, api: str = API, answer_s: float = 5.0, patience_s: float = 2.0
) -> Sequence[str] | None:
    """The keys of a bucket as of this call or later, those with a marker among them. Otherwise as
    :func:`read_newest`."""
    listing = await _Reader(bus, bucket, api, answer_s, patience_s).listing(">")
    return listing.keys if listing is not None else None


async def server_time_s(bus: BucketBus, bucket: str, *, api: str = API, answer_s: float = 5.0) -> float:
    """What time it is by the server that stores a bucket, in Unix time: only its own times are compared with it.

    Raises:
        UnavailableError: the server does not say it.
    """
    reply = await bus.request(f"{api}.STREAM.INFO.{stream_of(bucket)}", b"", timeout=answer_s)
    try:
        return datetime.fromisoformat(json.loads(reply.data)["ts"]).timestamp()
    except (ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"NATS does not say what time it is by bucket {bucket}: try again") from error


def session_counts_s(lease_ttl_ms: int) -> float:
    """For how long after its last refresh a session may live: it is over after D, less than two lease TTLs."""
    return 2 * lease_ttl_ms / 1000


async def read_sessions(
    bus: BucketBus,
    store: str,
    lease_ttl_ms: int,
    workers: Collection[str],
    *,
    api: str = API,
    answer_s: float = 5.0,
    patience_s: float = 2.0,
) -> dict[str, bytes]:
    """Which of these workers live in a store of exclusive ownership, and the record of each: what is lease there, also
    of a worker under the agent of a host, which has no other.

    The entry of a session that is over stays for a day. Asks nothing where there is no worker. Otherwise as
    :func:`read_newest`.
    """
    if not workers:
        return {}
    bucket, entries = names.owners_bucket(store), {names.session_key(name): name for name in workers}
    found = await read_newest(
        bus, bucket, names.session_key("*"), among=entries, api=api, answer_s=answer_s, patience_s=patience_s
    )
    since_s = await server_time_s(bus, bucket, api=api, answer_s=answer_s) - session_counts_s(lease_ttl_ms)
    return {
        entries[entry]: record.data
        for entry, record in (found or {}).items()
        if record.data is not None and record.stored_s > since_s
    }


class _Reader:
    def __init__(self, bus: BucketBus, bucket: str, api: str, answer_s: float, patience_s: float) -> None:
        self._bus = bus
        self._bucket = bucket
        self._stream = stream_of(bucket)
        self._api = api
        self._answer_s = answer_s
        self._due = asyncio.get_running_loop().time() + patience_s

    async def pause(self, why: str) -> None:
        """Before it is tried again.

        Raises:
            UnavailableError: that has been done for long enough.
        """
        if asyncio.get_running_loop().time() >= self._due:
            raise UnavailableError(f"bucket {self._bucket} {why}: try again")
        await asyncio.sleep(_PAUSE_S)

    async def listing(self, pattern: str) -> _Listing | None:
        """``None``: there is no such bucket."""
        prefix, keys = subject_of(self._bucket, ""), list[str]()
        while (info := await self._info(pattern, len(keys))) is not None:
            if info.cluster is not None and not info.cluster.leader:
                # A server that hears of no leader answers as well, with what it has.
                keys.clear()
                await self.pause("has no leader")
                continue
            keys += (subject.removeprefix(prefix) for subject in info.state.subjects)
            if not info.state.subjects or len(keys) >= info.total:
                return _Listing(keys, info.state.last_seq)
        return None

    async def _info(self, pattern: str, offset: int) -> _Info | None:
        """``None``: there is no such bucket."""
        asked = json.dumps({"subjects_filter": subject_of(self._bucket, pattern), "offset": offset}).encode()
        reply = await self._bus.request(f"{self._api}.STREAM.INFO.{self._stream}", asked, timeout=self._answer_s)
        try:
            info = msgspec.json.decode(reply.data, type=_Info)
        except msgspec.DecodeError as error:
            raise UnavailableError(f"what NATS says of bucket {self._bucket} can't be read: {error}") from error
        if info.error is None:
            return info
        if info.error.code == _NOT_FOUND:
            return None
        raise UnavailableError(f"bucket {self._bucket} can't be read: {info.error.description}")

    async def read(
        self, listing: _Listing, pattern: str, among: Collection[str] | None
    ) -> dict[str, StoredRecord] | None:
        """``None``: a server lags behind the listing."""
        keys = listing.keys if among is None else [key for key in listing.keys if key in among]
        found: dict[str, StoredRecord] = {}
        for asked in _questions(keys, pattern if among is None else None):
            answer = await self._answer(asked)
            if answer.up_to < listing.last:  # also where the server has none of the keys: it says up_to 0
                return None
            found |= answer.records
        return found

    async def _answer(self, keys: Sequence[str]) -> BucketAnswer:
        answer = BucketAnswer(self._bucket, self._stream)
        whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heard = 0

        async def take(message: BucketMessage) -> None:  # to wait for each by itself costs more than to read it
            nonlocal heard
            heard += 1
            if whole.done():
                return
            try:
                if answer.take(message.headers or {}, message.data):
                    whole.set_result(None)
            except UnavailableError as error:
                whole.set_exception(error)

        inbox, asked = self._bus.new_inbox(), question(self._bucket, keys)
        answers = await self._bus.subscribe(inbox, cb=take)
        try:
            await self._bus.publish(f"{self._api}.DIRECT.GET.{self._stream}", asked, reply=inbox)
            before = -1
            while not whole.done() and before != heard:
                before = heard
                await asyncio.wait({whole}, timeout=self._answer_s)
            if not whole.done():
                raise TimeoutError(f"no message has come for {self._answer_s:g} s")
            whole.result()
            return answer
        finally:
            whole.cancel()
            await answers.unsubscribe()


def _questions(keys: Sequence[str], pattern: str | None) -> Iterator[Sequence[str]]:
    """A pattern of few keys is asked for as it is: one answer is of one moment, with what has been added meanwhile."""
    if pattern is not None and 0 < len(keys) <= _AT_ONCE:
        yield [pattern]
        return
    for at in range(0, len(keys), _AT_ONCE):
        yield keys[at : at + _AT_ONCE]
