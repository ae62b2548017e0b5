"""Stands between workers and the config service, and damages what the service answers."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum, auto
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from ringcast_core import row_partition
from ringcast_wire import ChunkAssembler, ErrorCode, limits, names, split_chunks

MAPPINGS: Final = {"config.fetch.>": "front.fetch.>", "behind.fetch.>": "config.fetch.>"}
"""For the server: what is asked of the service comes to :class:`Front`, which has a way of its own to the service."""
PARTITIONS: Final = 32
CHUNK_BYTES: Final = 1024


class Verdict(StrEnum):
    """What a worker has to make of an answer."""

    DAMAGED = auto()  # it is no answer to what was asked: counted as a bad reply
    REFUSED = auto()  # it says that there is no answer
    SILENT = auto()  # some of it never comes
    SOUND = auto()  # unusual, but right
    FALSE = auto()  # a lie that nobody could tell from the truth, and that the next comparison of heads corrects


class Part(NamedTuple):
    """One message of an answer."""

    headers: dict[str, str]
    data: bytes


class Answer(NamedTuple):
    """What the service has answered, to which kind of request, and another of its answers."""

    kind: str
    body: bytes
    other: bytes

    def parts(self, body: bytes | None = None) -> list[Part]:
        """A body in chunks of 1 KiB."""
        chunks = split_chunks(self.body if body is None else body, CHUNK_BYTES + limits.CHUNK_HEADROOM_BYTES)
        return [Part({names.HEADER_CHUNK: chunk.header}, chunk.data) for chunk in chunks]


Damage = Callable[[Answer, Random], tuple[Verdict, list[Part]] | None]
"""Makes something of an answer, or nothing where it does not apply."""


# ---- chunks


def _other_checksum(answer: Answer, random: Random) -> tuple[Verdict, list[Part]]:
    parts = answer.parts()
    which = range(len(parts)) if random.random() < 0.5 else [random.randrange(len(parts))]
    for at in which:
        head, _, _ = parts[at].headers[names.HEADER_CHUNK].rpartition("/")
        parts[at] = Part({names.HEADER_CHUNK: f"{head}/{zlib.crc32(answer.body) ^ 1:08x}"}, parts[at].data)
    return Verdict.DAMAGED, parts


def _no_chunk_header(answer: Answer, random: Random) -> tuple[Verdict, list[Part]]:
    checksum = f"{zlib.crc32(answer.body):08x}"
    junk = ("", "1", "//", "0/0/" + checksum, "1/1/" + checksum, "-1/1/" + checksum, "0/1/zzzzzzzz", "0/1/" + "9" * 99)
    more = (
        "9" * 30 + "/1/" + checksum,
        "0/1/" + checksum.upper() + "!",
        "\u0660/\u0661/" + checksum,
        "0/1/" + checksum + "/",
    )
    parts = answer.parts()
    at = random.randrange(len(parts))
    parts[at] = Part(
        {names.HEADER_CHUNK: random.choice((*junk, *more))} if random.random() < 0.9 else {}, parts[at].data
    )
    return Verdict.DAMAGED, parts


def _other_bytes(answer: Answer, random: Random) -> tuple[Verdict, list[Part]] | None:
    parts = answer.parts()
    at = random.randrange(len(parts))
    data = bytearray(parts[at].data)
    if not data:
        return None
    if random.random() < 0.5:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    else:
        del data[random.randrange(len(data)) :]
    parts[at] = Part(parts[at].headers, bytes(data))
    return Verdict.DAMAGED, parts


def _two_in_one(answer: Answer, random: Random) -> tuple[Verdict, list[Part]] | None:
    ours, others = answer.parts(), answer.parts(answer.other)
    if len(ours) < 2 or ours[0].headers == others[0].headers:
        return None
    at = random.randrange(1, len(ours))
    return Verdict.DAMAGED, [*ours[:at], random.choice(others), *ours[at:]]


def _one_missing(answer: Answer, random: Random) -> tuple[Verdict, list[Part]] | None:
    parts = answer.parts()
    if random.random() > 0.02 or answer.kind == names.FETCH_HEADS:
        return None  # it takes time, and the next request of its kind has to wait for it
    del parts[random.randrange(len(parts))]
    return Verdict.SILENT, parts


def _out_of_order(answer: Answer, random: Random) -> tuple[Verdict, list[Part]]:
    parts = answer.parts() * random.randint(1, 3)
    random.shuffle(parts)
    return Verdict.SOUND, parts


# ---- errors


def _refusal(answer: Answer, random: Random) -> tuple[Verdict, list[Part]]:
    codes = [ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL, ErrorCode.IN_USE, "NONSENSE", "", "\u2603", "x" * 500]
    headers = {names.HEADER_ERROR: str(random.choice(codes))}
    if random.random() < 0.1:
        headers = {"Status": "503"}
    refusal = Part(headers, random.randbytes(random.randint(0, 30)))
    return Verdict.REFUSED, [refusal, *(answer.parts() if random.random() < 0.3 else [])]


# ---- bodies, with the right checksum


def _cut_body(answer: Answer, random: Random) -> tuple[Verdict, list[Part]]:
    return Verdict.DAMAGED, answer.parts(answer.body[: random.randrange(len(answer.body))])


def _more_body(answer: Answer, random: Random) -> tuple[Verdict, list[Part]]:
    return Verdict.DAMAGED, answer.parts(answer.body + random.randbytes(random.randint(1, 9)))


def _huge_count(answer: Answer, random: Random) -> tuple[Verdict, list[Part]]:
    most = b"\xff\xff\xff\xff"  # of an array, a map, a text; and many arrays within each other
    start = random.choice((b"\xdd" + most, b"\xdf" + most, b"\xdb" + most, b"\x92\x01" * 5_000))
    return Verdict.DAMAGED, answer.parts(start + answer.body[1:])


def _other_type(answer: Answer, random: Random) -> tuple[Verdict, list[Part]]:
    whole = msgspec.msgpack.decode(answer.body)
    at: Any = whole
    while True:
        index = random.randrange(len(at))
        if not isinstance(at[index], list) or not at[index] or random.random() < 0.2:
            break
        at = at[index]
    wrong = [value for value in (7, "x", [1], b"\x00", 1.5) if type(value) is not type(at[index])]
    at[index] = random.choice(wrong)
    return Verdict.DAMAGED, answer.parts(msgspec.msgpack.encode(whole))


def _other_numbers(answer: Answer, random: Random) -> tuple[Verdict, list[Part]] | None:
    whole = msgspec.msgpack.decode(answer.body)
    if random.random() < 0.1:
        whole[0] += 1  # the wire version
    elif answer.kind == names.FETCH_HEADS:
        heads = whole[1]
        random.choice((heads.pop, lambda: heads.append(1), lambda: heads.__setitem__(0, random.choice((-1, 2**63)))))()
    elif not _other_rows(answer.kind, whole[1], random):
        return None
    return Verdict.DAMAGED, answer.parts(msgspec.msgpack.encode(whole))


def _other_rows(kind: str, parts: list[Any], random: Random) -> bool:
    """Makes the parts of a fetch contradict themselves."""
    if not parts:
        return False
    part = random.choice(parts)
    match random.randrange(6):
        case 0:
            part[0] = random.choice((-1, PARTITIONS, 2**40))
        case 1:
            parts.append(part)
        case 2 if part[3]:
            random.choice(part[3])[2] = random.choice((0, -5, part[1] + 1))
        case 3 if part[3]:
            part[3].append(random.choice(part[3]))
        case 4:
            part[3].append([_elsewhere(part[0]), "forged", max(part[1], 1), False, None])
        case 5 if kind == names.FETCH_BATCH:
            parts.remove(part)
        case _:
            part[1] = random.choice((-1, 2**63))
    return True


def _elsewhere(partition: int) -> str:
    """The id of a row of another partition."""
    return next(row_id for row_id in ("a", "b", "c", "d") if row_partition(row_id, PARTITIONS) != partition)


def _another_answer(answer: Answer, _random: Random) -> tuple[Verdict, list[Part]] | None:
    if answer.other == answer.body:
        return None
    return Verdict.DAMAGED, answer.parts(answer.other)


def _false_heads(answer: Answer, random: Random) -> tuple[Verdict, list[Part]] | None:
    if answer.kind != names.FETCH_HEADS or random.random() > 0.05:
        return None
    whole = msgspec.msgpack.decode(answer.body)
    at = random.randrange(len(whole[1]))
    whole[1][at] = max(0, whole[1][at] + random.choice((-2, 3)))
    return Verdict.FALSE, answer.parts(msgspec.msgpack.encode(whole))


DAMAGES: Final[tuple[Damage, ...]] = (
    _other_checksum,
    _no_chunk_header,
    _other_bytes,
    _two_in_one,
    _one_missing,
    _out_of_order,
    _refusal,
    _cut_body,
    _more_body,
    _huge_count,
    _other_type,
    _other_numbers,
    _another_answer,
    _false_heads,
)


class Front:
    """Answers in place of the service: with what the service says, of which a ``share`` is damaged first."""

    def __init__(self, client: Client, random: Random) -> None:
        self.share = 0.0
        self.unkind = False
        """No answer is sound in spite of the damage, and none keeps silent."""
        self.damaged: Counter[str] = Counter()
        """By kind of request."""
        self.verdicts: Counter[Verdict] = Counter()
        self.tried: Counter[str] = Counter()
        """By kind of damage."""
        self.cancelled = 0
        """Requests that the worker waits for no longer: it did in vain, or other answers have brought the rows."""
        self.sent = asyncio.Event()
        self._client = client
        self._random = random
        self._bodies: dict[str, bytes] = {}
        """The last answer to each subject."""

    @classmethod
    @asynccontextmanager
    async def open(cls, nats_url: str, random: Random) -> AsyncIterator[Front]:
        """Takes its place, and leaves it in the end."""
        client = await nats.connect(nats_url)
        try:
            front = cls(client, random)
            await client.subscribe("front.fetch.>", cb=front._take)
            await client.flush()
            yield front
        finally:
            await client.close()

    async def _take(self, msg: Msg) -> None:
        if msg.subject.endswith(f".{names.FETCH_CANCEL}"):
            self.cancelled += 1
            self.sent.set()
            return
        asyncio.get_running_loop().create_task(self._answer(msg)).add_done_callback(lambda done: done.result())

    async def _answer(self, msg: Msg) -> None:
        found = await self._client.request(msg.subject.replace("front.", "behind.", 1), msg.data, timeout=20)
        headers = found.headers or {}
        if names.HEADER_ERROR in headers:
            parts = [Part(headers, found.data)]
        else:
            body = ChunkAssembler().add(headers.get(names.HEADER_CHUNK), found.data)
            assert body is not None, "these answers fit into one message"
            parts = self._treat(msg.subject.rpartition(".")[2], self._kind(msg), body)
        for part in parts:
            await self._client.publish(msg.reply, part.data, headers=part.headers or None)
        self.sent.set()

    def _kind(self, msg: Msg) -> str:
        what = msg.subject.rpartition(".")[2]
        if not what.isdigit():
            return what
        return "since" if msg.data and msgspec.msgpack.decode(msg.data)[1] is not None else "partition"

    def _treat(self, what: str, kind: str, body: bytes) -> list[Part]:
        answer = Answer(kind, body, self._another(what, body))
        self._bodies[what] = body
        if self._random.random() >= self.share:
            return answer.parts()
        made = None
        while made is None:
            damage = self._random.choice(DAMAGES)
            made = damage(answer, self._random)
            if made is not None and self.unkind and made[0] not in (Verdict.DAMAGED, Verdict.REFUSED):
                made = None
        self.damaged[kind] += 1
        self.verdicts[made[0]] += 1
        self.tried[damage.__name__.strip("_")] += 1
        return made[1]

    def _another(self, what: str, body: bytes) -> bytes:
        """An answer that does not answer this: of another partition, or heads for rows, or rows for heads."""
        if what in (names.FETCH_BATCH, names.FETCH_FULL):
            return self._bodies.get(names.FETCH_HEADS, body)
        others = [other for other in self._bodies if other not in (what, names.FETCH_BATCH, names.FETCH_FULL)]
        return self._bodies[self._random.choice(others)] if others else body
