"""Checks that a worker's own records still are in the bucket, where other workers read them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Final

from ringcast_wire import EventLog, NodeRecord, names

from ringcast._bus.buckets import Bucket
from ringcast._bus.bus import TRANSIENT
from ringcast._protocol.kv_mirror import KvMirror

_CHECK_S: Final = (4.0, 6.0)
"""Between two checks, each of the records of one key, so long passes."""


class OwnRecords:
    """Reads the records of one key after the other, and corrects the mirror where the bucket has others.

    A watch reports what is written and deleted. A record that a server has lost, or that was removed without a
    marker, disappears without a report: workers that know it keep it in their mirrors, and one that starts does not
    see it, so that both would assign the same partitions to themselves. A record that is missing is written again.
    """

    def __init__(
        self,
        bucket: Bucket,
        mirror: KvMirror,
        *,
        worker_id: str,
        keys: Sequence[str],
        corrected: Callable[[], None],
        log: EventLog,
    ) -> None:
        self._bucket = bucket
        self._mirror = mirror
        self._worker_id = worker_id
        self._keys = keys
        self._corrected = corrected
        self._log = log

    async def run(self) -> None:
        """Checks until cancelled."""
        for key in cycle(self._keys):
            await asyncio.sleep(random.uniform(*_CHECK_S))  # noqa: S311  so that workers take turns
            try:
                for name in self._names(key):
                    await self._check(name)
            except TRANSIENT as error:
                self._log.debug("records.read_failed", key=key, error=error)

    def _names(self, key: str) -> Iterator[str]:
        node = names.node_key(key, self._worker_id)
        record = self._mirror.get(node, NodeRecord)
        if record is not None:
            yield node
            yield names.slot_key(key, record.slot)

    async def _check(self, name: str) -> None:
        expected = self._mirror.entries.get(name)
        found = await self._bucket.get(name)
        if expected is None or self._mirror.entries.get(name) != expected:
            return  # it was written meanwhile
        if found is None or found.revision > expected.revision:  # one that is older comes from a server that lags
            self._log.warning("record.differs", record=name, found=found is not None)
            self._mirror.correct(name, found)
            self._corrected()
