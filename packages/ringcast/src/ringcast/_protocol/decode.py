"""Decodes what comes over the bus, and refuses what contradicts itself or the request.

An event has no checksum. What can be checked without one: a row lives in the partition that its id hashes to, and the
newest version that an event lists is the revision that it leads to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ringcast_core import row_partition, row_partitions
from ringcast_wire import (
    Event,
    HeadsReply,
    PartitionRows,
    ProtocolError,
    Row,
    decode_event,
    decode_fetch_reply,
    decode_heads_reply,
)

MAX_REVISION: Final = 2**63 - 1
"""Databases count no further."""


def read_event(data: bytes, partition: int, partition_count: int) -> Event:
    """An event of a partition.

    Raises:
        ProtocolError: it is damaged, or can't be what the service published.
    """
    event = decode_event(data)
    changes, rev = event.changes, event.rev
    _check_revision(rev)
    if changes is None:
        return event
    if len(changes) == 1:  # as most are
        change = changes[0]
        newest = change.version
        _check_place(row_partition(change.row_id, partition_count) == partition, partition)
    else:
        newest = max([change.version for change in changes], default=0)
        _check_ids([change.row_id for change in changes], partition, partition_count)
    if newest != rev:
        raise ProtocolError(f"event of revisions {event.prev} to {rev} does not list the last of them")
    return event


class Answer(NamedTuple):
    """What a fetch brought. ``history``: that all its revisions are of."""

    history: str
    parts: list[PartitionRows]


def read_partition(data: bytes, partition: int, since: int | None, partition_count: int, history: str = "") -> Answer:
    """The answer to a fetch of one partition, whole or what changed ``since`` a revision of a ``history``.

    Raises:
        ProtocolError: it is damaged, or does not answer this request.
    """
    answer = _read_answer(data, partition_count)
    parts = answer.parts
    if len(parts) != 1 or parts[0].partition != partition:
        raise ProtocolError(f"fetch of partition {partition} brought {[part.partition for part in parts[:4]]}")
    part = parts[0]
    if not part.whole and (since is None or part.revision < since):
        raise ProtocolError(f"fetch of partition {partition} since {since} brought a part as of {part.revision}")
    if not part.whole and answer.history != history:
        raise ProtocolError(f"fetch of partition {partition} since {since} brought a part of another history")
    return answer


def read_batch(data: bytes, row_ids: Sequence[str], partition_count: int) -> Answer:
    """The answer to a fetch of named rows; those that the service does not know are left out.

    A row that is left out was deleted long ago, so an answer has to speak of the partition of every row.

    Raises:
        ProtocolError: it is damaged, names rows that were not asked for, or says nothing of a partition.
    """
    answer = _read_answer(data, partition_count)
    parts = answer.parts
    asked = frozenset(row_ids)
    if any(row.row_id not in asked for part in parts for row in part.rows):
        raise ProtocolError("fetch of named rows brought others")
    if missing := set(row_partitions(row_ids, partition_count)).difference(part.partition for part in parts):
        raise ProtocolError(f"fetch of named rows says nothing of partitions {sorted(missing)[:4]}")
    return answer


def read_full(data: bytes, partition_count: int) -> Answer:
    """The answer to a fetch of a whole key.

    Raises:
        ProtocolError: it is damaged, or not of whole partitions.
    """
    answer = _read_answer(data, partition_count)
    if not all(part.whole for part in answer.parts):
        raise ProtocolError("fetch of a whole key brought parts of partitions")
    return answer


def read_heads(data: bytes, partition_count: int) -> HeadsReply:
    """The revision of each partition, and how many rows it has.

    Raises:
        ProtocolError: it is damaged, or of another number of partitions.
    """
    reply = decode_heads_reply(data)
    for what in (reply.heads, reply.rows):
        if len(what) != partition_count:
            raise ProtocolError(f"heads reply has {len(what)} partitions: the store has {partition_count}")
        for number in what:
            _check_revision(number)
    return reply


def _read_answer(data: bytes, partition_count: int) -> Answer:
    reply = decode_fetch_reply(data)
    parts = reply.partitions
    seen: set[int] = set()
    for part in parts:
        if not 0 <= part.partition < partition_count or part.partition in seen:
            raise ProtocolError(f"fetch reply names partition {part.partition}: twice, or beyond {partition_count}")
        seen.add(part.partition)
        _check_revision(part.revision)
        _check_rows(part.rows, part, partition_count)
    return Answer(reply.history, parts)


def _check_rows(rows: Sequence[Row], part: PartitionRows, partition_count: int) -> None:
    if not rows:
        return
    if min(row.version for row in rows) < 1 or max(row.version for row in rows) > part.revision:
        raise ProtocolError(f"partition {part.partition} as of {part.revision} has a row of a version outside it")
    if part.whole and any(row.deleted for row in rows):
        raise ProtocolError(f"whole partition {part.partition} lists a deleted row")
    _check_ids([row.row_id for row in rows], part.partition, partition_count)


def _check_ids(row_ids: Sequence[str], partition: int, partition_count: int) -> None:
    if len(set(row_ids)) != len(row_ids):
        raise ProtocolError(f"partition {partition} lists a row twice")
    found = row_partitions(row_ids, partition_count)
    _check_place(found.count(partition) == len(row_ids), partition)


def _check_place(right: bool, partition: int) -> None:
    if not right:
        raise ProtocolError(f"partition {partition} lists a row that belongs to another")


def _check_revision(revision: int) -> None:
    if not 0 <= revision <= MAX_REVISION:
        raise ProtocolError(f"revision {revision} is out of range: 0 to {MAX_REVISION} is possible")
