"""The load of partitions: how a worker measures it, and what it reports.

A load is the changes a second that reach a partition, as its revisions rise. Rows that are handed over because a
partition has changed its owner are none: otherwise each move would make a partition look busier than it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from ringcast_wire import ProtocolError, limits

MAX_LISTED: Final = 200
"""Partitions of all keys that a report lists with their loads, the busiest first."""
MAX_LOADS_BYTES: Final = 16 * 1024
_MOST: Final = 1_000_000_000
"""The highest load in a report, in thousandths: a million changes a second."""

_Rate = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=limits.MAX_PARTITIONS)]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]


class KeyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports of a key. Loads are in thousandths of a change a second.

    ``measured``: how many partitions ``total`` is the load of. ``top``: as many of them as fit, with their loads, the
    busiest first.
    """

    measured: Annotated[int, msgspec.Meta(ge=0, le=limits.MAX_PARTITIONS)] = 0
    total: Annotated[int, msgspec.Meta(ge=0, le=_MOST * limits.MAX_PARTITIONS)] = 0
    top: Annotated[tuple[tuple[_Partition, _Rate], ...], msgspec.Meta(max_length=MAX_LISTED)] = ()

    def rates(self) -> dict[int, float]:
        """The changes a second of the partitions that are listed."""
        return {number: rate / 1000 for number, rate in self.top}

    @property
    def other_rate(self) -> float | None:
        """The mean of the partitions that were measured and are not listed, in changes a second, if there are any."""
        others = self.measured - len(self.top)
        return max(0, self.total - sum(rate for _, rate in self.top)) / 1000 / others if others > 0 else None


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    keys: Annotated[dict[_Name, KeyLoad], msgspec.Meta(max_length=limits.MAX_KEYS_PER_STORE)]


@dataclass(slots=True)
class _Measured:
    revision: int
    changes: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.changes / self.seconds


class LoadMeter:
    """The loads of the partitions of one key that a worker owns: means over time.

    A change counts half after ``half_life_s``, or where there are fewer than ``ENOUGH`` changes in that time, after
    they were as many: at most after ``LONGEST`` times that. Of few changes in a short time most would be chance.
    """

    ENOUGH: Final = 1_200
    LONGEST: Final = 20

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._partitions: dict[int, _Measured] = {}
        self._looked_at: float | None = None

    def look(self, revisions: Mapping[int, int], now: float) -> None:
        """Each partition that is owned now is at this revision. A new one has a load from the next look on."""
        since_s = 0.0 if self._looked_at is None else now - self._looked_at
        if self._looked_at is not None and since_s <= 0:
            return
        keeps = 0.5 ** (since_s / self._forgets_in_s(revisions, since_s))
        seen: dict[int, _Measured] = {}
        for number, revision in revisions.items():
            known = self._partitions.get(number)
            if known is None or revision < known.revision:  # it has another history
                seen[number] = _Measured(revision)
                continue
            known.changes = known.changes * keeps + revision - known.revision
            known.seconds = known.seconds * keeps + since_s
            known.revision = revision
            seen[number] = known
        self._partitions, self._looked_at = seen, now

    def _forgets_in_s(self, revisions: Mapping[int, int], since_s: float) -> float:
        """The half-life for as many changes as there were, or are now: a load that begins is known soon."""
        before = sum(found.rate for found in self._partitions.values() if found.seconds > 0)
        new = sum(
            max(0, revision - known.revision)
            for number, revision in revisions.items()
            if (known := self._partitions.get(number)) is not None
        )
        most_s = self.LONGEST * self._half_life_s
        busiest = max(before, new / since_s if since_s > 0 else 0.0)
        return max(self._half_life_s, self.ENOUGH / busiest) if busiest * most_s > self.ENOUGH else most_s

    def rates(self) -> dict[int, float]:
        """The changes a second of each partition that has been looked at twice or more."""
        return {number: found.rate for number, found in self._partitions.items() if found.seconds > 0}


def reported(rates: Mapping[str, Mapping[int, float]]) -> dict[str, KeyLoad]:
    """What to report of these loads, by key and partition: the busiest partitions of all keys are listed."""
    whole = {key: {number: _thousandths(rate) for number, rate in found.items()} for key, found in rates.items()}
    ranked = sorted(((-rate, key, number) for key, found in whole.items() for number, rate in found.items()))
    top: dict[str, list[tuple[int, int]]] = {key: [] for key in whole}
    for rate, key, number in ranked[:MAX_LISTED]:
        top[key].append((number, -rate))
    return {
        key: KeyLoad(measured=len(found), total=sum(found.values()), top=tuple(top[key]))
        for key, found in whole.items()
        if found
    }


def encode_loads(loads: Mapping[str, KeyLoad]) -> bytes:
    """A report as JSON; it takes at most ``MAX_LOADS_BYTES``, as a store has 100 keys at most."""
    return msgspec.json.encode({"keys": loads})


def decode_loads(data: bytes) -> dict[str, KeyLoad]:
    """Reads a report.

    Raises:
        ProtocolError: it is not one.
    """
    if len(data) > MAX_LOADS_BYTES:
        raise ProtocolError(f"loads take {len(data)} bytes: at most {MAX_LOADS_BYTES} are allowed")
    try:
        return msgspec.json.decode(data, type=_Record).keys
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"loads of {len(data)} bytes can't be read: {error}") from error


def _thousandths(rate: float) -> int:
    return min(_MOST, round(rate * 1000))
