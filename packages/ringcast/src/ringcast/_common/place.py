"""What the subject that acknowledges a delivery says of the delivery."""

from __future__ import annotations

from typing import Final, NamedTuple

_ACK_TOKENS: Final = 9
_ACK_TOKENS_WITH_DOMAIN: Final = 11
_NUMBERS: Final = 4


class Place(NamedTuple):
    """Where a delivery stands: in its stream, in its consumer, and how many wait behind it.

    ``stored_ns``: when the broker stored it, by its wall clock.
    """

    stream_sequence: int
    consumer_sequence: int
    stored_ns: int
    pending: int


def read_place(reply: str) -> Place | None:
    """Reads the subject that acknowledges a delivery; ``None`` if it is of no form that is known."""
    tokens = reply.split(".")
    at = 7 if len(tokens) >= _ACK_TOKENS_WITH_DOMAIN else 5
    numbers = tokens[at : at + _NUMBERS]
    if len(tokens) < _ACK_TOKENS or not all(number.isdecimal() for number in numbers):
        return None
    return Place(*map(int, numbers))


def same_consumer(one: str, other: str) -> bool:
    """Whether one consumer delivers both, by the subjects that acknowledge them; also where that is not known."""
    return _consumer(one) == _consumer(other)


def _consumer(reply: str) -> str:
    tokens = reply.split(".")
    return ".".join(tokens[: 6 if len(tokens) >= _ACK_TOKENS_WITH_DOMAIN else 4]) if len(tokens) >= _ACK_TOKENS else ""
