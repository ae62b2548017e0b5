"""The bucket of groups: what is told of records that can't be read."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from ringcast._bus.buckets import Found
from ringcast._coordination import group_seals
from ringcast._coordination.group_seals import GroupSeals
from ringcast_wire import EventLog, GroupSeal, encode_record

GOOD = encode_record(GroupSeal(history="h", revision=1))


async def test_a_seal_that_cannot_be_read_is_told_of_once_until_it_can_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    records: dict[str, bytes] = {"a": b"{", "b": b"{", "c": GOOD}

    class Kept:
        """A bucket that has these records, and all buckets."""

        def bucket(self, _name: str) -> Kept:
            return self

        async def read(self, *_: Any) -> dict[str, Found]:
            return {key: Found(1, data, 0.0) for key, data in records.items()}

    seals = GroupSeals(cast(Any, Kept()), "s", EventLog(logging.getLogger("seals")))

    async def told() -> int:
        caplog.clear()
        entries = await seals.read(list(records))
        assert {key for key, entry in entries.items() if entry.damaged} == {
            key for key, data in records.items() if data != GOOD
        }
        return caplog.text.count("group.seal_unreadable")

    assert [await told() for _ in range(3)] == [2, 0, 0]
    records["a"] = GOOD
    assert await told() == 0
    records["a"] = b"["
    assert [await told() for _ in range(2)] == [1, 0]
    monkeypatch.setattr(group_seals, "_MOST_UNREADABLE", 2)
    records["d"] = b"{"
    assert await told() == 1
