from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_wire import ChunkAssembler, LimitExceededError, ProtocolError, limits, split_chunks

MAX_PAYLOAD = limits.CHUNK_HEADROOM_BYTES + 2048


@given(st.integers(0, 20_000), st.randoms(use_true_random=False))
def test_any_body_comes_back_from_its_chunks_in_any_order(size: int, rng: random.Random) -> None:
    body = rng.randbytes(size)
    chunks = list(split_chunks(body, MAX_PAYLOAD))
    rng.shuffle(chunks)
    assembler = ChunkAssembler()
    results = [assembler.add(chunk.header, chunk.data) for chunk in chunks]
    assert results[:-1] == [None] * (len(chunks) - 1)
    assert results[-1] == body


def test_chunks_leave_headroom_below_the_payload_limit() -> None:
    chunks = list(split_chunks(bytes(3 * limits.MIB), limits.MIB))
    assert len(chunks) == 4
    assert max(len(chunk.data) for chunk in chunks) == limits.MIB - limits.CHUNK_HEADROOM_BYTES


def test_a_repeated_chunk_changes_nothing() -> None:
    first, second = split_chunks(bytes(range(256)) * 16, MAX_PAYLOAD)
    assembler = ChunkAssembler()
    assert assembler.missing is None
    assert assembler.add(*first) is None
    assert assembler.add(*first) is None
    assert assembler.missing == 1
    assert assembler.add(*second) == bytes(range(256)) * 16


def test_a_missing_chunk_is_never_a_partial_answer() -> None:
    *chunks, _lost = split_chunks(bytes(10_000), MAX_PAYLOAD)
    assembler = ChunkAssembler()
    assert [assembler.add(*chunk) for chunk in chunks] == [None] * len(chunks)
    assert assembler.missing == 1


def test_damage_is_found_by_the_checksum() -> None:
    (chunk,) = split_chunks(b"abc", MAX_PAYLOAD)
    with pytest.raises(ProtocolError, match="checksum"):
        ChunkAssembler().add(chunk.header, b"abd")


def test_chunks_of_two_replies_do_not_mix() -> None:
    first, _ = split_chunks(bytes(4000), MAX_PAYLOAD)
    _, other = split_chunks(bytes([1]) * 4000, MAX_PAYLOAD)
    assembler = ChunkAssembler()
    assembler.add(*first)
    with pytest.raises(ProtocolError, match="another reply"):
        assembler.add(*other)


@pytest.mark.parametrize("header", [None, "", "0", "0/1", "1/1/00000000", "-1/1/00000000", "0/0/00000000", "0/1/zz"])
def test_a_malformed_header_is_refused(header: str | None) -> None:
    with pytest.raises(ProtocolError, match="chunk header"):
        ChunkAssembler().add(header, b"")


def test_a_body_over_the_limit_is_refused_at_both_ends() -> None:
    with pytest.raises(LimitExceededError, match=f"at most {limits.MAX_REPLY_BYTES}"):
        next(split_chunks(bytes(limits.MAX_REPLY_BYTES + 1), limits.MIB))
    assembler = ChunkAssembler(max_bytes=100)
    with pytest.raises(LimitExceededError, match="at most 100"):
        assembler.add("0/2/00000000", bytes(101))
