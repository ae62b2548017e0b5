"""Leases over a bucket: each entry has a time to live, and its holder writes it again before that ends."""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from ringcast_wire import UnavailableError

from ringcast_meta._nats.bucket import Bucket, WrongSequenceError

_TRIES: Final = 8


class _Kept:
    """An entry that is written again and again."""

    __slots__ = ("revision", "sequence", "value")

    def __init__(self, value: bytes, sequence: int) -> None:
        self.value = value
        self.sequence = sequence
        self.revision = sequence


class _State:
    def __init__(self, ttl_s: int) -> None:
        self.ttl_s = ttl_s
        self.entries: dict[str, _Kept] = {}
        self.lock = asyncio.Lock()


class BucketLeases:
    """The leases of one store. Only what is written with a lease makes the server know of it."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._leases: dict[str, _State] = {}

    def of(self, lease_id: str) -> _State:
        """What is known of a lease.

        Raises:
            UnavailableError: it has ended, or another store has it.
        """
        state = self._leases.get(lease_id)
        if state is None:
            raise UnavailableError(f"the lease {lease_id} has ended, or is another store's")
        return state

    async def grant(self, ttl_s: int) -> str:
        await self._bucket.state()
        lease_id = secrets.token_hex(8)
        self._leases[lease_id] = _State(ttl_s)
        return lease_id

    async def write(self, lease_id: str, key: str, value: bytes, expected: int) -> int:
        """Writes an entry with a lease, as :meth:`Bucket.publish`."""
        state = self.of(lease_id)
        async with state.lock:
            sequence = await self._bucket.publish(key, value, expected=expected, lease=(lease_id, state.ttl_s))
            state.entries[key] = _Kept(value, sequence)
            return sequence

    async def refresh(self, lease_id: str) -> bool:
        state = self.of(lease_id)
        async with state.lock:
            if not state.entries:
                await self._bucket.state()
                return True
            lives = await asyncio.gather(
                *(self._refresh(lease_id, state, key, kept) for key, kept in list(state.entries.items()))
            )
            return all(lives)

    async def _refresh(self, lease_id: str, state: _State, key: str, kept: _Kept) -> bool:
        """Writes an entry again, and forgets one that another has deleted or written over. ``False``: it has ended."""
        for _ in range(_TRIES):
            try:
                kept.sequence = await self._bucket.publish(
                    key, kept.value, expected=kept.sequence, lease=(lease_id, state.ttl_s), revision=kept.revision
                )
                return True
            except WrongSequenceError:
                last = await self._bucket.last(key)
                if last is None:
                    return False
                if last.lease_id != lease_id or last.entry is None or last.entry.revision != kept.revision:
                    state.entries.pop(key, None)
                    return True
                # A refresh that was stored though nobody answered.
                kept.sequence = last.sequence
        return True

    async def revoke(self, lease_id: str) -> None:
        state = self._leases.pop(lease_id, None)
        if state is not None:
            async with state.lock:
                await asyncio.gather(*(self._delete(lease_id, key, kept) for key, kept in state.entries.items()))

    async def _delete(self, lease_id: str, key: str, kept: _Kept) -> None:
        for _ in range(_TRIES):
            try:
                await self._bucket.publish_deletion(key, expected=kept.sequence)
                return
            except WrongSequenceError:
                last = await self._bucket.last(key)
                if last is None or last.lease_id != lease_id or last.entry is None:
                    return
                kept.sequence = last.sequence
