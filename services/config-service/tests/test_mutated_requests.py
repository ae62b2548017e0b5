"""Damaged fetches of every kind: each is answered, with rows or with an error, and the service goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from nats.aio.msg import Msg
from ringcast_testkit import PATIENCE_S
from ringcast_wire import (
    WIRE_VERSION,
    BatchRequest,
    ChunkAssembler,
    ErrorCode,
    PartitionRequest,
    decode_fetch_reply,
    decode_heads_reply,
    encode,
    names,
)
from ringcast_wire.reports import StagedRequest, encode_staged

Running = Any  # of conftest.py

MUTATIONS = 10_000
AT_ONCE = 100
_TOKEN_CHARACTERS = "abkz019-_.ä\x7f$" + "x" * 8


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """A copy with a few bits, bytes or stretches changed."""
    copy = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(copy) + 1)
        match random.randrange(5):
            case 0 if at < len(copy):
                copy[at] ^= 1 << random.randrange(8)
            case 1:
                copy[at : at + 1] = random.randbytes(1)
            case 2:
                del copy[at:]
            case 3:
                copy[at:at] = random.randbytes(random.randint(1, 16))
            case 4:
                copy[at : at + 1] = random.choice(
                    (b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7, b"\xdd" + b"\xff" * 4)
                )
    return bytes(copy)


def mutated_subject(subject: str, random: Random) -> str:
    """Another subject that the service still hears: the prefix and the number of tokens stay."""
    tokens = subject.split(".")
    at = random.randrange(2, 5)
    token = list(tokens[at])
    token[random.randrange(len(token)) : random.randrange(len(token) + 1)] = random.choice(_TOKEN_CHARACTERS)
    changed = "".join(token).replace(".", "") or "x"
    tokens[at] = random.choice(
        (changed, "-1", "00", "4096", "99999999999999999999", "full", "heads", "batch", "x" * 300)
    )
    return ".".join(tokens)


def requests(store: str, random: Random) -> tuple[str, bytes]:
    """One request, damaged in its payload, its subject or both."""
    kinds: list[tuple[int | str, bytes]] = [
        (random.randrange(8), encode(PartitionRequest(WIRE_VERSION, random.choice((None, 0, 3, 10**6))))),
        (
            "batch",
            encode(BatchRequest(WIRE_VERSION, [f"r{random.randrange(30)}" for _ in range(random.randint(1, 9))])),
        ),
        ("full", b""),
        ("heads", b""),
        ("staged", encode_staged(StagedRequest(WIRE_VERSION, random.randint(1, 3), [random.randrange(8), 1]))),
    ]
    what, payload = random.choice(kinds)
    subject = names.fetch_subject(store, "k", what)
    how = random.randrange(3)
    if how != 0:
        payload = mutated_bytes(payload, random)
    if how != 1:
        subject = mutated_subject(subject, random)
    return subject, payload


@pytest.mark.parametrize("seed", range(4))
async def test_every_damaged_fetch_is_answered(service: Running, store_name: str, seed: int) -> None:
    await service.create(store_name)
    for number in range(30):
        await service.put(store_name, f"r{number}", f"v{number}")
    truth = {f"r{number}": f"v{number}" for number in range(30)}
    random = Random(seed)
    outcomes: Counter[str] = Counter()
    open_requests: dict[str, tuple[str, ChunkAssembler]] = {}
    answered = asyncio.Event()

    async def on_answer(msg: Msg) -> None:
        what, assembler = open_requests[msg.subject]
        headers = msg.headers or {}
        if (code := headers.get(names.HEADER_ERROR)) is not None:
            outcomes[ErrorCode(code)] += 1
            assert msg.data
        else:
            body = assembler.add(headers.get(names.HEADER_CHUNK), msg.data)
            if body is None:
                return
            outcomes["ok"] += 1
            if what == "heads":
                assert sum(decode_heads_reply(body).heads) in (0, 30)  # what damaged it may have named a moment
            else:
                assert what != "staged", "nothing is"
                rows = [row for part in decode_fetch_reply(body).partitions for row in part.rows]
                assert {row.row_id: row.value for row in rows}.items() <= truth.items()
        del open_requests[msg.subject]
        answered.set()

    inbox = service.nc.new_inbox()
    await service.nc.subscribe(f"{inbox}.*", cb=on_answer)
    async with asyncio.timeout(PATIENCE_S):
        for number in range(MUTATIONS):
            subject, payload = requests(store_name, random)
            reply = f"{inbox}.{number}"
            open_requests[reply] = (subject.rpartition(".")[2], ChunkAssembler())
            await service.nc.publish(subject, payload, reply=reply)
            while len(open_requests) >= AT_ONCE:
                answered.clear()
                await answered.wait()
        while open_requests:
            answered.clear()
            await answered.wait()
    assert sum(outcomes.values()) == MUTATIONS
    assert outcomes["ok"] > MUTATIONS // 50
    assert outcomes[ErrorCode.PROTOCOL] > MUTATIONS // 10
    assert outcomes[ErrorCode.INTERNAL] == 0, "something failed that nobody had foreseen"
    health: Any = health_pb2_grpc.HealthStub(service.channel)
    status = await health.Check(health_pb2.HealthCheckRequest())
    assert status.status == health_pb2.HealthCheckResponse.SERVING
    rows = decode_fetch_reply(await service.fetch(store_name, "full")).partitions
    assert {row.row_id: row.value for part in rows for row in part.rows} == truth
