"""Where a read of what is new begins, or the version that is read: a revision for each partition, as text.

Each partition counts its revisions by itself, so that one number says nothing about all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from ringcast_wire import InvalidInputError, MismatchError, limits, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Since:
    """By partition, none where it is 0. ``place``: the list that it is of (``store/key``), where the text says so."""

    revisions: Mapping[int, int] = field(default_factory=dict)
    place: str = ""

    def of(self, partition: int) -> int:
        """The revision that is known of a partition."""
        return self.revisions.get(partition, 0)

    def __bool__(self) -> bool:
        return any(self.revisions.values())

    def vector(self, partition_count: int) -> tuple[int, ...]:
        """The revision of every partition."""
        return tuple(map(self.of, range(partition_count)))

    def check(self, place: str, heads: Sequence[int], name: str = "since") -> None:
        """Looks whether this, the option ``name``, can be of the list that is read, whose revisions are ``heads``.

        Raises:
            MismatchError: it is of another one, or of another number of partitions.
            InvalidInputError: it has a revision that is still to come.
        """
        if self.place and self.place != place:
            raise MismatchError(f"option {name} is of {shown(self.place)}, and {place} is read", field=name)
        for partition, revision in self.revisions.items():
            if partition >= len(heads):
                raise MismatchError(
                    f"option {name} has partition {partition}: {place} has partitions 0 to {len(heads) - 1}",
                    field=name,
                )
            if revision > heads[partition]:
                raise InvalidInputError(
                    f"option {name} has revision {revision} for partition {partition} of {place}, which is at revision "
                    f"{heads[partition]}: it is of another list, or of one whose database was restored since",
                    field=name,
                )


def parse_since(name: str, text: str) -> Since:
    """Reads ``{"0": 17}``, an offset of a stream, or what stands in an export's ``export.json``.

    Raises:
        InvalidInputError: it is none of these.
    """
    if text.strip().lstrip("+-").isdecimal():
        raise InvalidInputError(
            f"option {name} is {shown(text)}: one number can't say {_MEANING[name]}, for each partition counts by "
            'itself; give what revisions_of(DataFrame), the offset of a stream or an export says, such as {"0": 17}',
            field=name,
        )
    try:
        return _read(msgspec.json.decode(text))
    except (msgspec.MsgspecError, ValueError, TypeError):
        raise InvalidInputError(
            f"option {name} is {shown(text)}: what revisions_of(DataFrame), the offset of a stream or an export says "
            'is allowed, such as {"0": 17} (partition: revision)',
            field=name,
        ) from None


_MEANING: Final = {"since": "what is new", "version_as_of": "which version"}


def _read(given: Any) -> Since:
    place = ""
    if isinstance(given, dict) and isinstance(given.get("revisions"), dict):
        place, given = given.get("list", ""), given["revisions"]
    elif isinstance(given, dict) and isinstance(given.get("heads"), list):
        target = msgspec.convert(given.get("target", {}), dict[str, Any])
        place = f"{target['store']}/{target['key']}" if {"store", "key"} <= target.keys() else ""
        given = given["heads"]
    numbered = dict(enumerate(given)) if isinstance(given, list) else given
    revisions = {int(partition): revision for partition, revision in msgspec.convert(numbered, dict[Any, int]).items()}
    if not all(0 <= one < limits.MAX_PARTITIONS and 0 <= revision < 2**63 for one, revision in revisions.items()):
        raise ValueError(revisions)
    return Since({partition: revision for partition, revision in revisions.items() if revision}, place)


def since_text(revisions: Mapping[int, int]) -> str:
    """What the option ``since`` takes."""
    found = {str(partition): revisions[partition] for partition in sorted(revisions) if revisions[partition]}
    return msgspec.json.encode(found).decode()


def vector_text(heads: Sequence[int]) -> str:
    """The same of the revisions of all partitions."""
    return since_text(dict(enumerate(heads)))


def revisions_of(frame: DataFrame, *, since: str = "{}") -> str:
    """How far the rows of a read go, for the option ``since`` of a later one. It runs the query of ``frame``.

    A later read gives every row that was changed after those of ``frame``; deletes too, with ``include_deleted``. What
    ``frame`` leaves out, by a filter or since it has no tombstones, may come again.

    Args:
        frame: What a batch read gave; it needs the columns ``partition`` and ``version``.
        since: What was given for ``since`` when it was read: partitions of which nothing new came stay where they were.

    Raises:
        InvalidInputError: a column is missing, or ``since`` is no such text.
    """
    from pyspark.sql import functions as sql

    for name in ("partition", "version"):
        if name not in map(str.lower, frame.columns):
            raise InvalidInputError(
                f"column {name} is missing: the DataFrame has {', '.join(frame.columns)}", field=name
            )
    found = dict(parse_since("since", since).revisions)
    for row in frame.groupBy("partition").agg(sql.max("version").alias("version")).collect():
        found[row.partition] = max(row.version, found.get(row.partition, 0))
    return since_text(found)
