"""Enums of answers, as this client knows them: a newer service may answer with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from ringcast_wire import ProtocolError

T = TypeVar("T")


class Known(dict[int, T], Generic[T]):
    """What the numbers of an enum mean. ``what``: how a sentence names one.

    Raises:
        ProtocolError: on a number that is not known.
    """

    def __init__(self, what: str, numbers: Mapping[T, int]) -> None:
        super().__init__({number: each for each, number in numbers.items()})
        self._what = what

    def __missing__(self, number: int) -> T:
        raise ProtocolError(
            f"the config service answers with {self._what} that this client does not know ({number}): it is newer than "
            "the client, update the client"
        )
