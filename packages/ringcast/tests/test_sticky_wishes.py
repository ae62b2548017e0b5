"""What an operator wants of a key of exclusive ownership: what is read back, and what is refused."""

from __future__ import annotations

import pytest
from ringcast._coordination.sticky.wishes import MAX_WISHES_BYTES, decode_wishes, encode_wishes
from ringcast._protocol.sticky.plan import Wishes
from ringcast_wire import InvalidInputError, ProtocolError


def test_wishes_are_read_back() -> None:
    wishes = Wishes(pins={0: "a", 7: "b", 3: "a"}, drains=frozenset({"c", "d"}))
    assert decode_wishes(encode_wishes(wishes, 8), 8) == wishes
    assert decode_wishes(b"{}", 8) == Wishes()


def test_the_most_that_can_be_wished_for_fits() -> None:
    workers = [f"{number:064}" for number in range(200)]
    most = Wishes(pins={number: workers[number % 200] for number in range(4096)}, drains=frozenset(workers))
    assert decode_wishes(encode_wishes(most, 4096), 4096) == most


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "wishes of 0 bytes can't be read"),
        (b"[" * 9_000, "can't be read"),
        (b'{"drains": ["a.b"]}', "can't be read"),
        (b'{"other": 1}', "can't be read"),
        (b'{"pins": {"a": [8]}}', "wishes pin partition 8: 0 to 7 are allowed"),
        (b'{"pins": {"a": [-1]}}', "wishes pin partition -1: 0 to 7 are allowed"),
        (b'{"pins": {"a": [1], "b": [1]}}', "wishes pin partition 1 twice"),
        (b" " * (MAX_WISHES_BYTES + 1), f"wishes take {MAX_WISHES_BYTES + 1} bytes: at most {MAX_WISHES_BYTES}"),
    ],
)
def test_a_malformed_record_is_one_error(data: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        decode_wishes(data, 8)


@pytest.mark.parametrize("wishes", [Wishes(pins={8: "a"}), Wishes(drains=frozenset({"a b"}))])
def test_what_can_not_be_read_is_not_written(wishes: Wishes) -> None:
    with pytest.raises(InvalidInputError, match="wishes"):
        encode_wishes(wishes, 8)
