"""Calls of the client that read a key as it was, and what differs between two states of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from ringcast_wire import InvalidInputError, shown
from ringcast_wire.grpc import pb
from ringcast_wire.key_ring import ListKeys

from ringcast_client._calls.calls import Calls
from ringcast_client._common.input import check_limit, check_partition, check_range, where
from ringcast_client._common.records import RowRecord, row_record

AsOf = int | datetime | None
"""A state of a key: the number of a release, when the last row of it was published; a moment; ``None``: as it is."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class ChangeKind(StrEnum):
    """How a row differs in the later of two states."""

    ADDED = "added"
    CHANGED = "changed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that is not the same in two states of a key; ``None``: it is not there."""

    row_id: str
    partition: int
    before: RowRecord | None
    after: RowRecord | None

    @property
    def kind(self) -> ChangeKind:
        """What leads from the one state to the other."""
        if self.before is None:
            return ChangeKind.ADDED
        return ChangeKind.DELETED if self.after is None else ChangeKind.CHANGED


class StateCalls:
    """Lists of earlier states; what others write meanwhile is not in them."""

    _calls: Calls

    def _keys(self, store: str, key: str) -> ListKeys | None:
        raise NotImplementedError

    async def list_as_of(
        self, store: str, key: str, as_of: AsOf, *, partition: int | None = None, limit: int | None = None
    ) -> AsyncGenerator[RowRecord, None]:
        """The live rows of a key, or of one partition of it, as they were, by partition and row id.

        ``as_of``: the number of a release, as they were when the last row of it was published; or a moment, with a time
        zone. Moments are by the clock of the service's database, as in :meth:`history`: in each partition all writes
        before the first that began later. All rows are of one state, however long the list takes.

        Raises:
            UnknownStoreError: there is no such store.
            UnknownKeyError: nothing was ever written to the key.
            InvalidInputError: there is no such release; the moment has no time zone, is still to come, or is before the
                store was created.
            ConditionFailedError: not all of the release is published.
            RevisionGoneError: the history of the key does not reach back so far any more.
            MismatchError: the service is older than this call.
        """
        request = pb.ListAsOfRequest(
            **where(store, key), state=_state(as_of), partition=check_partition(partition), limit=check_limit(limit)
        )
        keys = self._keys(store, key)
        async with aclosing(self._calls.items(self._calls.rpc.ListAsOf, request)) as rows:
            async for row in rows:
                yield row_record(row, keys)

    async def diff(
        self,
        store: str,
        key: str,
        before: AsOf,
        after: AsOf = None,
        *,
        partition: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[RowDifference, None]:
        """The rows whose value or metadata differ between two states of a key, by partition and row id.

        Each state is as for :meth:`list_as_of`, ``None`` the one as it is; either may be the earlier one. A client with
        a key ring compares opened values, and with a ``limit`` may give fewer rows.

        Raises:
            As :meth:`list_as_of`.
        """
        request = pb.DiffRequest(
            **where(store, key),
            before=_state(before, "before"),
            after=_state(after, "after"),
            partition=check_partition(partition),
            limit=check_limit(limit),
        )
        keys = self._keys(store, key)
        async with aclosing(self._calls.items(self._calls.rpc.Diff, request)) as rows:
            async for row in rows:
                found = _difference(row, keys)
                if _content(found.before) != _content(found.after):
                    yield found


def _state(as_of: object, field: str = "as_of") -> pb.KeyState:
    if as_of is None:
        return pb.KeyState()
    if isinstance(as_of, datetime):
        if as_of.tzinfo is None:
            raise InvalidInputError(f"{field} {as_of.isoformat()} has no time zone", field=field)
        return pb.KeyState(time_ms=(as_of - _EPOCH) // _MILLISECOND)
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        return pb.KeyState(release=check_range(field, as_of, 1, 2**63 - 1))
    raise InvalidInputError(f"{field} {shown(as_of)} is neither the number of a release nor a datetime", field=field)


def _difference(message: pb.RowDifference, keys: ListKeys | None) -> RowDifference:
    before = row_record(message.before, keys) if message.HasField("before") else None
    after = row_record(message.after, keys) if message.HasField("after") else None
    row = message.before if before is not None else message.after
    return RowDifference(row.row_id, row.partition, before, after)


def _content(row: RowRecord | None) -> tuple[str, dict[str, str]] | None:
    return None if row is None else (row.value, row.metadata)
