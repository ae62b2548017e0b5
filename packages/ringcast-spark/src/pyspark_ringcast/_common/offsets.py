"""Where a stream is: a revision for each partition. Decisions only, no input or output.

A partition that nothing was read of is *loaded* first: its rows as they are, up to the revision that it had when the
loading began. A limit may cut that into several batches, so the offset says until where a partition is being loaded.
Only after it does what is read of a partition follow the changes, deletes included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec
from ringcast_wire import InvalidInputError, MismatchError, UnavailableError, limits, shown

Starting = Literal["earliest", "latest"] | dict[int, int]


class ChangesLostError(UnavailableError):
    """Changes between the stream's offset and what the config service still has can't be read any more."""


class Range(NamedTuple):
    """What one batch reads of a partition: revisions above ``after`` up to ``upto``.

    ``loading``: the rows as they are now, of these versions. ``head``: the partition's revision when it was planned.
    """

    partition: int
    after: int
    upto: int
    loading: bool
    head: int

    @property
    def revisions(self) -> int:
        """How many there are: at least as many as rows."""
        return self.upto - self.after


@dataclass(frozen=True, slots=True)
class Offset:
    """``revisions``: by partition, none where it is 0. ``loading``: until where a partition is being loaded."""

    place: str
    partition_count: int
    revisions: Mapping[int, int] = field(default_factory=dict)
    loading: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps in the checkpoint; equal offsets give the same text."""
        found: dict[str, Any] = {
            "list": self.place,
            "partitions": self.partition_count,
            "revisions": _by_text(self.revisions),
        }
        if self.loading:
            found["loading"] = _by_text(self.loading)
        return found

    @classmethod
    def from_json(cls, given: Any, place: str) -> Offset:
        """Reads an offset of the checkpoint of the stream of ``place`` (``store/key``).

        Raises:
            MismatchError: it is of another list.
            InvalidInputError: it is not an offset.
        """
        try:
            read = msgspec.convert(given, _Stored, str_keys=True)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"the checkpoint has an offset that can't be read: {error}") from None
        if read.list != place:
            raise MismatchError(
                f"the checkpoint belongs to a stream of {shown(read.list)}, this one reads {place}: use another one"
            )
        return cls(place, read.partitions, read.revisions, read.loading)

    def check_partition_count(self, partition_count: int) -> None:
        """Raises ``MismatchError`` if the store has another number of partitions."""
        if partition_count != self.partition_count:
            raise MismatchError(
                f"the checkpoint is of a store with {self.partition_count} partitions, "
                f"and that of {self.place} has {partition_count}: use another checkpoint"
            )


class _Stored(msgspec.Struct):
    list: str
    partitions: int
    revisions: dict[int, int]
    loading: dict[int, int] = {}


def _by_text(numbers: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): numbers[partition] for partition in sorted(numbers)}


def parse_starting(name: str, text: str) -> Starting:
    """``earliest``, ``latest``, or JSON of revisions by partition, as an offset in a query's progress has it.

    Raises:
        InvalidInputError: it is none of these.
    """
    if text.lower() in ("earliest", "latest"):
        return "earliest" if text.lower() == "earliest" else "latest"
    wrong = (
        f'option {name} is {shown(text)}: earliest, latest or JSON such as {{"0": 17}} (partition: revision) is allowed'
    )
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
        found = msgspec.convert(given.get("revisions", given), dict[str, int])
        starting = {int(partition): revision for partition, revision in found.items()}
    except (msgspec.MsgspecError, ValueError):
        raise InvalidInputError(wrong, field=name) from None
    for partition, revision in starting.items():
        if not 0 <= partition < limits.MAX_PARTITIONS or revision < 0:
            raise InvalidInputError(wrong, field=name)
    return starting


def first_offset(place: str, starting: Starting, heads: Sequence[int], chosen: Sequence[int]) -> Offset:
    """Where a new stream begins.

    Raises:
        InvalidInputError: the given offsets name a partition that is not there, or a revision that is still to come.
    """
    if starting == "earliest":
        return Offset(place, len(heads))
    if starting == "latest":
        return Offset(place, len(heads), {partition: heads[partition] for partition in chosen if heads[partition]})
    assert isinstance(starting, dict)
    for partition, revision in starting.items():
        if partition >= len(heads) or revision > heads[partition]:
            what = f"is at revision {heads[partition]}" if partition < len(heads) else "does not exist"
            raise InvalidInputError(
                f"option starting_offsets has revision {revision} for partition {partition}, which {what}",
                field="starting_offsets",
            )
    return Offset(place, len(heads), {partition: revision for partition, revision in starting.items() if revision})


def next_offset(
    start: Offset,
    heads: Sequence[int],
    chosen: Sequence[int],
    limit: int | None,
    *,
    first: int = 0,
    reset: bool = False,
) -> tuple[Offset, int]:
    """The end of the next batch, of at most ``limit`` revisions, and the ``first`` for the one after it.

    Partitions are taken whole, one after another from ``first`` on, so that a limit cuts one of them at most: a cut
    partition costs a read of its own for each of its pieces.

    ``reset``: a partition that is behind the offset (its database was restored) is loaded again.

    Raises:
        ChangesLostError: there is one, and ``reset`` is not set.
    """
    revisions, loading = dict(start.revisions), dict(start.loading)
    left = limit
    for partition in _from(chosen, first):
        at, head = revisions.pop(partition, 0), heads[partition]
        target = loading.pop(partition, head)
        if head < max(at, target):
            _check_restored(start.place, partition, max(at, target), head, reset)
            at, target = 0, head
        end = target if left is None else min(target, at + left)
        if end:
            revisions[partition] = end
        if 0 < end < target and (not at or partition in start.loading):
            loading[partition] = target
        if left is not None and end > at:
            left -= end - at
            first = partition if end < target else partition + 1
    return Offset(start.place, start.partition_count, revisions, loading), first


def _from(chosen: Sequence[int], first: int) -> list[int]:
    later = [partition for partition in chosen if partition >= first]
    return later + [partition for partition in chosen if partition < first]


def _check_restored(place: str, partition: int, at: int, head: int, reset: bool) -> None:
    if not reset:
        raise ChangesLostError(
            f"partition {partition} of {place} is at revision {head}, before the stream's {at}: its database was "
            f"restored from a backup; start with another checkpoint, or let the stream load it again with onGap=skip"
        )


def ranges(start: Offset, end: Offset, heads: Sequence[int]) -> list[Range]:
    """What the batch between two offsets reads; ``heads``: as far as they are known."""
    found = []
    for partition, upto in sorted(end.revisions.items()):
        after = start.revisions.get(partition, 0)
        if upto == after:
            continue
        restored = upto < after
        loading = restored or not after or partition in start.loading
        head = max(upto, heads[partition]) if partition < len(heads) else upto
        found.append(Range(partition, 0 if restored else after, upto, loading, head))
    return found


def shared_out(found: Sequence[Range], tasks: int) -> list[tuple[Range, ...]]:
    """Ranges in at most ``tasks`` groups of about the same number of revisions, none empty."""
    total = sum(one.revisions for one in found)
    groups: dict[int, list[Range]] = {}
    seen = 0
    for one in found:
        groups.setdefault(min(tasks - 1, (seen + one.revisions // 2) * tasks // max(1, total)), []).append(one)
        seen += one.revisions
    return [tuple(group) for group in groups.values()]
