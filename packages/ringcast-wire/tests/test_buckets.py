from __future__ import annotations

import json

import pytest
from ringcast_wire import UnavailableError, names
from ringcast_wire.buckets import (
    DELETED,
    BucketAnswer,
    StoredRecord,
    fixed,
    is_marker,
    question,
    stream_of,
    subject_of,
)

END = {"Status": "204", "Nats-Last-Sequence": "7", "Nats-UpTo-Sequence": "9"}
NOTHING = {"Status": "404", "Description": "No Results"}


def message(key: str, sequence: int, before: int, **more: str) -> dict[str, str]:
    """The headers of one message of an answer, as a server of NATS writes them."""
    return {
        "Nats-Stream": "KV_b",
        "Nats-Subject": f"$KV.b.{key}",
        "Nats-Sequence": str(sequence),
        "Nats-Last-Sequence": str(before),
        "Nats-Time-Stamp": "2026-01-02T03:04:05.678Z",
        **more,
    }


def test_names_and_questions() -> None:
    assert (stream_of("b"), subject_of("b", "k.w")) == ("KV_b", "$KV.b.k.w")
    assert json.loads(question("b", ["k.w", "k.*"])) == {"multi_last": ["$KV.b.k.w", "$KV.b.k.*"]}


def test_a_number_in_a_header_has_the_same_size_whatever_it_is() -> None:
    assert {len(fixed(number)) for number in (0, 9, 10, 2**64 - 1)} == {20}
    assert int(fixed(123)) == 123


@pytest.mark.parametrize("headers", [DELETED, {"KV-Operation": "PURGE"}, {"Nats-Marker-Reason": "MaxAge"}])
def test_markers(headers: dict[str, str]) -> None:
    assert is_marker(headers)
    assert not is_marker({})
    assert not is_marker({"KV-Operation": "PUT"})


def test_an_answer_with_values_and_markers() -> None:
    answer = BucketAnswer("b", "records")
    assert not answer.take(message("k.a", 3, 0), b"value")
    assert not answer.take(message("k.c", 5, 3, **DELETED, **{names.HEADER_MAY_CALL: "1"}), b"")
    assert not answer.take(message("k.state", 7, 5, **DELETED, **{names.HEADER_GONE: "4"}), b"")
    assert answer.take(END, b"")
    at_s = 1767323045.678
    assert answer.records == {
        "k.a": StoredRecord(3, b"value", at_s, False, None),
        "k.c": StoredRecord(5, None, at_s, True, None),
        "k.state": StoredRecord(7, None, at_s, False, 4),
    }
    assert answer.up_to == 9


def test_an_answer_about_nothing() -> None:
    answer = BucketAnswer("b", "records")
    assert answer.take(NOTHING, b"")
    assert (answer.records, answer.up_to) == ({}, 0)


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        (message("k.c", 7, 5), "an answer about records is incomplete"),  # the one between is missing
        (END, "an answer about records is incomplete"),  # the last one is
        (NOTHING, "an answer about records is incomplete"),
        ({**NOTHING, "Description": "Message Not Found"}, "an answer about records is incomplete"),
        ({"Status": "503"}, "the records can't be read: 503"),
        ({"Status": "408", "Description": "Bad Request"}, "the records can't be read: 408 Bad Request"),
        ({}, "an answer about records is incomplete"),
        ({"Nats-Last-Sequence": "3"}, "can't be read: KeyError"),
        (message("k.c", 7, 3, **{"Nats-Time-Stamp": "soon"}), "can't be read: ValueError"),
    ],
)
def test_an_answer_that_is_not_whole(headers: dict[str, str], sentence: str) -> None:
    answer = BucketAnswer("b", "records")
    answer.take(message("k.a", 3, 0), b"value")
    with pytest.raises(UnavailableError, match=sentence):
        answer.take(headers, b"")
